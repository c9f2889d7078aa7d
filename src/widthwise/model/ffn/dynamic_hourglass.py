"""Dynamic hourglass: a stack of narrow blocks of which each token passes the first few, as many as its score says.

Score, mask and budget are those of the dynamic width (width_choice.py), with blocks for units: a width of 2.6 passes
the blocks whose centres, 1/2, 3/2 and 5/2, lie below it. One block, and a token may skip its feed-forward.
"""

from typing import Literal

import pydantic

from widthwise.config_io import options_of
from widthwise.model.cost import Cost
from widthwise.model.ffn.hourglass import KEPT_OF_BLOCKS, BlockOptions, HourglassConfig, StackConfig, StackTemplate
from widthwise.model.ffn.interface import FFNConfig, register_ffn
from widthwise.model.ffn.width_choice import WidthChoice, WidthChoosingConfig
from widthwise.model.kinds import all_must_agree, must_stay
from widthwise.model.norm import NormSite


class DynamicHourglassConfig(WidthChoosingConfig, StackConfig):
    """n_blocks times h = h + mask * block(norm(h)), with a mask for each token and block."""

    kept = (*KEPT_OF_BLOCKS, "min_fraction", "score")
    counted_by, units_are, unchosen = "n_blocks", "blocks", HourglassConfig
    module = "widthwise.model.ffn.dynamic_hourglass_module:DynamicHourglass"
    kind: Literal["dynamic_hourglass"] = "dynamic_hourglass"

    @pydantic.model_validator(mode="after")
    def _check_blocks(self) -> "DynamicHourglassConfig":
        if isinstance(self.d_hidden, tuple):
            raise ValueError(
                f"d_hidden: got {list(self.d_hidden)}; must be one width, so that a share of the blocks is that share "
                "of the units"
            )
        return self

    @property
    def full_width(self) -> int:
        return self.n_blocks

    def cost(self, d_model: int, d_out: int) -> Cost:
        """Cost of the masked form, where every token computes all blocks; see `flops_of_units` for what is skipped."""
        return super().cost(d_model, d_out) + self.choice_cost(d_model)

    def norm_cost(self, d_model: int, d_out: int, norm: NormSite) -> Cost:
        """With it what masking keeps for the backward pass: what the blocks add, unless a norm keeps that already."""
        _, own = self.norm_sites(d_model, d_out, norm)
        updates = zip(own, self.block_outputs(d_model, d_out))
        n_kept = sum(d_write for site, d_write in updates if self.mask.has_width and not site.keeps_update)
        return super().norm_cost(d_model, d_out, norm) + Cost(activation_elements=n_kept)

    def flops_of_units(self, n_units: float, d_model: int, d_out: int) -> float:
        """The blocks count alike, though the last one of a slim last layer costs less."""
        blocks = self.block_costs(d_model, d_out)
        return n_units / sum(self.hidden_widths) * sum(cost.flops for cost in blocks)

    def with_constants_of(self, old: FFNConfig, reads_more: bool) -> FFNConfig:
        """A feed-forward without a choice becomes one in which every token starts with all blocks."""
        if isinstance(old, DynamicHourglassConfig):
            super().with_constants_of(old, reads_more)
            must_stay(("n_blocks",), old, self)
            if self.begins_to_choose(old):
                return self.started_whole(old)
            self.check_choice(old, reads_more)
            return self.model_copy(update={"mask": old.mask, "start": old.start})
        if isinstance(old, HourglassConfig):
            all_must_agree(KEPT_OF_BLOCKS, old, self)
            self.check_sharing(old)
        else:
            super().with_constants_of(old, reads_more)
        return self.started_whole(old)


class DynamicHourglassTemplate(WidthChoice, StackTemplate):
    """A dynamic hourglass for a layer of any width."""

    kind: Literal["dynamic_hourglass"] = "dynamic_hourglass"

    def cost(self, d_model: float, d_out: float) -> Cost:
        return super().cost(d_model, d_out) + self.choice_cost(d_model)

    def at_width(self, d_model: int) -> DynamicHourglassConfig:
        options = {**options_of(BlockOptions, self), **options_of(WidthChoice, self)}
        options["mask"] = self.mask.at_width(self.n_blocks)
        return DynamicHourglassConfig(n_blocks=self.n_blocks, d_hidden=self.whole_hidden(d_model), **options)


register_ffn(DynamicHourglassConfig, DynamicHourglassTemplate)
