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
    """Our parameters, one below the other."""
    is_transposed: bool = False
    """Whether it is stored (in, out), as GPT-2 stores its matrices."""


class Architecture(ABC):
    """One `model_type`."""

    model_type: ClassVar[str]
    class_name: ClassVar[str]
    """Of the language model in transformers."""
    base_prefix: ClassVar[str]
    """Before the names of all tensors but the head's; missing where the model was saved without its head."""
    buffers: ClassVar[str]
    """Regular expression of the names of tensors in older checkpoints that follow from the config."""

    @abstractmethod
    def claims(self, config: ModelConfig) -> bool:
        """Whether a model is of this family, if of any; whether all of it fits is found by reading back."""

    @abstractmethod
    def read(self, fields: Fields) -> ModelConfig:
        """Raises UserError for what our models cannot do."""

    @abstractmethod
    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        """A config.json that reads back as the model, if one can. n_positions: tokens of the longest text."""

    @abstractmethod
    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        """Of the whole model, without buffers."""

    def n_positions(self, fields: Fields) -> int:
        """Tokens of the longest text the model was made for."""
        return fields.size("max_position_embeddings", 2048)

    def check_written(self, fields: Fields) -> None:
        """Raises UserError where transformers refuses what `write` gave."""
        del fields
