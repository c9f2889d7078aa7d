"""What a Hugging Face architecture is to us: how its config and its tensors read, and how ours are written as them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from widthwise.interop.fields import Fields
from widthwise.model.config import ModelConfig


@dataclass(frozen=True)
class HFTensor:
    """One tensor of a checkpoint, and what it is made of."""

    name: str
    parts: tuple[str, ...]
    """Names of our parameters, stacked in this order."""
    is_transposed: bool = False
    """Whether it is stored (in, out), as GPT-2 stores its matrices."""


class Architecture(ABC):
    """One `model_type` of transformers: how its configs and tensors map to ours."""

    model_type: ClassVar[str]
    class_name: ClassVar[str]
    """Name of the causal language model class in transformers."""
    base_prefix: ClassVar[str]
    """Prefix of every tensor but the head's; absent from a model saved without its head."""
    buffers: ClassVar[str]
    """Regular expression for tensors that older checkpoints store though they follow from the config."""

    has_layer_config: ClassVar[bool] = False
    """Whether layers may differ, as its `per_layer_config` says."""

    @abstractmethod
    def claims(self, config: ModelConfig) -> bool:
        """Whether a model is of this family, if of any; whether all of it fits is found by reading back."""

    @abstractmethod
    def read(self, fields: Fields) -> ModelConfig:
        """Raises UserError for what our models cannot do."""

    @abstractmethod
    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        """A config.json that reads back as the model, if one can. n_positions: the longest context in tokens."""

    @abstractmethod
    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        """Every tensor of the model, without buffers."""

    def n_positions(self, fields: Fields) -> int:
        """The longest context the model was made for, in tokens."""
        return fields.size("max_position_embeddings", 2048)

    def check_written(self, fields: Fields) -> None:
        """Raises UserError where transformers refuses what `write` gave."""
        del fields
