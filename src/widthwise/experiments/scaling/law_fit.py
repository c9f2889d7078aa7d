"""One law fitted to one group of models, and how well its symbols are known.

**What is drawn again.** Where every point has at least two seeds: the luck of each run, from how far all runs of the
group lie from the means of their points; drawn within each point alone, two seeds would tell too little of their own
spread. Else residuals of the fit, put back on its curve at any point. Cases are not drawn, because of four sizes most
draws would be of three or two.

Groups of one layout, as the variants of a ladder are, are drawn alike: what the models of a size have in common, such
as the order of their data or a bend that the law has not, moves both curves and cancels in their ratio.

**The interval** is Student's t times the standard error of the drawn fits, as everywhere here (`statistics`). Few
residuals understate the spread: they are widened by sqrt(n / n_free), with n_free = n - n_symbols, or n_runs - n_points
of runs, and t has n_free degrees of freedom. Symbols that are factors are treated by their logarithms.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from widthwise.experiments.scaling.laws import Law
from widthwise.experiments.scaling.points import Group

N_RESAMPLES = 2000
N_BAND = 33


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; nan where there is none."""

    mean: float
    low: float = float("nan")
    high: float = float("nan")


@dataclass(frozen=True)
class Fit:
    """A law on the points of a group. The arrays of draws have one row each."""

    law: Law
    group: Group
    parameters: np.ndarray
    """(n_symbols,)"""
    drawn_parameters: np.ndarray
    """(n_draws, n_symbols)"""
    noise: np.ndarray
    """(n_draws, n_points) by how much each point lay elsewhere in a draw, on the law's residual scale."""
    degrees_of_freedom: int
    reason: str | None = None
    """Why the symbols say little; None where they do not."""

    @property
    def residuals(self) -> np.ndarray:
        """(n_points,) y minus the curve."""
        return self.group.y - self.law.y(self.parameters, self.group.x)

    @property
    def rms(self) -> float:
        """Root mean square of the residuals, in the unit of y."""
        return float(np.sqrt(np.square(self.residuals).mean()))

    @property
    def r_squared(self) -> float:
        """Of y; nan where it does not vary."""
        y = self.group.y
        return float(1 - np.square(self.residuals).mean() / y.var()) if np.ptp(y) else float("nan")

    @property
    def misses_by_more_than_luck(self) -> bool:
        """Whether means over seeds lie farther off the curve than the luck of runs explains: the F test of lack of fit,
        at 5 percent. The intervals leave out such a miss."""
        if not self.group.has_seeds:
            return False
        scale, n_free = self.law.residual_scale, len(self.group.points) - len(self.law.symbols)
        n_seeds = np.array(self.group.layout)
        off_curve = scale(self.group.y) - scale(self.law.y(self.parameters, self.group.x))
        luck = _luck_of_runs(self.law, self.group)
        ratio = ((n_seeds * off_curve**2).sum() / n_free) / (np.square(luck).sum() / self.degrees_of_freedom)
        return bool(stats.f.sf(ratio, n_free, self.degrees_of_freedom) < 0.05)

    def intervals(self, confidence: float) -> dict[str, Interval]:
        """Symbol -> its value and interval."""
        return {
            symbol: students_t(
                float(value), drawn, self.degrees_of_freedom, confidence, as_factor=symbol in self.law.factors
            )
            for symbol, value, drawn in zip(self.law.symbols, self.parameters, self.drawn_parameters.T)
        }

    def band(self, confidence: float) -> dict[str, list[float]]:
        """Between which the curve lies, at N_BAND values of x over the points: x, low and high."""
        x = np.geomspace(self.group.x.min(), self.group.x.max(), N_BAND)
        scale = self.law.residual_scale
        centre = scale(self.law.y(self.parameters, x))
        spread = scale(self.law.y(self.drawn_parameters[:, None, :], x)).std(axis=0)
        half_width = stats.t.ppf((1 + confidence) / 2, self.degrees_of_freedom) * spread
        ends = (self.law.from_residual_scale(centre + sign * half_width).tolist() for sign in (-1, 1))
        return dict(zip(("x", "low", "high"), (x.tolist(), *ends)))


def undetermined(law: Law, group: Group) -> str | None:
    """Why a law cannot be fitted to a group; None where it can."""
    n_different = len(set(group.x))
    if n_different >= law.fewest_points:
        return None
    return f"needs points at {law.fewest_points} or more different x, and {group.name} has {n_different}"


def fit_law(law: Law, group: Group, seed: int = 0) -> Fit:
    """A law that `undetermined` has nothing against, on a group. seed: of the draws."""
    x, y = group.x, group.y
    parameters = law.fit(x, y)
    random = np.random.default_rng([seed, *group.layout])
    if group.has_seeds:
        centre, n_free = law.residual_scale(y), sum(group.layout) - len(x)
        noise = _luck_of_points(law, group, n_free, random)
    else:
        centre, n_free = law.residual_scale(law.y(parameters, x)), len(x) - len(law.symbols)
        noise = _drawn(law.residual_scale(y) - centre, n_free, len(x), random)
    drawn = law.fit(x, law.from_residual_scale(centre + noise))
    return Fit(law, group, parameters, drawn, noise, n_free, law.doubt(parameters))


def _luck_of_points(law: Law, group: Group, n_free: int, random: np.random.Generator) -> np.ndarray:
    """(N_RESAMPLES, n_points) means of as many runs as each point has, less the point's own."""
    runs = _luck_of_runs(law, group)
    drawn = _drawn(runs, n_free, len(runs), random)
    starts = np.cumsum([0, *group.layout[:-1]])
    return np.add.reduceat(drawn, starts, axis=1) / np.array(group.layout)


def _luck_of_runs(law: Law, group: Group) -> np.ndarray:
    """(n_runs,) how far each run lies from the mean of its point, on the law's residual scale."""
    scale = law.residual_scale
    return np.concatenate([scale(np.array(point.per_seed)) - scale(np.array(point.y)) for point in group.points])


def _drawn(residuals: np.ndarray, n_free: int, n_drawn: int, random: np.random.Generator) -> np.ndarray:
    """(N_RESAMPLES, n_drawn) residuals drawn with replacement, widened as n_free asks."""
    widened = (residuals - residuals.mean()) * np.sqrt(len(residuals) / n_free)
    return widened[random.integers(len(residuals), size=(N_RESAMPLES, n_drawn))]


def students_t(
    value: float, drawn: np.ndarray, degrees_of_freedom: float, confidence: float, as_factor: bool
) -> Interval:
    """Student's t times the standard error of what was drawn; no interval where a draw has no number.

    as_factor: of logarithms, for what is above 0.
    """
    if as_factor and (value <= 0 or (drawn <= 0).any()):
        return Interval(value)
    centre, spread = (np.log(value), np.log(drawn).std()) if as_factor else (value, drawn.std())
    half_width = stats.t.ppf((1 + confidence) / 2, degrees_of_freedom) * spread
    low, high = centre - half_width, centre + half_width
    with np.errstate(over="ignore"):
        return Interval(value, *(float(end) for end in (np.exp([low, high]) if as_factor else (low, high))))
