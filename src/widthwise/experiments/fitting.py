"""One law fitted to one group of models, the uncertainty of its parameters, and what the group saves over a baseline.

**What is resampled.** If every point has at least two seeds: the noise of each run, from the deviations of all runs of
the group from the means of their points; within a single point, two seeds say too little about their own spread.
Otherwise the residuals of the fit, added to its curve at any point. Whole points are not resampled, because most
resamples of four sizes would contain only three or two of them.

Groups with the same layout, such as the variants of a ladder, are resampled together: what the models of a size have
in common, such as data order or a bend that the law lacks, moves both curves and cancels in their ratio.

**The interval** is Student's t times the standard error of the resampled fits, as everywhere here (`statistics`). Few
residuals understate the spread: they are widened by sqrt(n / n_free), with n_free = n - n_symbols, or n_runs - n_points
for runs, and t has n_free degrees of freedom. For parameters that are factors, the interval is that of the logarithm.

**Savings**: with how much of a baseline's compute, or width, a group reaches the same loss. Curve against curve: the
target loss is that of the baseline's curve at its largest model, so the noise of one model counts little. Point against
curve: the target loss is the one that the baseline's largest model has. The two together show how much depends on that
one model: 77.6% and 74.4% of the FLOPs for the variable-width paper's Table 2.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np
from scipy import stats

from widthwise.config_io import UserError, nearest_hint
from widthwise.evaluation.estimate import students_t
from widthwise.experiments.laws import LAWS, Law, leave_one_out_errors
from widthwise.experiments.scaling_points import CurveGroup, FitData
from widthwise.records.estimate import CONFIDENCE, Estimate
from widthwise.records.scaling import Band, FittedLaw, LawName, Saving, ScalingGroup, ScalingLaws, ScalingPoint
from widthwise.training.observer import Observer, SilentObserver

N_RESAMPLES = 2000
N_BAND = 33


@dataclass(frozen=True)
class Fit:
    """A law on the points of a group. The arrays of draws have one row each."""

    law: Law
    group: CurveGroup
    parameters: np.ndarray
    """(n_symbols,) the fitted values, in the order of the law's symbols."""
    drawn_parameters: np.ndarray
    """(n_draws, n_symbols) the values fitted to each resample."""
    noise: np.ndarray
    """(n_draws, n_points) the move of each point in a resample, on the law's residual scale."""
    degrees_of_freedom: int
    reason: str | None = None
    """Why the parameters are unreliable; None if they are not."""

    @property
    def rms(self) -> float:
        """Root mean square of y minus the curve, in the unit of y."""
        residuals = self.group.y - self.law.y(self.parameters, self.group.x)
        return float(np.sqrt(np.square(residuals).mean()))

    @property
    def r_squared(self) -> float:
        """Share of the variance of y that the curve explains; nan if y does not vary."""
        y = self.group.y
        residuals = y - self.law.y(self.parameters, self.group.x)
        return float(1 - np.square(residuals).mean() / y.var()) if np.ptp(y) else float("nan")

    @property
    def has_lack_of_fit(self) -> bool:
        """True if means over seeds lie farther off the curve than the noise of runs explains: the F test of lack of
        fit, at 5 percent. The intervals do not include such a miss."""
        if not self.group.has_seeds:
            return False
        scale, n_free = self.law.residual_scale, len(self.group.points) - len(self.law.symbols)
        n_seeds = np.array(self.group.layout)
        off_curve = scale(self.group.y) - scale(self.law.y(self.parameters, self.group.x))
        luck = _run_noise(self.law, self.group)
        ratio = ((n_seeds * off_curve**2).sum() / n_free) / (np.square(luck).sum() / self.degrees_of_freedom)
        return bool(stats.f.sf(ratio, n_free, self.degrees_of_freedom) < 0.05)

    def intervals(self, confidence: float) -> dict[str, Estimate]:
        """Return parameter name -> its value and interval."""
        return {
            symbol: _t_interval(
                float(value), drawn, self.degrees_of_freedom, confidence, as_factor=symbol in self.law.factors
            )
            for symbol, value, drawn in zip(self.law.symbols, self.parameters, self.drawn_parameters.T)
        }

    def band(self, confidence: float) -> Band:
        """Return the confidence band of the curve at N_BAND values of x over the points."""
        x = np.geomspace(self.group.x.min(), self.group.x.max(), N_BAND)
        scale = self.law.residual_scale
        centre = scale(self.law.y(self.parameters, x))
        spread = scale(self.law.y(self.drawn_parameters[:, None, :], x)).std(axis=0)
        half_width = students_t(self.degrees_of_freedom, confidence) * spread
        low, high = (self.law.from_residual_scale(centre + sign * half_width).tolist() for sign in (-1, 1))
        return Band(x=x.tolist(), low=low, high=high)


