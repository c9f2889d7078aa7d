"""The main table of what is compared as text cells; the page, LaTeX and the terminal only lay them out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from markupsafe import Markup

from widthwise.records.record import Compared, Cost, Variant
from widthwise.reports.page.formats import MISSING, TIMES, clean, counted, fixed, interval, percentage, si, signed


@dataclass(frozen=True)
class Cell:
    """A value, its interval (or "") and its ratio to the baseline (None for the baseline itself)."""

    value: str
    interval: str = ""
    ratio: float | None = None


@dataclass(frozen=True)
class Column:
    """One quantity of the main table."""

    key: str
    title: str
    short: str
    """Title for a narrow terminal."""
    note: str
    """What the quantity is, for the footnote; formatted with `confidence` and `baseline`."""
    cell: Callable[[Variant, Compared], Cell] = field(repr=False)


def _loss(variant: Variant, comparison: Compared) -> Cell:
    return Cell(fixed(variant.val_loss.mean, 4), interval(variant.val_loss, 4))


def _difference(variant: Variant, comparison: Compared) -> Cell:
    if variant.difference is None:
        return Cell(MISSING)
    return Cell(signed(variant.difference.mean, 4), interval(variant.difference, 4, with_sign=True))


def _bits_per_byte(variant: Variant, comparison: Compared) -> Cell:
    estimate, other = variant.val_bits_per_byte, comparison.baseline_variant
    if estimate is None:
        return Cell(MISSING)
    baseline = other.val_bits_per_byte if other else None
    share = estimate.mean / baseline.mean if estimate.mean and baseline and baseline.mean else None
    return Cell(fixed(estimate.mean, 4), "", _ratio(variant, comparison, share))


def _tokens_per_second(variant: Variant, comparison: Compared) -> Cell:
    value = variant.tokens_per_second.mean if variant.tokens_per_second else None
    if variant.shares_machine:
        return Cell(f"{si(value)}*")
    baseline = comparison.baseline_variant
    is_comparable = baseline is None or not baseline.shares_machine
    rate = variant.ratio.get("tokens_per_second") if is_comparable else None
    return Cell(si(value), "", _ratio(variant, comparison, rate))


def _cost_cell(value: Callable[[Cost], float], ratio_key: str) -> Callable[[Variant, Compared], Cell]:
    def cell(variant: Variant, comparison: Compared) -> Cell:
        return Cell(si(value(variant.cost)), "", _ratio(variant, comparison, variant.ratio.get(ratio_key)))

    return cell


def _ratio(variant: Variant, comparison: Compared, value: float | None) -> float | None:
    """The baseline shows no ratio to itself."""
    return None if variant.name == comparison.baseline else value


MAIN_COLUMNS = (
    Column(
        "val_loss",
        "Held-out loss",
        "loss",
        "Mean over seeds of the cross-entropy per token on held-out text, in nats; below it the {confidence} interval "
        "of that mean over seeds (Student's t). Lower is better.",
        _loss,
    ),
    Column(
        "difference",
        "Difference",
        "diff",
        "Held-out loss minus that of {baseline}, paired by seed and by held-out text, and its {confidence} interval "
        "(Student's t times a bootstrap standard error over seeds and held-out windows together). Negative is better.",
        _difference,
    ),
    Column(
        "bits_per_byte",
        "Bits per byte",
        "bits/B",
        "Held-out loss divided by ln 2 and by the bytes per token: comparable between tokenizers.",
        _bits_per_byte,
    ),
    Column(
        "params",
        "Parameters",
        "params",
        "All parameters, embedding and head included.",
        _cost_cell(lambda cost: cost.params["total"], "params"),
    ),
    Column(
        "flops",
        "FLOPs per token",
        "FLOPs",
        "Forward pass at the recipe's sequence length with full attention (every token attends to all positions), as "
        "papers count it. Causal counting, which needs half of that part, is in the cost table.",
        _cost_cell(lambda cost: cost.flops_per_token.forward, "flops"),
    ),
    Column(
        "average_width",
        "Average width",
        "width",
        "Mean over layers of the width of the layer.",
        _cost_cell(lambda cost: cost.average_width, "average_width"),
    ),
    Column(
        "kv_bytes",
        "KV bytes per token",
        "KV B",
        "Key and value cache of one token over all layers, in bf16.",
        _cost_cell(lambda cost: cost.kv_bytes_per_token, "kv_bytes"),
    ),
    Column(
        "tokens_per_second",
        "Tokens per second",
        "tok/s",
        "Training throughput on the machine named under Environment, mean over seeds. An asterisk: other processes "
        "used the machine meanwhile, so that it is not comparable.",
        _tokens_per_second,
    ),
)

VERDICT_NOTE = (
    "Better or worse: the interval of the difference excludes 0. Tie: all of it is within 0.01 nats of 0. "
    "Cannot tell: neither. No verdict: fewer than three seeds."
)
NO_INTERVALS_NOTE = "No intervals are shown: a single seed gives none."
RATIO_NOTE = f"The small number followed by {TIMES} is the ratio to {{baseline}}."


def seed_words(comparison: Compared) -> str:
    """`2 seeds (1, 2)`."""
    return f"{counted(len(comparison.seeds), 'seed')} ({', '.join(map(str, comparison.seeds))})"


def has_intervals(comparison: Compared) -> bool:
    """Whether any variant has one; a single seed gives none."""
    every = [each for variant in comparison.variants for each in (variant.val_loss, variant.difference)]
    return any(each is not None and each.low is not None for each in every)


def main_columns(comparison: Compared) -> tuple[Column, ...]:
    """Without the difference to a baseline where there is none."""
    return tuple(column for column in MAIN_COLUMNS if column.key != "difference" or comparison.baseline_variant)


def notes(comparison: Compared) -> list[str]:
    """The footnotes of the main table: one per column, one for the verdict, one for the ratios."""
    words = {"confidence": percentage(comparison.confidence), "baseline": clean(comparison.baseline or "")}
    found = [column.note for column in main_columns(comparison)]
    if comparison.baseline_variant:
        found += [VERDICT_NOTE, RATIO_NOTE]
    if not has_intervals(comparison):
        found.append(NO_INTERVALS_NOTE)
    return [note.format(**words) for note in found]


def cells(variant: Variant, comparison: Compared) -> list[Cell]:
    """The main table's row of one variant, one cell per column."""
    return [column.cell(variant, comparison) for column in main_columns(comparison)]


_VERDICT_SIGNS = {"better": "▼ ", "worse": "▲ "}


@dataclass(frozen=True)
class MainRow:
    """The row of one variant on a page."""

    name: str
    swatch: Markup
    cells: list[tuple[Column, Cell]]
    verdict: str
    verdict_class: str


def main_row(variant: Variant, comparison: Compared, swatch: Markup) -> MainRow:
    """Its cells with their columns, and its verdict."""
    return MainRow(
        clean(variant.name),
        swatch,
        list(zip(main_columns(comparison), cells(variant, comparison))),
        _VERDICT_SIGNS.get(variant.verdict, "") + variant.verdict,
        variant.verdict.replace(" ", "-"),
    )
