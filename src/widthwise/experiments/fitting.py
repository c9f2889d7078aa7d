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
from typing import Any, Literal

import numpy as np
from scipy import stats

from widthwise.config_io import UserError, check_one_of
from widthwise.evaluation.estimate import students_t
from widthwise.experiments.laws import LAWS, Law, leave_one_out_errors
from widthwise.experiments.scaling_points import CurveGroup, FitData
from widthwise.records.estimate import CONFIDENCE, Estimate
from widthwise.records.scaling import Band, FittedLaw, LawName, Saving, ScalingGroup, ScalingLaws, ScalingPoint
from widthwise.training.observer import Observer, SilentObserver

N_RESAMPLES = 2000
N_BAND = 33
SMALLEST_P = 0.05
"""Level of the F test of lack of fit: below it the points miss the curve by more than the luck of runs explains."""


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
    has_lack_of_fit: bool
    """True if means over seeds lie farther off the curve than the noise of runs explains. The intervals do not include
    such a miss."""

    def record(self) -> FittedLaw:
        """Return the parameters with their intervals, the quality of the fit, and the confidence band of the curve at
        N_BAND values of x over the points."""
        law, x, y = self.law, self.group.x, self.group.y
        mean_square = np.square(y - law.y(self.parameters, x)).mean()
        across = np.geomspace(x.min(), x.max(), N_BAND)
        centre = law.residual_scale(law.y(self.parameters, across))
        spread = law.residual_scale(law.y(self.drawn_parameters[:, None, :], across)).std(axis=0)
        half_width = students_t(self.degrees_of_freedom) * spread
        low, high = (law.from_residual_scale(centre + sign * half_width).tolist() for sign in (-1, 1))
        values = zip(law.symbols, self.parameters.tolist(), self.drawn_parameters.T)
        return FittedLaw(
            form=law.form,
            parameters={
                symbol: _t_interval(value, drawn, self.degrees_of_freedom, symbol in law.factors)
                for symbol, value, drawn in values
            },
            rms=float(np.sqrt(mean_square)),
            r_squared=float(1 - mean_square / y.var()) if np.ptp(y) else None,
            leave_one_out_rms=_left_out_rms(law, [self.group]),
            band=Band(x=across.tolist(), low=low, high=high),
            reason=law.warning(self.parameters),
        )


def objection(law: Law, group: CurveGroup) -> str | None:
    """Return why a law cannot be fitted to a group; None if it can."""
    n_different = len(set(group.x))
    if n_different >= law.fewest_points:
        return None
    return f"needs points at {law.fewest_points} or more different x, and {group.name} has {n_different}"


def fit_law(law: Law, group: CurveGroup, seed: int = 0) -> Fit:
    """Fit a law to a group without an `objection`. seed: of the resampling."""
    x, y, n_runs, scale = group.x, group.y, np.array(group.layout), law.residual_scale
    parameters = law.fit(x, y)
    on_curve, n_free, has_lack_of_fit = scale(law.y(parameters, x)), len(x) - len(law.symbols), False
    off_curve = scale(y) - on_curve
    if group.has_seeds:
        points = [scale(np.array(point.per_seed)) - scale(np.array(point.y)) for point in group.points]
        centre, residuals, n_luck = scale(y), np.concatenate(points), n_runs.sum() - len(x)
        ratio = ((n_runs * off_curve**2).sum() / n_free) / (np.square(residuals).sum() / n_luck)
        has_lack_of_fit, n_free = bool(stats.f.sf(ratio, n_free, n_luck) < SMALLEST_P), int(n_luck)
    else:
        centre, residuals, n_runs = on_curve, off_curve, np.ones_like(n_runs)
    widened = (residuals - residuals.mean()) * np.sqrt(len(residuals) / n_free)
    random = np.random.default_rng([seed, *group.layout])
    runs = widened[random.integers(len(residuals), size=(N_RESAMPLES, n_runs.sum()))]
    noise = np.add.reduceat(runs, np.cumsum([0, *n_runs[:-1]]), axis=1) / n_runs
    drawn = law.fit(x, law.from_residual_scale(centre + noise))
    return Fit(law, group, parameters, drawn, noise, n_free, has_lack_of_fit)


