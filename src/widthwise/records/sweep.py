"""What `sweep.json` holds, as far as reports show it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic

from widthwise.config_io import parse
from widthwise.files import read_json
from widthwise.records.record import Record, Variant


class Range(Record):
    """Within which a search drew the values of one recipe key."""

    low: float
    high: float
    log: bool = False


class FinishedPoint(Variant):
    """One choice of values, trained with all seeds."""

    state: Literal["finished"]
    values: dict[str, Any]
    """Recipe key -> value."""
    group: str | None = None

    @pydantic.field_validator("verdict", mode="before")
    @classmethod
    def _no_verdict_without_baseline(cls, verdict: Any) -> Any:
        return "cannot tell" if verdict is None else verdict


class OpenPoint(Record):
    """A point without a result, so far or for good."""

    name: str
    state: Literal["failed", "running", "waiting"]
    values: dict[str, Any]
    group: str | None = None
    reason: str | None = None
    """Why it failed."""


Point = Annotated[FinishedPoint | OpenPoint, pydantic.Field(discriminator="state")]


class Study(Record):
    """Where the points came from."""

    storage: str
    sampler: str
    n_points: int
    n_finished: int
    n_failed: int


class Sweep(Record):
    """The content of `sweep.json`; with finished points it is `Compared`."""

    title: str
    command: str
    created: str
    confidence: float = pydantic.Field(gt=0, lt=1)
    seeds: list[int]
    matched: str | None = None
    baseline: str | None = None
    sentence: str
    """The answer in words, in lines."""
    environment: dict[str, Any]
    axes: dict[str, dict[str, list[Any] | Range]]
    """Group -> recipe key -> its values in order, or the range of a search."""
    points: list[Point]
    study: Study

    @pydantic.model_validator(mode="after")
    def _names_agree(self) -> Self:
        names = [point.name for point in self.points]
        if len(set(names)) < len(names):
            raise ValueError("points: two have the same name")
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline: got {self.baseline!r}, which is none of the points")
        return self

    @property
    def variants(self) -> Sequence[FinishedPoint]:
        """The finished points, the lowest loss first and those without one last."""
        found = [point for point in self.points if isinstance(point, FinishedPoint)]
        return sorted(found, key=lambda point: (point.val_loss.mean is None, point.val_loss.mean))

    @property
    def baseline_variant(self) -> FinishedPoint | None:
        return next(
            (point for point in self.variants if point.name == self.baseline and point.val_loss.mean is not None), None
        )

    @property
    def open_points(self) -> list[OpenPoint]:
        return [point for point in self.points if isinstance(point, OpenPoint)]

    @property
    def groups(self) -> list[str]:
        """In the order of the points; "" is that of points without one. The baseline alone makes none."""
        return list(dict.fromkeys(point.group or "" for point in self.points if point.name != self.baseline))

    def of_group(self, group: str) -> list[FinishedPoint | OpenPoint]:
        """A baseline is of a group only where it has values."""
        own = [point for point in self.points if (point.group or "") == group]
        return [point for point in own if point.values or point.name != self.baseline]


def read_sweep(folder: Path) -> Sweep:
    """Reads `folder/sweep.json`. Raises UserError where it is missing or broken."""
    path = Path(folder) / "sweep.json"
    return parse(Sweep, read_json(path), str(path))
