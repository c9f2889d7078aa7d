"""The parts of a model that can grow in a search: of a layer its width in the stream, its heads, its hidden units and
the blocks of its hourglass, each by one step; and the model by a layer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, Self

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


def sizes_of(layer: LayerConfig, with_blocks: bool = False) -> LayerSizes:
    """Return the sizes that every search records, and those of one that varies the number of blocks."""
    attention, hidden = layer.attention.n_heads * layer.attention.head_dim, sum(layer.ffn.hidden_widths)
    blocks = {"blocks": layer.ffn.n_residual_additions} if with_blocks else {}
    return LayerSizes(width=layer.d_model, attention=attention, hidden=hidden, **blocks)


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
class Part:
    """Something that can grow by a step, at several places of a model, which are numbered as its layers are."""

    name: PartName
    step: int
    """Channels, blocks or layers that it grows by at a time."""
    enlarge: Callable[[LayerConfig, int, ModelConfig], LayerConfig | None]
    """Makes a layer of a model a step larger; None where it cannot grow any further."""
    is_drawn: bool = True
    """True if its step draws weights, on which the gain depends."""
    adds_tensors: bool = False
    """True if its step adds tensors, not columns to existing ones."""

    def total(self, model: ModelConfig) -> Number:
        """Return how much of it all layers have together."""
        return sum(sizes_of(layer, with_blocks=True)[self.name] for layer in model.layers)

    def grown(self, before: GrownModel, place: int) -> GrownModel | None:
        """Grow it by a step at one place, numbered as at the beginning of the stage; None where it cannot grow."""
        index = before.index(place)
        layer = self.enlarge(before.model.layers[index], self.step, before.model)
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


class AddedLayer(Part):
    """A further layer in a gap: before the first, between two, or, for the last place, behind all.

    `enlarge` makes it of the layer before it, or of the first one. So depth grows without a change of the profile of
    sizes, and wherever the stream is resized from layer to layer, its width lies between those of its neighbours.
    """

    def total(self, model: ModelConfig) -> Number:
        return model.n_layers

    def grown(self, before: GrownModel, place: int) -> GrownModel | None:
        index = before.index(place)
        layer = self.enlarge(before.model.layers[max(0, index - 1)], self.step, before.model)
        return None if layer is None else before.with_layer(index, layer, is_added=True)

    def places(self, model: ModelConfig) -> list[int]:
        return list(range(model.n_layers + 1))

    def layers_of(self, grown: GrownModel, place: int, n_steps: int) -> Sequence[int]:
        return range(grown.index(place) - n_steps, grown.index(place))


def _wider(layer: LayerConfig, step: int, model: ModelConfig) -> LayerConfig | None:
    """Return a layer that reads and writes more coordinates of the stream: at most those of the embedding, because no
    other layer writes those beyond."""
    width = layer.d_model + step
    if width > model.d_model:
        return None
    return layer.model_copy(update={"d_model": width, "d_in": width, "d_out": width})


def _with_heads(layer: LayerConfig, step: int, model: ModelConfig) -> LayerConfig:
    """Return a layer with further groups of heads of the size that the others have."""
    attention = layer.attention
    group = attention.n_heads // attention.n_kv_heads
    n_new = max(1, round(step / (group * attention.head_dim)))
    sizes = {"n_heads": attention.n_heads + n_new * group, "n_kv_heads": attention.n_kv_heads + n_new}
    return layer.model_copy(update={"attention": checked_copy(attention, "attention", **sizes)})


def _with_units(layer: LayerConfig, step: int, model: ModelConfig) -> LayerConfig:
    """Return a layer with further hidden units in its feed-forward; in an hourglass, as many in each block."""
    [key] = layer.ffn.hidden_axes
    sizes = {key: getattr(layer.ffn, key) + step}
    return layer.model_copy(update={"ffn": checked_copy(layer.ffn, "ffn", **sizes)})


def _with_blocks(layer: LayerConfig, step: int, model: ModelConfig) -> LayerConfig:
    """Return a layer with further blocks of its hourglass, as wide as the others, behind them."""
    assert isinstance(layer.ffn, HourglassConfig)
    ffn = checked_copy(layer.ffn, "ffn", n_blocks=layer.ffn.n_blocks + step)
    return layer.model_copy(update={"ffn": ffn})


def _like(layer: LayerConfig, step: int, model: ModelConfig) -> LayerConfig:
    """Return a new layer with the sizes of another, whose norms may measure less than it reads if it was grown."""
    own = {"norm_dim": layer.d_model, "stat_width": None}
    norms = {name: getattr(layer, name).model_copy(update=own) for name in ("attention_norm", "ffn_norm")}
    return layer.model_copy(update=norms)


def parts_of(template: ModelTemplate, step: float) -> dict[PartName, Part]:
    """Return the parts that a model has, each with the step that a search grows it by. step: over its size in the
    uniform model."""
    layer = template_layer(template)
    sizes, hidden = sizes_of(layer), layer.ffn.hidden_widths

    def whole(size: Number, quantum: int = 1) -> int:
        return max(1, round(step * size / quantum)) * quantum

    parts = [Part("width", whole(sizes.width), _wider, is_drawn=False)]  # all of its new weights are 0
    parts.append(Part("attention", whole(sizes.attention, template.attention.unit), _with_heads))
    if len(layer.ffn.hidden_axes) == 1:
        parts.append(Part("hidden", whole(sum(hidden) // len(hidden)), _with_units))
    parts.append(AddedLayer("layer", 1, _like, adds_tensors=True))
    if isinstance(layer.ffn, HourglassConfig) and not layer.ffn.share_weights:
        parts.append(Part("blocks", 1, _with_blocks, adds_tensors=True))
    return {part.name: part for part in parts}
