"""One law fitted to one group of models, the uncertainty of its parameters, and the savings over a baseline.

**Resampling.** If every point has at least two seeds, resamples draw the noise of runs: the deviations of runs from
the means of their points, pooled over the group, because one point has too few seeds to estimate a spread. Otherwise
they draw residuals of the fit and add them to its curve. Whole points are not resampled, because most resamples of four
sizes would contain only two or three of them.

Groups with equal numbers of seeds, such as the variants of a ladder, are resampled together. Effects that the models of
a size share, such as data order or a bend that the law lacks, then move both curves and cancel in their ratio.

**The interval** is Student's t times the standard error of the resampled fits, as in `estimate`. Few residuals
understate the spread: they are widened by sqrt(n / n_free), with n_free = n - n_symbols, or n_runs - n_points for runs,
and t has n_free degrees of freedom. The interval of a factor is computed for its logarithm.

**Savings** are the share of a baseline's compute, or width, with which a group reaches the same loss. Curve against
curve: the target is the loss of the baseline's curve at its largest model, so the noise of one model counts little.
Point against curve: the target is the measured loss of the largest model. The difference shows how much depends on that
one model: 77.6% and 74.4% of the FLOPs for the variable-width paper's Table 2.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

import numpy as np
from scipy import stats

from widthwise.config_io import check_one_of
from widthwise.evaluation.estimate import SampleEstimate, students_t
from widthwise.experiments.laws import LAWS, Law
from widthwise.experiments.scaling_points import Axes, CurveGroup, FitData
from widthwise.mistakes import UserError
from widthwise.records.estimate import CONFIDENCE, Estimate
from widthwise.records.scaling import Band, FittedLaw, LawName, Saving, ScalingGroup, ScalingLaws, ScalingPoint
from widthwise.training.observer import Observer, SilentObserver

N_RESAMPLES = 2000
N_BAND = 33
MOST_POINTS = 2000
"""Points of a group: memory grows with their square."""
SMALLEST_P = 0.05
"""Level of the F test of lack of fit: below it the points miss the curve by more than the noise of runs explains."""
LACK_OF_FIT = "the points miss the curve by more than the noise of runs, which the intervals do not include"


@dataclass(frozen=True)
class Fit:
    """A law fitted to the points of a group."""

    law: Law
    group: CurveGroup
    parameters: np.ndarray
    """(n_symbols,) the fitted values, in the order of the law's symbols."""
    drawn_parameters: np.ndarray
    """(N_RESAMPLES, n_symbols) the values fitted to each resample."""
    noise: np.ndarray
    """(N_RESAMPLES, n_points) the shift of each point in a resample, on the law's residual scale."""
    degrees_of_freedom: int
    has_lack_of_fit: bool
    """True if means over seeds miss the curve by more than the noise of runs, which the intervals do not include."""
    resampled: str
    """`the noise of runs`, or `residuals`."""

    def record(self) -> FittedLaw:
        """Return the parameters with their intervals, the quality of the fit, and the confidence band of the curve at
        N_BAND values of x over the points."""
        law = self.law
        x = self.group.x
        y = self.group.y
        mean_square = np.square(y - law.y(self.parameters, x)).mean()
        band_x = np.geomspace(x.min(), x.max(), N_BAND)
        centre = law.residual_scale(law.y(self.parameters, band_x))
        spread = law.residual_scale(law.y(self.drawn_parameters[:, None, :], band_x)).std(axis=0)
        half_width = students_t(self.degrees_of_freedom) * spread
        low, high = (law.from_residual_scale(centre + sign * half_width).tolist() for sign in (-1, 1))
        return FittedLaw(
            form=law.form,
            parameters={
                symbol: _t_interval(value, drawn, self.degrees_of_freedom, symbol in law.factors)
                for symbol, value, drawn in zip(law.symbols, self.parameters.tolist(), self.drawn_parameters.T)
            },
            rms=float(np.sqrt(mean_square)),
            r_squared=float(1 - mean_square / y.var()) if np.ptp(y) else None,
            leave_one_out_rms=_leave_one_out_rms(law, [self.group]),
            band=Band(x=band_x.tolist(), low=low, high=high),
            reason=LACK_OF_FIT if self.has_lack_of_fit else law.warning(self.parameters),
        )


