"""What can grow in a search: of a layer its width in the stream, its heads, its hidden units and the blocks of its
hourglass, each by one step; and the model by a layer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean, stdev
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from widthwise.config_io import checked_copy
from widthwise.experiments.discovery.task import Task, sizes_of
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.layer import LayerConfig
from widthwise.records.discovery import Candidate
from widthwise.records.record import Number

if TYPE_CHECKING:
    from torch import Tensor

PartName = Literal["width", "attention", "hidden", "layer", "blocks"]


@dataclass(frozen=True)
class GrownModel:
    """A model, and which of its layers was which at the beginning of a stage."""

    model: ModelConfig
    sources: tuple[int | None, ...]
    """(n_layers,) None for a layer that was added since."""

    @classmethod
    def ungrown(cls, model: ModelConfig) -> Self:
        """The beginning of a stage."""
        return cls(model, tuple(range(model.n_layers)))

    @property
    def has_added(self) -> bool:
        """Whether there is a layer that was not there at the beginning."""
        return None in self.sources

    def index(self, layer: int) -> int:
        """Where a layer of the beginning is now; behind all where there was none of that number."""
        return self.sources.index(layer) if layer in self.sources else len(self.sources)

    def changed(self, index: int, layer: LayerConfig) -> "GrownModel":
        """With another layer in the place of one."""
        return self._with((*self.model.layers[:index], layer, *self.model.layers[index + 1 :]), self.sources)

    def added(self, index: int, layer: LayerConfig) -> "GrownModel":
        """With a further layer before one, or behind all."""
        before, behind = self.model.layers[:index], self.model.layers[index:]
        return self._with((*before, layer, *behind), (*self.sources[:index], None, *self.sources[index:]))

    def _with(self, layers: tuple[LayerConfig, ...], sources: tuple[int | None, ...]) -> "GrownModel":
        return GrownModel(checked_copy(self.model, "model", layers=layers), sources)


class Part(ABC):
    """Something that can grow by a step, at several places of a model, which are numbered as its layers are."""

    name: ClassVar[PartName]
    is_drawn: ClassVar[bool] = True
    """Whether a step has weights that are drawn, on which its gain depends."""

    @classmethod
    def is_in(cls, layer: LayerConfig) -> bool:
        """Whether a model of such layers has it."""
        return True

    @classmethod
    @abstractmethod
    def of(cls, task: Task, step: float) -> Self:
        """With the step that a search grows it by. step: over its size in the uniform model."""

    @classmethod
    @abstractmethod
    def total(cls, model: ModelConfig) -> float:
        """How much of it all layers have together."""

    @abstractmethod
    def grown(self, before: GrownModel, place: int) -> GrownModel | None:
        """One step larger at one place, numbered as at the beginning of the stage; None where it cannot grow."""

    def grown_at(self, before: GrownModel, places: Sequence[int]) -> GrownModel:
        """One step larger at several places, where it can grow."""
        return reduce(lambda model, place: self.grown(model, place) or model, places, before)

    def places(self, model: ModelConfig) -> list[int]:
        """Where it can grow."""
        start = GrownModel.ungrown(model)
        return [place for place in range(model.n_layers) if self.grown(start, place) is not None]

    def layers_of(self, grown: GrownModel, place: int, n_steps: int) -> Sequence[int]:
        """Which layers of a model have what was grown at a place."""
        return [grown.index(place)]

    def draws(self, gains: "Mapping[str, Tensor]", grown: GrownModel, place: int, n_steps: int) -> list[float]:
        """What each of several steps at a place would gain. gains: of `first_order_gains`, for the grown model.

        None of the steps changes the function, so that each has the gain that it would have alone, with a draw of its
        own.
        """
        layers = [f"layers.{index}." for index in self.layers_of(grown, place, n_steps)]
        found = [gain for layer in layers for name, gain in gains.items() if name.startswith(layer)]
        return [sum(float(gain.sum()) for gain in step) for step in self._by_step(found, n_steps)]

    def _by_step(self, gains: "list[Tensor]", n_steps: int) -> "Iterable[Sequence[Tensor]]":
        """Gains of the new entries of tensors, parted by steps; here each tensor has new columns of every step."""
        return zip(*(gain.tensor_split(n_steps) for gain in gains), strict=True)

    def candidate(self, place: int, draws: Sequence[float], cost: float) -> Candidate:
        """The record of a growth that could be chosen. draws: what it gains with each draw of its new weights."""
        found = Candidate(layer=place, part=self.name, gain=fmean(draws), cost=cost)
        return found if len(draws) == 1 else found.with_changes(gain_error=stdev(draws) / len(draws) ** 0.5)

    def sizes(self, layer: LayerConfig) -> dict[str, Number]:
        """What a search that varies it records of a layer, besides what all record."""
        return {}


@dataclass(frozen=True)
class PartOfLayer(Part):
    """A part of a layer and the step in which it grows."""

    step: int
    """By how many channels it grows at a time."""

    @abstractmethod
    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        """The layer one step larger; None where it cannot grow any further."""

    def grown(self, before: GrownModel, place: int) -> GrownModel | None:
        index = before.index(place)
        layer = self.grown_layer(before.model.layers[index], before.model)
        return None if layer is None else before.changed(index, layer)


class WidthPart(PartOfLayer):
    """Coordinates of the stream that the layer reads and writes: at most those of the embedding, because no other layer
    writes those beyond."""

    name = "width"
    is_drawn = False  # all of its new weights are 0

    @classmethod
    def total(cls, model: ModelConfig) -> float:
        return sum(layer.d_model for layer in model.layers)

    @classmethod
    def of(cls, task: Task, step: float) -> Self:
        return cls(_whole_step(step * _uniform(task).d_model, 1))

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        width = layer.d_model + self.step
        if width > model.d_model:
            return None
        return layer.model_copy(update={"d_model": width, "d_in": width, "d_out": width})


class HeadsPart(PartOfLayer):
    """Groups of heads of the size that the others have."""

    name = "attention"

    @classmethod
    def total(cls, model: ModelConfig) -> float:
        return sum(sizes_of(layer).attention for layer in model.layers)

    @classmethod
    def of(cls, task: Task, step: float) -> Self:
        return cls(_whole_step(step * sizes_of(_uniform(task)).attention, task.template.attention.unit))

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        attention = layer.attention
        group = attention.n_heads // attention.n_kv_heads
        n_new = max(1, round(self.step / (group * attention.head_dim)))
        sizes = {"n_heads": attention.n_heads + n_new * group, "n_kv_heads": attention.n_kv_heads + n_new}
        return layer.model_copy(update={"attention": checked_copy(attention, "attention", **sizes)})


class HiddenPart(PartOfLayer):
    """Hidden units of the feed-forward; of an hourglass, as many of each block."""

    name = "hidden"

    @classmethod
    def is_in(cls, layer: LayerConfig) -> bool:
        return len(layer.ffn.hidden_axes) == 1

    @classmethod
    def total(cls, model: ModelConfig) -> float:
        return sum(sizes_of(layer).hidden for layer in model.layers)

    @classmethod
    def of(cls, task: Task, step: float) -> Self:
        widths = _uniform(task).ffn.hidden_widths
        return cls(_whole_step(step * (sum(widths) // len(widths)), 1))

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        [key] = layer.ffn.hidden_axes
        sizes = {key: getattr(layer.ffn, key) + self.step}
        return layer.model_copy(update={"ffn": checked_copy(layer.ffn, "ffn", **sizes)})


class LayerPart(Part):
    """A further layer in a gap: before the first, between two, or, for the last place, behind all.

    It has the sizes of the layer before it, or of the first one. So depth grows without a change of the profile of
    sizes, and wherever the stream is resized from layer to layer, its width lies between those of its neighbours.
    """

    name = "layer"

    @classmethod
    def total(cls, model: ModelConfig) -> float:
        return model.n_layers

    @classmethod
    def of(cls, task: Task, step: float) -> Self:
        return cls()

    def grown(self, before: GrownModel, place: int) -> GrownModel | None:
        index = before.index(place)
        near = before.model.layers[max(0, index - 1)]
        # The norms of a grown layer may measure less than it reads.
        own = {"norm_dim": near.d_model, "stat_width": None}
        norms = {name: getattr(near, name).model_copy(update=own) for name in ("attention_norm", "ffn_norm")}
        return before.added(index, near.model_copy(update=norms))

    def places(self, model: ModelConfig) -> list[int]:
        return list(range(model.n_layers + 1))

    def layers_of(self, grown: GrownModel, place: int, n_steps: int) -> Sequence[int]:
        return range(grown.index(place) - n_steps, grown.index(place))

    def _by_step(self, gains: "list[Tensor]", n_steps: int) -> "Iterable[Sequence[Tensor]]":
        return _in_equal_parts(gains, n_steps)

    def candidate(self, place: int, draws: Sequence[float], cost: float) -> Candidate:
        return super().candidate(place, draws, cost).with_changes(is_gap=True)


class BlocksPart(PartOfLayer):
    """Blocks of an hourglass, as wide as the others of the layer, behind them."""

    name = "blocks"

    @classmethod
    def is_in(cls, layer: LayerConfig) -> bool:
        return isinstance(layer.ffn, HourglassConfig) and not layer.ffn.share_weights

    @classmethod
    def total(cls, model: ModelConfig) -> float:
        return sum(layer.ffn.n_residual_additions for layer in model.layers)

    @classmethod
    def of(cls, task: Task, step: float) -> Self:
        return cls(1)

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        assert isinstance(layer.ffn, HourglassConfig)
        ffn = checked_copy(layer.ffn, "ffn", n_blocks=layer.ffn.n_blocks + self.step)
        return layer.model_copy(update={"ffn": ffn})

    def _by_step(self, gains: "list[Tensor]", n_steps: int) -> "Iterable[Sequence[Tensor]]":
        return _in_equal_parts(gains, n_steps)

    def sizes(self, layer: LayerConfig) -> dict[str, Number]:
        return {"blocks": layer.ffn.n_residual_additions}


PARTS: dict[PartName, type[Part]] = {
    part.name: part for part in (WidthPart, HeadsPart, HiddenPart, LayerPart, BlocksPart)
}


def _in_equal_parts(gains: "list[Tensor]", n: int) -> "Iterable[Sequence[Tensor]]":
    """Of steps that add tensors of their own, in order."""
    n_each = len(gains) // n
    return (gains[first : first + n_each] for first in range(0, len(gains), n_each))


def _uniform(task: Task) -> LayerConfig:
    return task.base.explicit_model.layers[0]


def _whole_step(size: float, quantum: int) -> int:
    return max(1, round(size / quantum)) * quantum
