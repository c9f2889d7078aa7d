"""`sweep.json`: the state of every point of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic

from widthwise.records.comparison import Variant
from widthwise.records.estimate import Validations
from widthwise.records.record import Number, Record, StoredRecord


class SearchedRange(Record):
    """The range from which a search drew the values of one recipe key."""

    low: Number
    high: Number
    log: bool = False
    step: int | None = None
    """Distance between the values, if they are whole numbers."""


class FinishedPoint(Variant):
    """One choice of values, trained with all seeds."""

    state: Literal["finished"]
    values: Mapping[str, Any]
    """Recipe key -> value."""
    group: str | None = None
    reason: None = None


class OpenPoint(Record):
    """A point that has no result, yet or at all."""

    name: str
    state: Literal["failed", "running", "waiting"]
    values: Mapping[str, Any]
    group: str | None = None
    reason: str | None = None


class Study(Record):
    """The study that the points come from, and its progress."""

    storage: str
    sampler: str
    n_points: int
    n_finished: int
    n_failed: int


class Sweep(StoredRecord):
    """A sweep, finished or not; its finished points make it `Compared`."""

    file_name: ClassVar[str] = "sweep.json"

    title: str
    command: str
    created: str
    metric: str = "val_loss"
    confidence: float = pydantic.Field(gt=0, lt=1)
    seeds: Sequence[int]
    matched: str | None = None
    baseline: str | None = None
    """The point with which all others are compared."""
    baseline_group: str | None = None
    """In a ladder the group with whose point of the same values, the same size, the others are compared."""
    sentence: str
    """The findings in words, one per line."""
    environment: Mapping[str, Any]
    validations: Validations | None = None
    """Validations of the finished points; None without any, and in files of older versions."""
    axes: Mapping[str, Mapping[str, list[Any] | SearchedRange]]
    """Group -> recipe key -> its values in order, or the range of a search."""
    points: Sequence[Annotated[FinishedPoint | OpenPoint, pydantic.Field(discriminator="state")]]
    study: Study
    columns: Sequence[str] | None = None
    """Names of the quantities that the main table shows, in order; None: the usual ones."""

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
        """Finished points, lowest loss first, those without a loss last."""
        found = [point for point in self.points if isinstance(point, FinishedPoint)]
        return sorted(found, key=lambda point: (point.val_loss.mean is None, point.val_loss.mean))

    @property
    def baseline_variant(self) -> FinishedPoint | None:
        return next(
            (point for point in self.variants if point.name == self.baseline and point.val_loss.mean is not None), None
        )

    @property
    def baseline_words(self) -> str | None:
        """The baseline in words; None if there is none, or none with a loss."""
        if self.baseline_group is not None:
            return f"{self.baseline_group} of the same size"
        return self.baseline_variant and self.baseline

    def baseline_of(self, variant: Variant) -> FinishedPoint | None:
        """Return the finished baseline of a point, if it has a loss: itself, if others are compared with it."""
        if self.baseline_group is None:
            return self.baseline_variant
        values = next(point.values for point in self.points if point.name == variant.name)
        alike = (point for point in self.variants if (point.group, point.values) == (self.baseline_group, values))
        return next((point for point in alike if point.val_loss.mean is not None), None)

    @property
    def open_points(self) -> list[OpenPoint]:
        return [point for point in self.points if isinstance(point, OpenPoint)]

    @property
    def groups(self) -> list[str]:
        """Groups in the order of the points; "" is that of points without one. The baseline alone makes no group."""
        return list(dict.fromkeys(point.group or "" for point in self.points if point.name != self.baseline))

    def of_group(self, group: str) -> list[FinishedPoint | OpenPoint]:
        """Return the points of a group. The baseline belongs to one only if it has values."""
        own = [point for point in self.points if (point.group or "") == group]
        return [point for point in own if point.values or point.name != self.baseline]