def fit_law(law: Law, group: CurveGroup) -> Fit:
    """Fit a law without an `objection` to the group."""
    x = group.x
    y = group.y
    n_runs = np.array(group.n_seeds)
    scale = law.residual_scale
    parameters = law.fit(x, y)
    curve = scale(law.y(parameters, x))
    residuals = scale(y) - curve
    n_free = len(y) - len(law.symbols)
    # Runs of the same point that differ show the noise between runs.
    if min(group.n_seeds) > 1 and any(len(set(point.per_seed)) > 1 for point in group.points):
        resampled = "the noise of runs"
        centre = scale(y)
        lack_of_fit = (n_runs * residuals**2).sum() / n_free
        errors = np.concatenate([scale(np.array(p.per_seed)) - scale(np.array(p.y)) for p in group.points])
        n_free_errors = int(n_runs.sum() - len(x))
        ratio = lack_of_fit / (np.square(errors).sum() / n_free_errors)
        has_lack_of_fit = bool(stats.f.sf(ratio, n_free, n_free_errors) < SMALLEST_P)
    else:
        resampled = "residuals"
        centre = curve
        n_runs = np.ones_like(n_runs)
        errors = residuals
        n_free_errors = n_free
        has_lack_of_fit = False
    widened = (errors - errors.mean()) * np.sqrt(len(errors) / n_free_errors)
    random = np.random.default_rng([0, *group.n_seeds])
    runs = widened[random.integers(len(errors), size=(N_RESAMPLES, n_runs.sum()))]
    noise = np.add.reduceat(runs, np.cumsum([0, *n_runs[:-1]]), axis=1) / n_runs
    drawn = law.fit(x, law.from_residual_scale(centre + noise))
    return Fit(law, group, parameters, drawn, noise, n_free_errors, has_lack_of_fit, resampled)


def savings(fit: Fit, baseline: Fit) -> Iterator[Saving]:
    """Yield the savings curve against curve and point against curve. Both fits are of the same law.

    Intervals are computed for the logarithm of the ratio. Resamples are paired if the groups have equal numbers of
    seeds; otherwise the degrees of freedom are Welch and Satterthwaite's, for the sum of two independent errors.
    """
    law = baseline.law
    group = fit.group
    points = baseline.group.points
    largest = max(range(len(points)), key=lambda i: (points[i].x, -points[i].y))
    point = points[largest]
    at_point = np.array(point.x)
    y_point = np.array(point.y)
    drawn_point = law.from_residual_scale(law.residual_scale(y_point) + baseline.noise[:, largest])
    targets: dict[Literal["curve", "point"], tuple[np.ndarray, np.ndarray]] = {
        "curve": (law.y(baseline.parameters, at_point), law.y(baseline.drawn_parameters, at_point)),
        "point": (y_point, drawn_point),
    }
    for kind, (y, y_drawn) in targets.items():
        x = float(law.x(fit.parameters, y))
        n_free = float(fit.degrees_of_freedom)
        if group.n_seeds != baseline.group.n_seeds:
            from_group = law.x(fit.drawn_parameters, y)
            from_baseline = law.x(fit.parameters, y_drawn)
            variances = np.array([np.log(drawn_x / x).var() for drawn_x in (from_group, from_baseline)])
            free = np.array([fit.degrees_of_freedom, baseline.degrees_of_freedom])
            weighted = (variances**2 / free).sum()
            n_free = float(variances.sum() ** 2 / weighted if weighted > 0 else free.sum())
        drawn = law.x(fit.drawn_parameters, y_drawn)
        yield Saving(
            group=group.name,
            baseline=baseline.group.name,
            fit=law.kind,
            kind=kind,
            at=ScalingPoint(name=point.name, x=point.x, y=float(y)),
            ratio=_t_interval(x / point.x, drawn / point.x, n_free, as_factor=True),
            is_extrapolated=not bool(group.x.min() <= x <= group.x.max()),
        )


