"""What a law is drawn over, and points on their way to their groups."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from widthwise.config_io import UserError
from widthwise.experiments.scaling.law_fit import Group, Point


@dataclass(frozen=True)
class Axes:
    """What is drawn over what, and which models one curve should go through."""

    x: str
    y: str
    group_by: str | None = None
    """A column of a table; of runs a dotted key of their recipes, or "folder".
    None: the variant of a comparison, the group of a sweep, the stem of a table; run directories are all alike."""


@dataclass(frozen=True)
class Found:
    """A point, and the group it is of."""

    group: str
    point: Point


def checked_point(name: str, x: float, per_seed: Sequence[float], where: str, axes: Axes) -> Point:
    """Raises UserError where one of the numbers has no logarithm."""
    for label, value in ((axes.x, x), *((axes.y, y) for y in per_seed)):
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{where}: {label} is {value:g}; a law needs finite numbers above 0")
    return Point(name, x, tuple(per_seed))


def grouped(found: Iterable[Found]) -> tuple[Group, ...]:
    """The groups in the order in which they were met, their points by growing x."""
    groups: dict[str, list[Point]] = {}
    for each in found:
        groups.setdefault(each.group, []).append(each.point)
    return tuple(Group(name, tuple(sorted(points, key=lambda point: point.x))) for name, points in groups.items())