def savings(group: Fit, baseline: Fit) -> Iterator[Saving]:
    """Yield the savings curve against curve and point against curve. Both fits are of the same law.

    Intervals are those of the ratio's logarithm. Resamples are paired if the groups have the same layout; otherwise the
    degrees of freedom are those of Welch and Satterthwaite, for the sum of two independent errors.
    """
    law, points = baseline.law, baseline.group.points
    largest = min(range(len(points)), key=lambda i: (-points[i].x, points[i].y))
    point = points[largest]
    at_point, y_point = np.array(point.x), np.array(point.y)
    drawn_point = law.from_residual_scale(law.residual_scale(y_point) + baseline.noise[:, largest])
    targets: dict[Literal["curve", "point"], tuple[np.ndarray, np.ndarray]] = {
        "curve": (law.y(baseline.parameters, at_point), law.y(baseline.drawn_parameters, at_point)),
        "point": (y_point, drawn_point),
    }
    for kind, (y, y_drawn) in targets.items():
        x, n_free = float(law.x(group.parameters, y)), float(group.degrees_of_freedom)
        if group.group.layout != baseline.group.layout:
            errors = law.x(group.drawn_parameters, y), law.x(group.parameters, y_drawn)
            variances = np.array([np.log(each / x).var() for each in errors])
            both_free = np.array([group.degrees_of_freedom, baseline.degrees_of_freedom])
            weighted = (variances**2 / both_free).sum()
            n_free = float(variances.sum() ** 2 / weighted if weighted > 0 else both_free.sum())
        drawn = law.x(group.drawn_parameters, y_drawn)
        yield Saving(
            group=group.group.name,
            baseline=baseline.group.name,
            fit=law.kind,
            kind=kind,
            at=ScalingPoint(name=point.name, x=point.x, y=float(y)),
            ratio=_t_interval(x / point.x, drawn / point.x, n_free, as_factor=True),
            is_extrapolated=not bool(group.group.x.min() <= x <= group.group.x.max()),
        )


def _t_interval(value: float, drawn: np.ndarray, degrees_of_freedom: float, as_factor: bool) -> Estimate:
    """Return Student's t times the standard error of the resampled values; no interval if one of them is nan.

    as_factor: for positive values, of their logarithms.
    """
    if as_factor and (value <= 0 or (drawn <= 0).any()):
        return Estimate(mean=value, low=None, high=None)
    centre, spread = (np.log(value), np.log(drawn).std()) if as_factor else (value, drawn.std())
    half_width = students_t(degrees_of_freedom) * spread
    ends = np.array([centre - half_width, centre + half_width])
    with np.errstate(over="ignore"):
        low, high = (np.exp(ends) if as_factor else ends).tolist()
    return Estimate(mean=value, low=low, high=high)


Fits = dict[LawName, dict[str, Fit]]
"""Kind of law -> group -> fit, if the group has enough points for one."""


def fit_groups(
    data: FitData, title: str, command: str, law: str | None = None, observer: Observer | None = None
) -> ScalingLaws:
    """Return all laws of all groups, the savings by each, and the answer in words: the content of scaling.json.

    law: the kind used for the answer; by default the one with the smallest `leave_one_out_errors`. Raises UserError if
    no law can be fitted to a group.
    """
    axes, groups, baseline = data.axes, data.groups, data.baseline
    for group in groups:
        reasons = [objection(each, group) for each in LAWS.values()]
        if all(reasons):
            raise UserError(f"fit: over {axes.x} a law {reasons[0]}; --group-by decides which models share a curve")
    possible = [(each, group) for each in LAWS.values() for group in groups if objection(each, group) is None]
    fits: Fits = {kind: {} for kind in LAWS}
    for n_done, (each, group) in enumerate(possible):
        (observer or SilentObserver()).working("fitting", n_done, len(possible), "laws")
        fits[each.kind][group.name] = fit_law(each, group)
    chosen, why = _choice(groups, fits, law)
    recorded = [_recorded(group, fits, chosen) for group in groups]
    saved = [
        saving
        for own in fits.values()
        if baseline in own
        for name, fit in own.items()
        if name != baseline
        for saving in savings(fit, own[baseline])
    ]
    drawn = sorted({"the luck of runs" if group.has_seeds else "residuals" for group in groups})
    sentences = [
        *(_saving_sentence(saved, name, chosen, axes.x) for name in dict.fromkeys(saving.group for saving in saved)),
        *(_law_sentence(fits[chosen][group.name], group, axes.x, axes.y) for group in recorded),
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
        baseline=baseline,
        sentence="\n".join(sentences),
        groups=recorded,
        savings=saved,
    )


