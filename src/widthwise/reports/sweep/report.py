"""The report of a sweep: `report.html`, `table.csv` and `table.tex`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from widthwise.records.run import Run
from widthwise.records.sweep import FinishedPoint, SearchedRange, Sweep
from widthwise.reports.comparison import main_table
from widthwise.reports.comparison.equal_loss import equal_loss_section
from widthwise.reports.comparison.figures import shape_curves
from widthwise.reports.comparison.main_table import csv_text, latex_text
from widthwise.reports.page import plots, tables
from widthwise.reports.page.formats import MISSING, clean, counted, percentage, plain, shorten, si
from widthwise.reports.page.html import FoldedRecipe, legend, panels, render, sequence, write_all
from widthwise.reports.page.plots import by_step, mean_over_seeds
from widthwise.reports.page.svg import BASELINE_STYLE, Style, styles, swatch
from widthwise.reports.page.table import Table
from widthwise.reports.run.reading import read_run
from widthwise.reports.sweep.figures import group_figures, shape_figure
from widthwise.run_dir import RunDir

SIZES = frozenset({"model.ffn.ratio", "model.ffn.d_hidden", "model.ffn.d_ff", "model.n_layers", "aspect"})
"""Axes along which points lie on the curves of shapes."""
Runs = Mapping[str, Sequence[Run]]
"""Point -> its runs in this folder; others may be on another machine."""


def write_sweep_report(folder: Path, out: Path | None = None, columns: Sequence[str] | None = None) -> dict[str, Path]:
    """Reads `folder/sweep.json` and the runs beside it, writes the report into `out` (default: `folder`).

    columns: names of the quantities of the main table; None: the usual ones. Returns {"html": ..., "csv": ...,
    "latex": ...}; without a finished point only the page. Raises UserError where something is broken, before it writes
    anything.
    """
    folder, out = Path(folder), Path(out or folder)
    sweep = main_table.with_columns(Sweep.read(folder), columns)
    runs = {
        point.name: [read_run(folder / path, path) for path in point.runs if RunDir(folder / path).exists]
        for point in sweep.variants
    }
    contents = {"html": ("report.html", _page(sweep, runs))}
    if sweep.variants:
        contents |= {"csv": ("table.csv", csv_text(sweep)), "latex": ("table.tex", latex_text(sweep))}
    return write_all(contents, out)


def _page(sweep: Sweep, runs: Runs) -> str:
    chosen = styles(sweep.groups, None)
    flops, flops_label = _training_flops(sweep, runs)
    shape = shape_figure(sweep, flops, chosen, flops_label)
    groups = group_figures(sweep, chosen)
    return render(
        "sweep/sweep.html",
        title=f"{sweep.title} · widthwise sweep",
        sweep=sweep,
        has_intervals=main_table.has_intervals(sweep),
        question=_question(sweep),
        confidence=percentage(sweep.confidence),
        tables=main_table.main_tables(
            sweep,
            f"Finished points by loss, mean over {counted(len(sweep.seeds), 'seed')}",
            [swatch(_style(point, sweep, chosen)) for point in sweep.variants],
        ),
        notes=main_table.notes(sweep),
        groups=groups,
        line_legend=legend({name or "all points": chosen[name] for name in groups.line_groups}),
        shape_curves=shape_curves(sweep, _of_one_budget(sweep)),
        shapes=panels({f"Loss over {flops_label}": shape}),
        legend=legend({name or "all points": style for name, style in chosen.items()}),
        equal_loss=equal_loss_section(sweep, _compared_styles(sweep, chosen)),
        open_table=_open_table(sweep),
        curves=panels({"Held-out loss by step": _curve_figure(sweep, runs, chosen)}),
        axis_table=_axis_table(sweep),
        seed_table=tables.seed_table(sweep),
        cost_table=tables.cost_table({point.name: point for point in sweep.variants}),
        environment_table=tables.environment_table(sweep.environment),
        study_table=_study_table(sweep),
        n_elsewhere=sum(len(point.runs) - len(runs[point.name]) for point in sweep.variants),
        recipes=[FoldedRecipe(name, own[0].path, own[0].config_yaml) for name, own in runs.items() if own],
    )


def _of_one_budget(sweep: Sweep) -> list[str]:
    """The points that differ in their sizes and match the baseline."""
    if sweep.matched in (None, "none"):
        return []
    return [point.name for point in sweep.variants if not SIZES.isdisjoint(point.values)]


def _style(point: FinishedPoint, sweep: Sweep, chosen: Mapping[str, Style]) -> Style:
    """The style of a point is that of its group; the baseline has its own."""
    return BASELINE_STYLE if point.name == sweep.baseline else chosen[point.group or ""]


def _compared_styles(sweep: Sweep, chosen: Mapping[str, Style]) -> dict[str, Style]:
    """The styles of what is drawn beside its baseline: all sizes of a ladder, otherwise the best point of a group."""
    if sweep.baseline_group is not None:
        return styles([point.name for point in sweep.variants if point.group != sweep.baseline_group])
    best = {point.group or "": point for point in reversed(sweep.variants) if point.name != sweep.baseline}
    return {point.name: chosen[group] for group, point in best.items()}


def _question(sweep: Sweep) -> str:
    seeds = main_table.seed_words(sweep)
    matched = main_table.matched_words(sweep.matched)
    if sweep.baseline_group is not None:
        others = [clean(group) for group in sweep.groups if group != sweep.baseline_group]
        verb, own = "Does" if len(others) == 1 else "Do", [p for p in sweep.points if p.group == sweep.baseline_group]
        than = f"{clean(sweep.baseline_group)} at each of {len(own)} sizes{matched}"
        return f"{verb} {sequence(others)} reach a lower held-out loss than {than}? Trained with {seeds}."
    keys = list(dict.fromkeys(key for axes in sweep.axes.values() for key in axes))
    varied = f" over {sequence([clean(key) for key in keys])}" if keys else ""
    than = f", and is it lower than that of {clean(sweep.baseline)}" if sweep.baseline else ""
    n_points = sweep.study.n_points - (sweep.baseline is not None)
    return f"Which of {n_points} points{varied} reaches the lowest held-out loss{matched}{than}? Trained with {seeds}."


def _training_flops(sweep: Sweep, runs: Runs) -> tuple[dict[str, float], str]:
    """Point -> training FLOPs, and their title: totals if every point has a run here with them, otherwise per token."""
    firsts = {name: own[0].result for name, own in runs.items() if own}
    totals = {name: result.training_flops for name, result in firsts.items() if result and result.training_flops}
    if len(totals) == len(sweep.variants):
        return totals, "training FLOPs"
    return {point.name: point.cost.flops_per_token.training for point in sweep.variants}, "training FLOPs per token"


def _curve_figure(sweep: Sweep, runs: Runs, chosen: Mapping[str, Style]):
    """A thin line for each point of a group, a thick one for its best."""
    bundles = []
    for group in sweep.groups:
        own = {point.name for point in sweep.of_group(group)}
        means = {
            point.name: mean_over_seeds([by_step(run, "validation", "loss") for run in runs[point.name]])
            for point in sweep.variants
            if point.name in own and runs[point.name]
        }
        if means:
            (best, curve), *_ = means.items()
            name, style = group or "all points", chosen[group]
            bundles.append(plots.Bundle(name, style, list(means.values()), curve, list(means), best))
    return plots.curve_figure("points-step", bundles, "step", "held-out loss", crop=True)


def _open_table(sweep: Sweep) -> Table | None:
    rows = [
        [clean(point.name), point.state, shorten(point.reason or "", 300) or MISSING] for point in sweep.open_points
    ]
    return Table("Points without a result", ["Point", "State", "Reason"], rows) if rows else None


def _axis_table(sweep: Sweep) -> Table | None:
    rows = [
        [clean(group) or "all points", clean(key), _values(axis)]
        for group, axes in sweep.axes.items()
        for key, axis in axes.items()
    ]
    return (
        Table("What was varied", ["Group", "Recipe key", "Values"], rows, words={"Recipe key", "Values"})
        if rows
        else None
    )


def _values(axis: list | SearchedRange) -> str:
    if isinstance(axis, SearchedRange):
        return f"from {axis.low:g} to {axis.high:g}{', on a logarithmic scale' if axis.log else ''}"
    return ", ".join(map(plain, axis))


def _study_table(sweep: Sweep) -> Table:
    study = sweep.study
    rows = [
        ["sampler", clean(study.sampler)],
        ["storage", clean(study.storage)],
        ["points", si(study.n_points)],
        ["finished", si(study.n_finished)],
        ["failed", si(study.n_failed)],
    ]
    return Table("The study", ["Item", "Value"], rows, sortable=False)
