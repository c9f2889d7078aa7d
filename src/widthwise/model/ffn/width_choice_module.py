"""The part of a feed-forward's module that chooses how much of it each token uses: its scores, and the choice.

Scores are computed in fp32, or wider if the model is: in bf16 a width could not tell neighbouring units apart.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from widthwise.kernels.dispatch import compute_dtype, widened, without_autocast
from widthwise.kernels.sliced_swiglu import Edge
from widthwise.model.axes import Control, Vector
from widthwise.model.context import Choices, FeedForward, PassContext
from widthwise.model.ffn.width_choice import (
    FeatureScoreConfig,
    GainedScoreConfig,
    LayerNormMeanScoreConfig,
    LinearScoreConfig,
    MLPScoreConfig,
    TokenScoreConfig,
    WidthChoosingConfig,
    WidthScoreConfig,
)
from widthwise.model.ffn.width_mask_module import HARD
from widthwise.model.shards import whole

if TYPE_CHECKING:
    from widthwise.model.decoder import Decoder

EPS = 1e-5
"""eps of the norms inside scores."""


class WidthScore(nn.Module):
    """forward(source) -> (B, T), called with autocast off. `source` returns what the score is computed from."""

    def __init__(self, config: WidthScoreConfig, d_model: int):
        super().__init__()
        self.detach = isinstance(config, FeatureScoreConfig) and config.detach
        self.log_gain = Vector({}, 0.0) if isinstance(config, GainedScoreConfig) and config.learn_gain else None

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        """The input of `forward`. x: (B, T, d_model), what the feed-forward reads; stream: the same before the norm."""
        return x.detach() if self.detach else x

    def before_gain(self, source: Tensor) -> Tensor:
        """The score before the gain, (B, T). source: as returned by `source`."""
        return source

    def forward(self, source: Tensor) -> Tensor:
        score = self.before_gain(source)
        return score if self.log_gain is None else widened(self.log_gain()).exp() * score


class ConstScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return torch.zeros_like(widened(x[..., 0]))


class TokenScore(WidthScore):
    def __init__(self, config: TokenScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.table = Vector({"vocab_size": config.vocab_size}, 0.0)

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return context.tokens

    def before_gain(self, source: Tensor) -> Tensor:
        return widened(functional.embedding(source, self.table()[:, None])[..., 0])


class RandomScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return torch.rand_like(widened(x[..., 0]))

    def before_gain(self, source: Tensor) -> Tensor:
        return source.clamp(min=2**-25).logit()  # a draw can be 0: -inf times a gradient of 0 is NaN


class LayerNormMeanScore(WidthScore):
    def __init__(self, config: LayerNormMeanScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.scale, self.shift = Vector({"d_model": d_model}, 1.0), Vector({"d_model": d_model}, 0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        x = widened(source)
        return functional.layer_norm(x, x.shape[-1:], widened(self.scale()), widened(self.shift()), EPS).mean(dim=-1)


class RMSMeanScore(WidthScore):
    def before_gain(self, source: Tensor) -> Tensor:
        x = widened(source)
        return x.mean(dim=-1) * (x.square().mean(dim=-1) + EPS).rsqrt()


class RawMeanScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return super().source(widened(stream).mean(dim=-1), stream, context)


class LinearScore(WidthScore):
    def __init__(self, config: LinearScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.v = Control({"d_model": d_model}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        return functional.linear(widened(source), widened(self.v.weight))[..., 0]


class MLPScore(WidthScore):
    def __init__(self, config: MLPScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.w_in = Control({"d_model": d_model}, {"d_hidden": config.d_hidden})
        self.v = Control({"d_hidden": config.d_hidden}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        hidden = functional.silu(functional.linear(widened(source), widened(self.w_in.weight)))
        return functional.linear(hidden, widened(self.v.weight))[..., 0]


class WidthChoosing(FeedForward):
    """A width depends on its own token only, so it is the same in decoding as in training (but for a random score)."""

    def add_choice(self, config: WidthChoosingConfig, d_model: int) -> None:
        """The score's and the mask's parameters, which come after all others."""
        self.choice = config
        self.execution: str = config.execution
        self.mask = config.mask.build(config.full_width)
        self.score = config.score.build(d_model) if config.mask.has_width else None
        self.bias = Vector({}, math.log(config.start / (1 - config.start))) if config.mask.has_width else None

    @contextmanager
    def unskipped(self) -> Iterator[None]:
        """Within it, what a token does not use is computed all the same, and masked."""
        before, self.execution = self.execution, "masked"
        try:
            yield
        finally:
            self.execution = before

    @abstractmethod
    def read_by_score(self, x: Tensor) -> Tensor:
        """Return the input of the score for the stream x, both (B, T, d_model)."""

    def choose(self, x: Tensor, stream: Tensor, context: PassContext) -> tuple[Tensor, Tensor, Edge | None]:
        """The width fractions (B, T) that tokens ask for, those that this pass uses, and how the mask falls.

        x: (B, T, d_model), what the feed-forward reads; stream: the same before the norm. Fractions are 1 in a layer
        without a mask, whose edge is None, and the forced one if `context` forces one.
        """
        if context.width_fraction is not None:
            forced = widened(context.width_fraction).expand(x.shape[:2])
            return forced, forced, HARD
        if self.score is None:
            ones = torch.ones_like(widened(x[..., 0]))
            return ones, ones, None
        level = recomputed(self._level, self.score.source(x, stream, context))
        edge = self.mask.edge(context.progress, compute_dtype(x))
        return self._fraction(level), self._fraction(self.mask.drawn(level)), edge

    def _level(self, source: Tensor) -> Tensor:
        """The level (B, T), from 0 to 1, of a source as returned by the score."""
        assert self.score is not None
        assert self.bias is not None
        with without_autocast(source):
            return torch.sigmoid(self.score(source) + widened(self.bias()))

    def _edge(self, progress: Tensor) -> Edge:
        return self.mask.edge(progress, compute_dtype(next(self.parameters())))

    def _fraction(self, level: Tensor) -> Tensor:
        return self.choice.min_fraction + (1 - self.choice.min_fraction) * level

    @abstractmethod
    def used_units(self, width: Tensor) -> Tensor:
        """Return the number of hidden units used by a token of that width. width: (...), in units -> integers (...)."""

    @abstractmethod
    def bucketed_units(self, width: Tensor, progress: Tensor) -> int:
        """Total hidden units of tokens of these widths, each rounded up as it has to be where what is not used is
        skipped. width: (n_tokens,), in units."""

    @abstractmethod
    def computed_units(self, width: Tensor, progress: Tensor, is_compiled: bool) -> int:
        """Total hidden units that a forward pass over tokens of these widths computes. width: (n_tokens,), in units.

        Call it in the same mode and with the same autocast as the pass.
        """

    @torch.no_grad()
    def numbers(self, progress: Tensor) -> dict[str, float | None]:
        """The score's gain, the level's bias and the mask's temperature in units; None for what it does not have.

        Called by all processes that share the model.
        """
        log_gain = None if self.score is None else self.score.log_gain
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
    """The value of a tensor with one entry; of a parameter, only one of several processes may hold it."""
    return float(whole(value)) if isinstance(value, Tensor) else value


def recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs) with only the inputs kept for the backward pass. Compiled code decides itself what to keep."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def dynamic_modules(model: "Decoder") -> dict[int, WidthChoosing]:
    """Return the feed-forwards in which tokens choose their width, by position among all layers, from 0."""
    modules = {index: layer.ffn for index, layer in enumerate(model.layers)}
    return {index: module for index, module in modules.items() if isinstance(module, WidthChoosing)}


def width_fractions(choices: Sequence[Choices]) -> list[Tensor]:
    """(B, T) for each dynamic-width layer, in their order."""
    return [chosen["width_fraction"] for chosen in choices if "width_fraction" in chosen]
