"""The page of an experiment: a comparison, a sweep, a ladder or a family, finished or not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from widthwise.records.discovery import Search
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import SIZE, Outcome, SearchedRange, Variant
from widthwise.records.quantities import OF_HELD_OUT, QUANTITY
from widthwise.records.run import ListedRun, PlannedRuns, Run, RunResult
from widthwise.reports import experiment_figures as figures
from widthwise.reports import main_table, tables
from widthwise.reports.answers import answer, badges, question
from widthwise.reports.charts import BASELINE_STYLE, Figure, Looks, Style, styles
from widthwise.reports.curves import Bundle, against_flops, curve_figure, curve_table, over_seeds
from widthwise.reports.formats import (
    MISSING,
    clean,
    counted,
    fixed,
    interval,
    percentage,
    plain,
    shorten,
    shown,
    si,
    with_interval,
)
from widthwise.reports.growth import growth_flops, growth_section, growth_steps
from widthwise.reports.page import Code, Page, Section, Text, note, resolved, section
from widthwise.reports.reading import counted_states, progress_table, read_run, reload_sentence
from widthwise.reports.shapes import width_figures
from widthwise.reports.table import Table
from widthwise.reports.widths_used import dynamic_width_section, virtual_width_section
from widthwise.run_dir import RunDir
from widthwise.runs.listing import listed_run, planned_run

SIZES = frozenset({"model.ffn.ratio", "model.ffn.d_hidden", "model.ffn.d_ff", "model.n_layers", "aspect"})
"""Axes along which points lie on the curves of shapes."""
Runs = Mapping[str, Sequence[Run]]
"""Variant -> its runs in this folder; others may be on another machine."""
_LOSSES = (("validation", "Held-out loss"), ("train", "Training loss"))


def experiment_page(folder: Path, found: Outcome) -> Page:
    """Return the page of an experiment, as far as it has come. Raises UserError where a run is broken."""
    looks, of_groups = _styles(found)
    here = {each.name: [path for path in each.runs if RunDir(folder / path).exists] for each in found.variants}
    runs = {name: [read_run(folder / path, path) for path in paths] for name, paths in here.items() if paths}
    results = {name: own[0].result for name, own in runs.items() if own[0].result}
    axes = figures.axis_figures(found, of_groups)
    curves = [_point_curves(found, runs, of_groups)] if found.axes else _curves(found, runs, looks)
    has_names = found.kind == "comparison"
    of_names = results if has_names else {}
    means = {name: over_seeds(own, "validation").mean for name, own in runs.items()}
    return Page(
        found.kind,
        clean(found.title),
        answer(found),
        lead=question(found),
        badges=badges(found),
        first=(None if found.kind == "sweep" else figures.difference_figure(found, looks), *(axes or curves[:1])[:2]),
        sections=(
            section(
                "Results",
                *main_table.main_tables(found, _caption(found, results), looks),
                main_table.validated_table(found),
                branch_table(found),
                _judged_table(found),
                tables.seed_table(found).folded if found.variants else None,
            ),
            _open_section(found),
            section("Along the axes", *axes, _axis_note(found), _axis_table(found)),
            section(
                "Width of every layer",
                note("width"),
                *width_figures({each.name: each.cost for each in found.variants if has_names}, looks, results),
            ),
            section(
                "Shapes at one budget",
                note("shapes", level=percentage(found.confidence)),
                *figures.shape_figures(found, _at_one_budget(folder, found)),
            ),
            section(
                "Loss and compute",
                note("loss-and-compute"),
                figures.compute_figure(found, *_training_flops(found, results), of_groups) if found.axes else None,
            ),
            _equal_loss_section(found, _compared_styles(found, looks, of_groups)),
            section("Tuning", tuning_table(found), note("tuning") if found.tuning else None),
            growth_section({each.name: runs[each.name] for each in _grown(found) if each.name in runs}, looks),
            section(
                "Loss curves",
                *curves,
                note("point-curves") if found.axes else note("seeds-and-means" * (len(found.seeds) > 1), "loss-curves"),
                curve_table("Held-out loss by step, mean over seeds", means).folded if has_names and curves else None,
            ),
            dynamic_width_section(of_names, looks),
            virtual_width_section(of_names, looks),
            _cost_section(found, looks),
            section(
                "Data and environment",
                tables.data_table({name: own[0] for name, own in runs.items()}),
                tables.environment_table(found.environment),
            ),
            _reproduce(found, runs),
        ),
        made_from=f"{Outcome.file_name} of {found.created}",
        files={"table.csv": main_table.csv_text(found), "table.tex": main_table.latex_text(found)}
        if found.variants
        else {},
    )


def _styles(found: Outcome) -> tuple[dict[str, Style], dict[str, Style]]:
    """Return variant -> style and group -> style: variants given by name have their own, others that of their group."""
    if found.kind == "comparison":
        return styles([each.name for each in found.variants], found.baseline), {}
    of_groups = styles(found.groups)
    of_variants = {
        each.name: BASELINE_STYLE if each.name == found.baseline else of_groups[each.group] for each in found.variants
    }
    return of_variants, of_groups


def _compared_styles(found: Outcome, looks: Looks, of_groups: Looks) -> dict[str, Style]:
    """Return styles of what is drawn beside its baseline: everything, but of a sweep only the best of each group."""
    if found.kind == "comparison":
        return dict(looks)
    if found.baseline_group is not None:
        return styles([point.name for point in found.variants if point.group != found.baseline_group])
    best = {point.group: point for point in reversed(found.variants) if point.name != found.baseline}
    return {point.name: of_groups[group] for group, point in best.items()}


def _caption(found: Outcome, results: Mapping[str, RunResult]) -> str:
    seeds = counted(len(found.seeds), "seed")
    if found.axes:
        return f"Finished points by loss, mean over {seeds}"
    words = {tables.loss_words(result) for result in results.values()}
    measured_on = f"; held-out loss{words.pop()}" if len(words) == 1 and words != {""} else ""
    return f"Each variant, mean over {seeds}{measured_on}"


def _grown(found: Outcome) -> list[Variant]:
    """Return the variants that may have grown: of a family all but the controls."""
    return [each for each in found.variants if found.family is None or each.group != found.baseline_group]


def _at_one_budget(folder: Path, found: Outcome) -> list[str]:
    """Return the variants of one budget: the shapes of the search that it belongs to, or the points of a sweep."""
    if found.axes:
        is_matched = found.matched not in (None, "none")
        return [each.name for each in found.variants if is_matched and not SIZES.isdisjoint(each.values)]
    if not (folder / Search.file_name).is_file():
        return []
    return [candidate.name for candidate in Search.read(folder).candidates]


BRANCH_COLUMNS = {
    "params": ("params", "params"),
    "start": ("branched after step", "steps"),
    "tokens": ("tokens", "tokens"),
    "flops": ("training FLOPs", "training_flops"),
    "flops_alone": ("FLOPs alone", "training_flops"),
    "val_loss": ("held-out loss", "val_loss"),
}
"""Key of a member of a family -> its title, and the quantity as which it is shown."""


def branch_table(found: Outcome) -> Table | None:
    """Return one row for each run of a family: grown ones, and those that were trained alone."""
    if (family := found.family) is None:
        return None
    rows = [
        [
            f"{clean(each.name)}{'' if is_grown else ', alone'}, seed {each.seed}",
            *(shown(getattr(each, key, None), QUANTITY[name]) for key, (_, name) in BRANCH_COLUMNS.items()),
        ]
        for is_grown, runs in ((True, family.members), (False, family.controls))
        for each in runs
    ]
    caption = (
        f"Branched from {clean(family.sources[0])}: together {si(family.family_flops)} training FLOPs, the shared "
        f"{si(family.shared_flops)} counted once; each from the start {si(family.flops_alone)}"
    )
    return Table(caption, ["Run", *(title for title, _ in BRANCH_COLUMNS.values())], rows)


def _judged_table(found: Outcome) -> Table | None:
    """Return the best point as the best of many, with an interval widened for all, and groups on average."""
    rows = []
    for each in found.judged:
        what = f"best of {each.n_points}" if each.confidence > found.confidence else counted(each.n_points, "point")
        row = [f"{clean(each.name)}, {what}", clean(each.beside), with_interval(each.difference, 4)]
        rows.append([*row, percentage(each.confidence), each.verdict])
    header = ["Best of many, and means of groups", "beside", "difference", "interval of", "verdict"]
    return Table("Differences of more than one point", header, rows, words={"beside", "verdict"}) if rows else None


def _open_section(found: Outcome) -> Section | None:
    rows = [[clean(p.name), p.state, shorten(p.reason or "", 300) or MISSING] for p in found.open_points]
    table = Table("Points without a result", ["Point", "State", "Reason"], rows, words={"State", "Reason"})
    return section("Points without a result", table) if rows else None


def _cost_section(found: Outcome, looks: Looks) -> Section | None:
    if not found.variants:
        return None
    costs = tables.cost_table({each.name: each for each in found.variants}).folded
    if found.axes:
        return section("Costs", costs)
    layers = [tables.layer_table(each.name, each.cost).folded for each in found.variants]
    return section("Costs", figures.part_figure(found.variants), figures.ratio_figure(found, looks), costs, *layers)


def _curves(found: Outcome, runs: Runs, looks: Looks) -> list[Figure]:
    """Return losses of named variants over steps and training FLOPs; of a family, size by size over FLOPs."""
    panels: dict[str, list[Variant]] = {}
    for each in found.variants:
        if each.name in runs:
            panels.setdefault("" if found.family is None else each.values[SIZE], []).append(each)
    drawn: list[Figure | None] = []
    for number, (size, variants) in enumerate(panels.items()):
        every = [run for each in variants for run in runs[each.name]]
        for event, title in _LOSSES:
            by_step = {each.name: over_seeds(runs[each.name], event) for each in variants}
            by_flops = {each.name: _over_flops(each, runs[each.name], by_step[each.name]) for each in variants}
            for over, curves, grown in (("step", by_step, growth_steps), ("training FLOPs", by_flops, growth_flops)):
                key = f"{event}-{over.split()[-1].lower()}{f'-{number}' * bool(size)}"
                name = f"{clean(size)}: {title.lower()}" if size else f"{title} by {over}"
                if not size or over != "step":
                    drawn.append(curve_figure(key, name, curves, looks, over, title.lower(), True, grown(every)))
    return [figure for figure in drawn if figure is not None]


def _over_flops(variant: Variant, runs: Sequence[Run], by_step: Bundle) -> Bundle:
    flops = _flops_per_token(runs[0], variant)
    seeds = {name: against_flops(curve, run, flops) for (name, curve), run in zip(by_step.seeds.items(), runs)}
    return Bundle(seeds, against_flops(by_step.mean, runs[0], flops))


def _flops_per_token(run: Run, variant: Variant) -> float:
    """Return training FLOPs of a model that stays the same, all passes over a token counted where the run has them."""
    result = run.result
    if result and result.tokens and (flops := QUANTITY["training_flops"].of_run(result)):
        return flops / result.tokens
    return variant.cost.flops_per_token.training


def _equal_loss_section(found: Outcome, looks: Looks) -> Section | None:
    """Return what variants need for their baseline's loss; None where nothing is compared, or validations are unknown.

    looks: of the variants that are drawn; tables have all.
    """
    words, validations = found.baseline_words, found.validations
    compared = [each for each, _ in found.compared]
    if validations is None or words is None or not compared:
        return None
    drawn = [each for each in compared if each.gap and each.name in looks]
    shown = [table for name in OF_HELD_OUT if (table := _equal_loss_table(name, compared, words)) is not None]
    names = ["equal-loss"] if shown else []
    names += ["interpolated"] if validations.suffice else ["too-few-validations"]
    if validations.final_lr_share is not None and (shown or validations.suffice):
        names += ["constant-rate" if validations.final_lr_share >= 0.999 else "falling-rate"]
    words_of = {"fewest": counted(validations.n_fewest, "validation"), "needed": validations.n_needed}
    told = note(*names, baseline=clean(words), share=f"{validations.final_lr_share or 0:.3g}", **words_of)
    return section(
        "Tokens at equal loss",
        *shown,
        *(each for name in OF_HELD_OUT for each in figures.gap_figures(name, drawn, looks, words)),
        Text(told.lines, is_quiet=bool(shown)),
    )


def _equal_loss_table(loss: str, compared: Sequence[Variant], baseline: str) -> Table | None:
    """Return what each variant needs, one row each; None where nothing is known of this loss."""
    rows = []
    for variant in compared:
        if (own := variant.at_equal_loss.get(loss)) is not None:
            row = [clean(variant.name), f"{own.n_reached} of {len(own.tokens_ratio.per_seed)}", si(own.tokens.mean)]
            rows.append([*row, *_ends(own.tokens_ratio), *_ends(own.training_flops_ratio)])
    if not rows:
        return None
    header = ["Variant", "seeds that reach it", "tokens", "tokens, ratio", "interval", "FLOPs, ratio", "interval"]
    return Table(f"To the final {OF_HELD_OUT[loss].title} of {clean(baseline)}, and ratios at equal loss", header, rows)


def _ends(ratio: Estimate) -> list[str]:
    return [fixed(ratio.mean, 3), interval(ratio, 3) or MISSING]


def tuning_table(found: Outcome) -> Table | None:
    """Return for each variant the values that it was given, and their loss in the sweep."""
    if (tuning := found.tuning) is None:
        return None
    rows = [
        [clean(each.name), clean(each.in_words), fixed(each.val_loss, 4), "yes" if each.is_at_limit else MISSING]
        for each in tuning.variants
    ]
    seeds = f"{counted(len(tuning.seeds), 'seed')} ({', '.join(map(str, tuning.seeds))})"
    source = f"{clean(tuning.sweep or 'tuning')}: {percentage(tuning.steps)} of the steps, {seeds}"
    header = ["Variant", "values", "held-out loss", "at an end of the grid"]
    return Table(f"Values chosen before the comparison by {source}", header, rows, words={"values"})


def _axis_note(found: Outcome) -> Text | None:
    level, has_ends = percentage(found.confidence), main_table.has_intervals(found)
    if found.baseline and not found.baseline_variant:
        return Text([f"{clean(found.baseline)}, the baseline, has no loss: nothing is compared with it."])
    if not found.baseline_words:
        bars = f"; bars are {level} intervals over seeds" if has_ends else ""
        return note("losses-alone", bars=bars)
    return note("differences", "stars" * has_ends, baseline=clean(found.baseline_words), level=level)


def _training_flops(found: Outcome, results: Mapping[str, RunResult]) -> tuple[dict[str, float], str]:
    """Return point -> training FLOPs, and their title: totals if every point has a run with them, else per token."""
    totals = {name: result.training_flops for name, result in results.items() if result.training_flops}
    if len(totals) == len(found.variants):
        return totals, "training FLOPs"
    return {point.name: point.cost.flops_per_token.training for point in found.variants}, "training FLOPs per token"


def _point_curves(found: Outcome, runs: Runs, of_groups: Looks) -> Figure | None:
    """Return a thin line for each point of a group, a thick one for its best."""
    bundles: dict[str, Bundle] = {}
    for group in found.groups:
        names = [point.name for point in found.of_group(group) if point.name in runs]
        if names:
            means = {name: over_seeds(runs[name], "validation").mean for name in names}
            bundles[group or "all points"] = Bundle(means, means[names[0]], names[0])
    looks = {group or "all points": style for group, style in of_groups.items()}
    title = "Held-out loss by step"
    return curve_figure("points-step", title, bundles, looks, "step", "held-out loss", crop=True)


def _axis_table(found: Outcome) -> Table | None:
    rows = [
        [clean(group) or "all points", clean(key), _values(axis)]
        for group, axes in found.axes.items()
        for key, axis in axes.items()
    ]
    header = ["Group", "Recipe key", "Values"]
    return Table("What was varied", header, rows, words={"Recipe key", "Values"}) if rows else None


def _values(axis: list | SearchedRange) -> str:
    if isinstance(axis, SearchedRange):
        return f"from {axis.low:g} to {axis.high:g}{', on a logarithmic scale' if axis.log else ''}"
    return ", ".join(map(plain, axis))


def _study_table(found: Outcome) -> Table | None:
    if (study := found.study) is None:
        return None
    words = {"sampler": clean(study.sampler), "storage": clean(study.storage)}
    counts = {"points": study.n_points, "finished": study.n_finished, "failed": study.n_failed}
    counts |= {"chosen again, and counted once": study.n_repeated} if study.n_repeated else {}
    return tables.by_column("The study", {"Value": words | {key: si(n) for key, n in counts.items()}})


def _reproduce(found: Outcome, runs: Runs) -> Section | None:
    folders = [f"{clean(name)}: {', '.join(run.path for run in own)}" for name, own in runs.items()]
    n_elsewhere = sum(len(each.runs) - len(runs.get(each.name, ())) for each in found.variants)
    files = [f"{Outcome.file_name}: every number of this page", "table.csv, table.tex: the results table", *folders]
    told = "Run this command with the versions above: with a seed, every variant reads the same data in the same order."
    return section(
        "How to reproduce",
        Text([told]),
        Code(found.command),
        _study_table(found),
        note("runs-elsewhere", runs=counted(n_elsewhere, "run")) if found.axes and n_elsewhere else None,
        *(resolved(name, own[0]) for name, own in runs.items()),
        Code("\n".join(files), "Files"),
    )


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder holds an experiment of which runs, points or the result are missing."""
    found = Outcome.read(folder) if (folder / Outcome.file_name).is_file() else None
    if found is not None and found.axes:
        return found.is_open
    if not (folder / PlannedRuns.file_name).is_file():
        return False
    return found is None or not all(RunDir(folder / run.path).has_result for run in PlannedRuns.read(folder).runs)