def objection(law: Law, group: CurveGroup) -> str | None:
    """Return why a law cannot be fitted to a group; None if it can."""
    n_different = len(set(group.x))
    if n_different >= law.fewest_points:
        return None
    return f"needs points at {law.fewest_points} or more different x, and {group.name} has {n_different}"


def fit_law(law: Law, group: CurveGroup, seed: int = 0) -> Fit:
    """Fit a law to a group without an `objection`. seed: of the resampling."""
    x, y = group.x, group.y
    parameters = law.fit(x, y)
    random = np.random.default_rng([seed, *group.layout])
    if group.has_seeds:
        centre, n_free = law.residual_scale(y), sum(group.layout) - len(x)
        noise = _drawn_noise(law, group, n_free, random)
    else:
        centre, n_free = law.residual_scale(law.y(parameters, x)), len(x) - len(law.symbols)
        noise = _drawn(law.residual_scale(y) - centre, n_free, len(x), random)
    drawn = law.fit(x, law.from_residual_scale(centre + noise))
    return Fit(law, group, parameters, drawn, noise, n_free, law.doubt(parameters))


def _drawn_noise(law: Law, group: CurveGroup, n_free: int, random: np.random.Generator) -> np.ndarray:
    """Return (N_RESAMPLES, n_points) means of drawn runs, as many as each point has, less the point's own mean."""
    runs = _run_noise(law, group)
    drawn = _drawn(runs, n_free, len(runs), random)
    starts = np.cumsum([0, *group.layout[:-1]])
    return np.add.reduceat(drawn, starts, axis=1) / np.array(group.layout)


def _run_noise(law: Law, group: CurveGroup) -> np.ndarray:
    """Return (n_runs,) distances of runs from the mean of their point, on the law's residual scale."""
    scale = law.residual_scale
    return np.concatenate([scale(np.array(point.per_seed)) - scale(np.array(point.y)) for point in group.points])


def _drawn(residuals: np.ndarray, n_free: int, n_drawn: int, random: np.random.Generator) -> np.ndarray:
    """Return (N_RESAMPLES, n_drawn) residuals drawn with replacement, widened by sqrt(n / n_free)."""
    widened = (residuals - residuals.mean()) * np.sqrt(len(residuals) / n_free)
    return widened[random.integers(len(residuals), size=(N_RESAMPLES, n_drawn))]


def savings(group: Fit, baseline: Fit, confidence: float) -> Iterator[Saving]:
    """Yield the savings curve against curve and point against curve. Both fits are of the same law.

    Intervals are those of the ratio's logarithm. Resamples are paired if the groups have the same layout; otherwise the
    degrees of freedom are those of Welch and Satterthwaite.
    """
    law, i = baseline.law, baseline.group.largest
    point = baseline.group.points[i]
    at_point = np.array(point.x)
    y_curve, drawn_curve = law.y(baseline.parameters, at_point), law.y(baseline.drawn_parameters, at_point)
    drawn_point = law.from_residual_scale(law.residual_scale(np.array(point.y)) + baseline.noise[:, i])
    targets: dict[Literal["curve", "point"], tuple[float, np.ndarray]] = {
        "curve": (float(y_curve), drawn_curve),
        "point": (point.y, drawn_point),
    }
    for kind, (y, y_drawn) in targets.items():
        y_here = np.array(y)
        x, n_free = float(law.x(group.parameters, y_here)), float(group.degrees_of_freedom)
        if group.group.layout != baseline.group.layout:
            own, others = law.x(group.drawn_parameters, y_here), law.x(group.parameters, y_drawn)
            n_free = _welch(own / x, group.degrees_of_freedom, others / x, baseline.degrees_of_freedom)
        drawn = law.x(group.drawn_parameters, y_drawn)
        yield Saving(
            group=group.group.name,
            baseline=baseline.group.name,
            fit=law.kind,
            kind=kind,
            at=ScalingPoint(name=point.name, x=point.x, y=y),
            ratio=_t_interval(x / point.x, drawn / point.x, n_free, confidence, as_factor=True),
            is_extrapolated=not bool(group.group.x.min() <= x <= group.group.x.max()),
        )


