"""The part of a feed-forward's module that chooses how much of it each token uses."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from widthwise.kernels.dispatch import compute_dtype, without_autocast
from widthwise.model.axes import Vector
from widthwise.model.context import PassContext
from widthwise.model.ffn.interface_module import FeedForward
from widthwise.model.ffn.width_choice import WidthChoosingConfig
from widthwise.model.ffn.width_mask_module import HARD, Edge
from widthwise.model.ffn.width_score_module import GainedScore, wide
from widthwise.model.shards import whole


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
            forced = wide(context.width_fraction).expand(x.shape[:2])
            return forced, forced, HARD
        if self.score is None:
            ones = torch.ones_like(wide(x[..., 0]))
            return ones, ones, None
        level = recomputed(self._level, self.score.source(x, stream, context))
        edge = self.mask.edge(context.progress, compute_dtype(x))
        return self._fraction(level), self._fraction(self.mask.drawn(level)), edge

    def _level(self, source: Tensor) -> Tensor:
        """The level (B, T), from 0 to 1, of a source as returned by the score."""
        assert self.score is not None
        assert self.bias is not None
        with without_autocast(source):
            return torch.sigmoid(self.score(source) + wide(self.bias()))

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
    """The value of a tensor with one entry; of a parameter, only one of several processes may hold it."""
    return float(whole(value)) if isinstance(value, Tensor) else value


def recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs) with only the inputs kept for the backward pass. Compiled code decides itself what to keep."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
