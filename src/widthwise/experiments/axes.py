"""The axes of a sweep: a recipe key with a list of values or a range."""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.experiments.plan import ALLOWED_IN_NAMES
from widthwise.mistakes import UserError

if TYPE_CHECKING:
    from optuna import Trial

SIGNIFICANT_DIGITS = 6
"""Precision of a value drawn from a range, so that the name of its point states it in full."""
LONGEST_NAME = 150
"""Characters; file systems allow names of 255 bytes, and the seed is appended."""


def name_part(value: Any) -> str:
    """Return a value as part of a name, in the characters allowed there. Raises ValueError for a mapping."""
    if isinstance(value, Mapping):
        raise ValueError(f"got {json.dumps(value)}; a mapping has no short name; use a group")
    if isinstance(value, (list, tuple)):
        return "+".join(map(name_part, value))
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(letter if letter in ALLOWED_IN_NAMES else "_" for letter in text)


def point_name(group: str, values: Mapping[str, Any]) -> str:
    """Return the name of a point, "x-0.25-0.3" in group x. Raises UserError if it is too long for a folder."""
    name = "-".join(filter(None, [group, *map(name_part, values.values())]))
    if len(name) > LONGEST_NAME:
        raise UserError(f"sweep: the point {name[:40]}... has a name of {len(name)} letters; use a group")
    return name


class Values(Config):
    """A list: all values of a grid, or the choices of a search."""

    items: tuple[Any, ...] = Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Values":
        if len(set(map(name_part, self.items))) < len(self.items):
            raise ValueError(f"got {list(self.items)}; values must be distinct, also as parts of a name")
        return self

    def grid(self, path: str) -> tuple[Any, ...]:
        return self.items

    def drawn(self, trial: "Trial", name: str) -> Any:
        """Return the value that the sampler of a search chooses for a trial."""
        by_name = {name_part(item): item for item in self.items}
        return by_name[trial.suggest_categorical(name, list(by_name))]

    def as_data(self) -> Any:
        return list(self.items)


class Range(Config):
    """All numbers from `low` to `high`, both included; whole numbers if both are whole. Only for a search."""

    low: int | float
    high: int | float
    log: bool = False
    """Sample uniformly on a logarithmic scale."""
    step: int | None = Field(default=None, gt=0)
    """Step between whole numbers, counted from `low`; default 1."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low: got {self.low}; must be less than high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: got {self.low}; a logarithmic scale needs values above 0")
        if self.step is not None and (self.log or not self._is_whole):
            raise ValueError(f"step: got {self.step}; needs whole low and high, and no log")
        return self

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def grid(self, path: str) -> tuple[Any, ...]:
        raise UserError(f"sweep: {path}: got a range; a grid needs a list of values, or add search: {{n_trials: ...}}")

    def drawn(self, trial: "Trial", name: str) -> Any:
        """Return the value that the sampler of a search chooses for a trial."""
        if self._is_whole:
            return trial.suggest_int(name, int(self.low), int(self.high), step=self.step or 1, log=self.log)
        value = trial.suggest_float(name, self.low, self.high, log=self.log)
        return min(max(rounded(value), float(self.low)), float(self.high))

    def as_data(self) -> Any:
        data = {"low": self.low, "high": self.high, "log": self.log}
        return data if self.step is None else {**data, "step": self.step}


def rounded(value: float) -> float:
    """Return the value rounded to SIGNIFICANT_DIGITS."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else value


def _as_mapping(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return {"items": tuple(data)}
    if isinstance(data, (Mapping, Config)):
        return data
    raise ValueError(f"got {data!r}; expected a list of values, or a range {{low: ..., high: ..., log: true}}")


def _kind_of_axis(data: Any) -> str:
    return "values" if isinstance(data, Values) or (isinstance(data, Mapping) and "items" in data) else "range"


Axis = Annotated[
    Annotated[Values, pydantic.Tag("values")] | Annotated[Range, pydantic.Tag("range")],
    pydantic.Discriminator(_kind_of_axis),
    pydantic.BeforeValidator(_as_mapping, json_schema_input_type=list[Any] | Range),
]
"""A list or a range, as written in a recipe."""
