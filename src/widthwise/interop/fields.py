"""The keys of a config.json, read with errors that name file, key and value."""

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from widthwise.config_io import UserError
from widthwise.sizes import MOST_LAYERS, WIDEST

MOST = 2**31 - 1
"""The largest of all sizes."""


class Fields:
    """One config.json. A key whose value is null counts as one that is not there."""

    def __init__(self, data: Mapping[str, Any], where: str):
        """where: the file, for errors."""
        self._data, self.where = data, where

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands, unchecked."""
        value = self._data.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """A whole number. Raises UserError for another value, and for none where there is no default."""
        value = self._given(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0. Raises as `size`."""
        value = self._given(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            self.refuse(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false. Raises UserError for another value."""
        value = self._given(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str) -> str:
        """One of several words. Raises UserError for another."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            self.refuse(key, ", ".join(allowed))
        return value

    def only(self, key: str, allowed: Any, default: Any = None) -> None:
        """Raises UserError where a key has another value than the one that can be imported.

        default: what transformers takes where the key is missing; None: the allowed value.
        """
        if self.get(key, allowed if default is None else default) != allowed:
            self.refuse(key, repr(allowed))

    def width(self, key: str, default: int | None = None) -> int:
        """How many channels. Raises as `size`."""
        return self.size(key, default, most=WIDEST)

    def n_layers(self, key: str) -> int:
        """How many layers, each of which takes memory before its tensors are found to be missing. Raises as `size`."""
        return self.size(key, most=MOST_LAYERS)

    def refuse(self, key: str, allowed: str) -> NoReturn:
        raise UserError(f"{self.where}: {key}: got {self._data.get(key)!r}; allowed: {allowed}")

    def _given(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise UserError(f"{self.where}: {key}: is required but missing")
        return value
