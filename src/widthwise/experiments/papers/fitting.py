"""Laws: through the points that a paper prints, or through those of a ladder."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import Field

from widthwise.bundled import papers_folder
from widthwise.config_io import Config
from widthwise.experiments.papers.experiment import Measured
from widthwise.experiments.scaling.fitting import fit_groups
from widthwise.experiments.scaling.points import Axes, gather
from widthwise.records.estimate import Estimate
from widthwise.records.scaling import LawName, ScalingLaws

NEEDS = "needs_"
"""Beginning of the quantity "x that a group needs for the loss of the baseline's largest model, over what that has"."""

OTHER_UNITS = {"pflops_days": "training_flops"}
"""Quantity -> the same in other units: ratios are equal."""


class MeasuredLaws(Measured):
    """Groups are its rows; its quantities are `needs_` and a quantity of an x axis, and what a law has: its parameters
    and r_squared."""

    def __init__(self, laws: Mapping[str, ScalingLaws]):
        """laws: quantity of the x axis -> the laws over it."""
        self._laws = laws

    def value(self, name: str, quantity: str) -> Estimate | None:
        if quantity.startswith(NEEDS):
            return self._saving(name, quantity.removeprefix(NEEDS))
        for laws in self._laws.values():
            group = next((each for each in laws.groups if each.name == name), None)
            if group is not None and (fit := group.chosen_fit) is not None:
                if quantity == "r_squared":
                    return Estimate(mean=fit.r_squared)
                return fit.parameters.get(quantity)
        return None

    def _saving(self, group: str, x: str) -> Estimate | None:
        if (laws := self._laws.get(x) or self._laws.get(OTHER_UNITS.get(x, x))) is None:
            return None
        return next((each.ratio for each in laws.arrows if each.group == group), None)

    @property
    def models(self) -> Mapping[str, float]:
        return {}

    @property
    def n_seeds(self) -> int | None:
        counts = {point.n_seeds for laws in self._laws.values() for group in laws.groups for point in group.points}
        return min(counts, default=None)


class Fitting(Config):
    """Points that a paper prints, as a table of `configs/papers/points`."""

    file: str
    over: tuple[str, ...] = Field(min_length=1)
    """Columns of the x axes, one law over each."""
    y: str
    group: str | None = None
    """Column that names the group of a point; default: all are one group, named after the file."""
    baseline: str | None = None
    law: LawName | None = None
    """Default: the one that errs least at a point left out."""

    @property
    def path(self) -> Path:
        return papers_folder() / "points" / f"{self.file}.csv"

    @cached_property
    def found(self) -> MeasuredLaws:
        """Raises UserError."""
        return MeasuredLaws(
            {x: fit([self.path], Axes(x, self.y, self.group), self.baseline, self.law) for x in self.over}
        )


def fit(paths: Sequence[Path], axes: Axes, baseline: str | None, law: str | None) -> ScalingLaws:
    """The laws through the points of tables or folders of results, with the command line that would fit the same.

    baseline: the group that the others are compared with. law: its name; None: the one that errs least at a point left
    out. Raises UserError.
    """
    title = "-".join(path.stem for path in paths)
    command = " ".join(
        ["widthwise fit", *map(str, paths), f"--x {axes.x} --y {axes.y}"]
        + [f"--{name} {value}" for name, value in {"group-by": axes.group_by, "baseline": baseline}.items() if value]
    )
    return fit_groups(gather(paths, axes, baseline), title, command, law)