def _t_interval(value: float, drawn: np.ndarray, degrees_of_freedom: float, as_factor: bool) -> Estimate:
    """Return a value with an interval of Student's t times the standard error of the resampled values.

    There is no interval if a resampled value is nan. as_factor: compute the interval of the logarithm; there is none if
    a value is not positive.
    """
    if as_factor and (value <= 0 or (drawn <= 0).any()):
        return Estimate(mean=value, low=None, high=None)
    if not as_factor:
        return SampleEstimate(value, float(drawn.std()), degrees_of_freedom).with_interval()
    spread = float(np.log(drawn).std())
    estimate = SampleEstimate(float(np.log(value)), spread, degrees_of_freedom).with_interval()
    with np.errstate(over="ignore"):
        low, high = np.exp(np.array([estimate.low, estimate.high], dtype=np.float64)).tolist()
    return Estimate(mean=value, low=low, high=high)


Fits = dict[LawName, dict[str, Fit]]
"""Kind of law -> group -> fit, for groups with enough points."""


def fit_groups(
    data: FitData, title: str, command: str, law: str | None = None, observer: Observer | None = None
) -> ScalingLaws:
    """Fit all laws to all groups. Return the content of scaling.json: fits, savings, and the laws as text.

    law: the kind used for the answer; by default the one with the smallest `leave_one_out_errors`. Groups with too few
    points are left out, and named in the text. Raises UserError if no group is left, or the baseline has too few.
    """
    axes = data.axes
    baseline = data.baseline
    if law is not None:
        check_one_of("--law", law, LAWS)
    too_small = dict[str, str]()
    for group in data.groups:
        if len(group.points) > MOST_POINTS:
            raise UserError(f"fit: {group.name} has {len(group.points):,} points; a law takes at most {MOST_POINTS:,}")
        reasons = [candidate.objection(group) for candidate in LAWS.values()]
        if None not in reasons:
            too_small[group.name] = str(reasons[0])
    groups = [group for group in data.groups if group.name not in too_small]
    if not groups or baseline in too_small:
        reason = too_small[data.groups[0].name if baseline is None else baseline]
        raise UserError(f"fit: over {axes.x} a law {reason}; --group decides which models share a curve")
    pairs = [(candidate, group) for candidate in LAWS.values() for group in groups if not candidate.objection(group)]
    fits: Fits = {kind: {} for kind in LAWS}
    observer = observer or SilentObserver()
    for n_done, (candidate, group) in enumerate(pairs):
        observer.working("fitting", n_done, len(pairs), "laws")
        fits[candidate.kind][group.name] = fit_law(candidate, group)
    chosen, grounds = _choose_law(groups, fits, law)
    recorded = [_recorded(group, fits, chosen) for group in groups]
    all_savings = list[Saving]()
    for by_group in fits.values():
        for name, fit in by_group.items():
            if baseline in by_group and name != baseline:
                all_savings += savings(fit, by_group[baseline])
    resampled = sorted({fit.resampled for fit in fits[chosen].values()})
    sentences = [_law_sentence(fits[chosen][group.name], group, axes) for group in recorded]
    sentences.append(f"Law: {chosen}, {grounds}. Intervals: {' and '.join(resampled)} drawn {N_RESAMPLES:,} times.")
    sentences += [f"Left out: {points}." for points in data.left_out]
    sentences += [f"Left out: {name}, because a law {reason}." for name, reason in too_small.items()]
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
        savings=all_savings,
    )


