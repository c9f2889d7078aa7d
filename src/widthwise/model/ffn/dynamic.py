"""Dynamic-width feed-forward: a SwiGLU in which each token uses only its first few units, as many as its score says.

Source: Dynamic Width Feedforward Networks (Aardvark, 2025), whose method is score `ln_mean` with mask `hard`. As
written, all its tokens use half of the units; the other scores and masks make a width that is actually learned.

A width, a centre or a temperature is measured in units that the layer had before any growth, so that it keeps its
meaning when units are inserted (see unit_ranks.py). Counts of units refer to those it has now.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from widthwise.config_io import Config, mistakes_at, options_of
from widthwise.kernels import sliced_swiglu, swiglu
from widthwise.kernels.dispatch import compute_dtype, use_fused, without_autocast
from widthwise.kernels.sliced_swiglu import Mask, bucketed_units, fused, sliced_is_faster, units_for_all, whole_units
from widthwise.kernels.sliced_swiglu.reference import unit_centres
from widthwise.model.agreement import must_stay
from widthwise.model.axes import Linear, Vector
from widthwise.model.context import PassContext
from widthwise.model.cost import Cost, vector
from widthwise.model.ffn.interface import (
    Blocks,
    Choices,
    FeedForward,
    FFNConfig,
    HiddenWidthTemplate,
    register_ffn,
)
from widthwise.model.ffn.swiglu import SwiGLUConfig, swiglu_cost
from widthwise.model.ffn.unit_ranks import grown_centres, old_index
from widthwise.model.ffn.width_mask import HARD, AnyWidthMask, Edge, StraightThroughMaskConfig
from widthwise.model.ffn.width_score import AnyWidthScore, GainedScore, LinearScoreConfig, TokenScoreConfig, wide
from widthwise.model.norm import NormSite
from widthwise.model.shards import whole
from widthwise.sizes import Width


class WidthChoice(Config):
    """How a token's width is chosen: the options that do not depend on the width of the layer.

    level = sigmoid(score + bias), width_fraction = min_fraction + (1 - min_fraction) * level.
    """

    score: AnyWidthScore = LinearScoreConfig()
    mask: AnyWidthMask = StraightThroughMaskConfig()
    min_fraction: float = Field(default=1 / 3, ge=0, le=1)
    """The smallest width of a token, as a fraction of the width that uses all units."""
    start: float = Field(default=0.9, gt=0, lt=1)
    """The level of all tokens at the start of training. High, because units that no token uses do not learn."""
    execution: Literal["auto", "masked", "sliced"] = "auto"
    """`masked` computes all units and multiplies by the mask, `sliced` computes only units in use, `auto` takes what is
    faster, on a CPU. Slicing needs a mask that is exactly 0 with no derivative: in evaluation every mask but `soft`, in
    training `hard`, `nested` and `linear_ramp`. Otherwise, and in compiled code, the layer is masked."""

    def choice_cost(self, d_model: float) -> Cost:
        """Cost of score, bias and mask; the width is kept for the backward pass."""
        if not self.mask.has_width:
            return Cost()
        return self.score.cost(d_model) + vector(1) + self.mask.cost() + Cost(activation_fp32_elements=1)


class DynamicConfig(WidthChoice, FFNConfig):
    """The feed-forward down(mask * silu(gate(x)) * up(x)), with a mask for each token."""

    kept = ("min_fraction", "score")
    hidden_axes: ClassVar = {"d_ff": "d_ff"}
    active_at_start = ("score", "bias", "mask")
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
        if self.mask != self.mask.at_width(self.full_width):
            raise ValueError("mask.temperature: is required where d_ff is given for one layer; d_ff / 32 is usual")
        return self

    @property
    def sizes(self) -> tuple[int, ...]:
        """All values of d_ff, past ones oldest first, then the current one."""
        return (*self.grown_from, self.d_ff)

    @property
    def full_width(self) -> int:
        """The width of a token that uses all units: d_ff before any growth."""
        return self.sizes[0]

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        return (self.d_ff,)

    @property
    def vocab_size(self) -> int | None:
        return self.score.vocab_size if isinstance(self.score, TokenScoreConfig) else None

    def cost(self, d_model: int, d_out: int) -> Cost:
        """Cost of the masked form, where every token computes all units; see `flops_of_units` for the sliced form."""
        return swiglu_cost(d_model, self.d_ff, d_out) + self.choice_cost(d_model)

    @staticmethod
    def flops_of_units(n_units: float, d_model: int, d_out: int) -> float:
        """Forward FLOPs of a token that computes n_units, without its score."""
        return swiglu_cost(d_model, n_units, d_out).flops

    def build(self, d_model: int, d_out: int, norm: NormSite) -> "DynamicWidth":
        return DynamicWidth(self, d_model, d_out, norm)

    def with_constants_of(self, old: FFNConfig, reads_more: bool) -> FFNConfig:
        """Units keep their ranks; widths, centres and temperatures stay in units of the original layer.

        A SwiGLU becomes a layer in which every token starts with all units.
        """
        if isinstance(old, SwiGLUConfig):
            return self._started_whole()
        super().with_constants_of(old, reads_more)
        assert isinstance(old, DynamicConfig)
        with mistakes_at("mask"):
            must_stay(("kind",), old.mask, self.mask)
        if reads_more and old.score.is_stream_mean:
            raise ValueError(
                f"score: got {old.score.kind}, a mean over the stream, which is another one over a wider stream; use "
                "linear or mlp"
            )
        if self.d_ff < old.d_ff:
            raise ValueError(f"d_ff: got {self.d_ff} where it was {old.d_ff}; growth takes nothing away")
        grown_from = old.grown_from if self.d_ff == old.d_ff else old.sizes
        return old.model_copy(update={"d_ff": self.d_ff, "grown_from": grown_from, "execution": self.execution})

    def _started_whole(self) -> "DynamicConfig":
        """This config with a `start` so high that the mask is exactly 1 for every unit and every token.

        The width then ends a quarter of a unit beyond the centre of the last unit. Raises ValueError if no level can
        achieve that.
        """
        if not self.mask.is_exact:
            raise ValueError(
                f"mask.kind: got {self.mask.kind}, which is below 1 for some units at any width, or draws widths; a "
                "swiglu becomes a dynamic feed-forward with ste, hard or none"
            )
        if self.mask.has_width and not self.score.starts_at_zero:
            raise ValueError(
                f"score.kind: got {self.score.kind}, which starts at another number for every token; a swiglu becomes "
                "a dynamic feed-forward with linear, mlp, token or const"
            )
        if self.grown_from:
            raise ValueError(f"grown_from: got {list(self.grown_from)}; a swiglu has units of one growth only")
        n_chosen = self.d_ff * (1 - self.min_fraction)
        return self if n_chosen == 0 else self.model_copy(update={"start": max(self.start, 1 - 0.25 / n_chosen)})

    def units_before(self, n_old: int, n_new: int) -> Sequence[int]:
        return old_index(self.sizes) if self.grown_from and n_new > n_old else super().units_before(n_old, n_new)

    def growth_in_words(self, old: FFNConfig, blocks: Blocks) -> Iterator[str]:
        if isinstance(old, SwiGLUConfig):
            yield f"feed-forward {old.kind} -> {self.kind}, every token with all units at first (conversion)"
        yield from super().growth_in_words(old, blocks)

    def left_by_bake(self) -> Iterator[str]:
        if self.grown_from:
            yield f"grown_from: {list(self.grown_from)}; a width counts the first of these units"


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


class DynamicWidth(FeedForward):
    """A width depends on its own token only, so it is the same in decoding as in training (but for a random score)."""

    def __init__(self, config: DynamicConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.config = config
        self.norm = norm.build(d_model, d_out)
        self.w_gate = Linear({"d_model": d_model}, {"d_ff": config.d_ff})
        self.w_up = Linear({"d_model": d_model}, {"d_ff": config.d_ff})
        self.w_down = Linear({"d_ff": config.d_ff}, {"d_model": d_out})
        self.mask = config.mask.build(config.full_width)
        self.score = config.score.build(d_model) if config.mask.has_width else None
        self.bias = Vector({}, math.log(config.start / (1 - config.start))) if config.mask.has_width else None

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        """The reported width fraction is 1 in a layer without a mask, and the forced one if `context` forces one."""
        stream, x = x, self.norm.before(x)
        if context.width_fraction is not None:
            asked = used = wide(context.width_fraction).expand(x.shape[:2])
            edge = HARD
        elif self.score is None:
            asked = used = torch.ones_like(wide(x[..., 0]))
            edge = None
        else:
            level = _recomputed(self._level, self.score.source(x, stream, context))
            asked, used = self._fraction(level), self._fraction(self.mask.drawn(level))
            edge = self.mask.edge(context.progress)
        return self.norm.after(self._update(x, self.config.full_width * used, edge)), {"width_fraction": asked}

    def _level(self, source: Tensor) -> Tensor:
        """The level (B, T), from 0 to 1, of a source as returned by the score."""
        assert self.score is not None
        assert self.bias is not None
        with without_autocast(source):
            return torch.sigmoid(self.score(source) + wide(self.bias()))

    def _fraction(self, level: Tensor) -> Tensor:
        return self.config.min_fraction + (1 - self.config.min_fraction) * level

    def _update(self, x: Tensor, width: Tensor, edge: Edge | None) -> Tensor:
        """x: (B, T, d_model), width: (B, T) in units -> (B, T, d_out)."""
        if edge is None:
            return self.w_down(swiglu(self.w_gate(x), self.w_up(x)))
        sliced = self._sliced_form(x, edge)
        if sliced is None:
            return self._masked(x, width, edge.mask)
        weights = (matrix.weight for matrix in (self.w_gate, self.w_up, self.w_down))
        width, margin = self._as_never_grown(width.flatten(), edge.margin)
        update = sliced(x.flatten(0, 1), *weights, width, edge.mask, margin)
        return update.unflatten(0, x.shape[:2])

    def _sliced_form(self, x: Tensor, edge: Edge) -> Callable[..., Tensor] | None:
        """The function that skips unused units; None if that is impossible here or not wanted."""
        if edge.margin == math.inf or self.config.execution == "masked" or torch.compiler.is_compiling():
            return None
        if self.config.grown_from and edge.margin > 0:
            return None  # a ramp needs the true centres, and the sliced forms assume i + 1/2
        if self.config.execution == "sliced":
            return fused.sliced_swiglu
        return sliced_swiglu if use_fused(x) else None

    def _masked(self, x: Tensor, width: Tensor, mask: Mask) -> Tensor:
        """All units, times the mask; arguments as for `_update`."""
        centres = self._centres(width)

        def gated(gate: Tensor, up: Tensor, width: Tensor) -> Tensor:
            return swiglu(gate, up) * mask(width[..., None], centres).to(gate.dtype)

        return self.w_down(_recomputed(gated, self.w_gate(x), self.w_up(x), width))

    def _centres(self, like: Tensor) -> Tensor:
        """(d_ff,): the centres in units, with the dtype and device of `like`."""
        if self.config.grown_from:
            return grown_centres(self.config.sizes, like)
        return unit_centres(0, self.config.d_ff, like)

    def _as_never_grown(self, width: Tensor, margin: float) -> tuple[Tensor, float]:
        """The width and margin that reach as many units with centres at i + 1/2, which the kernels assume."""
        if not self.config.grown_from:
            return width, margin
        return torch.searchsorted(self._centres(width), width.detach() + margin).to(width.dtype), 0.0

    def used_units(self, width: Tensor) -> Tensor:
        """How many units have their centre below the width. width: (...), in units -> integers (...)."""
        return whole_units(*self._as_never_grown(width, 0.0), self.config.d_ff)

    def bucketed_units(self, width: Tensor, progress: Tensor) -> int:
        """Total units of tokens of these widths, each rounded up to a slice's edge. width: (n_tokens,), in units."""
        width, margin = self._as_never_grown(width, self.mask.edge(progress).margin)
        return int(bucketed_units(width, margin, self.config.d_ff).sum())

    def computed_units(self, width: Tensor, progress: Tensor, is_compiled: bool) -> int:
        """Total units that a forward pass over tokens of these widths computes. width: (n_tokens,), in units.

        Call it in the same mode and with the same autocast as the pass. Rows that stripes add in bf16 are not counted.
        """
        edge = self.mask.edge(progress)
        sliced = None if is_compiled else self._sliced_form(width, edge)
        if sliced is None:
            return len(width) * self.config.d_ff
        if sliced is sliced_swiglu and not sliced_is_faster(len(width), compute_dtype(self.w_gate.weight)):
            return len(width) * units_for_all(*self._as_never_grown(width, edge.margin), self.config.d_ff)
        return self.bucketed_units(width, progress)

    @torch.no_grad()
    def numbers(self, progress: Tensor) -> dict[str, float | None]:
        """The score's gain, the level's bias and the mask's temperature in units; None for what it does not have.

        Called by all processes that share the model.
        """
        log_gain = self.score.log_gain if isinstance(self.score, GainedScore) else None
        temperature = self.mask.temperature
        return {
            "gain": None if log_gain is None else _number(log_gain().exp()),
            "bias": None if self.bias is None else _number(self.bias()),
            "temperature": None if temperature is None else _number(temperature(progress)),
        }

    def choice_parameters(self) -> list[nn.Parameter]:
        """The parameters of the score and its bias."""
        modules = (self.score, self.bias)
        return [parameter for module in modules if module is not None for parameter in module.parameters()]


def _number(value: Tensor | float) -> float:
    """Of a parameter with one entry, which only one of several processes may hold, or of what follows from it."""
    return float(whole(value)) if isinstance(value, Tensor) else value


def _recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs) with only the inputs kept for the backward pass. Compiled code decides itself what to keep."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


register_ffn(DynamicConfig, DynamicTemplate)
