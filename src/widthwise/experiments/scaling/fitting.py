"""Scaling laws of groups of models, and what one group saves over another."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError, nearest_hint
from widthwise.experiments.scaling.from_runs import read_measured
from widthwise.experiments.scaling.from_table import read_table
from widthwise.experiments.scaling.law_fit import Fit, fit_law, undetermined
from widthwise.experiments.scaling.laws import LAWS, Law, leave_one_out_errors
from widthwise.experiments.scaling.points import Axes, CurveGroup, grouped
from widthwise.experiments.scaling.savings import savings
from widthwise.experiments.scaling.sentences import law_sentence, method_sentence, saving_sentence
from widthwise.records.estimate import CONFIDENCE
from widthwise.records.scaling import FittedLaw, LawName, Saving, ScalingGroup, ScalingLaws, ScalingPoint
from widthwise.training.observer import Observer, Silence


@dataclass(frozen=True)
class Gathered:
    """The data that laws are fitted to."""

    axes: Axes
    groups: tuple[CurveGroup, ...]
    baseline: str | None
    """One of the groups; None: no savings are computed."""
    left_out: tuple[str, ...] = ()
    """Unfinished points that the paths contain, in words."""


def gather(paths: Sequence[Path], axes: Axes, baseline: str | None = None) -> Gathered:
    """Every model in the paths: .csv files, run directories, or folders of comparisons or sweeps.

    baseline: a group; by default the one that all comparisons call their baseline, if it is a group. Raises UserError
    if a path is none of these, or if no law can be fitted to a group.
    """
    if twice := [str(path) for path, times in Counter(path.resolve() for path in paths).items() if times > 1]:
        raise UserError(f"{twice[0]}: is given twice; a model counts once")
    tables = [path for path in paths if path.is_file()]
    found = [row for path in tables for row in read_table(path, axes)]
    left_out: tuple[str, ...] = ()
    recorded: frozenset[str] = frozenset()
    if folders := [path for path in paths if path not in tables]:
        measured = read_measured(folders, axes)
        found += measured.points
        recorded, left_out = measured.baselines, measured.left_out
    groups = grouped(found)
    if not groups:
        raise UserError(f"fit: found no finished model; {'; '.join(left_out)}")
    names = [group.name for group in groups]
    if baseline is not None and baseline not in names:
        raise UserError(f"--baseline: got {baseline!r}; {nearest_hint(baseline, names)}")
    if baseline is None and len(recorded) == 1:
        baseline = next((name for name in names if name in recorded), None)
    for group in groups:
        reasons = [undetermined(law, group) for law in LAWS.values()]
        if all(reasons):
            raise UserError(f"fit: over {axes.x} a law {reasons[0]}; --group-by decides which models share a curve")
    return Gathered(axes, groups, baseline, left_out)


def fit_groups(
    gathered: Gathered, title: str, command: str, law: str | None = None, observer: Observer | None = None
) -> ScalingLaws:
    """All laws of all groups, the savings by each, and the answer in words: the content of scaling.json.

    law: the kind used for the answer; by default the one with the smallest `leave_one_out_errors`.
    """
    fits = _fits(gathered.groups, observer or Silence())
    chosen, why = _choice(gathered.groups, fits, law)
    found = [saving for kind in fits for saving in _savings(gathered, fits[kind])]
    curves = [fits[chosen][group.name] for group in gathered.groups]
    sentences = [
        *(saving_sentence(found, group.name, chosen, gathered.axes.x) for group in _saving_groups(gathered, found)),
        *(law_sentence(curve, gathered.axes) for curve in curves),
        f"Law: {chosen}, {why}. {method_sentence(curves)}",
        *(f"Left out: {each}." for each in gathered.left_out),
    ]
    return ScalingLaws(
        title=title,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        confidence=CONFIDENCE,
        x=gathered.axes.x,
        y=gathered.axes.y,
        baseline=gathered.baseline,
        sentence="\n".join(sentences),
        groups=[_recorded_group(group, fits, chosen) for group in gathered.groups],
        savings=found,
    )


Fits = dict[LawName, dict[str, Fit]]
"""Kind of law -> group -> fit, if the group has enough points for one."""


def _fits(groups: Sequence[CurveGroup], observer: Observer) -> Fits:
    possible: list[tuple[LawName, CurveGroup]] = [
        (kind, group) for kind, law in LAWS.items() for group in groups if undetermined(law, group) is None
    ]
    fits: Fits = {kind: {} for kind in LAWS}
    for n_done, (kind, group) in enumerate(possible):
        observer.working("fitting", n_done, len(possible), "laws")
        fits[kind][group.name] = fit_law(LAWS[kind], group)
    return fits


def _choice(groups: Sequence[CurveGroup], fits: Fits, asked: str | None) -> tuple[LawName, str]:
    """One law for all groups, so that their curves can be compared, and the reason for it."""
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


def _savings(gathered: Gathered, fits: dict[str, Fit]) -> list[Saving]:
    baseline = fits.get(gathered.baseline) if gathered.baseline is not None else None
    if baseline is None:
        return []
    return [each for name, fit in fits.items() if fit is not baseline for each in savings(fit, baseline, CONFIDENCE)]


def _saving_groups(gathered: Gathered, found: Sequence[Saving]) -> list[CurveGroup]:
    return [group for group in gathered.groups if any(each.group == group.name for each in found)]


def _recorded_group(group: CurveGroup, fits: Fits, chosen: LawName) -> ScalingGroup:
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
    laws: dict[LawName, FittedLaw | None] = {
        kind: _recorded_law(law, group, fits[kind].get(group.name)) for kind, law in LAWS.items()
    }
    return ScalingGroup(name=group.name, points=points, fits=laws, chosen=chosen)


def _recorded_law(law: Law, group: CurveGroup, fit: Fit | None) -> FittedLaw:
    """A fit as a record; without parameters if the group has too few points for one."""
    return FittedLaw(
        form=law.form,
        parameters={} if fit is None else fit.intervals(CONFIDENCE),
        rms=fit and fit.rms,
        r_squared=fit and fit.r_squared,
        leave_one_out_rms=None if fit is None else _left_out_rms(law, [group]),
        band=fit and fit.band(CONFIDENCE),
        reason=undetermined(law, group) if fit is None else fit.reason,
    )
