"""The page of a comparison: named variants, each trained with several seeds, next to a baseline."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from widthwise.records.estimate import TIE_MARGIN, Estimate
from widthwise.records.outcome import Outcome, Tuning, Variant
from widthwise.records.quantities import QUANTITY
from widthwise.records.record import finite
from widthwise.records.run import Run
from widthwise.records.search import Search
from widthwise.reports import experiment_sections as shared
from widthwise.reports import tables
from widthwise.reports.charts import Looks, styles
from widthwise.reports.curves import Bundle, against_flops, curve_figure, curve_table, over_seeds
from widthwise.reports.experiment_figures import difference_figure, part_figure, ratio_figure, shape_figures
from widthwise.reports.formats import MISSING, clean, counted, fixed, percentage, sequence
from widthwise.reports.growth import growth_flops, growth_section, growth_steps
from widthwise.reports.main_table import shown_verdict
from widthwise.reports.page import Page, Section, Text, note, section
from widthwise.reports.shapes import width_figures
from widthwise.reports.table import Table
from widthwise.reports.widths_used import dynamic_width_section, virtual_width_section


def comparison_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of a comparison. Raises UserError if a run is broken."""
    runs = shared.read_runs(folder, outcome)
    results = shared.first_results(runs)
    looks = styles([variant.name for variant in outcome.variants], outcome.baseline)
    costs = {variant.name: variant.cost for variant in outcome.variants}
    of_one_budget = []
    if (folder / Search.file_name).is_file():
        of_one_budget = [candidate.name for candidate in Search.read(folder).candidates]
    every_run = [run for seeds in runs.values() for run in seeds]
    curves = []
    for event, title in shared.LOSSES.items():
        by_step = {name: over_seeds(seeds, event) for name, seeds in runs.items()}
        by_flops = curves_over_flops(outcome.variants, runs, event)
        for key, x_title, lines, grown in (
            ("step", "step", by_step, growth_steps(every_run)),
            ("flops", "training FLOPs", by_flops, growth_flops(every_run)),
        ):
            name, y_title = f"{title} by {x_title}", title.lower()
            figure = curve_figure(f"{event}-{key}", name, lines, looks, x_title, y_title, True, grown)
            curves += [] if figure is None else [figure]
    means = {name: over_seeds(seeds, "validation").mean for name, seeds in runs.items()}
    others = [clean(variant.name) for variant in outcome.variants if variant.name != outcome.baseline]
    return Page(
        "comparison",
        clean(outcome.title),
        comparison_answer(outcome),
        lead=shared.compared_question(others, clean(outcome.baseline or ""), outcome),
        badges=shared.badges(outcome),
        first=[difference_figure(outcome, looks), *curves[:1]],
        sections=[
            shared.results_section(outcome, shared.caption_of_results(outcome, results), looks),
            shared.open_points_section(outcome),
            section("Width of every layer", note("width"), *width_figures(costs, looks, results)),
            section(
                "Shapes at one budget",
                note("shapes", level=percentage(outcome.confidence)),
                *shape_figures(outcome, of_one_budget),
            ),
            shared.equal_loss_section(outcome, looks),
            section("Tuning", tuning_table(outcome.tuning), note("tuning")),
            growth_section(runs, looks),
            section(
                "Loss curves",
                *curves,
                loss_curves_note(outcome),
                curve_table("Held-out loss by step, mean over seeds", means).folded if curves else None,
            ),
            dynamic_width_section(results, looks),
            virtual_width_section(results, looks),
            cost_section(outcome, looks),
            shared.data_section(outcome, runs),
            shared.reproduce_section(outcome, runs),
        ],
        made_from=f"{Outcome.file_name} of {outcome.created}",
        files=shared.table_files(outcome),
    )


def comparison_answer(outcome: Outcome) -> list[str]:
    """Return a few sentences that answer, and the settings that differ."""
    return [
        *baseline_answer(outcome),
        *equal_loss_answer(outcome),
        *_tuning_answer(outcome.tuning),
        *shared.setting_sentences(outcome),
    ]


def baseline_answer(outcome: Outcome) -> list[str]:
    """Return which variants are better than the baseline, and which are not."""
    compared = [variant for variant in outcome.variants if variant.difference is not None]
    if not compared:
        return _lowest_answer(outcome.variants)
    by_verdict: dict[str, list[Variant]] = {}
    for variant in sorted(compared, key=lambda variant: finite(variant.difference and variant.difference.mean)):
        by_verdict.setdefault(shown_verdict(variant), []).append(variant)
    baseline = clean(outcome.baseline_words or "")
    seeds = counted(len(outcome.seeds), "seed")
    if "no verdict" in by_verdict:
        best = by_verdict["no verdict"][0]
        lowest = "" if len(compared) == 1 else f" of {len(compared)} has the lowest held-out loss and"
        distance = shared.apart(best.difference or Estimate(mean=None))
        return [f"{clean(best.name)}{lowest} ends {distance} {baseline}; with {seeds} there is no verdict."]
    lines = []
    if "better" not in by_verdict:
        lines.append(f"No variant is better than {baseline}.")
    for verdict, direction, extreme in (("better", "lower", 0), ("worse", "higher", -1)):
        if variants := by_verdict.get(verdict):
            first = variants[extreme]
            size = _size_with_interval(first.difference or Estimate(mean=None), outcome.confidence)
            if len(variants) == 1:
                lines.append(f"{clean(first.name)} is {verdict} than {baseline}: loss {direction} by {size}.")
            else:
                names = shared.listed(variants)
                most = f"{clean(first.name)} the most, by {size}"
                lines.append(f"{names} are {verdict} than {baseline}: loss {direction}, {most}.")
    if tied := by_verdict.get("tie"):
        lines.append(f"Equal to {baseline} within {TIE_MARGIN:g} nats: {shared.listed(tied)}.")
    if unclear := by_verdict.get("cannot tell"):
        lines.append(f"No clear difference from {baseline}: {shared.listed(unclear)} ({seeds}).")
    return lines