def _choice(groups: Sequence[CurveGroup], fits: Fits, wanted: str | None) -> tuple[LawName, str]:
    """Return one law for all groups, so that their curves are comparable, and the reason for it."""
    if wanted is not None:
        check_one_of("--law", wanted, LAWS)
        law = next(law for law in LAWS.values() if law.kind == wanted)
        if reasons := [reason for group in groups if (reason := objection(law, group))]:
            raise UserError(f"--law: got {wanted}, which {reasons[0]}")
        return law.kind, "as asked"
    errors: dict[LawName, float] = {
        kind: error
        for kind, law in LAWS.items()
        if math.isfinite(error := _left_out_rms(law, groups))
        and not any(law.warning(fit.parameters) for fit in fits[kind].values())
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
    unknown: dict[str, Any] = dict.fromkeys(("rms", "r_squared", "leave_one_out_rms", "band"))
    laws: dict[LawName, FittedLaw] = {
        kind: own[group.name].record()
        if group.name in (own := fits[kind])
        else FittedLaw(form=law.form, parameters={}, reason=objection(law, group), **unknown)
        for kind, law in LAWS.items()
    }
    return ScalingGroup(name=group.name, points=group.points, fits=laws, chosen=chosen)


def _law_sentence(fit: Fit, group: ScalingGroup, x: str, y: str) -> str:
    law, found = fit.law, group.chosen_fit
    numbers = dict(zip(law.symbols, fit.parameters))
    formula = law.formula.format(x=x, y=y, minus_b=-fit.parameters[-1], **numbers)
    quality = "all points are equal" if found.r_squared is None else f"R² {found.r_squared:.4f}"
    warning = "" if found.reason is None else f"; {found.reason}"
    if fit.has_lack_of_fit:
        warning += "; its points lie off it by more than the luck of runs, and of that the intervals know nothing"
    ends = _ends(found.parameters[law.steepness], "{:.4g}")
    return f"{group.name}: {formula} ({law.steepness}: {ends}; {quality}){warning}."


def _saving_sentence(saved: Sequence[Saving], group: str, law: str, x: str) -> str:
    """Return the savings of a group by one law, curve against curve and point against curve, and by the other laws."""
    own = {(each.fit, each.kind): each for each in saved if each.group == group}

    def reached(saving: Saving, loss: str) -> str:
        if saving.ratio.mean is None:
            return f"never reaches {loss}"
        outside = ", outside its own models" if saving.is_extrapolated else ""
        return f"reaches {loss} with {_share(saving)} ({_ends(saving.ratio, '{:.1%}')}{outside}) of the {x}"

    curve, point = own[law, "curve"], own[law, "point"]
    by_curves = reached(curve, f"{curve.baseline}'s fitted loss of {curve.at.y:.4g}")
    by_point = reached(point, f"the measured loss of {point.at.name} ({point.at.y:.4g})")
    others = [f"{kind} {_share(each)}" for (kind, how), each in own.items() if how == "curve" and kind != law]
    also = f" Curve against curve by other laws: {', '.join(others)}." if others else ""
    return f"{group} {by_curves}, by the two fitted curves; it {by_point}, by its curve and that point.{also}"


def _share(saving: Saving) -> str:
    return "never" if saving.ratio.mean is None else f"{saving.ratio.mean:.1%}"


def _ends(interval: Estimate, style: str) -> str:
    if interval.low is None or interval.high is None:
        return "no interval"
    return f"{CONFIDENCE:.0%} interval {style.format(interval.low)} to {style.format(interval.high)}"
