"""Dynamic-width feed-forward: a SwiGLU in which each token uses only its first units; a score decides how many.

Source: Dynamic Width Feedforward Networks (Aardvark, 2025), whose method is score `ln_mean` with mask `hard`. With
these, all tokens use half of the units; with other scores and masks the width is learned.

Widths, centres and temperatures are measured in units of the layer before any growth, so that they keep their meaning
when growth inserts units (see dynamic_module.py). Counts of units refer to the present layer.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pkgutil import resolve_name
from typing import ClassVar, Literal, Self

import pydantic
from pydantic import Field

from widthwise.config_io import Config, mistakes_at, options_of
from widthwise.model.cost import Cost, vector
from widthwise.model.ffn.interface import FFNConfig, HiddenWidthTemplate, register_ffn
from widthwise.model.ffn.swiglu import SwiGLUConfig, swiglu_cost
from widthwise.model.ffn.width_choice import AnyWidthMask, AnyWidthScore, LinearScoreConfig, StraightThroughMaskConfig
from widthwise.model.kinds import must_stay
from widthwise.sizes import Width


class WidthChoice(Config):
    """Options that do not depend on the width of the layer. The width of a token is measured in hidden units.

    level = sigmoid(score + bias), width_fraction = min_fraction + (1 - min_fraction) * level.
    """

    score: AnyWidthScore = LinearScoreConfig()
    mask: AnyWidthMask = StraightThroughMaskConfig()
    min_fraction: float = Field(default=1 / 3, ge=0, le=1)
    """The smallest width of a token, as a fraction of the width that uses all units."""
    start: float = Field(default=0.9, gt=0, lt=1)
    """The level of all tokens before training. It is high because units that no token uses do not learn."""
    execution: Literal["auto", "masked", "sliced"] = "auto"
    """`masked` computes all units and multiplies by the mask, `sliced` computes only the used units, `auto` takes the
    faster form on a CPU. Slicing needs units with mask 0 and no derivative: in evaluation every mask but `soft`, in
    training `hard` and, in bf16, `ste`. Otherwise, and in compiled code, the layer is masked."""

    def choice_cost(self, d_model: float) -> Cost:
        """Return the cost of score and bias. The width is kept for the backward pass."""
        if not self.mask.has_width:
            return Cost()
        return self.score.cost(d_model) + vector(1) + Cost(activation_fp32_elements=1)


class DynamicConfig(WidthChoice, FFNConfig):
    """The feed-forward down(mask * silu(gate(x)) * up(x)), with a mask for each token."""

    constant_fields = ("min_fraction", "score")
    hidden_axes: ClassVar = {"d_ff": "d_ff"}
    module = "widthwise.model.ffn.dynamic_module:DynamicWidth"
    kind: Literal["dynamic"] = "dynamic"
    d_ff: Width
    """Hidden units."""
    grown_from: tuple[Width, ...] = ()
    """d_ff before each growth, oldest first. Every token still uses the same old units."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "DynamicConfig":
        if self.mask != self.mask.at_width(self.full_width):  # which fills in a temperature of None
            raise ValueError("mask.temperature: is required if d_ff is given for one layer; d_ff / 32 is usual")
        if any(before >= after for before, after in pairwise(self.sizes)):
            raise ValueError(f"grown_from: got {list(self.grown_from)}; must increase and be below d_ff = {self.d_ff}")
        return self

    @property
    def sizes(self) -> tuple[int, ...]:
        """All values of d_ff, oldest first, including the current one."""
        return (*self.grown_from, self.d_ff)

    @property
    def full_width(self) -> int:
        """The width of a token that uses all units: d_ff before all growth."""
        return self.sizes[0]

    def cost(self, d_model: int, d_out: int) -> Cost:
        """Return the cost of the masked form, where every token computes all units."""
        return swiglu_cost(d_model, self.d_ff, d_out) + self.choice_cost(d_model)

    def with_constants_of(self, old: FFNConfig, reads_more: bool) -> FFNConfig:
        """Return `old` with the d_ff and execution of this config. Widths, centres and temperatures do not change.

        If `old` is a SwiGLU or has no mask, return this config with a start at which every token has all units.
        """
        if isinstance(old, SwiGLUConfig):
            if self.grown_from:
                raise ValueError(f"grown_from: got {list(self.grown_from)}; a swiglu has units of one growth only")
            return self._starting_at_full_width(old)
        super().with_constants_of(old, reads_more)
        assert isinstance(old, DynamicConfig)
        if self.d_ff < old.d_ff:
            raise ValueError(f"d_ff: got {self.d_ff} where it was {old.d_ff}; growth takes nothing away")
        if self.mask.has_width and not old.mask.has_width:  # tokens that used all units begin to choose
            if old.grown_from:
                raise ValueError(f"grown_from: got {list(old.grown_from)}; a layer that has grown keeps its mask")
            return self._starting_at_full_width(old)
        with mistakes_at("mask"):
            must_stay(("kind",), old.mask, self.mask)
        if reads_more and old.score.is_stream_mean:
            raise ValueError(f"score: got {old.score.kind}, a mean over the stream, which gets wider; use linear")
        grown_from = old.grown_from if self.d_ff == old.d_ff else old.sizes
        return old.model_copy(update={"d_ff": self.d_ff, "grown_from": grown_from, "execution": self.execution})

    def _starting_at_full_width(self, old: FFNConfig) -> Self:
        """Return this config with a `start` so high that the mask is exactly 1 for every unit and every token.

        Every width is then at least a quarter of a unit above the centre of the last unit. Raises ValueError if no
        `start` achieves that. old: the converted layer, which has no score.
        """
        if not self.mask.is_exact:
            raise ValueError(
                f"mask.kind: got {self.mask.kind}, which is below 1 for some units at any width; "
                f"{old.kind} becomes {self.kind} with ste, hard or none"
            )
        if self.mask.has_width and not self.score.starts_at_zero:
            raise ValueError(
                f"score.kind: got {self.score.kind}, which starts at a different number for each token; {old.kind} "
                f"becomes {self.kind} with linear or const"
            )
        n_optional = self.full_width * (1 - self.min_fraction)
        return self if n_optional == 0 else self.model_copy(update={"start": max(self.start, 1 - 0.25 / n_optional)})

    def growth_in_words(self, old: FFNConfig) -> Iterator[str]:
        start = "every token with all units at first (conversion)"
        if isinstance(old, SwiGLUConfig):
            yield f"feed-forward {old.kind} -> {self.kind}, {start}"
        elif isinstance(old, DynamicConfig) and self.mask.has_width and not old.mask.has_width:
            yield f"mask {old.mask.kind} -> {self.mask.kind}, {start}"
        yield from super().growth_in_words(old)

    def units_before(self, n_old: int, n_new: int) -> Sequence[int]:
        if not self.grown_from or n_new == n_old:
            return super().units_before(n_old, n_new)
        return resolve_name("widthwise.model.ffn.dynamic_module:old_index")(self.sizes)


class DynamicTemplate(WidthChoice, HiddenWidthTemplate):
    """A dynamic-width feed-forward for a layer of any width; usually d_ff = 3 d_model."""

    usual_ratio = 3.0
    kind: Literal["dynamic"] = "dynamic"
    d_ff: Width | None = None
    """Hidden units of every layer."""

    def cost(self, d_model: float, d_out: float) -> Cost:
        return swiglu_cost(d_model, self.real_hidden(d_model), d_out) + self.choice_cost(d_model)

    def at_width(self, d_model: int) -> DynamicConfig:
        d_ff = self.whole_hidden(d_model)
        options = options_of(WidthChoice, self)
        options["mask"] = self.mask.at_width(d_ff)
        return DynamicConfig(d_ff=d_ff, **options)


register_ffn(DynamicConfig, DynamicTemplate)
