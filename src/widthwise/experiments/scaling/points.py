"""Axes, points and groups of points for fitting laws."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from widthwise.config_io import UserError


@dataclass(frozen=True)
class Point:
    """One model of a group."""

    name: str
    x: float
    """The quantity on the x axis, above 0."""
    per_seed: tuple[float, ...]
    """y, above 0, of every run of the model."""

    @property
    def y(self) -> float:
        return float(np.mean(self.per_seed))


@dataclass(frozen=True)
class CurveGroup:
    """Models that one curve should go through, in increasing order of x."""

    name: str
    points: tuple[Point, ...]

    @property
    def x(self) -> np.ndarray:
        return np.array([point.x for point in self.points], dtype=np.float64)

    @property
    def y(self) -> np.ndarray:
        return np.array([point.y for point in self.points], dtype=np.float64)

    @property
    def layout(self) -> tuple[int, ...]:
        """Number of seeds of each point."""
        return tuple(len(point.per_seed) for point in self.points)

    @property
    def has_seeds(self) -> bool:
        """Whether every point has several runs that differ, so that they show the noise between runs."""
        return min(self.layout) > 1 and any(len(set(point.per_seed)) > 1 for point in self.points)

    @property
    def largest(self) -> int:
        """Index of the point with the largest x; of several, the one with the lowest y."""
        return min(range(len(self.points)), key=lambda i: (-self.points[i].x, self.points[i].y))


@dataclass(frozen=True)
class Axes:
    """The quantities on both axes, and which models one curve should go through."""

    x: str
    y: str
    group_by: str | None = None
    """A column of a table; for runs, a dotted key of their recipes or "folder".
    None: the variant of a comparison, the group of a sweep, the stem of a table; all run directories are one group."""


@dataclass(frozen=True)
class Found:
    """A point and its group."""

    group: str
    point: Point


def checked_point(name: str, x: float, per_seed: Sequence[float], where: str, axes: Axes) -> Point:
    """A point of these numbers. Raises UserError if one of them has no logarithm."""
    for label, value in ((axes.x, x), *((axes.y, y) for y in per_seed)):
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{where}: {label} is {value:g}; a law needs finite numbers above 0")
    return Point(name, x, tuple(per_seed))


def grouped(found: Iterable[Found]) -> tuple[CurveGroup, ...]:
    """The groups in order of first appearance, their points in increasing order of x."""
    groups: dict[str, list[Point]] = {}
    for each in found:
        groups.setdefault(each.group, []).append(each.point)
    return tuple(CurveGroup(name, tuple(sorted(points, key=lambda point: point.x))) for name, points in groups.items())