def _size_with_interval(difference: Estimate, confidence: float) -> str:
    """Return `0.0510 nats (95% CI 0.0080 to 0.0940)`, the size of a difference whose interval excludes 0."""
    low, high = sorted(abs(finite(end)) for end in (difference.low, difference.high))
    ends = f"{percentage(confidence)} CI {fixed(low, 4)} to {fixed(high, 4)}"
    return f"{fixed(abs(finite(difference.mean)), 4)} nats ({ends})"


def _lowest_answer(variants: Sequence[Variant]) -> list[str]:
    """Return which of the variants has the lowest loss, where nothing is compared."""
    finished = [variant for variant in variants if variant.has_loss]
    if not finished:
        return []
    best = min(finished, key=lambda variant: finite(variant.val_loss.mean))
    line = f"{clean(best.name)} ends at a held-out loss of {fixed(best.val_loss.mean, 4)}."
    return [line if len(variants) == 1 else f"Of {len(variants)}, {line}"]


def equal_loss_answer(outcome: Outcome) -> list[str]:
    """Return the tokens that the best variant needs for the baseline's loss, if they are surely fewer."""
    better = [each for each in outcome.variants if each.verdict == "better" and "val_loss" in each.at_equal_loss]
    if not better:
        return []
    best = min(better, key=lambda variant: finite(variant.val_loss.mean))
    tokens = best.at_equal_loss["val_loss"].tokens_ratio
    if not finite(tokens.high) < 1:
        return []
    baseline = clean(outcome.baseline_words or "")
    times = fixed(tokens.mean, 3)
    return [f"{clean(best.name)} needs {times} times the tokens of {baseline} for the same held-out loss."]


def _tuning_answer(tuning: Tuning | None) -> list[str]:
    """Return which variants have a value at an end of the grid from which it was chosen."""
    ended = [] if tuning is None else [clean(variant.name) for variant in tuning.variants if variant.is_at_limit]
    if not ended:
        return []
    verb = "was" if len(ended) == 1 else "were"
    return [f"{sequence(ended)} {verb} best at the last value that was tried: a better one may lie beyond."]


def tuning_table(tuning: Tuning | None) -> Table | None:
    """Return the chosen values of each variant, and their loss in the sweep."""
    if tuning is None:
        return None
    rows = [
        [clean(each.name), clean(each.in_words), fixed(each.val_loss, 4), "yes" if each.is_at_limit else MISSING]
        for each in tuning.variants
    ]
    seeds = f"{counted(len(tuning.seeds), 'seed')} ({', '.join(map(str, tuning.seeds))})"
    source = f"{clean(tuning.sweep or 'tuning')}: {percentage(tuning.steps)} of the steps, {seeds}"
    header = ["Variant", "values", "held-out loss", "at an end of the grid"]
    return Table(f"Values chosen before the comparison by {source}", header, rows, words={"values"})


def curves_over_flops(variants: Sequence[Variant], runs: Mapping[str, Sequence[Run]], event: str) -> dict[str, Bundle]:
    """Return variant -> its losses over training FLOPs."""
    curves = {}
    for variant in variants:
        if variant.name in runs:
            seeds = runs[variant.name]
            flops_per_token = variant.cost.flops_per_token.training
            result = seeds[0].result
            # A run counts every pass over a token, if it has recorded its training FLOPs.
            if result and result.tokens and (flops := QUANTITY["training_flops"].of_run(result)):
                flops_per_token = flops / result.tokens
            by_step = over_seeds(seeds, event)
            over_flops = {
                name: against_flops(curve, run, flops_per_token)
                for (name, curve), run in zip(by_step.seeds.items(), seeds)
            }
            curves[variant.name] = Bundle(over_flops, against_flops(by_step.mean, seeds[0], flops_per_token))
    return curves


def loss_curves_note(outcome: Outcome) -> Text:
    return note("seeds-and-means", "loss-curves") if len(outcome.seeds) > 1 else note("loss-curves")


def cost_section(outcome: Outcome, looks: Looks) -> Section | None:
    """Return parameters by part, costs over the baseline's, all costs, and the layers of every variant."""
    return section(
        "Costs",
        part_figure(outcome.variants),
        ratio_figure(outcome, looks),
        tables.cost_table({variant.name: variant for variant in outcome.variants}).folded,
        *(tables.layer_table(variant.name, variant.cost).folded for variant in outcome.variants),
    )
