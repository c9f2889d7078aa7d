"""The effects as CSV, a row for each variant at each scale, and as LaTeX, a row for each variant."""

from collections.abc import Iterator, Sequence

from widthwise.records.estimate import Estimate
from widthwise.reports.effects.scales import Effect, Scale, Scales, seed_words
from widthwise.reports.effects.sentences import words
from widthwise.reports.effects.tables import SIGN, effect_table, equal_loss
from widthwise.reports.effects.worth import worth
from widthwise.reports.page.latex import escaped_row, latex_table
from widthwise.reports.page.spreadsheet import csv_cell, csv_rows


def csv_text(scales: Scales) -> str:
    """Full precision; where a comparison lacks a variant there is a row without numbers."""
    rows = [
        _csv_row(effect, i, scale, ratio)
        for effect in scales.effects
        for i, (scale, ratio) in enumerate(zip(scales.each, worth(effect, scales)))
    ]
    return csv_rows(rows, list(rows[0]))


def _csv_row(effect: Effect, i: int, scale: Scale, ratio: Estimate | None) -> dict[str, object]:
    variant = effect.variants[i]
    needed = variant and equal_loss(variant)
    row: dict[str, object] = {
        "variant": csv_cell(effect.name),
        "comparison": csv_cell(str(scale.folder)),
        "baseline": csv_cell(scale.comparison.baseline),
        "params": scale.params,
        "tokens": scale.tokens,
        "n_seeds": len(scale.comparison.seeds),
    }
    for name, estimate in (
        ("difference", effect.differences[i]),
        ("tokens_at_equal_loss", needed and needed.tokens_ratio),
        ("training_flops_at_equal_loss", needed and needed.training_flops_ratio),
        ("tokens_by_slope", ratio),
    ):
        row |= dict(_parts(name, estimate))
    return row | {"sign": words(effect)}


def _parts(name: str, estimate: Estimate | None) -> Iterator[tuple[str, float | None]]:
    for part in ("mean", "low", "high"):
        yield f"{name}_{part}", getattr(estimate, part) if estimate else None


def latex_text(scales: Scales) -> str:
    r"""A `table` environment for a paper; needs \usepackage{booktabs} and T1 font encoding."""
    table = effect_table(scales)
    body = [line for row in table.rows for line in _latex_lines(row)]
    return latex_table(f"{table.caption}.", "r" * len(scales.each) + "l", list(_latex_head(scales)), body)


def _latex_head(scales: Scales) -> Iterator[str]:
    """Parameters, tokens and seeds below each other, because columns side by side must be narrow."""
    names = [
        (f"{scales.sizes[scale.params]} parameters", f"{scales.lengths[scale.tokens]} tokens", seed_words(scale))
        for scale in scales.each
    ]
    for first, line, last in zip(("Variant", "", ""), zip(*names), (SIGN, "", "")):
        yield escaped_row([first, *line, last])


def _latex_lines(row: Sequence[str]) -> Iterator[str]:
    """Differences, and below them their intervals."""
    parts = [cell.partition("\n") for cell in row]
    yield escaped_row([value for value, *_ in parts])
    if any(details for *_, details in parts):
        yield escaped_row([details for *_, details in parts])
