"""Dynamic-width feed-forward: a SwiGLU of which each token uses the first few units, as many as its score asks for.

Source: Dynamic Width Feedforward Networks (Aardvark, 2025), which is the score `ln_mean` with the mask `hard`. As
written all its tokens use half of the units; the other scores and masks are what makes a width that is learned.

"Units" of a width, a centre or a temperature are those that the layer had before any growth: they keep their meaning
when units come in between (see `unit_ranks`). Numbers of units are of those that it has.
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
from widthwise.sizes import Width


class WidthChoice(Config):
    """How a token's width is chosen: what does not depend on the width of the layer.

    level = sigmoid(score + bias), width_fraction = min_fraction + (1 - min_fraction) * level.
    """

    score: AnyWidthScore = LinearScoreConfig()
    mask: AnyWidthMask = StraightThroughMaskConfig()
    min_fraction: float = Field(default=1 / 3, ge=0, le=1)
    """The narrowest a token can be, over the width that uses all units."""
    start: float = Field(default=0.9, gt=0, lt=1)
    """The level at which all tokens start. High, because units that no token uses do not learn."""
    execution: Literal["auto", "masked", "sliced"] = "auto"
    """Compute all units and multiply by the mask, or only those in use; auto takes what is faster, on a CPU. Sliced is
    possible where the mask is exactly 0 with no derivative, which is evaluation with every mask but `soft`, and
    training with `hard`, `nested` and `linear_ramp`; elsewhere, and in compiled code, the layer is masked."""

    def choice_cost(self, d_model: float) -> Cost:
        """Score, bias and mask; the width is kept for the backward pass."""
        if not self.mask.has_width:
            return Cost()
        return self.score.cost(d_model) + vector(1) + self.mask.cost() + Cost(activation_fp32_elements=1)


class DynamicConfig(WidthChoice, FFNConfig):
    """down(mask * silu(gate(x)) * up(x)) with a mask for each token."""

    kept = ("min_fraction", "score")
    hidden_axes: ClassVar = {"d_ff": "d_ff"}
    heard = ("score", "bias", "mask")
    kind: Literal["dynamic"] = "dynamic"
    d_ff: Width
    """Units."""
    grown_from: tuple[Width, ...] = ()
    """What d_ff was before each growth, oldest first. Every token goes on with the units that it used before."""

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
        """What d_ff was and is, oldest first."""
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
        """Of the masked form, in which every token computes all units; see `flops_of_units` for the others."""
        return swiglu_cost(d_model, self.d_ff, d_out) + self.choice_cost(d_model)

    @staticmethod
    def flops_of_units(n_units: float, d_model: int, d_out: int) -> float:
        """Forward FLOPs of a token that computes n_units, without its score."""
        return swiglu_cost(d_model, n_units, d_out).flops

    def build(self, d_model: int, d_out: int, norm: NormSite) -> "DynamicWidth":
        return DynamicWidth(self, d_model, d_out, norm)

    def with_constants_of(self, old: FFNConfig, reads_more: bool) -> FFNConfig:
        """Units keep their ranks, and widths, centres and temperatures the sizes they were meant for.

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
        """With a level at the start at which the mask of every unit is exactly 1, whatever the token.

        The width then reaches a quarter of a unit beyond the centre of the last. Raises ValueError where no level does
        that.
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
    """Units of every layer."""

    def cost(self, d_model: float, d_out: float) -> Cost:
        return swiglu_cost(d_model, self.real_hidden(d_model), d_out) + self.choice_cost(d_model)

    def at_width(self, d_model: int) -> DynamicConfig:
        d_ff, options = self.whole_hidden(d_model), options_of(WidthChoice, self)
        options["mask"] = self.mask.at_width(d_ff)
        return DynamicConfig(d_ff=d_ff, **options)


class DynamicWidth(FeedForward):
    """A width depends on its own token only, so it is the same in decoding as in training (save a random score)."""

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
        """The width fraction that a token asks for is 1 in a layer without mask, and where one is forced it is that."""
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
        """(B, T), from 0 to 1."""
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
        """The function that leaves out what is not used; None where there is none, or none is wanted."""
        if edge.margin == math.inf or self.config.execution == "masked" or torch.compiler.is_compiling():
            return None
        if self.config.grown_from and edge.margin > 0:
            return None  # a slope needs the centres of the units, which the sliced forms take to be i + 1/2
        if self.config.execution == "sliced":
            return fused.sliced_swiglu
        return sliced_swiglu if use_fused(x) else None

    def _masked(self, x: Tensor, width: Tensor, mask: Mask) -> Tensor:
        """All units, then the mask; arguments as for `_update`."""
        centres = self._centres(width)

        def gated(gate: Tensor, up: Tensor, width: Tensor) -> Tensor:
            return swiglu(gate, up) * mask(width[..., None], centres).to(gate.dtype)

        return self.w_down(_recomputed(gated, self.w_gate(x), self.w_up(x), width))

    def _centres(self, like: Tensor) -> Tensor:
        """(d_ff,), in units, with the type and device of `like`."""
        if self.config.grown_from:
            return grown_centres(self.config.sizes, like)
        return unit_centres(0, self.config.d_ff, like)

    def _as_never_grown(self, width: Tensor, margin: float) -> tuple[Tensor, float]:
        """Width and margin with which a token reaches as many units where unit i has its centre at i + 1/2."""
        if not self.config.grown_from:
            return width, margin
        return torch.searchsorted(self._centres(width), width.detach() + margin).to(width.dtype), 0.0

    def used_units(self, width: Tensor) -> Tensor:
        """How many units have their centre below the width, (...) in units -> integers (...)."""
        return whole_units(*self._as_never_grown(width, 0.0), self.config.d_ff)

    def bucketed_units(self, width: Tensor, progress: Tensor) -> int:
        """Units of tokens of these widths, (n_tokens,) in units, rounded up to where slices end; of all together."""
        width, margin = self._as_never_grown(width, self.mask.edge(progress).margin)
        return int(bucketed_units(width, margin, self.config.d_ff).sum())

    def computed_units(self, width: Tensor, progress: Tensor, is_compiled: bool) -> int:
        """Units that a forward pass over tokens of these widths, (n_tokens,) in units, computes; of all together.

        Call as the pass was: in the same mode, with the same autocast. Rows that stripes add in bf16 are not counted.
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
        """gain of the score, bias of the level and temperature of the mask, in units; None where it has none."""
        log_gain = self.score.log_gain if isinstance(self.score, GainedScore) else None
        temperature = self.mask.temperature
        return {
            "gain": None if log_gain is None else float(log_gain().exp()),
            "bias": None if self.bias is None else float(self.bias()),
            "temperature": None if temperature is None else float(temperature(progress)),
        }

    def choice_parameters(self) -> list[nn.Parameter]:
        """Of the score and its bias."""
        modules = (self.score, self.bias)
        return [parameter for module in modules if module is not None for parameter in module.parameters()]


def _recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs), of which only the inputs are kept for the backward pass. A compiler decides that itself."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


register_ffn(DynamicConfig, DynamicTemplate)
