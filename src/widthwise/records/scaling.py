"""What `scaling.json` holds, as far as reports show it."""

from pathlib import Path
from typing import Literal, Self

import numpy as np
import pydantic
from numpy.typing import NDArray

from widthwise.config_io import parse
from widthwise.files import read_json
from widthwise.records.record import Estimate, Record

Array = NDArray[np.float64]
_CURVES = {
    "power": lambda x, a, b: a * x**-b,
    "power_irreducible": lambda x, e, a, b: e + a * x**-b,
    "log_linear": lambda x, slope, intercept: slope * np.log2(x) + intercept,
}
"""Law -> y over x and the law's symbols."""
LawName = Literal["power", "power_irreducible", "log_linear"]
SYMBOLS: dict[LawName, tuple[str, ...]] = {
    "power": ("a", "b"),
    "power_irreducible": ("e", "a", "b"),
    "log_linear": ("slope", "intercept"),
}


class Band(Record):
    """Within which the curve lies, with the confidence of the page; three lists of one length."""

    x: list[float]
    low: list[float | None]
    high: list[float | None]


class Fit(Record):
    """One law fitted to one group."""

    form: str
    parameters: dict[str, Estimate]
    """By symbol; empty where the law could not be fitted."""
    rms: float | None = None
    """Of y minus the curve."""
    r_squared: float | None = None
    reason: str | None = None
    """Why it could not be fitted, or why its symbols say little."""
    band: Band | None = None


class ScalingPoint(Record):
    """One model."""

    name: str
    x: float = pydantic.Field(gt=0)
    y: float
    n_seeds: int = 1


class ScalingGroup(Record):
    """Models that one curve should go through."""

    name: str
    points: list[ScalingPoint] = pydantic.Field(min_length=1)
    fits: dict[LawName, Fit | None]
    chosen: LawName | None = None
    """The law whose curve is drawn."""

    @pydantic.model_validator(mode="after")
    def _symbols_fit_the_law(self) -> Self:
        for law, fit in self.fits.items():
            if fit and fit.parameters and set(fit.parameters) != set(SYMBOLS[law]):
                raise ValueError(f"fits.{law}.parameters: expected {', '.join(SYMBOLS[law])}")
        return self

    def curve(self, x: Array) -> Array | None:
        """y of the chosen fit; None where there is none."""
        fit = self.fits.get(self.chosen) if self.chosen else None
        values = {symbol: each.mean for symbol, each in fit.parameters.items()} if fit else {}
        if self.chosen is None or not values or None in values.values():
            return None
        return _CURVES[self.chosen](x, **values)


class Saving(Record):
    """x of a group over x of the baseline at one y."""

    group: str
    baseline: str
    fit: str
    kind: Literal["curve", "point"]
    at: ScalingPoint
    """The baseline's largest model, and the y at which both are compared."""
    ratio: Estimate
    is_extrapolated: bool = False
    """Whether the group's curve reaches that y outside its own points."""


class Scaling(Record):
    """The content of `scaling.json`."""

    title: str
    command: str
    created: str
    confidence: float = pydantic.Field(gt=0, lt=1)
    x: str
    """What it is."""
    y: str
    sentence: str
    """The answer in words, in lines."""
    groups: list[ScalingGroup] = pydantic.Field(min_length=1)
    savings: list[Saving]

    @pydantic.model_validator(mode="after")
    def _names_agree(self) -> Self:
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError("groups: two have the same name")
        for saving in self.savings:
            if saving.group not in names or saving.baseline not in names:
                raise ValueError(
                    f"savings: got {saving.group!r} and {saving.baseline!r}; groups are {', '.join(names)}"
                )
        return self

    def is_drawn(self, saving: Saving) -> bool:
        """Whether it is by the law of the curves, and has a number."""
        chosen = {group.name: group.chosen for group in self.groups}
        return saving.fit == chosen[saving.group] and saving.ratio.mean is not None

    @property
    def arrows(self) -> list[Saving]:
        """What the figure draws: curve against curve."""
        return [saving for saving in self.savings if saving.kind == "curve" and self.is_drawn(saving)]

    @property
    def is_positive(self) -> bool:
        """Whether every y has a logarithm."""
        return all(point.y > 0 for group in self.groups for point in group.points)

    @property
    def baseline(self) -> str | None:
        return self.savings[0].baseline if self.savings else None


def read_scaling(folder: Path) -> Scaling:
    """Reads `folder/scaling.json`. Raises UserError where it is missing or broken."""
    path = Path(folder) / "scaling.json"
    return parse(Scaling, read_json(path), str(path))
