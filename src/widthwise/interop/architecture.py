"""The interface of a Hugging Face architecture: its config and its tensors, in and out."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn

from widthwise.config_io import UserError
from widthwise.model.config import ModelConfig
from widthwise.sizes import MOST_LAYERS, WIDEST

MOST = 2**31 - 1
"""The largest of all sizes."""


class Fields:
    """One config.json. A key whose value is null counts as one that is not there."""

    def __init__(self, data: Mapping[str, Any], where: str):
        """where: the file, for errors."""
        self._data, self.where = data, where

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value unchecked."""
        value = self._data.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """Return a whole number. Raises UserError for another value, and for none without a default."""
        value = self._given(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number above 0. Raises as `size`."""
        value = self._given(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            self.refuse(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false. Raises UserError for another value."""
        value = self._given(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str) -> str:
        """Return one of several words. Raises UserError for another."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            self.refuse(key, ", ".join(allowed))
        return value

    def only(self, key: str, allowed: Any, default: Any = None) -> None:
        """Raise UserError if a key has another value than the one that can be imported.

        default: of transformers, where the key is missing; None: the allowed value.
        """
        if self.get(key, allowed if default is None else default) != allowed:
            self.refuse(key, repr(allowed))

    def width(self, key: str, default: int | None = None) -> int:
        """Return a number of channels. Raises as `size`."""
        return self.size(key, default, most=WIDEST)

    def n_layers(self, key: str) -> int:
        """Return a number of layers, limited as each takes memory before its tensors are missed. Raises as `size`."""
        return self.size(key, most=MOST_LAYERS)

    def refuse(self, key: str, allowed: str) -> NoReturn:
        raise UserError(f"{self.where}: {key}: got {self._data.get(key)!r}; allowed: {allowed}")

    def _given(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise UserError(f"{self.where}: {key}: is required but missing")
        return value


class HFTensor(NamedTuple):
    """One tensor of a checkpoint and its parts."""

    name: str
    parts: tuple[str, ...]
    """Names of our parameters, stacked in this order."""
    is_transposed: bool = False
    """Stored (in, out), as GPT-2 stores its matrices."""


class Architecture(ABC):
    """One `model_type` of transformers, with the mapping of its configs and tensors to ours."""

    model_type: ClassVar[str]
    class_name: ClassVar[str]
    """Name of the causal language model class in transformers."""
    base_prefix: ClassVar[str]
    """Prefix of every tensor but the head's; absent from a model saved without its head."""
    buffers: ClassVar[str]
    """Regular expression for tensors that older checkpoints store though they follow from the config."""

    has_layer_config: ClassVar[bool] = False
    """True if layers may differ, by its `per_layer_config`."""

    @abstractmethod
    def claims(self, config: ModelConfig) -> bool:
        """Return True if a model is of this family, if of any; reading back finds out if all of it fits."""

    @abstractmethod
    def read(self, fields: Fields) -> ModelConfig:
        """Read a config. Raises UserError for options that our models lack."""

    @abstractmethod
    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        """Return a config.json that reads back as the model, if one can. n_positions: longest context in tokens."""

    @abstractmethod
    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        """Yield every tensor of the model, without buffers."""

    def n_positions(self, fields: Fields) -> int:
        """Return the longest context that the model was made for, in tokens."""
        return fields.size("max_position_embeddings", 2048)

    def check_written(self, fields: Fields) -> None:
        """Raise UserError if transformers refuses the result of `write`."""
        del fields
