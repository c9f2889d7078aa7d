"""The main table of a comparison, sweep or family as text cells; page, LaTeX and terminal only lay them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

from widthwise.config_io import UserError, nearest_hint
from widthwise.records.comparison import Compared, Comparison, Variant
from widthwise.records.estimate import NO_VERDICT, TIE_MARGIN
from widthwise.records.family import Family
from widthwise.records.quantities import QUANTITIES, QUANTITY, OfModel, Quantity
from widthwise.records.sweep import Sweep
from widthwise.reports.page.formats import MISSING, TIMES, capital, clean, counted, interval, percentage, shown


@dataclass(frozen=True)
class Cell:
    """A value, its interval (or "") and its ratio to the baseline (None for the baseline itself)."""

    value: str
    interval: str = ""
    ratio: float | None = None


VERDICT_NOTE = (
    f"Better or worse: the interval of the difference excludes 0. Tie: all of it is within {TIE_MARGIN:g} nats of 0. "
    f"Cannot tell: neither. {capital(NO_VERDICT)}."
)
NO_INTERVALS_NOTE = "No intervals are shown: a single seed gives none."
SHARED_NOTE = "*: other processes used the machine, not comparable"
RATIO_NOTE = f"The small number followed by {TIMES} is the ratio to {{baseline}}."


def seed_words(comparison: Compared) -> str:
    """`2 seeds (1, 2)`."""
    return f"{counted(len(comparison.seeds), 'seed')} ({', '.join(map(str, comparison.seeds))})"


def has_intervals(comparison: Compared) -> bool:
    """Whether any variant has an interval; a single seed gives none."""
    every = [each for variant in comparison.variants for each in (variant.val_loss, variant.difference)]
    return any(each is not None and each.low is not None for each in every)


ComparedT = TypeVar("ComparedT", Comparison, Sweep, Family)


def with_columns(comparison: ComparedT, columns: Sequence[str] | None) -> ComparedT:
    """With these quantities in the main table; None: as it is.

    Raises UserError for a name that is none, and for a quantity that no variant has.
    """
    if columns is None:
        return comparison
    for name in columns:
        if name not in QUANTITY:
            raise UserError(f"--columns: got {name!r}; {nearest_hint(name, QUANTITY)}")
    had = {each.name for each in QUANTITIES for variant in comparison.variants if each.value(variant) is not None}
    for name in columns:
        if name not in had:
            raise UserError(f"--columns: got {name!r}, which no variant has; those known are {', '.join(sorted(had))}")
    return comparison.with_changes(columns=list(columns))


def main_columns(comparison: Compared) -> list[Quantity]:
    """Those that were asked for, otherwise the main quantities that some variant has."""
    if comparison.columns is not None:
        return [QUANTITY[name] for name in comparison.columns if name in QUANTITY]
    return [each for each in QUANTITIES if each.is_main and _is_known(each, comparison)]


def _is_known(quantity: Quantity, comparison: Compared) -> bool:
    if quantity.is_judged:
        return comparison.baseline_words is not None
    return any(quantity.of_variant(variant) for variant in comparison.variants)


def notes(comparison: Compared) -> list[str]:
    """The footnotes of the main table: one per column, one for the verdict, one for the ratios."""
    words = {"confidence": percentage(comparison.confidence), "baseline": clean(comparison.baseline_words or "")}
    found = [column.note or f"{capital(column.title)}." for column in main_columns(comparison)]
    if comparison.baseline_words:
        found += [VERDICT_NOTE, RATIO_NOTE]
    if not has_intervals(comparison):
        found.append(NO_INTERVALS_NOTE)
    return [*(note.format(**words) for note in found), *doubts(comparison)]


def doubts(comparison: Compared) -> list[str]:
    """What casts doubt on the last loss of single runs, whose variants are marked."""
    return [f"! {clean(each.name)}, {doubt}." for each in comparison.variants for doubt in each.doubts]


def marked(variant: Variant) -> str:
    """Its name, with a mark where something casts doubt on one of its losses."""
    return f"{clean(variant.name)}{' !' * bool(variant.doubts)}"


def cells(variant: Variant, comparison: Compared) -> list[Cell]:
    """The main table's row of one variant, one cell per column."""
    return [_cell(quantity, variant, comparison) for quantity in main_columns(comparison)]


def _cell(quantity: Quantity, variant: Variant, comparison: Compared) -> Cell:
    """A value with its interval, or with its ratio if it has one; the baseline has no ratio to itself."""
    estimate, baseline = quantity.of_variant(variant), comparison.baseline_of(variant)
    if estimate is None:
        return Cell(MISSING)
    if quantity.is_speed and variant.shares_machine:
        return Cell(f"{shown(estimate.mean, quantity)}*")
    if not quantity.has_ratio:
        n_decimals = quantity.n_decimals
        ends = "" if n_decimals is None else interval(estimate, n_decimals, quantity.is_signed)
        return Cell(shown(estimate.mean, quantity), ends)
    other = None if baseline is None or baseline.name == variant.name else baseline
    return Cell(shown(estimate.mean, quantity), "", quantity.ratio(variant, other) if other else None)


def shown_verdict(variant: Variant) -> str:
    """Nothing can be told where there is no baseline."""
    return variant.verdict or "cannot tell"


_VERDICT_SIGNS = {"better": "▼ ", "worse": "▲ "}


@dataclass(frozen=True)
class MainRow:
    """The row of one variant on a page."""

    name: str
    swatch: Markup
    cells: list[tuple[Quantity, Cell]]
    verdict: str
    verdict_class: str


@dataclass(frozen=True)
class MainTable:
    """The main table on a page, or one of the two into which it is divided."""

    caption: str
    columns: list[tuple[int, Quantity]]
    """Each with the number of its note."""
    rows: list[MainRow]


def main_tables(comparison: Compared, caption: str, swatches: Sequence[Markup]) -> list[MainTable]:
    """What a page shows: columns that were asked for in one table, otherwise a table of losses and one of costs.

    All of the usual columns side by side would be wider than most windows. swatches: one for each variant. No tables
    where there is no variant.
    """
    columns = list(enumerate(main_columns(comparison), start=1))
    losses = [each for each in columns if comparison.columns is not None or not _is_of_cost(each[1])]
    costs = [each for each in columns if each not in losses]
    rows = list(zip(comparison.variants, swatches, strict=True))
    return [
        MainTable(title, own, [_row(variant, comparison, own, swatch) for variant, swatch in rows])
        for title, own in ((caption, losses), ("What each costs", costs))
        if own and rows
    ]


def _is_of_cost(quantity: Quantity) -> bool:
    return isinstance(quantity, OfModel) or quantity.is_cost or quantity.is_speed


def _row(variant: Variant, comparison: Compared, columns: Sequence[tuple[int, Quantity]], swatch: Markup) -> MainRow:
    verdict = shown_verdict(variant)
    return MainRow(
        marked(variant),
        swatch,
        [(quantity, _cell(quantity, variant, comparison)) for _, quantity in columns],
        _VERDICT_SIGNS.get(verdict, "") + verdict,
        verdict.replace(" ", "-"),
    )
