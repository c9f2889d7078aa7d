"""Norms and their placement: before a sublayer, after it, both, or nowhere."""

from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal, NamedTuple

import pydantic

from widthwise.config_io import Config
from widthwise.model.cost import Axes, Cost, size, vector
from widthwise.sizes import Width

if TYPE_CHECKING:
    from widthwise.model.axes import NoNorm, Norm


NormKind = Literal["rms", "layer"]


N_VECTORS = {"rms": 1, "layer": 2}
"""Kind of norm -> number of parameter vectors: the gain, and the bias if there is one."""


class NormConfig(Config):
    """One norm; see `model.axes.Norm`."""

    kind: NormKind = "rms"
    eps: pydantic.PositiveFloat = 1e-5
    norm_dim: pydantic.PositiveInt
    """Divisor of the sum of squares."""
    stat_width: Width | None = None
    """Number of leading coordinates in the sum of squares; null: all. For `rms` only."""
    gain_offset: pydantic.NonNegativeFloat = 0.0
    """Constant added to the weight, which starts at 1 - gain_offset: 1 if gains are stored as 1 + weight (Gemma)."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "NormConfig":
        if self.kind != "rms" and self.stat_width is not None:
            raise ValueError(f"stat_width: got {self.stat_width}; is only for an rms norm")
        return self

    def cost(self, width: int, n_vectors: int = 1, is_read: bool = True) -> Cost:
        """Return the cost of normalising n_vectors of each token.

        is_read: True if a matrix product follows, which keeps the output for its backward pass; False otherwise, and
        before the head, which keeps a gradient instead.
        """
        # All norms keep one reciprocal root mean square per vector. The backward pass of an rms norm of all coordinates
        # needs its output. Other norms keep two numbers for each coordinate in fp32: the input (without its mean for
        # `layer`), and the input over its root mean square.
        keeps_output = self.kind == "rms" and self.stat_width is None
        n_outputs = n_vectors * width if is_read or keeps_output else 0
        n_in_fp32 = n_vectors * (1 if keeps_output else 1 + 2 * width)
        parameters = vector(N_VECTORS[self.kind] * width)
        return parameters + Cost(activation_elements=n_outputs, activation_fp32_elements=n_in_fp32)

    def build(self, axes: Axes, is_after: bool = False) -> "Norm":
        """Build the module. is_after: True to normalise the output of a sublayer, False to normalise its input."""
        norm_class = resolve_name("widthwise.model.axes:NORM_MODULES")[self.kind]
        norm = norm_class(axes, self.eps, self.norm_dim, self.stat_width, self.gain_offset)
        norm.is_after = is_after
        return norm


class Place(NamedTuple):
    """Places of norms around a sublayer f. By default there is no norm."""

    is_before: bool = False
    """f(norm(x)), the usual order."""
    is_after: bool = False
    """norm(f(x)): the update is normalised before it is added to the stream. Source: OLMo 2, arXiv:2501.00656."""

    def normalised_width(self, d_read: int, d_write: int) -> int:
        """Return the width of the first norm of a sublayer, 0 without norms.

        The sublayer reads d_read coordinates and writes d_write.
        """
        if self.is_before:
            return d_read
        return d_write if self.is_after else 0


Placement = Literal["pre", "reordered", "both"]
PLACEMENTS = {
    "pre": Place(is_before=True),
    "reordered": Place(is_after=True),
    "both": Place(is_before=True, is_after=True),
}


@dataclass(frozen=True)
class NormSite:
    """Places and config of the norms of a sublayer. The sublayer knows its widths and builds them.

    Norms before and after it (Gemma 2, arXiv:2408.00118) have one config, and so one divisor.
    """

    place: Place
    config: NormConfig

    def cost(self, d_read: int, d_write: int) -> Cost:
        """Return the cost of the norms, and of the sublayer's input, which is kept for the backward pass.

        The sublayer reads d_read coordinates and writes d_write. Its input is the output of the norm before it, or
        without such a norm the stream in the dtype of the matrix products.
        """
        cost = self.config.cost(d_read) if self.place.is_before else Cost(activation_elements=d_read)
        return cost + self.update_norm.cost(d_write, is_read=False) if self.place.is_after else cost

    @property
    def update_norm(self) -> NormConfig:
        """The config of the norm after the sublayer. Its sum of squares is over the whole update, because the update is
        0 at coordinates that growth added.
        """
        return self.config.model_copy(update={"stat_width": None})

    def of_part(self, d_read: int, d_write: int, d_part: int) -> "NormSite":
        """Return the norm site of a part of the sublayer, such as a block of an hourglass.

        The sublayer reads d_read coordinates and writes d_write; the part also reads d_read, and writes d_part. The
        divisor changes by as much as the normalised width.
        """
        change = self.place.normalised_width(d_read, d_part) - self.place.normalised_width(d_read, d_write)
        return replace(self, config=self.config.model_copy(update={"norm_dim": self.config.norm_dim + change}))

    def build(self, d_read: int, d_write: int) -> "Norm | NoNorm":
        """Build the norms of a sublayer that reads d_read coordinates and writes d_write."""
        width = self.place.normalised_width(d_read, d_write)
        if not width:
            return resolve_name("widthwise.model.axes:NoNorm")()
        norm = self.config.build({"d_model": width}, is_after=not self.place.is_before)
        if self.place.is_before and self.place.is_after:
            norm.post = self.update_norm.build({"d_model": d_write}, is_after=True)
        return norm


class QKNormConfig(Config):
    """RMSNorm of queries and keys before the rotation. Sources: Dehghani et al. 2023 (per head), OLMo 2 (all heads)."""

    eps: pydantic.PositiveFloat = 1e-5
    over: Literal["head", "all_heads"] = "head"
    """Normalise each head separately (Qwen 3), or all heads together (OLMo 2)."""
    q_norm_dim: pydantic.PositiveInt | None = None
    """Divisor of the sum of squares of a query; null: its size. A grown head keeps its old divisor."""
    k_norm_dim: pydantic.PositiveInt | None = None
    """Divisor of the sum of squares of a key; null: its size."""
    gain_offset: pydantic.NonNegativeFloat = 0.0
    """Constant added to the weight, as in NormConfig."""

    def axes(self, heads: Axes) -> Axes:
        """Return the normalised axes. heads: the axes of queries or keys, n_heads first."""
        return {"head_dim": heads["head_dim"]} if self.over == "head" else heads

    def build(self, heads: Axes, norm_dim: int | None) -> "Norm":
        """Build the module for queries or keys. norm_dim: their `q_norm_dim` or `k_norm_dim`."""
        axes = self.axes(heads)
        norm_dim = size(axes) if norm_dim is None else norm_dim
        return NormConfig(eps=self.eps, norm_dim=norm_dim, gain_offset=self.gain_offset).build(axes)

    def cost(self, heads: Axes, is_kept_by_attention: bool) -> Cost:
        """Return the cost of the gain, the output, and one reciprocal root mean square per norm.

        is_kept_by_attention: True if attention keeps the output anyway, because it neither rotates nor pads it.
        """
        norm_width = size(self.axes(heads))
        n_kept = 0 if is_kept_by_attention else size(heads)
        return vector(norm_width) + Cost(activation_elements=n_kept, activation_fp32_elements=size(heads) // norm_width)