def live_page(folder: Path, refresh_seconds: int | None) -> Page:
    """Return the page of an experiment that is being trained: how far each run has come, and its curves.

    Of a sweep, the page of the points that have finished follows.
    """
    has_plan, has_points = ((folder / each.file_name).is_file() for each in (PlannedRuns, Outcome))
    planned = PlannedRuns.read(folder) if has_plan else PlannedRuns(title="", command="", runs=())
    so_far = experiment_page(folder, found) if has_points and (found := Outcome.read(folder)).is_open else None
    begun: dict[str, list[Run]] = {each.variant: [] for each in planned.runs}
    listed: dict[str, ListedRun] = {}
    for each in planned.runs:
        path = folder / each.path
        has_begun = RunDir(path).exists
        listed[path.name] = listed_run(path) if has_begun else planned_run(path, each.n_steps)
        if has_begun and so_far is None:
            begun[each.variant].append(read_run(path, each.path))
    runs = section("Runs", progress_table(listed), note("unfinished"))
    states = (
        f"{counted(len(listed), 'run')}: {counted_states(list(listed.values()))}.{reload_sentence(refresh_seconds)}"
    )
    lead = states if listed else ""
    if so_far is not None:
        kind, lead = f"{so_far.kind}, not finished", f"{so_far.lead} {lead}"
        sections = (runs, *so_far.sections)
        return replace(so_far, kind=kind, lead=lead, sections=sections, refresh_seconds=refresh_seconds)
    looks = styles(begun, planned.baseline)
    grown = growth_steps([run for own in begun.values() for run in own])
    drawn = []
    for event, title in _LOSSES:
        curves = {name: over_seeds(own, event) for name, own in begun.items()}
        drawn.append(curve_figure(f"{event}-loss", title, curves, looks, "step", title.lower(), True, grown))
    return Page(
        "experiment, not finished",
        planned.title,
        [],
        lead=lead,
        first=drawn,
        sections=(runs, section("How to resume", Code(planned.command))),
        made_from=f"{PlannedRuns.file_name} and the run directories beside this page",
        refresh_seconds=refresh_seconds,
    )
