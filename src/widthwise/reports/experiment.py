"""Pages of experiments: comparisons, sweeps, ladders and families, finished or not; each with CSV and LaTeX."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from widthwise.experiments.matching import LARGEST_MISMATCH
from widthwise.records.comparison import Compared, Comparison, Family, Trend, Variant
from widthwise.records.discovery import Search
from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.records.quantities import OF_HELD_OUT, QUANTITY, TITLES
from widthwise.records.record import finite
from widthwise.records.run import PlannedRuns, Run, RunResult
from widthwise.records.sweep import SearchedRange, Sweep
from widthwise.reports import experiment_figures as figures
from widthwise.reports import main_table, tables
from widthwise.reports.charts import BASELINE_STYLE, Figure, Style, styles
from widthwise.reports.curves import Bundle, Curve, against_flops, by_step, curve_figure, mean_over_seeds, of_seeds
from widthwise.reports.dynamic_width import dynamic_width_section
from widthwise.reports.family import family_runs, family_sentences, family_tables
from widthwise.reports.formats import (
    MISSING,
    capital,
    clean,
    counted,
    fixed,
    interval,
    percentage,
    plain,
    sequence,
    shorten,
    si,
    signed,
    tick,
)
from widthwise.reports.growth import growth_flops, growth_section, growth_steps
from widthwise.reports.page import Code, Page, Part, Section, Text, in_words, note, section
from widthwise.reports.reading import counted_states, progress_table, read_run, reload_sentence
from widthwise.reports.shapes import width_figures
from widthwise.reports.table import Table
from widthwise.reports.virtual_width import virtual_width_section
from widthwise.run_dir import RunDir
from widthwise.runs.listing import listed_run, planned_run

SIZES = frozenset({"model.ffn.ratio", "model.ffn.d_hidden", "model.ffn.d_ff", "model.n_layers", "aspect"})
"""Axes along which points lie on the curves of shapes."""
Runs = Mapping[str, Sequence[Run]]
"""Variant -> its runs in this folder; others may be on another machine."""
_LOSSES = (("validation", "Held-out loss"), ("train", "Training loss"))


def comparison_page(folder: Path, found: Comparison) -> Page:
    """Return the page of a comparison. Raises UserError where a run is broken."""
    runs = _runs_of(folder, found)
    looks = styles([variant.name for variant in found.variants], found.baseline)
    results = {name: own[0].result for name, own in runs.items() if own and own[0].result}
    curves = _curves(found, runs, looks)
    others = [clean(variant.name) for variant in found.variants if variant.name != found.baseline]
    verb = "Does" if len(others) == 1 else "Do"
    question = f"{verb} {sequence(others)} reach a lower held-out loss than {clean(found.baseline)}" if others else ""
    matched = _matched_words(found.matched) + _mismatch(found)
    caption = f"Each variant, mean over {counted(len(found.seeds), 'seed')}{_measured_on(results)}"
    return Page(
        "comparison",
        found.title,
        answer(found),
        lead=f"{question}{matched}? " * bool(others) + f"Trained with {_seed_words(found)}.",
        badges=_badges(found),
        first=(figures.difference_figure(found, looks), next(iter(curves), None)),
        sections=(
            section(
                "Results",
                *main_table.main_tables(found, caption, looks),
                main_table.validated_table(found),
                tables.seed_table(found).folded,
                in_words(found.sentence.splitlines()),
            ),
            section(
                "Width of every layer",
                note("width"),
                *width_figures({each.name: each.cost for each in found.variants}, looks, results),
            ),
            section(
                "Shapes at one budget",
                note("shapes", level=percentage(found.confidence)),
                *figures.shape_figures(found, _searched(folder)),
            ),
            _equal_loss_section(found, looks),
            _trend_section(found, looks),
            growth_section({name: own for name, own in runs.items() if own}, looks),
            section(
                "Loss curves",
                *curves,
                note("seeds-and-means" * (len(found.seeds) > 1), "loss-curves"),
                tables.curve_table("Held-out loss by step, mean over seeds", _mean_curves(runs)).folded,
            )
            if curves
            else None,
            dynamic_width_section(results, looks),
            virtual_width_section(results, looks),
            section(
                "Costs",
                figures.part_figure(found.variants),
                figures.ratio_figure(found, looks),
                tables.cost_table({each.name: each for each in found.variants}).folded,
                *(tables.layer_table(each.name, each.cost).folded for each in found.variants),
            ),
            section(
                "Data and environment",
                tables.data_table({name: own[0] for name, own in runs.items() if own}),
                tables.environment_table(found.environment),
            ),
            _reproduce(found.command, runs, Comparison.file_name),
        ),
        made_from=f"{Comparison.file_name} of {found.created}",
    )


def _runs_of(folder: Path, found: Comparison | Sweep) -> Runs:
    """Return variant -> its runs in this folder, none of those that were made elsewhere or removed."""
    return {
        each.name: [read_run(folder / path, path) for path in each.runs if RunDir(folder / path).exists]
        for each in found.variants
    }


def answer(found: Compared) -> list[str]:
    """Return one or two sentences that answer in words: what is better than the baseline, and what is not."""
    compared = [each for each in found.variants if each.difference is not None]
    if not compared:
        best = min(found.variants, key=lambda each: (each.val_loss.mean is None, each.val_loss.mean), default=None)
        if best is None or best.val_loss.mean is None:
            return []
        only = f"{clean(best.name)} ends at a held-out loss of {fixed(best.val_loss.mean, 4)}."
        return [only if len(found.variants) == 1 else f"Of {len(found.variants)}, " + only]
    by_verdict: dict[str, list[Variant]] = {}
    for each in sorted(compared, key=lambda each: finite(each.difference and each.difference.mean)):
        by_verdict.setdefault(each.verdict or "cannot tell", []).append(each)
    baseline, seeds = clean(found.baseline_words or ""), counted(len(found.seeds), "seed")
    if "no verdict" in by_verdict:
        best = by_verdict["no verdict"][0]
        mean = finite(best.difference and best.difference.mean)
        than = f"{fixed(abs(mean), 4)} nats {'below' if mean < 0 else 'above'} {baseline}"
        lowest = "" if len(compared) == 1 else f" of {len(compared)} has the lowest held-out loss and"
        return [f"{clean(best.name)}{lowest} ends {than}; with {seeds} there is no verdict."]
    parts = []
    for verdict, phrase in (("better", "below"), ("worse", "above")):
        if group := by_verdict.get(verdict):
            first = group[0] if verdict == "better" else group[-1]
            size = fixed(abs(finite(first.difference and first.difference.mean)), 4)
            most = f", {clean(first.name)} the most" if len(group) > 1 else ""
            verb = "ends" if len(group) == 1 else "end"
            parts.append(f"{_names(group)} {verb} {phrase} {baseline}{most}, by {size} nats.")
    if "better" not in by_verdict:
        parts.insert(0, f"Nothing here is better than {baseline}.")
    rest = [f"{_names(group)} tie with it" for group in [by_verdict.get("tie")] if group]
    rest += [f"{seeds} cannot tell {_names(group)} from it" for group in [by_verdict.get("cannot tell")] if group]
    return [*parts, *([f"{capital(' and '.join(rest))}."] if rest else [])]


def _names(group: Sequence[Variant]) -> str:
    """Return the names of a few, or how many they are."""
    return sequence([clean(each.name) for each in group]) if len(group) <= 4 else f"{len(group)} variants"


def _seed_words(found: Compared) -> str:
    """Return `2 seeds (1, 2)`."""
    return f"{counted(len(found.seeds), 'seed')} ({', '.join(map(str, found.seeds))})"


def _matched_words(quantity: str | None) -> str:
    """Return " at equal parameters", or nothing where nothing is equal."""
    return "" if quantity in (None, "none") else f" at equal {TITLES.get(quantity, clean(quantity))}"


def _badges(found: Compared) -> list[str]:
    """Return what casts doubt on the answer, in a few words each."""
    n_doubted = sum(bool(each.doubts) for each in found.variants)
    return [
        *(["fewer than three seeds"] if len(found.seeds) < FEWEST_SEEDS else []),
        *([f"{counted(n_doubted, 'variant')} with a doubtful last loss: see !"] if n_doubted else []),
        *(["shared machine: speeds not comparable"] if any(each.shares_machine for each in found.variants) else []),
    ]


def _mismatch(found: Comparison) -> str:
    """Return how unequal variants are in what they are said to match, if a search asked for no closer match."""
    if (matched := QUANTITY.get(found.matched or "none")) is None:
        return ""
    ratios = [matched.ratio(variant, found.baseline_variant) for variant in found.variants]
    largest = max((abs(ratio - 1) for ratio in ratios if ratio is not None), default=0.0)
    return f", within {largest:.1%}" if largest > LARGEST_MISMATCH else ""


def _searched(folder: Path) -> list[str]:
    """Return the shapes of the search that the comparison belongs to, if it does."""
    if not (folder / Search.file_name).is_file():
        return []
    return [candidate.name for candidate in Search.read(folder).candidates]


def _measured_on(results: Mapping[str, RunResult]) -> str:
    """Return on how much text the held-out losses were measured, where it is the same for all."""
    words = {tables.loss_words(result) for result in results.values()}
    return f"; held-out loss{words.pop()}" if len(words) == 1 and words != {""} else ""


def _mean_curves(runs: Runs) -> dict[str, Curve]:
    return {name: mean_over_seeds([by_step(run, "validation", "loss") for run in own]) for name, own in runs.items()}


def _curves(found: Comparison, runs: Runs, looks: Mapping[str, Style]) -> list[Figure]:
    every = [run for own in runs.values() for run in own]
    variants = [each for each in found.variants if runs[each.name]]
    drawn: list[Figure | None] = []
    for event, title in _LOSSES:
        for words, by_flops, grown in (
            ("step", False, growth_steps(every)),
            ("training FLOPs", True, growth_flops(every)),
        ):
            bundles = [_bundle(each, runs[each.name], looks[each.name], event, by_flops) for each in variants]
            key = f"{event}-{'flops' if by_flops else 'step'}"
            drawn.append(curve_figure(key, f"{title} by {words}", bundles, words, title.lower(), True, grown))
    return [figure for figure in drawn if figure is not None]


def _bundle(variant: Variant, runs: Sequence[Run], style: Style, event: str, by_flops: bool) -> Bundle:
    seeds = [by_step(run, event, "loss") for run in runs]
    mean = mean_over_seeds(seeds)
    if by_flops:
        flops = _flops_per_token(runs[0], variant)
        mean = against_flops(mean, runs[0], flops)
        seeds = [against_flops(curve, run, flops) for curve, run in zip(seeds, runs)]
    return Bundle(variant.name, style, seeds, mean, of_seeds(runs))


def _flops_per_token(run: Run, variant: Variant) -> float:
    """Return training FLOPs of a model that stays the same, all passes over a token counted where the run has them."""
    result = run.result
    if result is None or result.pflops_days is None or not result.tokens:
        return variant.cost.flops_per_token.training
    return result.pflops_days * 1e15 * 86400 / result.tokens


def _equal_loss_section(found: Compared, looks: Mapping[str, Style]) -> Section | None:
    """Return what variants need for their baseline's loss; None where nothing is compared, or validations are unknown.

    looks: of the variants that are drawn; tables have all.
    """
    words, validations = found.baseline_words, found.validations
    compared = [
        each for each in found.variants if (other := found.baseline_of(each)) is not None and other.name != each.name
    ]
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
        *(each for name in OF_HELD_OUT for each in figures.course_figures(name, drawn, looks, words)),
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


def _trend_section(found: Comparison, looks: Mapping[str, Style]) -> Section | None:
    trend = found.trend
    if trend is None:
        return None
    of = {variant.name: variant.measured_over_seeds(trend.of) for variant in found.variants}
    losses = {name: each for name, each in of.items() if each is not None}
    level = percentage(found.confidence)
    return section(
        f"Trend over {trend.over}",
        note("trend", over=clean(trend.over), level=level),
        figures.trend_figure(trend, losses, looks),
        _line_table(trend),
        _trend_points(trend, losses).folded,
    )


def _line_table(trend: Trend) -> Table:
    rows = [
        ["slope, nats with each doubling", signed(trend.slope.mean, 4), interval(trend.slope, 4, True) or MISSING],
        ["intercept, nats", fixed(trend.intercept.mean, 4), interval(trend.intercept, 4) or MISSING],
        ["R² of the mean losses", fixed(trend.r_squared, 4), MISSING],
    ]
    seeds = counted(len(trend.slope.per_seed), "seed")
    return Table(f"The line over log2 of {clean(trend.over)}, {seeds}", ["", "Value", "Interval"], rows, sortable=False)


def _trend_points(trend: Trend, losses: Mapping[str, Estimate]) -> Table:
    rows = [
        [clean(p.variant), tick(p.value), fixed(losses[p.variant].mean, 4), fixed(p.line, 4), signed(p.residual, 4)]
        for p in trend.points
    ]
    title = capital(TITLES.get(trend.of, clean(trend.of)))
    return Table(f"{title} and line", ["Variant", clean(trend.over), "loss", "line", "residual"], rows)


def _reproduce(command: str | None, runs: Runs, file_name: str, *further: Part | None) -> Section | None:
    recipes = [
        Code(own[0].config_yaml, f"{name}: resolved recipe, {own[0].path}/config.yaml")
        for name, own in runs.items()
        if own
    ]
    folders = [f"{clean(name)}: {', '.join(run.path for run in own)}" for name, own in runs.items() if own]
    return section(
        "How to reproduce",
        Text(
            [
                "Run this command with the versions above; every variant trains on the same data in the same order, "
                "once per seed."
            ]
        ),
        Code(command) if command else None,
        *further,
        *recipes,
        Code(
            "\n".join([f"{file_name}: every number of this page", "table.csv, table.tex: the results table", *folders]),
            "Files",
        ),
    )


def sweep_page(folder: Path, found: Sweep) -> Page:
    """Return the page of a sweep or a ladder, as far as it has come. Raises UserError where a run is broken."""
    runs = _runs_of(folder, found)
    looks = styles(found.groups)
    named = {group or "all points": style for group, style in looks.items()}
    of_points = {each.name: _point_style(each, found, looks) for each in found.variants}
    flops, flops_title = _training_flops(found, runs)
    axes = figures.axis_figures(found, looks)
    n_elsewhere = sum(len(each.runs) - len(runs[each.name]) for each in found.variants)
    caption = f"Finished points by loss, mean over {counted(len(found.seeds), 'seed')}"
    budget = [each.name for each in found.variants if not SIZES.isdisjoint(each.values)]
    equal_loss = _equal_loss_section(found, _compared_styles(found, looks))
    is_ladder = found.baseline_group is not None
    return Page(
        "sweep",
        found.title,
        ladder_answer(found) if is_ladder else answer_of_sweep(found),
        lead=_sweep_question(found),
        badges=_badges(found),
        first=(figures.difference_figure(found, of_points) if is_ladder else None, *axes[:2]),
        sections=(
            section(
                "Results",
                *main_table.main_tables(found, caption, of_points, "Point"),
                in_words(found.sentence.splitlines()),
            ),
            _open_table(found),
            section("Along the axes", *axes, _axis_note(found), _axis_table(found)),
            section(
                "Shapes at one budget",
                note("shapes", level=percentage(found.confidence)),
                *figures.shape_figures(found, [] if found.matched in (None, "none") else budget),
            ),
            section(
                "Loss and compute",
                note("loss-and-compute"),
                figures.compute_figure(found, flops, looks, flops_title),
            ),
            equal_loss,
            section(
                "Loss curves",
                _point_curves(found, runs, named),
                note("point-curves"),
            ),
            section(
                "Details",
                tables.seed_table(found).folded,
                tables.cost_table({each.name: each for each in found.variants}).folded,
            )
            if found.variants
            else None,
            section("Data and environment", tables.environment_table(found.environment)),
            _reproduce(
                found.command,
                runs,
                Sweep.file_name,
                _study_table(found),
                note("runs-elsewhere", runs=counted(n_elsewhere, "run")) if n_elsewhere else None,
            ),
        ),
        made_from=f"{Sweep.file_name} of {found.created}",
    )


def _open_table(found: Sweep) -> Section | None:
    rows = [[clean(p.name), p.state, shorten(p.reason or "", 300) or MISSING] for p in found.open_points]
    table = Table("Points without a result", ["Point", "State", "Reason"], rows, words={"State", "Reason"})
    return section("Points without a result", table) if rows else None


def _point_style(point: Variant, found: Sweep, looks: Mapping[str, Style]) -> Style:
    """Return the style of its group; the baseline has its own."""
    group = next(each.group for each in found.variants if each.name == point.name)
    return BASELINE_STYLE if point.name == found.baseline else looks[group or ""]


def _compared_styles(found: Sweep, looks: Mapping[str, Style]) -> dict[str, Style]:
    """Return styles of what is drawn beside its baseline: all sizes of a ladder, otherwise the best of each group."""
    if found.baseline_group is not None:
        return styles([point.name for point in found.variants if point.group != found.baseline_group])
    best = {point.group or "": point for point in reversed(found.variants) if point.name != found.baseline}
    return {point.name: looks[group] for group, point in best.items()}


def answer_of_sweep(found: Sweep) -> list[str]:
    """Return which point is best, and what it is beside the baseline."""
    ranked = [each for each in found.variants if each.name != found.baseline and each.val_loss.mean is not None]
    if not ranked:
        return []
    best, n_open = ranked[0], len(found.open_points)
    lead = f"{clean(best.name)} has the lowest held-out loss of {counted(len(ranked), 'point')}"
    rest = [f"{counted(n_open, 'point')} without a result."] if n_open else []
    if best.difference is None:
        return [f"{lead}, {fixed(best.val_loss.mean, 4)}.", *rest]
    words = {"better": "better than", "worse": "worse than", "tie": "a tie with"}
    mean = finite(best.difference.mean)
    than = f"{fixed(abs(mean), 4)} nats {'below' if mean < 0 else 'above'} {clean(found.baseline_words or '')}"
    verdict = best.verdict or "cannot tell"
    judged = f"on its own {words[verdict]} it" if verdict in words else "which proves nothing"
    return [f"{lead}, {than}: {judged}; the best of many looks better than it is.", *rest]


def ladder_answer(found: Sweep) -> list[str]:
    """Return at how many sizes each group is better than the baseline's group."""
    lines = []
    for group in (each for each in found.groups if each != found.baseline_group):
        verdicts = [each.verdict or "cannot tell" for each in found.variants if (each.group or "") == group]
        counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
        lines.append(f"{clean(group)} beside {clean(found.baseline_group or '')}, size by size: {counts}.")
    return lines


