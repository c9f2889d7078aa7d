"""Laws of all groups of models, the choice between them, and the answer in words."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from widthwise.config_io import UserError, nearest_hint
from widthwise.experiments.scaling.law_fit import N_RESAMPLES, Fit, fit_law, savings, undetermined
from widthwise.experiments.scaling.laws import LAWS, Law, leave_one_out_errors
from widthwise.experiments.scaling.points import CurveGroup, FitData
from widthwise.records.estimate import CONFIDENCE, Estimate
from widthwise.records.scaling import FittedLaw, LawName, Saving, ScalingGroup, ScalingLaws, ScalingPoint
from widthwise.training.observer import Observer, SilentObserver

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
        reasons = [undetermined(law, group) for law in LAWS.values()]
        if all(reasons):
            raise UserError(f"fit: over {x} a law {reasons[0]}; --group-by decides which models share a curve")
    possible: list[tuple[LawName, CurveGroup]] = [
        (kind, group) for kind, law in LAWS.items() for group in groups if undetermined(law, group) is None
    ]
    fits: Fits = {kind: {} for kind in LAWS}
    for n_done, (kind, group) in enumerate(possible):
        observer.working("fitting", n_done, len(possible), "laws")
        fits[kind][group.name] = fit_law(LAWS[kind], group)
    return fits


def _choice(groups: Sequence[CurveGroup], fits: Fits, asked: str | None) -> tuple[LawName, str]:
    """Return one law for all groups, so that their curves can be compared, and the reason for it."""
    if asked is not None:
        law = next((law for law in LAWS.values() if law.kind == asked), None)
        if law is None:
            raise UserError(f"--law: got {asked!r}; {nearest_hint(asked, LAWS)}")
        for group in groups:
            if reason := undetermined(law, group):
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
    """Root mean square of the leave-one-out errors over all groups; nan if one has too few points."""
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
            reason=undetermined(law, group) if fit is None else fit.reason,
        )
    return ScalingGroup(name=group.name, points=points, fits=laws, chosen=chosen)


def _law_sentence(fit: Fit, x: str, y: str) -> str:
    symbol = fit.law.steepness
    steepness = fit.intervals(CONFIDENCE)[symbol]
    doubt = "" if fit.reason is None else f"; {fit.reason}"
    quality = "all points are equal" if np.isnan(fit.r_squared) else f"R² {fit.r_squared:.4f}"
    if fit.misses_by_more_than_luck:
        doubt += "; its points lie off it by more than the luck of runs, and of that the intervals know nothing"
    formula = fit.law.written(fit.parameters, x, y)
    return f"{fit.group.name}: {formula} ({symbol}: {_ends(steepness, '{:.4g}')}; {quality}){doubt}."


def _saving_sentence(found: Sequence[Saving], group: str, law: str, x: str) -> str:
    """Tell what a group saves by one law, curve against curve and point against curve, and by the other laws."""
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
