"""The norms: what one computes, and where it stands in a sublayer: before it, after it, or nowhere."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import pydantic

from widthwise.config_io import Config
from widthwise.model.cost import Axes, Cost, size, vector
from widthwise.sizes import Width

if TYPE_CHECKING:
    from widthwise.model.axes import Norm, SublayerNorm


NormKind = Literal["rms", "layer"]


class NormForm(NamedTuple):
    """Cost per coordinate of a kind of norm, without its output."""

    n_params: int
    n_kept_in_fp32: int
    """Numbers that autograd keeps: of `layer` the input without its mean, and that over its root mean square; of `rms`
    with a stat_width the input, and that over its root mean square."""
    keeps_output: bool
    """Whether its backward pass works from the output."""


NORMS = {"rms": NormForm(1, 0, keeps_output=True), "layer": NormForm(2, 2, keeps_output=False)}
RMS_OF_A_PART = NormForm(1, 2, keeps_output=False)


class NormConfig(Config):
    """One norm; see `model.axes.Norm`."""

    kind: NormKind = "rms"
    eps: pydantic.PositiveFloat = 1e-5
    norm_dim: pydantic.PositiveInt
    """Divisor of the sum of squares."""
    stat_width: Width | None = None
    """Coordinates whose squares are summed, the first ones; null: all. Only of `rms`."""
    output_multiplier: pydantic.PositiveFloat = 1.0
    """Constant factor of the output, 1 / sqrt(l) in layer l where norms are scaled by depth."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "NormConfig":
        if self.kind != "rms" and self.stat_width is not None:
            raise ValueError(f"stat_width: got {self.stat_width}; only an rms norm has one")
        return self

    @property
    def _form(self) -> NormForm:
        return NORMS[self.kind] if self.stat_width is None else RMS_OF_A_PART

    @property
    def keeps_output(self) -> bool:
        """True if autograd keeps the output even where nothing reads it."""
        return self._form.keeps_output

    def cost(self, width: int, n_vectors: int = 1, is_read: bool = True) -> Cost:
        """Normalising n_vectors of each token, with the reciprocal root mean squares kept for the backward pass.

        is_read: whether a matrix product comes next, which keeps the output in any case; the head's keeps gradients.
        """
        form = self._form
        n_outputs = n_vectors * width if is_read or form.keeps_output else 0
        n_in_fp32 = n_vectors * (1 + form.n_kept_in_fp32 * width)
        return vector(form.n_params * width) + Cost(activation_elements=n_outputs, activation_fp32_elements=n_in_fp32)

    def build(self, axes: Axes) -> "Norm":
        from widthwise.model.axes import NORM_MODULES

        return NORM_MODULES[self.kind](axes, self.eps, self.norm_dim, self.stat_width, self.output_multiplier)


class Before:
    """f(norm(x)), the usual order."""

    @staticmethod
    def normalised_width(d_read: int, d_write: int) -> int:
        """The width the norm sees around a sublayer that reads d_read coordinates and writes d_write."""
        return d_read

    @staticmethod
    def cost(config: NormConfig, d_read: int, d_write: int) -> Cost:
        """The norm, and its output, which the sublayer keeps for the backward pass."""
        return config.cost(d_read)

    @staticmethod
    def keeps_update(config: NormConfig) -> bool:
        """Return whether the norm makes autograd keep the update that joins the stream."""
        return False


class After:
    """norm(f(x)): the norm acts on the update before it joins the stream. Source: OLMo 2, arXiv:2501.00656."""

    @staticmethod
    def normalised_width(d_read: int, d_write: int) -> int:
        """The width of the update, which is what this norm sees."""
        return d_write

    @staticmethod
    def cost(config: NormConfig, d_read: int, d_write: int) -> Cost:
        """The norm, and the stream in the type of the matrix products, which the sublayer keeps as its input."""
        return config.cost(d_write, is_read=False) + Cost(activation_elements=d_read)

    @staticmethod
    def keeps_update(config: NormConfig) -> bool:
        """The update is the norm's output."""
        return config.keeps_output


class Nowhere:
    """f(x), a sublayer without a norm."""

    @staticmethod
    def normalised_width(d_read: int, d_write: int) -> int:
        """0: nothing is normalised."""
        return 0

    @staticmethod
    def cost(config: NormConfig, d_read: int, d_write: int) -> Cost:
        """The stream in the type of the matrix products, which the sublayer keeps as its input."""
        return Cost(activation_elements=d_read)

    @staticmethod
    def keeps_update(config: NormConfig) -> bool:
        """Never: nothing is normalised."""
        return False


Placement = Literal["pre", "reordered"]
PLACEMENTS: dict[str, type[Before | After | Nowhere]] = {"pre": Before, "reordered": After, "none": Nowhere}


@dataclass(frozen=True)
class NormSite:
    """Where the norm of a sublayer stands and what it computes; the sublayer, which knows its widths, builds it."""

    placement: str
    config: NormConfig

    def cost(self, d_read: int, d_write: int) -> Cost:
        """The cost of the norm of a sublayer that reads d_read coordinates and writes d_write."""
        return PLACEMENTS[self.placement].cost(self.config, d_read, d_write)

    @property
    def keeps_update(self) -> bool:
        """True if the norm makes autograd keep the sublayer's update, which nothing else reads."""
        return PLACEMENTS[self.placement].keeps_update(self.config)

    def moved(self, placement: str, d_read: int, d_write: int, d_part: int) -> "NormSite":
        """The site of a part of that sublayer that writes d_part coordinates and has its norm at `placement`.

        The divisor changes by as much as the normalised width does.
        """
        width = PLACEMENTS[self.placement].normalised_width(d_read, d_write)
        moved_width = PLACEMENTS[placement].normalised_width(d_read, d_part) or width  # 0 where there is no norm
        norm_dim = self.config.norm_dim + moved_width - width
        return NormSite(placement, self.config.model_copy(update={"norm_dim": norm_dim}))

    def build(self, d_read: int, d_write: int) -> "SublayerNorm":
        """The arguments are those of `cost`."""
        from widthwise.model.axes import PLACED

        width = PLACEMENTS[self.placement].normalised_width(d_read, d_write)
        config, placed = self.config, PLACED[self.placement, self.config.kind]
        return placed({"d_model": width}, config.eps, config.norm_dim, config.stat_width, config.output_multiplier)


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