def _sweep_question(found: Sweep) -> str:
    seeds, matched = _seed_words(found), _matched_words(found.matched)
    if found.baseline_group is not None:
        others = [clean(group) for group in found.groups if group != found.baseline_group]
        n_sizes = sum(point.group == found.baseline_group for point in found.points)
        than = f"{clean(found.baseline_group)} at each of {n_sizes} sizes{matched}"
        verb = "Does" if len(others) == 1 else "Do"
        return f"{verb} {sequence(others)} reach a lower held-out loss than {than}? Trained with {seeds}."
    keys = list(dict.fromkeys(key for axes in found.axes.values() for key in axes))
    varied = f" over {sequence([clean(key) for key in keys])}" if keys else ""
    than = f", and is it lower than that of {clean(found.baseline)}" if found.baseline else ""
    n_points = found.study.n_points - (found.baseline is not None)
    return f"Which of {n_points} points{varied} reaches the lowest held-out loss{matched}{than}? Trained with {seeds}."


def _axis_note(found: Sweep) -> Text | None:
    level, has_ends = percentage(found.confidence), main_table.has_intervals(found)
    if found.baseline and not found.baseline_variant:
        return Text([f"{clean(found.baseline)}, the baseline, has no loss: nothing is compared with it."])
    if not found.baseline_words:
        bars = f"; bars are {level} intervals over seeds" if has_ends else ""
        return note("losses-alone", bars=bars)
    return note("differences", "stars" * has_ends, baseline=clean(found.baseline_words), level=level)


