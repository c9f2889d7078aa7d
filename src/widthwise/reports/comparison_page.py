"""The page of a comparison of named variants, each trained with several seeds, with a baseline."""

from pathlib import Path

from widthwise.records.estimate import TIE_MARGIN, UNCLEAR
from widthwise.records.outcome import Outcome, Tuning, Variant
from widthwise.records.record import finite
from widthwise.reports import experiment_sections, tables
from widthwise.reports.charts import styles
from widthwise.reports.experiment_figures import difference_figure
from widthwise.reports.formats import MISSING, clean, counted, distance, fixed, joined, percentage, signed
from widthwise.reports.main_table import shown_verdict
from widthwise.reports.page import Page, note, section
from widthwise.reports.resizing import growth_section
from widthwise.reports.shapes import width_figures
from widthwise.reports.table import Table
from widthwise.reports.widths_used import dynamic_width_section, virtual_width_section


def comparison_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of a comparison. Raises UserError if a run is broken."""
    runs = experiment_sections.read_runs(folder, outcome)
    results = {name: seeds[0].result for name, seeds in runs.items() if seeds[0].result}
    looks = styles([variant.name for variant in outcome.variants], outcome.baseline)
    costs = {variant.name: variant.cost for variant in outcome.variants}
    shapes = list(costs) if (folder / "search.json").is_file() else []
    curves = experiment_sections.loss_figures(runs, looks)
    compared = [clean(variant.name) for variant in outcome.variants if variant.name != outcome.baseline]
    caption = f"Variants, mean over {counted(len(outcome.seeds), 'seed')}"
    curve_notes = ["seeds-and-means", "loss-curves"] if len(outcome.seeds) > 1 else ["loss-curves"]
    return experiment_sections.common_page(
        outcome,
        runs,
        comparison_answer(outcome),
        experiment_sections.compared_question(compared, clean(outcome.baseline or ""), outcome),
        [difference_figure(outcome), *curves[:1]],
        [
            experiment_sections.results_section(outcome, caption, looks),
            experiment_sections.unfinished_points_section(outcome),
            section("Width of every layer", note("width"), *width_figures(costs, looks, results)),
            experiment_sections.shape_section(outcome, shapes),
            experiment_sections.equal_loss_section(outcome, looks),
            section("Tuning", tuning_table(outcome.tuning), note("tuning")),
            growth_section(runs, looks),
            section("Loss curves", *curves, note(*curve_notes)),
            dynamic_width_section(results, looks),
            virtual_width_section(results, looks),
            section(
                "Costs",
                tables.cost_table({variant.name: variant for variant in outcome.variants}),
                *(tables.layer_table(variant.name, variant.cost).folded for variant in outcome.variants),
            ),
        ],
    )


def comparison_answer(outcome: Outcome) -> list[str]:
    """Return the sentences that answer the question of a comparison, and the settings that differ."""
    lines = _baseline_answer(outcome)
    tuned = outcome.tuning.variants if outcome.tuning else ()
    at_limit = [clean(variant.name) for variant in tuned if variant.is_at_limit]
    if at_limit:
        verb = "was" if len(at_limit) == 1 else "were"
        lines.append(f"{joined(at_limit)} {verb} best at an end of the grid: a better value may be outside it.")
    return [*lines, *experiment_sections.setting_sentences(outcome)]


def _baseline_answer(outcome: Outcome) -> list[str]:
    """Return sentences that name the variants that are better, worse, tied or not clearly different.

    If the best variant needs significantly fewer tokens for the baseline's loss, the last sentence has the ratio.
    """
    differences = {variant.name: variant.difference for variant in outcome.variants if variant.difference is not None}
    if not differences:
        return []
    compared = [variant for variant in outcome.variants if variant.name in differences]
    by_verdict: dict[str, list[Variant]] = {}
    for variant in sorted(compared, key=lambda variant: finite(differences[variant.name].mean)):
        by_verdict.setdefault(shown_verdict(variant), []).append(variant)
    baseline = clean(outcome.baseline_words or "")
    seeds = counted(len(outcome.seeds), "seed")
    if "no verdict" in by_verdict:
        best = by_verdict["no verdict"][0]
        verb = "ends" if len(compared) == 1 else f"has the lowest held-out loss of {len(compared)} compared variants,"
        gap = distance(finite(differences[best.name].mean))
        return [f"{clean(best.name)} {verb} {gap} {baseline}; with {seeds} there is no verdict."]
    lines = []
    if "better" not in by_verdict and "worse" in by_verdict:
        lines.append(f"No variant is better than {baseline}.")
    for verdict, direction, extreme in (("better", "lower", 0), ("worse", "higher", -1)):
        if variants := by_verdict.get(verdict):
            first = variants[extreme]
            difference = differences[first.name]
            interval = experiment_sections.size_interval(difference, outcome)
            size = f"{fixed(abs(finite(difference.mean)), 4)} nats{interval}"
            if len(variants) == 1:
                lines.append(f"{clean(first.name)} is {verdict} than {baseline}: loss {direction} by {size}.")
            else:
                names = experiment_sections.variant_names(variants)
                most = f"{clean(first.name)} the most, by {size}"
                lines.append(f"{names} are {verdict} than {baseline}: loss {direction}, {most}.")
    if tied := by_verdict.get("tie"):
        names = experiment_sections.variant_names(tied)
        lines.append(f"Equal to {baseline} within {TIE_MARGIN:g} nats: {names}.")
    if unclear := by_verdict.get(UNCLEAR):
        names = experiment_sections.variant_names(unclear)
        if len(unclear) == 1:
            difference = differences[unclear[0].name]
            names += f", {signed(difference.mean, 4)} nats{experiment_sections.size_interval(difference, outcome)}"
        lines.append(f"No clear difference from {baseline} with {seeds}: {names}.")
    better = [variant for variant in by_verdict.get("better", ()) if "val_loss" in variant.at_equal_loss]
    if better:
        best = min(better, key=lambda variant: finite(variant.val_loss.mean))
        tokens = best.at_equal_loss["val_loss"].tokens_ratio
        if finite(tokens.high) < 1:
            needs = f"{clean(best.name)} needs {fixed(tokens.mean, 3)} times the tokens of {baseline}"
            lines.append(f"{needs} for the same held-out loss.")
    return lines


def tuning_table(tuning: Tuning | None) -> Table | None:
    """Return the chosen values of each variant, and their loss in the sweep; None without tuning."""
    if tuning is None:
        return None
    rows = []
    for variant in tuning.variants:
        at_limit = "yes" if variant.is_at_limit else MISSING
        values = ", ".join(f"{clean(key)} {value:.7g}" for key, value in variant.chosen.items())
        rows.append([clean(variant.name), values, fixed(variant.val_loss, 4), at_limit])
    seeds = f"{counted(len(tuning.seeds), 'seed')} ({', '.join(map(str, tuning.seeds))})"
    source = f"{clean(tuning.sweep)}: {percentage(tuning.steps)} of the steps, {seeds}"
    header = ["Variant", "values", "held-out loss", "at an end of the grid"]
    return Table(f"Values chosen before the comparison by {source}", header, rows, text_columns={"values"})
