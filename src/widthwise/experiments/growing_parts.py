"""The parts of a model that can grow in a search: of a layer its width in the stream, its heads, its hidden units and
the blocks of its hourglass, each by one step; and the model by a layer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from widthwise.config_io import checked_copy
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.layer import LayerConfig
from widthwise.records.discovery import LayerSizes
from widthwise.records.record import Number
from widthwise.shape.template import ModelTemplate

if TYPE_CHECKING:
    from torch import Tensor

PartName = Literal["width", "attention", "hidden", "layer", "blocks"]


def sizes_of(layer: LayerConfig) -> LayerSizes:
    """Return the sizes that every search records."""
    attention = layer.attention
    return LayerSizes(
        width=layer.d_model, attention=attention.n_heads * attention.head_dim, hidden=sum(layer.ffn.hidden_widths)
    )


def template_layer(template: ModelTemplate) -> LayerConfig:
    """Return a layer of the uniform model."""
    return template.uniform().model_copy(update={"n_layers": 1}).resolve(1).layers[0]


@dataclass(frozen=True)
class GrownModel:
    """A model, and the index of each of its layers at the beginning of a stage."""

    model: ModelConfig
    sources: tuple[int | None, ...]
    """(n_layers,) None for a layer that was added since."""

    @classmethod
    def ungrown(cls, model: ModelConfig) -> Self:
        """Return the beginning of a stage."""
        return cls(model, tuple(range(model.n_layers)))

    def index(self, layer: int) -> int:
        """Return the present index of a layer of the beginning; behind all if there was none of that number."""
        return self.sources.index(layer) if layer in self.sources else len(self.sources)

    def with_layer(self, index: int, layer: LayerConfig, is_added: bool = False) -> "GrownModel":
        """Put another layer in the place of one, or a further one before it or behind all."""
        layers, sources, after = self.model.layers, self.sources, index if is_added else index + 1
        layers = (*layers[:index], layer, *layers[after:])
        sources = (*sources[:index], None if is_added else sources[index], *sources[after:])
        return GrownModel(checked_copy(self.model, "model", layers=layers), sources)


@dataclass(frozen=True)
class Part(ABC):
    """Something that can grow by a step, at several places of a model, which are numbered as its layers are."""

    step: int
    """Channels, blocks or layers that it grows by at a time."""
    name: ClassVar[PartName]
    is_drawn: ClassVar[bool] = True
    """True if its step draws weights, on which the gain depends."""
    adds_tensors: ClassVar[bool] = False
    """True if its step adds tensors, not columns to existing ones."""

    @classmethod
    def is_in(cls, layer: LayerConfig) -> bool:
        """Return whether a model of such layers has it."""
        return True

    @classmethod
    def size(cls, layer: LayerConfig) -> Number:
        """Return how much of it a layer has."""
        return sizes_of(layer)[cls.name]

    @classmethod
    def total(cls, model: ModelConfig) -> Number:
        """Return how much of it all layers have together."""
        return sum(map(cls.size, model.layers))

    @abstractmethod
    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        """Return the layer one step larger; None where it cannot grow any further."""

    def grown(self, before: GrownModel, place: int) -> GrownModel | None:
        """Grow it by a step at one place, numbered as at the beginning of the stage; None where it cannot grow."""
        index = before.index(place)
        layer = self.grown_layer(before.model.layers[index], before.model)
        return None if layer is None else before.with_layer(index, layer)

    def grown_at(self, before: GrownModel, places: Sequence[int]) -> GrownModel:
        """Grow it by a step at several places, where it can grow."""
        return reduce(lambda model, place: self.grown(model, place) or model, places, before)

    def places(self, model: ModelConfig) -> list[int]:
        """Return where it can grow."""
        start = GrownModel.ungrown(model)
        return [place for place in range(model.n_layers) if self.grown(start, place) is not None]

    def layers_of(self, grown: GrownModel, place: int, n_steps: int) -> Sequence[int]:
        """Return the layers of a model that were grown at a place."""
        return [grown.index(place)]

    def draws(self, gains: "Mapping[str, Tensor]", grown: GrownModel, place: int, n_steps: int) -> list[float]:
        """Return the gain of each of several steps at a place. gains: of `first_order_gains`, for the grown model.

        None of the steps changes the function, so that each has the gain that it would have alone, with a draw of its
        own.
        """
        layers = [f"layers.{index}." for index in self.layers_of(grown, place, n_steps)]
        found = [gain for layer in layers for name, gain in gains.items() if name.startswith(layer)]
        n_each = len(found) // n_steps
        steps: Iterable[Sequence[Tensor]] = (
            [found[first : first + n_each] for first in range(0, len(found), n_each)]
            if self.adds_tensors
            else zip(*(gain.tensor_split(n_steps) for gain in found), strict=True)
        )
        return [sum(float(gain.sum()) for gain in step) for step in steps]


class WidthPart(Part):
    """Coordinates of the stream that the layer reads and writes: at most those of the embedding, because no other layer
    writes those beyond."""

    name = "width"
    is_drawn = False  # all of its new weights are 0

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        width = layer.d_model + self.step
        if width > model.d_model:
            return None
        return layer.model_copy(update={"d_model": width, "d_in": width, "d_out": width})


class HeadsPart(Part):
    """Groups of heads of the size that the others have."""

    name = "attention"

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig:
        attention = layer.attention
        group = attention.n_heads // attention.n_kv_heads
        n_new = max(1, round(self.step / (group * attention.head_dim)))
        sizes = {"n_heads": attention.n_heads + n_new * group, "n_kv_heads": attention.n_kv_heads + n_new}
        return layer.model_copy(update={"attention": checked_copy(attention, "attention", **sizes)})


class HiddenPart(Part):
    """Hidden units of the feed-forward; of an hourglass, as many of each block."""

    name = "hidden"

    @classmethod
    def is_in(cls, layer: LayerConfig) -> bool:
        return len(layer.ffn.hidden_axes) == 1

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig:
        [key] = layer.ffn.hidden_axes
        sizes = {key: getattr(layer.ffn, key) + self.step}
        return layer.model_copy(update={"ffn": checked_copy(layer.ffn, "ffn", **sizes)})


class BlocksPart(Part):
    """Blocks of an hourglass, as wide as the others of the layer, behind them."""

    name = "blocks"
    adds_tensors = True

    @classmethod
    def is_in(cls, layer: LayerConfig) -> bool:
        return isinstance(layer.ffn, HourglassConfig) and not layer.ffn.share_weights

    @classmethod
    def size(cls, layer: LayerConfig) -> Number:
        return layer.ffn.n_residual_additions

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig:
        assert isinstance(layer.ffn, HourglassConfig)
        ffn = checked_copy(layer.ffn, "ffn", n_blocks=layer.ffn.n_blocks + self.step)
        return layer.model_copy(update={"ffn": ffn})


class LayerPart(Part):
    """A further layer in a gap: before the first, between two, or, for the last place, behind all.

    It has the sizes of the layer before it, or of the first one. So depth grows without a change of the profile of
    sizes, and wherever the stream is resized from layer to layer, its width lies between those of its neighbours.
    """

    name = "layer"
    adds_tensors = True

    @classmethod
    def size(cls, layer: LayerConfig) -> Number:
        return 1

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig:
        """Return a layer to stand behind this one."""
        # The norms of a grown layer may measure less than it reads.
        own = {"norm_dim": layer.d_model, "stat_width": None}
        norms = {name: getattr(layer, name).model_copy(update=own) for name in ("attention_norm", "ffn_norm")}
        return layer.model_copy(update=norms)

    def grown(self, before: GrownModel, place: int) -> GrownModel:
        index = before.index(place)
        near = before.model.layers[max(0, index - 1)]
        return before.with_layer(index, self.grown_layer(near, before.model), is_added=True)

    def places(self, model: ModelConfig) -> list[int]:
        return list(range(model.n_layers + 1))

    def layers_of(self, grown: GrownModel, place: int, n_steps: int) -> Sequence[int]:
        return range(grown.index(place) - n_steps, grown.index(place))


PARTS: dict[PartName, type[Part]] = {
    part.name: part for part in (WidthPart, HeadsPart, HiddenPart, LayerPart, BlocksPart)
}


def parts_of(template: ModelTemplate, step: float) -> dict[PartName, Part]:
    """Return all parts, each with the step that a search grows it by. step: over its size in the uniform model."""
    layer = template_layer(template)
    sizes, hidden = sizes_of(layer), layer.ffn.hidden_widths
    units = {"width": (sizes.width, 1), "attention": (sizes.attention, template.attention.unit)}
    units["hidden"] = sum(hidden) // len(hidden), 1
    steps = {name: max(1, round(step * size / quantum)) * quantum for name, (size, quantum) in units.items()}
    return {name: part(steps.get(name, 1)) for name, part in PARTS.items()}
