"""The parts of a layer that can grow by one step: its width in the stream, its heads, its hidden units."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from widthwise.config_io import UserError, checked_copy
from widthwise.model.config import ModelConfig
from widthwise.model.layer import LayerConfig


@dataclass(frozen=True)
class Part(ABC):
    """A part of a layer and the step in which it grows."""

    name: str
    step: int
    """By how many channels it grows at a time."""

    @abstractmethod
    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        """The layer one step larger; None where it cannot grow any further."""

    def grown(self, model: ModelConfig, *indices: int) -> ModelConfig:
        """The model with this part of some layers one step larger, as far as they can grow."""
        layers = [
            (self.grown_layer(layer, model) or layer) if index in indices else layer
            for index, layer in enumerate(model.layers)
        ]
        return checked_copy(model, "model", layers=tuple(layers))

    def can_grow(self, model: ModelConfig, index: int) -> bool:
        """Whether this part of a layer can be one step larger."""
        return self.grown_layer(model.layers[index], model) is not None


class WidthPart(Part):
    """Coordinates of the stream that the layer reads and writes: at most those of the embedding, because no other layer
    writes those beyond."""

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        width = layer.d_model + self.step
        if width > model.d_model:
            return None
        return layer.model_copy(update={"d_model": width, "d_in": width, "d_out": width})


class HeadsPart(Part):
    """Groups of heads of the size that the others have."""

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        attention = layer.attention
        group = attention.n_heads // attention.n_kv_heads
        n_new = max(1, round(self.step / (group * attention.head_dim)))
        sizes = {"n_heads": attention.n_heads + n_new * group, "n_kv_heads": attention.n_kv_heads + n_new}
        return layer.model_copy(update={"attention": checked_copy(attention, "attention", **sizes)})


class HiddenPart(Part):
    """Hidden units of the feed-forward."""

    def grown_layer(self, layer: LayerConfig, model: ModelConfig) -> LayerConfig | None:
        axes = layer.ffn.hidden_axes
        if len(axes) != 1:
            raise UserError(f"model.ffn.kind: got {layer.ffn.kind!r}; a discovery by growth knows one hidden width")
        key = next(iter(axes))
        sizes = {key: getattr(layer.ffn, key) + self.step}
        return layer.model_copy(update={"ffn": checked_copy(layer.ffn, "ffn", **sizes)})