def _training_flops(found: Sweep, runs: Runs) -> tuple[dict[str, float], str]:
    """Return point -> training FLOPs, and their title: totals if every point has a run with them, else per token."""
    firsts = {name: own[0].result for name, own in runs.items() if own}
    totals = {name: result.training_flops for name, result in firsts.items() if result and result.training_flops}
    if len(totals) == len(found.variants):
        return totals, "training FLOPs"
    return {point.name: point.cost.flops_per_token.training for point in found.variants}, "training FLOPs per token"


def _point_curves(found: Sweep, runs: Runs, looks: Mapping[str, Style]) -> Figure | None:
    """Return a thin line for each point of a group, a thick one for its best."""
    bundles, curves = [], _mean_curves({name: own for name, own in runs.items() if own})
    for group in found.groups:
        own = {point.name for point in found.of_group(group)}
        means = {name: curve for name, curve in curves.items() if name in own}
        if means:
            name = group or "all points"
            best = next(iter(means))
            bundles.append(Bundle(name, looks[name], list(means.values()), means[best], list(means), best))
    return curve_figure("points-step", "Held-out loss by step", bundles, "step", "held-out loss", crop=True)


def _axis_table(found: Sweep) -> Table | None:
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


def _study_table(found: Sweep) -> Table:
    study = found.study
    counts = {"points": study.n_points, "finished": study.n_finished, "failed": study.n_failed}
    words = {"sampler": clean(study.sampler), "storage": clean(study.storage)}
    rows = [[key, value] for key, value in (words | {key: si(n) for key, n in counts.items()}).items()]
    return Table("The study", ["Item", "Value"], rows, sortable=False)


