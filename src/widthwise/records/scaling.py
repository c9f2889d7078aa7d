"""`scaling.json`: laws fitted to groups of models, and the savings of groups over a baseline."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import pydantic

from widthwise.records.estimate import Estimate
from widthwise.records.record import FiniteOrNone, Number, Record, ReportRecord

LawName = Literal["power", "power_irreducible", "log_linear"]
SYMBOLS: dict[LawName, tuple[str, ...]] = {
    "power": ("a", "b"),
    "power_irreducible": ("e", "a", "b"),
    "log_linear": ("slope", "intercept"),
}


class Band(Record):
    """The confidence band of a curve; three lists of equal length."""

    x: Sequence[float]
    low: Sequence[FiniteOrNone]
    high: Sequence[FiniteOrNone]


class FittedLaw(Record):
    """One law fitted to one group."""

    form: str
    parameters: Mapping[str, Estimate]
    """Parameter name -> estimate; empty if the law could not be fitted."""
    rms: FiniteOrNone = None
    """Root mean square of y minus the curve."""
    r_squared: FiniteOrNone = None
    leave_one_out_rms: FiniteOrNone = None
    """Root mean square of y at each point minus the curve fitted to the other points."""
    band: Band | None = None
    reason: str | None = None
    """Reason why the law could not be fitted, or why its parameters are unreliable."""


class ScalingPoint(Record):
    """One model as a point of a law."""

    name: str
    x: Number = pydantic.Field(gt=0)
    y: float
    y_sd: FiniteOrNone = None
    n_seeds: int = 1


class ScalingGroup(Record):
    """Models to which one curve is fitted."""

    name: str
    points: Sequence[ScalingPoint] = pydantic.Field(min_length=1)
    fits: Mapping[LawName, FittedLaw]
    chosen: LawName
    """The law whose curve is drawn."""

    @pydantic.model_validator(mode="after")
    def _check_fits(self) -> Self:
        for law, fit in self.fits.items():
            if fit.parameters and set(fit.parameters) != set(SYMBOLS[law]):
                raise ValueError(f"fits.{law}.parameters: expected {', '.join(SYMBOLS[law])}")
        if self.chosen not in self.fits:
            raise ValueError(f"chosen: got {self.chosen!r}; fits has {', '.join(self.fits) or 'none'}")
        return self

    @property
    def chosen_fit(self) -> FittedLaw:
        return self.fits[self.chosen]


class Saving(Record):
    """x of a group divided by x of the baseline at equal y. Below 1 the group needs less."""

    group: str
    baseline: str
    fit: LawName
    """The law, the same for both groups."""
    kind: Literal["curve", "point"]
    at: ScalingPoint
    """The baseline's largest model; its y is the y of the comparison."""
    ratio: Estimate
    """Ratio of x; its mean is None if the group's curve never reaches that y."""
    is_extrapolated: bool = False
    """True if the group's curve reaches that y beyond its points."""


class ScalingLaws(ReportRecord):
    """The results of `fit`."""

    file_name: ClassVar[str] = "scaling.json"

    confidence: float = pydantic.Field(gt=0, lt=1)
    x: str
    y: str
    baseline: str | None = None
    sentence: str
    """The laws as text, one per line."""
    groups: Sequence[ScalingGroup] = pydantic.Field(min_length=1)
    savings: Sequence[Saving]

    @pydantic.model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError("groups: two have the same name")
        for saving in self.savings:
            if saving.group not in names or saving.baseline not in names:
                pair = f"{saving.group!r} and {saving.baseline!r}"
                raise ValueError(f"savings: got {pair}; groups are {', '.join(names)}")
        return self

    def is_drawn(self, saving: Saving) -> bool:
        """Return True if a saving has a number and belongs to the law that is drawn."""
        chosen = {group.name: group.chosen for group in self.groups}
        return saving.fit == chosen[saving.group] and saving.ratio.mean is not None

    @property
    def arrows(self) -> list[Saving]:
        """The savings in the figure, from curve to curve."""
        return [saving for saving in self.savings if saving.kind == "curve" and self.is_drawn(saving)]
