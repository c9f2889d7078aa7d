"""Dynamic-width feed-forward: a SwiGLU in which each token uses only its first few units, as many as its score says.

Source: Dynamic Width Feedforward Networks (Aardvark, 2025), whose method is score `ln_mean` with mask `hard`. As
written, all its tokens use half of the units; the other scores and masks make a width that is actually learned.

A width, a centre or a temperature is measured in units that the layer had before any growth, so that it keeps its
meaning when units are inserted (see dynamic_module.py). Counts of units refer to those it has now.
"""

from collections.abc import Sequence
from itertools import pairwise
from pkgutil import resolve_name
from typing import ClassVar, Literal

import pydantic

from widthwise.config_io import options_of
from widthwise.model.cost import Cost
from widthwise.model.ffn.interface import FFNConfig, HiddenWidthTemplate, register_ffn
from widthwise.model.ffn.swiglu import SwiGLUConfig, swiglu_cost
from widthwise.model.ffn.width_choice import WidthChoice, WidthChoosingConfig
from widthwise.sizes import Width


class DynamicConfig(WidthChoosingConfig):
    """The feed-forward down(mask * silu(gate(x)) * up(x)), with a mask for each token."""

    kept = ("min_fraction", "score")
    hidden_axes: ClassVar = {"d_ff": "d_ff"}
    module = "widthwise.model.ffn.dynamic_module:DynamicWidth"
    kind: Literal["dynamic"] = "dynamic"
    d_ff: Width
    """Hidden units."""
    grown_from: tuple[Width, ...] = ()
    """d_ff before each growth, oldest first. Every token keeps the units that it used before."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "DynamicConfig":
        if any(before >= after for before, after in pairwise(self.sizes)):
            got = f"grown_from: got {list(self.grown_from)}"
            raise ValueError(f"{got}; must be sizes that increase, the last below d_ff = {self.d_ff}")
        return self

    @property
    def sizes(self) -> tuple[int, ...]:
        """All values of d_ff, past ones oldest first, then the current one."""
        return (*self.grown_from, self.d_ff)

    @property
    def full_width(self) -> int:
        """The width of a token that uses all units: d_ff before any growth."""
        return self.sizes[0]

    def cost(self, d_model: int, d_out: int) -> Cost:
        """Cost of the masked form, where every token computes all units; see `flops_of_units` for the sliced form."""
        return swiglu_cost(d_model, self.d_ff, d_out) + self.choice_cost(d_model)

    def flops_of_units(self, n_units: float, d_model: int, d_out: int) -> float:
        return swiglu_cost(d_model, n_units, d_out).flops

    def with_constants_of(self, old: FFNConfig, reads_more: bool) -> FFNConfig:
        """Units keep their ranks; widths, centres and temperatures stay in units of the original layer.

        A SwiGLU, or a layer without a mask, becomes one in which every token starts with all units.
        """
        if isinstance(old, SwiGLUConfig):
            if self.grown_from:
                raise ValueError(f"grown_from: got {list(self.grown_from)}; a swiglu has units of one growth only")
            return self.started_whole(old)
        super().with_constants_of(old, reads_more)
        assert isinstance(old, DynamicConfig)
        if self.d_ff < old.d_ff:
            raise ValueError(f"d_ff: got {self.d_ff} where it was {old.d_ff}; growth takes nothing away")
        if self.begins_to_choose(old):
            if old.grown_from:
                raise ValueError(f"grown_from: got {list(old.grown_from)}; a layer that has grown keeps its mask")
            return self.started_whole(old)
        self.check_choice(old, reads_more)
        grown_from = old.grown_from if self.d_ff == old.d_ff else old.sizes
        return old.model_copy(update={"d_ff": self.d_ff, "grown_from": grown_from, "execution": self.execution})

    def units_before(self, n_old: int, n_new: int) -> Sequence[int]:
        if not self.grown_from or n_new == n_old:
            return super().units_before(n_old, n_new)
        return resolve_name("widthwise.model.ffn.dynamic_module:old_index")(self.sizes)


class DynamicTemplate(WidthChoice, HiddenWidthTemplate):
    """A dynamic-width feed-forward for a layer of any width; usually d_ff = 3 d_model."""

    hidden_key = "d_ff"
    usual_ratio = 3.0
    kind: Literal["dynamic"] = "dynamic"
    d_ff: Width | None = None
    """Hidden units of every layer."""

    def cost(self, d_model: float, d_out: float) -> Cost:
        return swiglu_cost(d_model, self.real_hidden(d_model), d_out) + self.choice_cost(d_model)

    def at_width(self, d_model: int) -> DynamicConfig:
        d_ff, options = self.whole_hidden(d_model), options_of(WidthChoice, self)
        options["mask"] = self.mask.at_width(d_ff)
        return DynamicConfig(d_ff=d_ff, **options)


register_ffn(DynamicConfig, DynamicTemplate)
