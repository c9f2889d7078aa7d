"""The report of a comparison: `report.html`, `table.csv` and `table.tex`; until it has finished, a page of its runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from widthwise.experiments.matching import LARGEST_MISMATCH
from widthwise.files import write_atomic
from widthwise.records.comparison import Comparison, Variant
from widthwise.records.discovery import Search
from widthwise.records.quantities import QUANTITY
from widthwise.records.run import ListedRun, PlannedRuns, Run, RunResult
from widthwise.reports.comparison import main_table
from widthwise.reports.comparison.equal_loss import equal_loss_section
from widthwise.reports.comparison.figures import difference_figure, part_names, parts_figure, ratio_figure, shape_curves
from widthwise.reports.comparison.main_table import csv_text, latex_text, validated_table
from widthwise.reports.comparison.trend import trend_section
from widthwise.reports.page import plots, tables
from widthwise.reports.page.formats import clean, counted, percentage
from widthwise.reports.page.html import FoldedRecipe, legend, panels, render, sequence, write_all
from widthwise.reports.page.plots import Curve, against_flops, by_step, mean_over_seeds, of_seeds
from widthwise.reports.page.shapes import used_widths, width_figures
from widthwise.reports.page.svg import Style, block_swatch, styles, swatch
from widthwise.reports.page.tables import data_table, loss_words
from widthwise.reports.run.dynamic_width import dynamic_width_section
from widthwise.reports.run.growth import growth_flops, growth_section, growth_steps
from widthwise.reports.run.reading import counted_states, progress_table, read_run, reload_sentence
from widthwise.reports.run.virtual_width import virtual_width_section
from widthwise.run_dir import RunDir
from widthwise.runs.listing import listed_run, planned_run

_CURVES = (("validation", "Held-out loss"), ("train", "Training loss"))


def write_comparison_report(
    folder: Path, out: Path | None = None, columns: Sequence[str] | None = None
) -> dict[str, Path]:
    """Reads `folder/comparison.json` and its runs, writes the report into `out` (default: `folder`).

    columns: names of the quantities of the main table; None: the usual ones. Returns {"html": ..., "csv": ...,
    "latex": ...}. Raises UserError where something is missing or broken, before it writes anything.
    """
    folder, out = Path(folder), Path(out or folder)
    comparison = main_table.with_columns(Comparison.read(folder), columns)
    runs = {variant.name: [read_run(folder / path, path) for path in variant.runs] for variant in comparison.variants}
    contents = {
        "html": ("report.html", _page(comparison, runs, _searched(folder))),
        "csv": ("table.csv", csv_text(comparison)),
        "latex": ("table.tex", latex_text(comparison)),
    }
    return write_all(contents, out)


def _searched(folder: Path) -> list[str]:
    """The shapes of the search that the comparison belongs to, if it does."""
    if not (folder / Search.file_name).is_file():
        return []
    return [candidate.name for candidate in Search.read(folder).candidates]


def _page(comparison: Comparison, runs: Mapping[str, Sequence[Run]], searched: Sequence[str]) -> str:
    chosen = styles([variant.name for variant in comparison.variants], comparison.baseline)
    compared = {name: style for name, style in chosen.items() if name != comparison.baseline}
    variants, baseline = comparison.variants, comparison.baseline
    results = _first_results(runs)
    return render(
        "comparison/comparison.html",
        title=f"{comparison.title} · widthwise comparison",
        comparison=comparison,
        has_intervals=main_table.has_intervals(comparison),
        data_table=data_table({name: own[0] for name, own in runs.items()}),
        question=_question(comparison),
        confidence=percentage(comparison.confidence),
        tables=main_table.main_tables(
            comparison,
            f"Each variant, mean over {counted(len(comparison.seeds), 'seed')}{_measured_on(results)}",
            [swatch(chosen[variant.name]) for variant in variants],
        ),
        notes=main_table.notes(comparison),
        widths=panels(
            width_figures({variant.name: variant.cost for variant in variants}, chosen, used_widths(results))
        ),
        shape_curves=shape_curves(comparison, searched),
        dynamic_width=dynamic_width_section(results, chosen),
        virtual_width=virtual_width_section(results, chosen),
        curves=panels(_curves(comparison, runs, chosen)),
        curve_table=tables.curve_table("Held-out loss by step, mean over seeds", _mean_curves(runs)),
        differences=panels({"Held-out loss, difference": difference_figure("differences", variants, chosen, baseline)}),
        validated_table=validated_table(comparison),
        equal_loss=equal_loss_section(comparison, chosen),
        trend=trend_section(comparison, chosen),
        growth=growth_section(runs, chosen),
        parameters=parts_figure("parts", variants),
        ratios=ratio_figure("ratios", variants, chosen, baseline),
        legend=legend(chosen),
        compared_legend=legend(compared),
        part_legend=[(block_swatch(i), clean(name)) for i, name in enumerate(part_names(variants))],
        seed_table=tables.seed_table(comparison),
        cost_table=tables.cost_table({variant.name: variant for variant in variants}),
        layer_tables=[tables.layer_table(variant.name, variant.cost) for variant in variants],
        environment_table=tables.environment_table(comparison.environment),
        recipes=[FoldedRecipe(name, own[0].path, own[0].config_yaml) for name, own in runs.items()],
    )


def _question(comparison: Comparison) -> str:
    others = [clean(variant.name) for variant in comparison.variants if variant.name != comparison.baseline]
    seeds = main_table.seed_words(comparison)
    baseline = clean(comparison.baseline)
    if not others:
        return f"The held-out loss of {baseline}, trained with {seeds}."
    verb = "Does" if len(others) == 1 else "Do"
    matched = main_table.matched_words(comparison.matched) + _mismatch(comparison)
    return f"{verb} {sequence(others)} reach a lower held-out loss than {baseline}{matched}? Trained with {seeds}."


def _mismatch(comparison: Comparison) -> str:
    """How unequal the variants are in what they are said to match, where a search was asked for no closer match than
    the one of other comparisons."""
    if (matched := QUANTITY.get(comparison.matched or "none")) is None:
        return ""
    ratios = [matched.ratio(variant, comparison.baseline_variant) for variant in comparison.variants]
    largest = max((abs(ratio - 1) for ratio in ratios if ratio is not None), default=0.0)
    return f", within {largest:.1%}" if largest > LARGEST_MISMATCH else ""


def _first_results(runs: Mapping[str, Sequence[Run]]) -> dict[str, RunResult]:
    """Variant -> result of its first seed, if that has finished."""
    return {name: own[0].result for name, own in runs.items() if own[0].result}


def _measured_on(results: Mapping[str, RunResult]) -> str:
    """On how much text the held-out losses were measured, where it is the same for all."""
    words = {loss_words(result) for result in results.values()}
    return f"; held-out loss{words.pop()}" if len(words) == 1 and words != {""} else ""


def _mean_curves(runs: Mapping[str, Sequence[Run]]) -> dict[str, Curve]:
    return {name: mean_over_seeds([by_step(run, "validation", "loss") for run in own]) for name, own in runs.items()}


def _curves(
    comparison: Comparison, runs: Mapping[str, Sequence[Run]], chosen: Mapping[str, Style]
) -> dict[str, Markup | None]:
    figures: dict[str, Markup | None] = {}
    every = [run for own in runs.values() for run in own]
    for event, title in _CURVES:
        by_steps = [_bundle(variant, runs[variant.name], chosen, event, False) for variant in comparison.variants]
        by_flops = [_bundle(variant, runs[variant.name], chosen, event, True) for variant in comparison.variants]
        figures[f"{title} by step"] = plots.curve_figure(
            f"{event}-step", by_steps, "step", title.lower(), True, growth_steps(every)
        )
        figures[f"{title} by training FLOPs"] = plots.curve_figure(
            f"{event}-flops", by_flops, "training FLOPs", title.lower(), True, growth_flops(every)
        )
    return figures


def _bundle(
    variant: Variant, runs: Sequence[Run], chosen: Mapping[str, Style], event: str, over_flops: bool
) -> plots.Bundle:
    seeds = [by_step(run, event, "loss") for run in runs]
    mean = mean_over_seeds(seeds)
    if over_flops:
        flops = _training_flops(variant, runs[0])
        mean = against_flops(mean, runs[0], flops)
        seeds = [against_flops(curve, run, flops) for curve, run in zip(seeds, runs)]
    return plots.Bundle(variant.name, chosen[variant.name], seeds, mean, of_seeds(runs))


def _training_flops(variant: Variant, run: Run) -> float:
    """Per token of a model that stays the same, all passes over it counted where the run says its compute."""
    result = run.result
    if result is None or result.pflops_days is None or not result.tokens:
        return variant.cost.flops_per_token.training
    return result.pflops_days * 1e15 * 86400 / result.tokens


def is_unfinished(folder: Path) -> bool:
    """Whether a folder holds a comparison of which a run or the result is missing."""
    if not (folder / PlannedRuns.file_name).is_file():
        return False
    runs = PlannedRuns.read(folder).runs
    return not (folder / Comparison.file_name).is_file() or not all(RunDir(folder / r.path).has_result for r in runs)


def write_progress_page(folder: Path, out: Path | None = None, refresh_seconds: int | None = None) -> Path:
    """Writes `report.html` of an unfinished comparison into `out` (default: `folder`). UserError if it is broken.

    refresh_seconds: after so long the page loads itself again; None: never.
    """
    page = Path(out or folder) / "report.html"
    write_atomic(page, _progress_page(Path(folder), refresh_seconds))
    return page


def _progress_page(folder: Path, refresh_seconds: int | None) -> str:
    planned = PlannedRuns.read(folder)
    listed: dict[str, ListedRun] = {}
    begun: dict[str, list[Run]] = {each.variant: [] for each in planned.runs}
    for each in planned.runs:
        path = folder / each.path
        is_begun = RunDir(path).exists
        listed[path.name] = listed_run(path) if is_begun else planned_run(path, each.n_steps)
        if is_begun:
            begun[each.variant].append(read_run(path, each.path))
    chosen = styles(list(begun), planned.baseline)
    grown = growth_steps([run for own in begun.values() for run in own])
    figures = {
        title: plots.curve_figure(f"{event}-loss", _bundles(begun, chosen, event), "step", title.lower(), True, grown)
        for event, title in _CURVES
    }
    return render(
        "comparison/progress.html",
        title=planned.title,
        lead=f"{len(listed)} runs: {counted_states(list(listed.values()))}.{reload_sentence(refresh_seconds)}",
        refresh_seconds=refresh_seconds,
        table=progress_table(listed),
        curves=panels(figures),
        legend=legend(chosen),
        command=planned.command,
    )


def _bundles(begun: Mapping[str, Sequence[Run]], chosen: Mapping[str, Style], event: str) -> list[plots.Bundle]:
    """A bundle for each variant of which a run was begun."""
    found = {name: [by_step(run, event, "loss") for run in runs] for name, runs in begun.items() if runs}
    return [plots.Bundle(name, chosen[name], curves, mean_over_seeds(curves)) for name, curves in found.items()]