def family_page(folder: Path, found: Family) -> Page:
    """Return the page of a family. Raises UserError where a run is broken or missing."""
    runs = family_runs(folder, found)
    names = list(runs)
    looks = styles(["grown", "alone"] if found.alone else ["grown"])
    of_variants = {each.name: looks["alone" if each.verdict == "baseline" else "grown"] for each in found.variants}
    verb = "does" if len(names) == 1 else "do"
    every = {run.name: [run] for own in runs.values() for same in own.values() for run in same}
    sentences = list(family_sentences(found))
    grown = {name: own["grown"] for name, own in runs.items()}
    return Page(
        "family",
        f"Family of {clean(found.source)}",
        sentences[:1],
        lead=f"What {verb} {sequence(names)} cost and reach, grown from {clean(found.source)}?",
        sections=(
            section(
                "Results",
                *family_tables(found),
                *main_table.main_tables(found, "Each model, mean over seeds", of_variants),
                in_words(sentences),
            ),
            _equal_loss_section(found, styles([size.name for size in found.sizes])),
            section("Loss curves", *(f for name in names for f in _family_curves(name, runs[name], looks))),
            growth_section(grown, styles(names)),
            _reproduce(found.command, every, Family.file_name),
        ),
        made_from=Family.file_name,
    )


