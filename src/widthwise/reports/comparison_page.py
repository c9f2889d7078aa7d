"""The page of a comparison of named variants, each trained with several seeds, with a baseline."""

from pathlib import Path

from widthwise.records.outcome import Outcome, Search, Tuning
from widthwise.reports import experiment_sections
from widthwise.reports.charts import styles
from widthwise.reports.curves import curve_table, over_seeds
from widthwise.reports.forest import difference_figure
from widthwise.reports.formats import MISSING, clean, counted, fixed, percentage, sequence
from widthwise.reports.growth import growth_section
from widthwise.reports.page import Page, note, section
from widthwise.reports.shapes import width_figures
from widthwise.reports.table import Table
from widthwise.reports.widths_used import dynamic_width_section, virtual_width_section


def comparison_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of a comparison. Raises UserError if a run is broken."""
    runs = experiment_sections.read_runs(folder, outcome)
    results = experiment_sections.first_results(runs)
    looks = styles([variant.name for variant in outcome.variants], outcome.baseline)
    costs = {variant.name: variant.cost for variant in outcome.variants}
    search = Search.read_if_present(folder)
    of_one_budget = [candidate.name for candidate in search.candidates] if search else []
    curves = experiment_sections.loss_figures(runs, looks)
    means = {name: over_seeds(seeds, "validation").mean for name, seeds in runs.items()}
    table = curve_table("Held-out loss by step, mean over seeds", means).folded
    compared = [clean(variant.name) for variant in outcome.variants if variant.name != outcome.baseline]
    caption = experiment_sections.caption_of_results(outcome, results)
    return experiment_sections.experiment_page(
        outcome,
        runs,
        comparison_answer(outcome),
        experiment_sections.compared_question(compared, clean(outcome.baseline or ""), outcome),
        [difference_figure(outcome), *curves[:1]],
        [
            experiment_sections.results_section(outcome, caption, looks),
            experiment_sections.open_points_section(outcome),
            section("Width of every layer", note("width"), *width_figures(costs, looks, results)),
            experiment_sections.shape_section(outcome, of_one_budget),
            experiment_sections.equal_loss_section(outcome, looks),
            section("Tuning", tuning_table(outcome.tuning), note("tuning")),
            growth_section(runs, looks),
            experiment_sections.curves_section(outcome, curves, table),
            dynamic_width_section(results, looks),
            virtual_width_section(results, looks),
            experiment_sections.cost_section(outcome, looks),
        ],
    )


def comparison_answer(outcome: Outcome) -> list[str]:
    """Return the sentences that answer the question of a comparison, and the settings that differ."""
    lines = experiment_sections.baseline_answer(outcome)
    tuned = outcome.tuning.variants if outcome.tuning else ()
    at_limit = [clean(variant.name) for variant in tuned if variant.is_at_limit]
    if at_limit:
        verb = "was" if len(at_limit) == 1 else "were"
        lines.append(f"{sequence(at_limit)} {verb} best at an end of the grid: a better value may be outside it.")
    return [*lines, *experiment_sections.setting_sentences(outcome)]


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
