"""Sizes that layers can learn under a price: how a model is given room for them, and what its layers used at the end.

What a layer uses is min_fraction + (1 - min_fraction) * sigmoid(b) of what it could, with a learned b.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from widthwise.config_io import UserError, to_data
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.dynamic import DynamicTemplate
from widthwise.model.ffn.swiglu import SwiGLUTemplate
from widthwise.model.ffn.width_score import ConstScoreConfig
from widthwise.model.residual.learned_prefix import LearnedPrefixConfig
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.records.run import RunResult
from widthwise.shape.kinds import ExplicitShape
from widthwise.shape.template import ModelTemplate

ELSE = "; discover.method.sizes must be [hidden], because widths of the stream are learned"


@dataclass(frozen=True)
class LearnedSize(ABC):
    """A size that every layer learns, beginning with that of the uniform model."""

    template: ModelTemplate
    """The recipe's model, whose layers are all alike and whose sizes the search begins with."""
    asked_room: float
    """What a layer could use, over its size in the uniform model."""
    min_fraction: float

    name: ClassVar[str]
    """Its field in `LayerSizes`."""
    part: ClassVar[str]
    """Where b is in a layer."""

    @property
    def room(self) -> float:
        """`asked_room`, as far as the sizes of heads allow it."""
        return self.asked_room

    @property
    def start(self) -> float:
        """sigmoid(b) at the size of the uniform model."""
        return (1 / self.room - self.min_fraction) / (1 - self.min_fraction)

    def check(self) -> None:
        """Raises UserError where it cannot be learned."""
        if self.min_fraction * self.room >= 1:
            raise UserError(
                f"discover.method.min_fraction: got {self.min_fraction:g}; must be below 1 / room = {1 / self.room:.3g}"
            )

    @abstractmethod
    def given_room(self, model: ModelTemplate, uniform: ModelConfig) -> ModelTemplate:
        """The model with this size learned. uniform: the resolved uniform model."""

    @abstractmethod
    def found(self, result: RunResult) -> Sequence[float]:
        """What each layer used at the end, in channels."""


class LearnedWidth(LearnedSize):
    """The width in the stream, while embedding and head keep theirs."""

    name = "width"
    part = "attention_residual.bias"

    @property
    def full_width(self) -> int:
        """In whole steps of what widths must be multiples of."""
        d_model, quantum = self.template.d_model, self.template.attention.quantum
        return d_model + max(1, round((self.asked_room - 1) * d_model / quantum)) * quantum

    @property
    def room(self) -> float:
        return self.full_width / self.template.d_model

    def check(self) -> None:
        super().check()
        residual = self.template.residual
        if residual != PlainResidualConfig(multiplier=residual.multiplier):
            got = ", ".join(f"{key}: {value}" for key, value in to_data(residual).items())
            raise UserError(f"model.residual: got {{{got}}}{ELSE} on kind: plain with its defaults, but for multiplier")
        norm = self.template.norm
        if (norm.kind, norm.placement) != ("rms", "pre"):
            raise UserError(f"model.norm: got {norm.kind!r}, {norm.placement!r}{ELSE} under 'rms', 'pre'")
        if self.template.mtp is not None:
            raise UserError(f"model.mtp: got further heads{ELSE} in models without them")

    def given_room(self, model: ModelTemplate, uniform: ModelConfig) -> ModelTemplate:
        """Heads and hidden units stay those of the uniform model."""
        assert isinstance(model.ffn, SwiGLUTemplate)
        multiplier = model.residual.multiplier
        attention = to_data(uniform.layers[0].attention)
        return model.model_copy(
            update={
                "shape": ExplicitShape(widths=(self.full_width,) * model.n_layers, endpoints="full"),
                "residual": LearnedPrefixConfig(
                    min_fraction=self.min_fraction, start=self.start, multiplier=multiplier
                ),
                "ffn": model.ffn.model_copy(update={"ratio": _ratio(model.ffn) / self.room}),
                "layers": {index: {"attention": attention} for index in range(model.n_layers)},
            }
        )

    def found(self, result: RunResult) -> Sequence[float]:
        assert result.prefix_widths is not None
        return result.prefix_widths


class LearnedHidden(LearnedSize):
    """The hidden units of the feed-forward: a dynamic width whose score is constant."""

    name = "hidden"
    part = "ffn.bias"

    def given_room(self, model: ModelTemplate, uniform: ModelConfig) -> ModelTemplate:
        ffn = model.ffn
        assert isinstance(ffn, SwiGLUTemplate)
        dynamic = DynamicTemplate(
            ratio=self.room * _ratio(ffn),
            multiple_of=ffn.multiple_of,
            score=ConstScoreConfig(),
            min_fraction=self.min_fraction,
            start=self.start,
        )
        return model.model_copy(update={"ffn": dynamic})

    def found(self, result: RunResult) -> Sequence[float]:
        assert result.token_widths is not None
        return [each.mean * each.d_ff for each in result.token_widths.layers]


def _ratio(ffn: SwiGLUTemplate) -> float:
    return ffn.ratio or ffn.usual_ratio


LEARNED_SIZES: dict[str, type[LearnedSize]] = {each.name: each for each in (LearnedWidth, LearnedHidden)}
"""In the order in which a model is given room for them."""
