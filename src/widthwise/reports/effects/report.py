"""The report of several comparisons: `report.html`, `table.csv` and `table.tex`, and `effects.json`."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from widthwise.records.comparison import Variant
from widthwise.records.estimate import Effects, EqualLoss, Estimate
from widthwise.records.quantities import TITLES
from widthwise.reports.effects.figure import effect_figure
from widthwise.reports.effects.scales import (
    Effect,
    Scale,
    Scales,
    read_scales,
    seed_words,
    sentences,
    sign,
    words,
    worth,
)
from widthwise.reports.page.formats import MISSING, clean, counted, fixed, interval, percentage, signed
from widthwise.reports.page.html import render, sequence, write_all
from widthwise.reports.page.table import Table, csv_cell, csv_estimate, csv_rows, escaped_row, latex_table
from widthwise.reports.page.tables import text_key, text_words


def write_effects_report(folders: Sequence[Path], out: Path) -> dict[str, Path]:
    """Reads `comparison.json` of each folder, writes the report on which effects change sign into `out`.

    Returns {"html": ..., "csv": ..., "latex": ..., "record": ...}. Raises UserError where one is broken or they do not
    go together (`read_scales`), before it writes anything.
    """
    scales = read_scales(folders)
    contents = {
        "html": ("report.html", _page(scales)),
        "csv": ("table.csv", csv_text(scales)),
        "latex": ("table.tex", latex_text(scales)),
    }
    return write_all(contents, out) | {"record": _record(scales, out).write(out)}


def write_effects_anew(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Writes the report anew from the comparisons that `effects.json` in `folder` names, there or into `out`.

    Raises UserError as `write_effects_report` does.
    """
    named = Effects.read(folder).comparisons
    return write_effects_report([Path(os.path.normpath(folder / each)) for each in named], out or folder)


def _record(scales: Scales, out: Path) -> Effects:
    comparisons = [Path(os.path.relpath(scale.folder, out)).as_posix() for scale in scales.each]
    command = shlex.join(["widthwise", "report", *comparisons, "--out", "."])
    return Effects(command=command, comparisons=comparisons, sentence="\n".join(sentences(scales)))


def _page(scales: Scales) -> str:
    names = [clean(effect.name) for effect in scales.effects]
    texts = {text_key(scale.comparison.environment) for scale in scales.each}
    return render(
        "effects/effects.html",
        title=f"{counted(len(scales.each), 'comparison')} with {clean(scales.baseline)}",
        question=_question(scales, names),
        answers=list(sentences(scales)),
        baseline=clean(scales.baseline),
        confidence=percentage(scales.confidence),
        figure=effect_figure(scales),
        effect_table=effect_table(scales),
        equal_loss_table=equal_loss_table(scales),
        worth_table=worth_table(scales),
        scale_table=scale_table(scales),
        has_several_texts=len(texts) > 1,
        commands=[(clean(str(scale.folder)), scale.comparison.command) for scale in scales.each],
    )


def _question(scales: Scales, names: Sequence[str]) -> str:
    start = "Does the effect" if len(names) == 1 else "Which effects"
    return (
        f"{start} of {sequence(names)} beside {clean(scales.baseline)} change sign with the size of the model or the "
        "tokens it is trained on?"
    )


F = TypeVar("F", Variant, Estimate)
SIGN = "sign"
"""Title of the column that says in words what the differences say together."""


def effect_table(scales: Scales) -> Table:
    """The difference of every variant at every scale, with its interval, and what they say together."""
    rows = [[*_row(effect.name, effect.variants, _difference), words(effect)] for effect in scales.effects]
    caption = (
        f"Held-out loss minus that of {clean(scales.baseline)} in nats, with its {percentage(scales.confidence)} "
        "interval; *: it excludes 0, with three seeds or more"
    )
    return Table(caption, ["Variant", *_titles(scales), SIGN], rows, words={SIGN})


def equal_loss_table(scales: Scales) -> Table | None:
    """Tokens over the baseline's at equal loss; None if no comparison measured them."""
    if not any(each and equal_loss(each) for effect in scales.effects for each in effect.variants):
        return None
    rows = [_row(effect.name, effect.variants, _tokens_ratio) for effect in scales.effects]
    caption = (
        f"Tokens over those of {clean(scales.baseline)} at equal held-out loss, with the "
        f"{percentage(scales.confidence)} interval; below 1 a variant needs fewer"
    )
    return Table(caption, ["Variant", *_titles(scales)], rows)


def worth_table(scales: Scales) -> Table | None:
    """What differences are worth in tokens (`worth`); None where no size was trained for two lengths."""
    found = {effect.name: worth(effect, scales) for effect in scales.effects}
    if not any(each for ratios in found.values() for each in ratios):
        return None
    rows = [_row(name, ratios, _ratio) for name, ratios in found.items()]
    caption = (
        f"Tokens over those with which {clean(scales.baseline)} would have the same loss, as its loss falls between "
        "two lengths of training"
    )
    return Table(caption, ["Variant", *_titles(scales)], rows)


def equal_loss(variant: Variant) -> EqualLoss | None:
    """What a variant needs for the held-out loss of the baseline; None if it was not measured."""
    return variant.at_equal_loss.get("val_loss")


def scale_table(scales: Scales) -> Table:
    """One row for each comparison: what was compared, at what cost equal, and on which text."""
    rows = [
        [
            clean(str(scale.folder)),
            f"{scale.params:,}",
            f"{scale.tokens:,}",
            ", ".join(map(str, scale.comparison.seeds)),
            _matched(scale),
            text_words(scale.comparison.environment) or MISSING,
        ]
        for scale in scales.each
    ]
    header = ["Folder", "parameters", "tokens", "seeds", "matched in", "text, tokenizer"]
    caption = f"From small to large; parameters and tokens are those of {clean(scales.baseline)}"
    return Table(caption, header, rows, words={"matched in", "text, tokenizer"})


def _matched(scale: Scale) -> str:
    matched = scale.comparison.matched
    return MISSING if matched in (None, "none") else TITLES.get(matched, clean(matched))


def _titles(scales: Scales) -> list[str]:
    return [f"{scales.name(scale)}, {seed_words(scale)}" for scale in scales.each]


def _row(name: str, found: Sequence[F | None], cell: Callable[[F], str]) -> list[str]:
    """The cells of a variant; what a scale lacks is MISSING."""
    return [clean(name), *(MISSING if each is None else cell(each) for each in found)]


def _difference(variant: Variant) -> str:
    assert variant.difference is not None
    mark = "*" if sign(variant.difference) else ""
    return _with_interval(signed(variant.difference.mean, 4) + mark, variant.difference, 4, True)


def _tokens_ratio(variant: Variant) -> str:
    found = equal_loss(variant)
    return MISSING if found is None else _ratio(found.tokens_ratio)


def _ratio(estimate: Estimate) -> str:
    return _with_interval(fixed(estimate.mean, 3), estimate, 3, False)


def _with_interval(text: str, estimate: Estimate, n_decimals: int, is_signed: bool) -> str:
    ends = interval(estimate, n_decimals, is_signed)
    return f"{text}\n{ends}" if ends else text


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
        row |= csv_estimate(name, estimate)
    return row | {"sign": words(effect)}


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