def _family_curves(name: str, runs: Mapping[str, Sequence[Run]], looks: Mapping[str, Style]) -> list[Figure]:
    """Return losses of one size over training FLOPs, those of the shared steps included."""
    drawn = []
    for number, (event, title) in enumerate(_LOSSES):
        bundles = []
        for kind, own in runs.items():
            curves = [by_step(run, event, "loss") for run in own]
            seeds = [against_flops(curve, run, _own_flops(run)) for curve, run in zip(curves, own)]
            mean = against_flops(mean_over_seeds(curves), own[0], _own_flops(own[0]))
            bundles.append(Bundle(kind, looks[kind], seeds, mean, of_seeds(own)))
        key, words = f"{event}-{number}-{clean(name)}", f"{clean(name)}: {title.lower()}"
        drawn.append(
            curve_figure(key, words, bundles, "training FLOPs", title.lower(), True, growth_flops(runs["grown"]))
        )
    return [figure for figure in drawn if figure is not None]


def _own_flops(run: Run) -> float:
    """Return training FLOPs of a token, if the model stays the same; where it grew, `against_flops` knows more."""
    result = run.result
    return finite(result.training_flops) / finite(result.tokens) if result and result.tokens else float("nan")


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder holds a comparison of which a run or the result is missing."""
    if not (folder / PlannedRuns.file_name).is_file():
        return False
    runs = PlannedRuns.read(folder).runs
    return not (folder / Comparison.file_name).is_file() or not all(RunDir(folder / r.path).has_result for r in runs)


def unfinished_page(folder: Path, refresh_seconds: int | None) -> Page:
    """Return the page of a comparison that is being trained: how far each run has come, and its curves."""
    planned = PlannedRuns.read(folder)
    listed, begun = {}, {each.variant: [] for each in planned.runs}
    for each in planned.runs:
        path = folder / each.path
        is_begun = RunDir(path).exists
        listed[path.name] = listed_run(path) if is_begun else planned_run(path, each.n_steps)
        if is_begun:
            begun[each.variant].append(read_run(path, each.path))
    looks = styles(begun, planned.baseline)
    grown = growth_steps([run for own in begun.values() for run in own])
    drawn = []
    for event, title in _LOSSES:
        found = {name: [by_step(run, event, "loss") for run in own] for name, own in begun.items() if own}
        bundles = [Bundle(name, looks[name], curves, mean_over_seeds(curves)) for name, curves in found.items()]
        drawn.append(curve_figure(f"{event}-loss", title, bundles, "step", title.lower(), True, grown))
    return Page(
        "comparison, not finished",
        planned.title,
        [],
        lead=f"{len(listed)} runs: {counted_states(list(listed.values()))}.{reload_sentence(refresh_seconds)}",
        first=drawn,
        sections=(
            section("Runs", progress_table(listed), note("unfinished")),
            section("How to resume", Code(planned.command)),
        ),
        made_from=f"{PlannedRuns.file_name} and the run directories beside this page",
        refresh_seconds=refresh_seconds,
    )