def _welch(first: np.ndarray, first_free: int, second: np.ndarray, second_free: int) -> float:
    """Return the degrees of freedom of a sum of two independent errors, here of logarithms of resampled values."""
    variances = np.array([np.log(first).var(), np.log(second).var()])
    weighted = (variances**2 / np.array([first_free, second_free])).sum()
    return float(variances.sum() ** 2 / weighted) if weighted > 0 else float(first_free + second_free)


def _t_interval(
    value: float, drawn: np.ndarray, degrees_of_freedom: float, confidence: float, as_factor: bool
) -> Estimate:
    """Return Student's t times the standard error of the resampled values; no interval if one of them is nan.

    as_factor: for positive values, of their logarithms.
    """
    if as_factor and (value <= 0 or (drawn <= 0).any()):
        return Estimate(mean=value, low=None, high=None)
    centre, spread = (np.log(value), np.log(drawn).std()) if as_factor else (value, drawn.std())
    half_width = students_t(degrees_of_freedom, confidence) * spread
    low, high = centre - half_width, centre + half_width
    with np.errstate(over="ignore"):
        ends = np.exp([low, high]) if as_factor else (low, high)
    return Estimate(mean=value, low=float(ends[0]), high=float(ends[1]))


Fits = dict[LawName, dict[str, Fit]]
"""Kind of law -> group -> fit, if the group has enough points for one."""


def fit_groups(
    data: FitData, title: str, command: str, law: str | None = None, observer: Observer | None = None
) -> ScalingLaws:
    """Return all laws of all groups, the savings by each, and the answer in words: the content of scaling.json.

    law: the kind used for the answer; by default the one with the smallest `leave_one_out_errors`. Raises UserError if
    no law can be fitted to a group.
    """
    axes, groups = data.axes, data.groups
    fits = _fits(groups, axes.x, observer or SilentObserver())
    chosen, why = _choice(groups, fits, law)
    found = [
        saving
        for own in fits.values()
        for name, fit in own.items()
        if data.baseline in own and name != data.baseline
        for saving in savings(fit, own[data.baseline], CONFIDENCE)
    ]
    curves = [fits[chosen][group.name] for group in groups]
    drawn = sorted({"the luck of runs" if group.has_seeds else "residuals" for group in groups})
    sentences = [
        *(_saving_sentence(found, name, chosen, axes.x) for name in dict.fromkeys(saving.group for saving in found)),
        *(_law_sentence(curve, axes.x, axes.y) for curve in curves),
        f"Law: {chosen}, {why}. Intervals: {' and '.join(drawn)} drawn {N_RESAMPLES:,} times.",
        *(f"Left out: {each}." for each in data.left_out),
    ]
    return ScalingLaws(
        title=title,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        confidence=CONFIDENCE,
        x=axes.x,
        y=axes.y,
        baseline=data.baseline,
        sentence="\n".join(sentences),
        groups=[_recorded(group, fits, chosen) for group in groups],
        savings=found,
    )


def _fits(groups: Sequence[CurveGroup], x: str, observer: Observer) -> Fits:
    for group in groups:
        reasons = [objection(law, group) for law in LAWS.values()]
        if all(reasons):
            raise UserError(f"fit: over {x} a law {reasons[0]}; --group-by decides which models share a curve")
    possible: list[tuple[LawName, CurveGroup]] = [
        (kind, group) for kind, law in LAWS.items() for group in groups if objection(law, group) is None
    ]
    fits: Fits = {kind: {} for kind in LAWS}
    for n_done, (kind, group) in enumerate(possible):
        observer.working("fitting", n_done, len(possible), "laws")
        fits[kind][group.name] = fit_law(LAWS[kind], group)
    return fits


