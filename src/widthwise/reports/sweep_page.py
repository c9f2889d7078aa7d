"""The pages of a sweep over recipe keys, and of a ladder, which compares groups at several sizes."""

from pathlib import Path

from widthwise.records.outcome import Outcome
from widthwise.records.record import finite
from widthwise.reports import experiment_sections, tables
from widthwise.reports.charts import BASELINE_STYLE, Figure, Looks, styles
from widthwise.reports.curves import Bundle, curve_figure, over_seeds
from widthwise.reports.experiment_figures import difference_figure
from widthwise.reports.formats import clean, counted, distance, fixed, joined, percentage, with_interval
from widthwise.reports.main_table import has_intervals, shown_verdict
from widthwise.reports.page import Page, Text, note, section
from widthwise.reports.resizing import growth_section
from widthwise.reports.sweep_figures import ALL_POINTS, axis_figures, compute_figure
from widthwise.reports.table import Table

MOST_ROWS = 40
"""Most points for the section Differences, whose figure has a row for each."""
SHAPE_KEYS = frozenset({"model.ffn.ratio", "model.ffn.d_hidden", "model.ffn.d_ff", "model.n_layers", "aspect"})
"""Keys that set the shape of the model. If a quantity is matched, their points are in `shape_section`."""


def sweep_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of a sweep or a ladder, finished or not. Raises UserError if a run is broken."""
    runs = experiment_sections.read_runs(folder, outcome)
    group_styles = styles(outcome.groups)
    if outcome.baseline_group is None:
        answer = sweep_answer(outcome)
        question = sweep_question(outcome)
        first = []
        # The variants are the finished points, the lowest loss first.
        best_of_group = {point.group: point for point in reversed(outcome.variants) if point.name != outcome.baseline}
        equal_loss_looks = {point.name: group_styles[group] for group, point in best_of_group.items()}
    else:
        answer = ladder_answer(outcome)
        groups = [clean(group) for group in outcome.groups if group != outcome.baseline_group]
        n_sizes = sum(point.group == outcome.baseline_group for point in outcome.points)
        baseline = f"{clean(outcome.baseline_group)} at each of {n_sizes} sizes"
        question = experiment_sections.compared_question(groups, baseline, outcome)
        first = [difference_figure(outcome)]
        equal_loss_looks = styles([point.name for point in outcome.variants if point.group != outcome.baseline_group])
    looks = {
        point.name: BASELINE_STYLE if point.name == outcome.baseline else group_styles[point.group]
        for point in outcome.variants
    }
    axes = axis_figures(outcome, group_styles)
    curves = _curves(outcome, runs, group_styles)
    caption = f"Finished points by loss, mean over {counted(len(outcome.seeds), 'seed')}"
    shapes = []
    if outcome.matched not in (None, "none"):
        shapes = [point.name for point in outcome.variants if not SHAPE_KEYS.isdisjoint(point.values)]
    costs = tables.cost_table({point.name: point for point in outcome.variants}).folded
    return experiment_sections.common_page(
        outcome,
        runs,
        answer,
        question,
        [*first, *(axes[:2] or [curves])],  # the sections do not repeat them
        [
            experiment_sections.results_section(outcome, caption, looks, _judged_table(outcome)),
            experiment_sections.unfinished_points_section(outcome),
            section("Differences", difference_figure(outcome) if len(outcome.variants) <= MOST_ROWS else None),
            section("Along the axes", *axes, _axis_note(outcome)),
            experiment_sections.shape_section(outcome, shapes),
            section("Loss and compute", note("loss-and-compute"), compute_figure(outcome, group_styles)),
            experiment_sections.equal_loss_section(outcome, equal_loss_looks),
            growth_section(runs, looks),
            section("Loss curves", curves, note("point-curves")),
            section("Costs", costs),
        ],
    )


def sweep_question(outcome: Outcome) -> str:
    """Return the question that a sweep answers, and the seeds."""
    trained, matched = experiment_sections.seeds_and_match(outcome)
    assert outcome.study is not None
    keys = dict.fromkeys(key for axes in outcome.axes.values() for key in axes)
    varied = f" over {joined([clean(key) for key in keys])}" if keys else ""
    n_points = outcome.study.n_points
    lower = ""
    if outcome.baseline:
        n_points -= 1
        lower = f", and is it lower than the loss of {clean(outcome.baseline)}"
    return f"Which of {n_points} points{varied} reaches the lowest held-out loss{matched}{lower}? {trained}"


def sweep_answer(outcome: Outcome) -> list[str]:
    """Return sentences on the best point, on the means of groups, and on points without a result."""
    ranked = [point for point in outcome.variants if point.name != outcome.baseline and point.has_loss]
    lines = []
    if ranked:
        best = ranked[0]
        lead = f"{clean(best.name)} has the lowest held-out loss of {counted(len(ranked), 'point')}"
        if best.difference is None:
            lines.append(f"{lead}, {fixed(best.val_loss.mean, 4)}.")
        else:
            gap = distance(finite(best.difference.mean))
            interval = experiment_sections.size_interval(best.difference, outcome)
            lines.append(f"{lead}, {gap} {clean(outcome.baseline_words or '')}{interval}.")
        for judged in outcome.judged:
            is_corrected = judged.confidence > outcome.confidence  # of the best point only
            is_clear = judged.verdict in ("better", "worse")
            baseline = clean(judged.beside)
            if is_corrected and judged.verdict == "no verdict":
                lines.append("Fewer than three seeds, so no verdict.")
            elif is_corrected:
                result = f"still {judged.verdict} than" if is_clear else "not significantly better than"
                lines.append(f"Corrected for {judged.n_points} comparisons, the best point is {result} {baseline}.")
            elif judged.name != best.name and is_clear:
                gap = distance(finite(judged.difference.mean))
                lines.append(f"On average the points of {clean(judged.name)} end {gap} {baseline}.")
    if outcome.study and outcome.study.n_failed:
        lines.append(f"{counted(outcome.study.n_failed, 'point')} failed.")
    if outcome.study and outcome.study.n_open:
        lines.append(f"No result yet: {counted(outcome.study.n_open, 'point')}.")
    return [*lines, *experiment_sections.setting_sentences(outcome)]


def ladder_answer(outcome: Outcome) -> list[str]:
    """Return a sentence for each group with its difference at each size, smallest size first."""
    lines = []
    for group in outcome.groups:
        sizes = []
        for point in sorted(outcome.variants, key=lambda point: point.cost.params["total"]):
            if point.group == group and point.difference is not None:
                size = clean(" ".join(map(str, point.values.values())))
                sizes.append(f"{size} {with_interval(point.difference, 4)}, {shown_verdict(point)}")
        if sizes:
            pair = f"{clean(group)} minus {clean(outcome.baseline_group or '')}"
            lines.append(f"{pair} at each size: {'; '.join(sizes)}.")
    return [*lines, *experiment_sections.setting_sentences(outcome)]


def _judged_table(outcome: Outcome) -> Table:
    """Return the best point, with an interval widened for the number of points, and the mean of each group."""
    rows = []
    for judged in outcome.judged:
        is_corrected = judged.confidence > outcome.confidence
        counts = f"best of {judged.n_points}" if is_corrected else counted(judged.n_points, "point")
        row = [f"{clean(judged.name)}, {counts}", clean(judged.beside), with_interval(judged.difference, 4)]
        rows.append([*row, percentage(judged.confidence), judged.verdict])
    header = ["Point or group", "baseline", "difference", "confidence", "verdict"]
    return Table("Best point and means of groups", header, rows, text_columns={"baseline", "verdict"})


def _axis_note(outcome: Outcome) -> Text:
    level = percentage(outcome.confidence)
    if outcome.baseline and not outcome.baseline_variant:
        return Text([f"{clean(outcome.baseline)}, the baseline, has no loss: nothing is compared with it."])
    if not outcome.baseline_words:  # there is no baseline
        return note("losses-alone", bars=f"; bars are {level} intervals over seeds" if has_intervals(outcome) else "")
    names = ["differences", "stars"] if has_intervals(outcome) else ["differences"]
    return note(*names, baseline=clean(outcome.baseline_words), level=level)


def _curves(outcome: Outcome, runs: experiment_sections.Runs, group_styles: Looks) -> Figure | None:
    """Return a thin line for each point, and a thick line for the best point of each group."""
    bundles: dict[str, Bundle] = {}
    for group in outcome.groups:
        names = {point.name for point in outcome.of_group(group)}
        ranked = [point.name for point in outcome.variants if point.name in names and point.name in runs]
        if ranked:
            means = {name: over_seeds(runs[name], "validation").main_curve for name in ranked}
            bundles[group or ALL_POINTS] = Bundle(means, main=ranked[0])
    looks = {group or ALL_POINTS: style for group, style in group_styles.items()}
    return curve_figure("points-step", "Held-out loss", bundles, looks, "step", "held-out loss", crop=True)
