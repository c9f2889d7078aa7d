"""Sections, sentences and curves that pages of experiments share."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from widthwise.experiments.matching import LARGEST_MISMATCH
from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import HELD_OUT_LOSSES, QUANTITY, TITLES
from widthwise.records.run import Run
from widthwise.reports import tables
from widthwise.reports.charts import Figure, Looks
from widthwise.reports.curves import curve_figure, over_seeds
from widthwise.reports.experiment_figures import gap_figures, shape_figures
from widthwise.reports.formats import MISSING, clean, counted, fixed, interval, joined, percentage, shorten, si
from widthwise.reports.main_table import csv_text, latex_text, main_tables, settings_of, validated_table
from widthwise.reports.page import Code, Page, Section, Text, note, recipe_code, section
from widthwise.reports.run import data_table, read_run
from widthwise.reports.table import Table, by_row
from widthwise.run_dir import RunDir

Runs = Mapping[str, Sequence[Run]]
"""Variant -> its runs in this folder. Other runs may be on another machine."""


def read_runs(folder: Path, outcome: Outcome) -> dict[str, list[Run]]:
    """Return the runs in this folder, by variant. Raises UserError if a run is broken."""
    runs: dict[str, list[Run]] = {}
    for variant in outcome.variants:
        paths = [path for path in variant.runs if RunDir(folder / path).exists]
        if paths:
            runs[variant.name] = [read_run(folder / path, path) for path in paths]
    return runs


def seeds_and_match(outcome: Outcome) -> tuple[str, str]:
    """Return `Trained with 2 seeds (1, 2).` and ` at equal parameters, within 3.4%` ("" if nothing is matched)."""
    trained = f"Trained with {counted(len(outcome.seeds), 'seed')} ({', '.join(map(str, outcome.seeds))})."
    if outcome.matched in (None, "none"):
        return trained, ""
    matched = f" at equal {TITLES.get(outcome.matched, clean(outcome.matched))}"
    if outcome.matched in QUANTITY:
        ratios = [QUANTITY[outcome.matched].ratio(*pair) for pair in outcome.compared]
        largest = max((abs(ratio - 1) for ratio in ratios if ratio is not None), default=0.0)
        if largest > LARGEST_MISMATCH:
            matched += f", within {largest:.1%}"
    return trained, matched


def common_page(
    outcome: Outcome,
    runs: Runs,
    answer: Sequence[str],
    question: str,
    first: Sequence[Figure | None],
    sections: Sequence[Section | None],
) -> Page:
    """Return the page of an experiment: `sections`, then the data, the environment and how to reproduce it.

    question: shown above the answer. first: figures of the first screen.
    """
    badges = []
    if len(outcome.seeds) < FEWEST_SEEDS:
        badges.append("fewer than three seeds")
    n_doubted = sum(bool(variant.doubts) for variant in outcome.variants)
    if n_doubted:
        badges.append(f"{counted(n_doubted, 'variant')} with a doubtful last loss, marked !")
    if any(variant.shares_machine for variant in outcome.variants):
        badges.append("other processes used the machine: speeds not comparable")
    data = data_table({name: seeds[0] for name, seeds in runs.items()})
    environment = tables.environment_table(outcome.environment)
    files = {"table.csv": csv_text(outcome), "table.tex": latex_text(outcome)} if outcome.variants else {}
    folders = [f"{clean(name)}: {', '.join(run.path for run in seeds)}" for name, seeds in runs.items()]
    described = [f"{Outcome.file_name}: every number of this page", "table.csv, table.tex: the results table", *folders]
    return Page(
        outcome.kind,
        clean(outcome.title),
        answer,
        lead=question,
        badges=badges,
        first=first,
        sections=[
            *sections,
            section("Data and environment", data, environment),
            section(
                "How to reproduce",
                Text(
                    ["Run this command with the versions above. Runs of one seed read the same data in the same order."]
                ),
                Code(outcome.command),
                *(recipe_code(name, seeds[0]) for name, seeds in runs.items()),
                Code("\n".join(described), "Files"),
            ),
        ],
        made_from=f"{Outcome.file_name} of {outcome.created}",
        files=files,
    )


def compared_question(names: Sequence[str], baseline: str, outcome: Outcome) -> str:
    """Return the question of a page: whether `names` are better than the baseline."""
    trained, matched = seeds_and_match(outcome)
    if not names:
        return trained
    verb = "Does" if len(names) == 1 else "Do"
    return f"{verb} {joined(names)} reach a lower held-out loss than {baseline}{matched}? {trained}"


def size_interval(difference: Estimate, outcome: Outcome) -> str:
    """Return the interval of an absolute difference as ` (95% CI 0.0218 to 0.2079)`; "" without an interval.

    The ends of an interval that contains 0 keep their signs.
    """
    if difference.low is None or difference.high is None:
        return ""
    level = percentage(outcome.confidence)
    if difference.low < 0 < difference.high:
        return f" ({level} CI {interval(difference, 4, True)})"
    low, high = sorted((abs(difference.low), abs(difference.high)))
    return f" ({level} CI {fixed(low, 4)} to {fixed(high, 4)})"


def variant_names(variants: Sequence[Variant]) -> str:
    """Return the names of up to four variants, or the number of more variants."""
    if len(variants) > 4:
        return f"{len(variants)} variants"
    return joined([clean(variant.name) for variant in variants])


def setting_sentences(outcome: Outcome) -> Iterator[str]:
    """Yield a sentence for each set of settings outside the model in which variants differ from the baseline.

    A key on an axis is without its values, of which there may be many.
    """
    by_settings: dict[tuple[str, ...], list[Variant]] = {}
    for variant in outcome.variants:
        settings = dict(zip(variant.differs_in, settings_of(variant)))
        settings |= {key: clean(key) for key in settings if key in variant.values}
        by_settings.setdefault(tuple(settings.values()), []).append(variant)
    for settings, variants in by_settings.items():
        if settings:
            verb = "differs" if len(variants) == 1 else "differ"
            baseline = clean(outcome.baseline_words or "the baseline")
            yield f"{variant_names(variants)} {verb} from {baseline} in {joined(settings)}."


def results_section(outcome: Outcome, caption: str, looks: Looks, more: Table | None = None) -> Section | None:
    """Return the main tables, further texts and tasks, the table `more`, and the loss and difference of every seed."""
    main = main_tables(outcome, caption, looks)
    cells: dict[str, dict[str, str]] = {}
    for variant in outcome.variants:
        differences = dict(zip(outcome.seeds, variant.difference.per_seed)) if variant.difference else {}
        row = cells[variant.name] = {}
        for seed, loss in zip(outcome.seeds, variant.val_loss.per_seed):
            row[f"seed {seed}"] = fixed(loss, 4)
            if differences.get(seed) is not None:
                row[f"seed {seed}"] += f" ({fixed(differences[seed], 4, with_sign=True)})"
    seeds = by_row("Held-out loss of each seed (difference from the baseline)", "Variant", cells).folded
    return section("Results", *main, validated_table(outcome), more, seeds)


def unfinished_points_section(outcome: Outcome) -> Section | None:
    """Return a table of the points without a result; None if there are none."""
    rows = []
    for point in outcome.unfinished_points:
        rows.append([clean(point.name), point.state, shorten(point.reason or "", 300) or MISSING])
    title = "Points without a result"
    return section(title, Table(title, ["Point", "State", "Reason"], rows, {"State", "Reason"}))


def equal_loss_section(outcome: Outcome, looks: Looks) -> Section | None:
    """Return tokens and FLOPs to the baseline's loss; None without a baseline or validations.

    looks: styles of the variants in figures; tables show all variants.
    """
    baseline = outcome.baseline_words
    validations = outcome.validations
    compared = [variant for variant, _ in outcome.compared]
    if validations is None or baseline is None or not compared:
        return None
    header = ["Variant", "seeds that reach it", "tokens", "tokens, ratio", "interval", "FLOPs, ratio", "interval"]
    loss_tables = []
    for loss, quantity in HELD_OUT_LOSSES.items():
        rows = []
        for variant in compared:
            if (at_equal_loss := variant.at_equal_loss.get(loss)) is not None:
                n_seeds = len(at_equal_loss.tokens_ratio.per_seed)
                reached = f"{at_equal_loss.n_reached} of {n_seeds}"
                row = [clean(variant.name), reached, si(at_equal_loss.tokens.mean)]
                for ratio in (at_equal_loss.tokens_ratio, at_equal_loss.training_flops_ratio):
                    row += [fixed(ratio.mean, 3), interval(ratio, 3) or MISSING]
                rows.append(row)
        if rows:
            title = f"Tokens to the final {quantity.title} of {clean(baseline)}, and ratios at equal loss"
            loss_tables.append(Table(title, header, rows))
    notes = ["equal-loss"] if loss_tables else []
    notes.append("interpolated" if validations.suffice else "too-few-validations")
    if validations.final_lr_share is not None and (loss_tables or validations.suffice):
        notes.append("constant-rate" if validations.final_lr_share >= 0.999 else "falling-rate")
    fewest = counted(validations.n_fewest, "validation")
    share = f"{validations.final_lr_share or 0:.3g}"
    explained = note(*notes, baseline=clean(baseline), share=share, fewest=fewest, needed=validations.n_needed)
    drawn = [variant for variant in compared if variant.gap and variant.name in looks]
    return section(
        "Tokens at equal loss",
        *loss_tables,
        *(figure for loss in HELD_OUT_LOSSES for figure in gap_figures(loss, drawn, looks, baseline)),
        Text(explained.lines, is_quiet=bool(loss_tables)),
    )


def shape_section(outcome: Outcome, names: Collection[str]) -> Section | None:
    """Return the losses over shapes of the variants `names`, which have one budget."""
    level = percentage(outcome.confidence)
    return section("Shapes at one budget", note("shapes", level=level), *shape_figures(outcome, names))


def loss_figures(runs: Runs, looks: Looks) -> list[Figure]:
    """Return held-out and training loss over an axis that readers choose."""
    figures = []
    for event, title in (("validation", "Held-out loss"), ("train", "Training loss")):
        losses = {name: over_seeds(seeds, event) for name, seeds in runs.items()}
        figures.append(curve_figure(f"{event}-loss", title, losses, looks, "step", title.lower(), crop=True))
    return [figure for figure in figures if figure is not None]
