"""Sections and sentences that the pages of all kinds of experiments share."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from widthwise.experiments.matching import LARGEST_MISMATCH
from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import OF_HELD_OUT, QUANTITY, TITLES
from widthwise.records.record import finite
from widthwise.records.run import Run, RunResult
from widthwise.reports import tables
from widthwise.reports.charts import Looks
from widthwise.reports.experiment_figures import gap_figures
from widthwise.reports.formats import MISSING, clean, counted, fixed, interval, sequence, shorten, si, signed
from widthwise.reports.main_table import csv_text, latex_text, main_tables, settings_of, validated_table
from widthwise.reports.page import Code, Part, Section, Text, note, resolved, section
from widthwise.reports.reading import read_run
from widthwise.reports.table import Table, by_row
from widthwise.run_dir import RunDir

LOSSES = {"validation": "Held-out loss", "train": "Training loss"}
"""Event of a record -> title of its loss."""
MOST_SETTINGS = 5
"""Settings that a sentence names; the table has all."""
Runs = Mapping[str, Sequence[Run]]
"""Variant -> its runs in this folder; other runs may be on another machine."""


def read_runs(folder: Path, outcome: Outcome) -> dict[str, list[Run]]:
    """Return the runs of each variant that has any in this folder. Raises UserError if a run is broken."""
    runs: dict[str, list[Run]] = {}
    for variant in outcome.variants:
        paths = [path for path in variant.runs if RunDir(folder / path).exists]
        if paths:
            runs[variant.name] = [read_run(folder / path, path) for path in paths]
    return runs


def first_results(runs: Runs) -> dict[str, RunResult]:
    """Return variant -> the result of its first run, if that has finished."""
    return {name: seeds[0].result for name, seeds in runs.items() if seeds[0].result}


def seeds_and_match(outcome: Outcome) -> tuple[str, str]:
    """Return `Trained with 2 seeds (1, 2).` and ` at equal parameters, within 3.4%`."""
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


def compared_question(names: Sequence[str], baseline: str, outcome: Outcome) -> str:
    """Return the question whether all of `names` are better than the baseline."""
    trained, matched = seeds_and_match(outcome)
    if not names:
        return trained
    verb = "Does" if len(names) == 1 else "Do"
    return f"{verb} {sequence(names)} reach a lower held-out loss than {baseline}{matched}? {trained}"


def apart(difference: Estimate) -> str:
    """Return `0.0123 nats below`."""
    mean = finite(difference.mean)
    return f"{fixed(abs(mean), 4)} nats {'below' if mean < 0 else 'above'}"


def listed(variants: Sequence[Variant]) -> str:
    """Return the names of up to four variants, otherwise their number."""
    return (
        sequence([clean(variant.name) for variant in variants]) if len(variants) <= 4 else f"{len(variants)} variants"
    )


def setting_sentences(outcome: Outcome) -> Iterator[str]:
    """Yield which variants differ from the baseline in more than the model; equal settings share a sentence."""
    by_settings: dict[tuple[str, ...], list[Variant]] = {}
    for variant in outcome.variants:
        by_settings.setdefault(tuple(settings_of(variant)), []).append(variant)
    for settings, variants in by_settings.items():
        if settings:
            named = sequence(settings)
            if len(settings) > MOST_SETTINGS:
                rest = counted(len(settings) - MOST_SETTINGS, "further setting")
                named = f"{', '.join(settings[:MOST_SETTINGS])} and {rest}"
            verb = "differs" if len(variants) == 1 else "differ"
            yield f"{listed(variants)} {verb} from {clean(outcome.baseline_words or 'the baseline')} in {named}."


def badges(outcome: Outcome) -> list[str]:
    """Return what casts doubt on the answer, in a few words each."""
    lines = []
    if len(outcome.seeds) < FEWEST_SEEDS:
        lines.append("fewer than three seeds")
    n_doubted = sum(bool(variant.doubts) for variant in outcome.variants)
    if n_doubted:
        lines.append(f"{counted(n_doubted, 'variant')} with a doubtful last loss: see !")
    if any(variant.shares_machine for variant in outcome.variants):
        lines.append("shared machine: speeds not comparable")
    return lines


def caption_of_results(outcome: Outcome, results: Mapping[str, RunResult]) -> str:
    """Return the caption of the main table, with the amount of held-out text if all results have the same."""
    amounts = set()
    for result in results.values():
        amount = ""
        if result.n_val_tokens:
            whole = f" of {result.data.n_held_out_tokens:,}" if result.data is not None else ""
            amount = f"; held-out loss over {result.n_val_tokens:,}{whole} held-out tokens"
        amounts.add(amount)
    return f"Each variant, mean over {counted(len(outcome.seeds), 'seed')}{amounts.pop() if len(amounts) == 1 else ''}"


def results_section(
    outcome: Outcome, caption: str, looks: Looks, *more: Table | None, first: str = "Variant"
) -> Section | None:
    """Return the main tables, further texts and tasks, the tables `more`, and every seed. first: title of the names."""
    tables = main_tables(outcome, caption, looks, first=first)
    return section("Results", *tables, validated_table(outcome), *more, seed_table(outcome))


def seed_table(outcome: Outcome) -> Table | None:
    """Return held-out loss and difference of every seed, folded; None without variants."""
    cells: dict[str, dict[str, str]] = {}
    for variant in outcome.variants:
        losses = variant.val_loss.per_seed
        differences = [*(variant.difference.per_seed if variant.difference else ()), *[None] * len(losses)]
        row = cells[variant.name] = {}
        for seed, loss, difference in zip(outcome.seeds, losses, differences):
            row[f"seed {seed}"] = fixed(loss, 4) + ("" if difference is None else f" ({signed(difference, 4)})")
    table = by_row("Held-out loss of each seed (difference to the baseline)", "Variant", cells)
    return table.folded if cells else None


def open_points_section(outcome: Outcome) -> Section | None:
    rows = [[clean(p.name), p.state, shorten(p.reason or "", 300) or MISSING] for p in outcome.open_points]
    title = "Points without a result"
    return section(title, Table(title, ["Point", "State", "Reason"], rows, {"State", "Reason"})) if rows else None


def equal_loss_section(outcome: Outcome, looks: Looks) -> Section | None:
    """Return tokens and FLOPs to the baseline's loss; None without comparisons or validations.

    looks: of the variants that are drawn; tables have all.
    """
    baseline, validations = outcome.baseline_words, outcome.validations
    compared = [variant for variant, _ in outcome.compared]
    if validations is None or baseline is None or not compared:
        return None
    loss_tables = [table for loss in OF_HELD_OUT if (table := _equal_loss_table(loss, compared, baseline)) is not None]
    names = ["equal-loss"] if loss_tables else []
    names.append("interpolated" if validations.suffice else "too-few-validations")
    if validations.final_lr_share is not None and (loss_tables or validations.suffice):
        names.append("constant-rate" if validations.final_lr_share >= 0.999 else "falling-rate")
    fewest = counted(validations.n_fewest, "validation")
    share = f"{validations.final_lr_share or 0:.3g}"
    explained = note(*names, baseline=clean(baseline), share=share, fewest=fewest, needed=validations.n_needed)
    drawn = [variant for variant in compared if variant.gap and variant.name in looks]
    return section(
        "Tokens at equal loss",
        *loss_tables,
        *(figure for loss in OF_HELD_OUT for figure in gap_figures(loss, drawn, looks, baseline)),
        Text(explained.lines, is_quiet=bool(loss_tables)),
    )


def _equal_loss_table(loss: str, compared: Sequence[Variant], baseline: str) -> Table | None:
    """Return tokens and FLOPs of each variant, one row each; None if no variant has any for this loss."""
    rows = []
    for variant in compared:
        if (needed := variant.at_equal_loss.get(loss)) is not None:
            row = [clean(variant.name), f"{needed.n_reached} of {len(needed.tokens_ratio.per_seed)}"]
            row.append(si(needed.tokens.mean))
            for ratio in (needed.tokens_ratio, needed.training_flops_ratio):
                row += [fixed(ratio.mean, 3), interval(ratio, 3) or MISSING]
            rows.append(row)
    if not rows:
        return None
    header = ["Variant", "seeds that reach it", "tokens", "tokens, ratio", "interval", "FLOPs, ratio", "interval"]
    return Table(f"To the final {OF_HELD_OUT[loss].title} of {clean(baseline)}, and ratios at equal loss", header, rows)


def data_section(outcome: Outcome, runs: Runs) -> Section | None:
    data = tables.data_table({name: seeds[0] for name, seeds in runs.items()})
    return section("Data and environment", data, tables.environment_table(outcome.environment))


def reproduce_section(outcome: Outcome, runs: Runs, *parts: Part | None) -> Section | None:
    """Return command, recipes and files. parts: follow the command."""
    folders = [f"{clean(name)}: {', '.join(run.path for run in seeds)}" for name, seeds in runs.items()]
    files = [f"{Outcome.file_name}: every number of this page", "table.csv, table.tex: the results table", *folders]
    return section(
        "How to reproduce",
        Text(
            [
                "Run this command with the versions above: with a seed, every variant reads the same data in the same "
                "order."
            ]
        ),
        Code(outcome.command),
        *parts,
        *(resolved(name, seeds[0]) for name, seeds in runs.items()),
        Code("\n".join(files), "Files"),
    )


def table_files(outcome: Outcome, first: str = "Variant") -> dict[str, str]:
    """Return the main table as CSV and LaTeX; no files without variants. first: title of the names."""
    return {"table.csv": csv_text(outcome), "table.tex": latex_text(outcome, first)} if outcome.variants else {}