def _choice(groups: Sequence[CurveGroup], fits: Fits, asked: str | None) -> tuple[LawName, str]:
    """Return one law for all groups, so that their curves are comparable, and the reason for it."""
    if asked is not None:
        law = next((law for law in LAWS.values() if law.kind == asked), None)
        if law is None:
            raise UserError(f"--law: got {asked!r}; {nearest_hint(asked, LAWS)}")
        for group in groups:
            if reason := objection(law, group):
                raise UserError(f"--law: got {asked}, which {reason}")
        return law.kind, "as asked"
    errors: dict[LawName, float] = {
        kind: error
        for kind, law in LAWS.items()
        if math.isfinite(error := _left_out_rms(law, groups)) and not any(fit.reason for fit in fits[kind].values())
    }
    if not errors:
        return next(iter(LAWS)), "since the points are too few to choose by"
    shown = ", ".join(f"{kind} {error:.2g}" for kind, error in errors.items())
    return min(errors, key=lambda kind: errors[kind]), f"which errs least at a point left out ({shown})"


def _left_out_rms(law: Law, groups: Sequence[CurveGroup]) -> float:
    """Return the root mean square of the leave-one-out errors over all groups; nan if one has too few points."""
    errors = np.concatenate([leave_one_out_errors(law, group.x, group.y) for group in groups])
    return float(np.sqrt(np.square(errors).mean()))


def _recorded(group: CurveGroup, fits: Fits, chosen: LawName) -> ScalingGroup:
    points = [
        ScalingPoint(
            name=point.name,
            x=point.x,
            y=point.y,
            y_sd=float(np.std(point.per_seed, ddof=1)) if len(point.per_seed) > 1 else None,
            n_seeds=len(point.per_seed),
        )
        for point in group.points
    ]
    laws: dict[LawName, FittedLaw | None] = {}
    for kind, law in LAWS.items():
        fit = fits[kind].get(group.name)
        laws[kind] = FittedLaw(
            form=law.form,
            parameters={} if fit is None else fit.intervals(CONFIDENCE),
            rms=fit and fit.rms,
            r_squared=fit and fit.r_squared,
            leave_one_out_rms=fit and _left_out_rms(law, [group]),
            band=fit and fit.band(CONFIDENCE),
            reason=objection(law, group) if fit is None else fit.reason,
        )
    return ScalingGroup(name=group.name, points=points, fits=laws, chosen=chosen)


def _law_sentence(fit: Fit, x: str, y: str) -> str:
    symbol = fit.law.steepness
    steepness = fit.intervals(CONFIDENCE)[symbol]
    doubt = "" if fit.reason is None else f"; {fit.reason}"
    quality = "all points are equal" if np.isnan(fit.r_squared) else f"R² {fit.r_squared:.4f}"
    if fit.has_lack_of_fit:
        doubt += "; its points lie off it by more than the luck of runs, and of that the intervals know nothing"
    formula = fit.law.written(fit.parameters, x, y)
    return f"{fit.group.name}: {formula} ({symbol}: {_ends(steepness, '{:.4g}')}; {quality}){doubt}."


def _saving_sentence(found: Sequence[Saving], group: str, law: str, x: str) -> str:
    """Return the savings of a group by one law, curve against curve and point against curve, and by the other laws."""
    own = {(each.fit, each.kind): each for each in found if each.group == group}
    curve, point = own[law, "curve"], own[law, "point"]
    by_curves = _reached(curve, f"{curve.baseline}'s fitted loss of {curve.at.y:.4g}", x)
    by_point = _reached(point, f"the measured loss of {point.at.name} ({point.at.y:.4g})", x)
    others = [f"{kind} {_share(each)}" for (kind, how), each in own.items() if how == "curve" and kind != law]
    also = f" Curve against curve by other laws: {', '.join(others)}." if others else ""
    return f"{group} {by_curves}, by the two fitted curves; it {by_point}, by its curve and that point.{also}"


def _reached(saving: Saving, loss: str, x: str) -> str:
    if saving.ratio.mean is None:
        return f"never reaches {loss}"
    outside = ", outside its own models" if saving.is_extrapolated else ""
    return f"reaches {loss} with {_share(saving)} ({_ends(saving.ratio, '{:.1%}')}{outside}) of the {x}"


def _share(saving: Saving) -> str:
    return "never" if saving.ratio.mean is None else f"{saving.ratio.mean:.1%}"


def _ends(interval: Estimate, style: str) -> str:
    if interval.low is None or interval.high is None:
        return "no interval"
    return f"{CONFIDENCE:.0%} interval {style.format(interval.low)} to {style.format(interval.high)}"
