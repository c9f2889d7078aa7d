"""The report of several comparisons: `report.html`, `table.csv` and `table.tex`, and `effects.json`."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from widthwise.records.estimate import Effects
from widthwise.reports.effects.export import csv_text, latex_text
from widthwise.reports.effects.figure import effect_figure
from widthwise.reports.effects.scales import Scales, read_scales
from widthwise.reports.effects.sentences import sentences
from widthwise.reports.effects.tables import effect_table, equal_loss_table, scale_table, worth_table
from widthwise.reports.page.data import text_key
from widthwise.reports.page.formats import clean, counted, percentage
from widthwise.reports.page.html import render, sequence, write_all


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