def _choose_law(groups: Sequence[CurveGroup], fits: Fits, wanted: str | None) -> tuple[LawName, str]:
    """Return one law for all groups, which makes their curves comparable, and the reason for the choice.

    Raises UserError if the wanted law cannot be fitted to a group.
    """
    if wanted is not None:
        law = LAWS[cast(LawName, wanted)]
        for group in groups:
            reason = law.objection(group)
            if reason is not None:
                raise UserError(f"--law: got {wanted}, which {reason}")
        return law.kind, "as requested"
    errors = dict[LawName, float]()
    for kind, law in LAWS.items():
        error = _leave_one_out_rms(law, groups)
        has_warning = any(law.warning(fit.parameters) for fit in fits[kind].values())
        if math.isfinite(error) and not has_warning:
            errors[kind] = error
    if not errors:
        return next(iter(LAWS)), "because the points are too few for a choice"
    shown = ", ".join(f"{kind} {error:.2g}" for kind, error in errors.items())
    return min(errors, key=lambda kind: errors[kind]), f"with the smallest error at left-out points ({shown})"


def _leave_one_out_rms(law: Law, groups: Sequence[CurveGroup]) -> float:
    """Return the root mean square of the leave-one-out errors over all groups; nan if one has too few points."""
    errors = np.concatenate([law.leave_one_out_errors(group.x, group.y) for group in groups])
    return float(np.sqrt(np.square(errors).mean()))


def _recorded(group: CurveGroup, fits: Fits, chosen: LawName) -> ScalingGroup:
    """Return the record of a group: its fits, and the reasons against laws that were not fitted."""
    no_fit: dict[str, Any] = dict.fromkeys(("rms", "r_squared", "leave_one_out_rms", "band"))
    laws = dict[LawName, FittedLaw]()
    for kind, by_group in fits.items():
        if group.name in by_group:
            laws[kind] = by_group[group.name].record()
        else:
            laws[kind] = FittedLaw(form=LAWS[kind].form, parameters={}, reason=LAWS[kind].objection(group), **no_fit)
    if (shape := _u_shape(group)) is not None:
        laws[chosen] = laws[chosen].model_copy(update={"reason": shape})
    return ScalingGroup(name=group.name, points=group.points, fits=laws, chosen=chosen)


def _u_shape(group: CurveGroup) -> str | None:
    """Return a warning if both ends of the points exceed the lowest point by more than the noise around a parabola."""
    x = group.x
    y = group.y
    n_free = len(set(x)) - 3
    if n_free < 1:
        return None
    log_x = np.log(x)
    parabola = np.polynomial.Polynomial.fit(log_x, y, deg=2)
    noise = np.sqrt(np.square(y - parabola(log_x)).sum() / n_free)
    lowest = y.argmin()
    if min(y[0], y[-1]) - y[lowest] <= students_t(n_free) * np.sqrt(2) * noise:
        return None
    return f"the points fall and rise again, lowest at {x[lowest]:.4g}: a monotone law cannot fit"


def _law_sentence(fit: Fit, group: ScalingGroup, axes: Axes) -> str:
    """Return a sentence with the law, its numbers, its quality and warnings."""
    law = fit.law
    record = group.chosen_fit
    numbers = dict(zip(law.symbols, fit.parameters))
    formula = law.formula.format(x=axes.x, y=axes.y, minus_b=-fit.parameters[-1], **numbers)
    quality = "all points are equal" if record.r_squared is None else f"R² {record.r_squared:.4f}"
    warning = "" if record.reason is None else f"; {record.reason}"
    steepness = record.parameters[law.steepness]
    interval = "no interval"
    if steepness.low is not None and steepness.high is not None:
        interval = f"{CONFIDENCE:.0%} interval {steepness.low:.4g} to {steepness.high:.4g}"
    return f"{group.name}: {formula} ({law.steepness}: {interval}; {quality}){warning}."
