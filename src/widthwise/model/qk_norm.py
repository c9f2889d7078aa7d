"""The norms of queries and keys inside an attention."""

from typing import TYPE_CHECKING, Literal

import pydantic

from widthwise.config_io import Config
from widthwise.model.axis_sizes import Axes, size
from widthwise.model.cost import Cost, vector

if TYPE_CHECKING:
    from widthwise.model.axes import RMSNorm


class QKNormConfig(Config):
    """RMSNorm of queries and keys before the rotation. Sources: Dehghani et al. 2023 (per head), OLMo 2 (all heads)."""

    eps: pydantic.PositiveFloat = 1e-5
    over: Literal["head", "all_heads"] = "head"
    """Whether each head is normalised alone (Qwen 3) or all heads together (OLMo 2)."""
    q_norm_dim: pydantic.PositiveInt | None = None
    """Divisor of the sum of squares of a query; null: its size. A grown head keeps the divisor of its old size."""
    k_norm_dim: pydantic.PositiveInt | None = None
    """The same for keys."""

    def axes(self, heads: Axes) -> Axes:
        """The axes one norm covers. heads: the axes of queries or keys, n_heads first."""
        return {"head_dim": heads["head_dim"]} if self.over == "head" else heads

    def cost(self, heads: Axes, is_kept_by_attention: bool) -> Cost:
        """The gain, the output, and one reciprocal root mean square per norm.

        is_kept_by_attention: whether attention keeps the output anyway, because it neither rotates nor pads it.
        """
        covered = size(self.axes(heads))
        n_kept = 0 if is_kept_by_attention else size(heads)
        return vector(covered) + Cost(activation_elements=n_kept, activation_fp32_elements=size(heads) // covered)

    def build(self, heads: Axes, norm_dim: int | None) -> "RMSNorm":
        """norm_dim: q_norm_dim or k_norm_dim."""
        axes = self.axes(heads)
        from widthwise.model.axes import RMSNorm

        return RMSNorm(axes, self.eps, size(axes) if norm_dim is None else norm_dim)
