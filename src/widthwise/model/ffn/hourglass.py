"""Hourglass feed-forward: a stack of narrow SwiGLUs, the blocks, each with a residual and a norm.

Source: Revisiting the Shape Convention of Transformer Language Models, arXiv:2602.06471, equations 3 to 5.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import ClassVar, Literal, Self

import pydantic

from widthwise.model.cost import Cost
from widthwise.model.ffn.interface import FFNConfig, HiddenWidthTemplate, register_ffn
from widthwise.model.ffn.swiglu import SwiGLUConfig, swiglu_cost
from widthwise.model.kinds import must_agree
from widthwise.model.norm import NormSite
from widthwise.sizes import NBlocks, Width


class HourglassConfig(FFNConfig):
    """n_blocks times h = h + block(norm(h)). The update is the sum of the blocks' updates."""

    module = "widthwise.model.ffn.hourglass_module:Hourglass"
    kind: Literal["hourglass"] = "hourglass"
    constant_fields = ()
    hidden_axes: ClassVar = {"d_hidden": "d_ff"}
    n_blocks: NBlocks
    """K, the number of blocks."""
    d_hidden: Width | tuple[Width, ...]
    """d_h, the hidden width: one for all blocks, or one for each."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.d_hidden, tuple) and len(self.d_hidden) != self.n_blocks:
            raise ValueError(f"d_hidden: got {len(self.d_hidden)} widths for n_blocks = {self.n_blocks}")
        return self

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        return self.d_hidden if isinstance(self.d_hidden, tuple) else (self.d_hidden,) * self.n_blocks

    @property
    def n_residual_additions(self) -> int:
        return self.n_blocks

    def block_outputs(self, d_model: int, d_out: int) -> list[int]:
        """Return the number of coordinates that each block writes: d_model, but d_out for the last one."""
        return [d_model] * (self.n_blocks - 1) + [d_out]

    def block_costs(self, d_model: int, d_out: int) -> list[Cost]:
        blocks = zip(self.hidden_widths, self.block_outputs(d_model, d_out))
        return [swiglu_cost(d_model, d_hidden, d_write) for d_hidden, d_write in blocks]

    def cost(self, d_model: int, d_out: int) -> Cost:
        return sum(self.block_costs(d_model, d_out), Cost())

    def norm_cost(self, d_model: int, d_out: int, norm: NormSite) -> Cost:
        return sum((norm.cost(d_model, d_write) for d_write in self.block_outputs(d_model, d_out)), Cost())

    def with_constants_of(self, old: FFNConfig, reads_more: bool) -> FFNConfig:
        """Return this config. A SwiGLU becomes the first block. Blocks can be added, but not removed."""
        if isinstance(old, SwiGLUConfig):
            return self
        grown = super().with_constants_of(old, reads_more)
        if self.n_blocks < old.n_residual_additions:
            must_agree("n_blocks", old.n_residual_additions, self.n_blocks, "; growth takes nothing away")
        return grown

    def name_before(self, old: FFNConfig, name: str) -> str | None:
        first, *rest = name.split(".")
        if first != "blocks":
            return name
        if int(rest[0]) >= old.n_residual_additions:
            return None
        return ".".join(rest[1:]) if isinstance(old, SwiGLUConfig) else name

    def growth_in_words(self, old: FFNConfig) -> Iterator[str]:
        if isinstance(old, SwiGLUConfig):
            yield f"feed-forward {old.kind} -> {self.kind}, whose first block it becomes (conversion)"
        for i, (before, after) in enumerate(zip_longest(old.hidden_widths, self.hidden_widths)):
            if before is None:
                yield f"feed-forward block {i} added, {after} hidden units, silent at first (block addition)"
            elif after != before:
                yield f"feed-forward block {i} {before} -> {after} hidden units (MLP expansion)"


class HourglassTemplate(HiddenWidthTemplate):
    """An hourglass for a layer of any width; usually d_hidden = 0.4 d_model."""

    kind: Literal["hourglass"] = "hourglass"
    hidden_key = "d_hidden"
    usual_ratio = 0.4
    n_blocks: NBlocks = 4
    """K, the number of blocks."""
    d_hidden: Width | None = None
    """Hidden width of every block of every layer."""

    def cost(self, d_model: float, d_out: float) -> Cost:
        d_hidden = self.real_hidden(d_model)
        inner_blocks = [swiglu_cost(d_model, d_hidden, d_model)] * (self.n_blocks - 1)
        return sum(inner_blocks, swiglu_cost(d_model, d_hidden, d_out))

    def at_width(self, d_model: int) -> HourglassConfig:
        return HourglassConfig(n_blocks=self.n_blocks, d_hidden=self.whole_hidden(d_model))


register_ffn(HourglassConfig, HourglassTemplate)
