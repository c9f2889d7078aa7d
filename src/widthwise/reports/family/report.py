"""The report of a family: `report.html`, `table.csv` and `table.tex`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from widthwise.records.comparison import Variant
from widthwise.records.family import Family
from widthwise.records.quantities import QUANTITY
from widthwise.records.record import finite
from widthwise.records.run import Run
from widthwise.reports.comparison import main_table
from widthwise.reports.comparison.equal_loss import equal_loss_section
from widthwise.reports.comparison.export import csv_text, latex_text
from widthwise.reports.family.tables import control_table, member_table, sentences, size_table
from widthwise.reports.page import plots
from widthwise.reports.page.curves import against_flops, by_step, mean_over_seeds, of_seeds
from widthwise.reports.page.formats import clean, percentage
from widthwise.reports.page.html import FoldedRecipe, Panel, legend, panels, render, sequence, write_all
from widthwise.reports.page.svg import Style, styles, swatch
from widthwise.reports.run.growth import growth_flops, growth_section
from widthwise.reports.run.reading import read_run

GROWN, ALONE = "grown", "alone"


def write_family_report(folder: Path, out: Path | None = None, columns: Sequence[str] | None = None) -> dict[str, Path]:
    """Reads `folder/family.json` and the runs it names, writes the report into `out` (default: `folder`).

    columns: names of the quantities of the main table; None: the usual ones. Returns {"html": ..., "csv": ...,
    "latex": ...}; of files of older versions only the page. Raises UserError where something is broken, before it
    writes anything.
    """
    folder = Path(folder)
    family = main_table.with_columns(Family.read(folder), columns)
    contents = {"html": ("report.html", _page(folder, family))}
    if family.variants:
        contents |= {"csv": ("table.csv", csv_text(family)), "latex": ("table.tex", latex_text(family))}
    return write_all(contents, Path(out or folder))


def _page(folder: Path, family: Family) -> str:
    runs = _runs(folder, family)
    chosen = styles([GROWN, ALONE] if family.alone else [GROWN])
    names, source = list(runs), clean(family.source)
    verb = "does" if len(names) == 1 else "do"
    return render(
        "family/family.html",
        title=f"family of {source}",
        question=f"What {verb} {sequence([clean(name) for name in names])} cost and reach, grown from {source}?",
        answers=list(sentences(family)),
        size_table=size_table(family),
        confidence=percentage(family.confidence),
        has_intervals=main_table.has_intervals(family),
        tables=main_table.main_tables(
            family, "Each model, mean over seeds", [swatch(_style(each, family, chosen)) for each in family.variants]
        ),
        notes=main_table.notes(family),
        equal_loss=equal_loss_section(family, styles([size.name for size in family.sizes])),
        member_table=member_table(family),
        control_table=control_table(family),
        legend=legend(chosen),
        curves=[panel for name in names for panel in _curves(name, runs[name], chosen)],
        growth=growth_section({name: own[GROWN] for name, own in runs.items()}, styles(names)),
        command=family.command,
        recipes=[
            FoldedRecipe(run.name, run.path, run.config_yaml)
            for own in runs.values()
            for same in own.values()
            for run in same
        ],
    )


def _style(variant: Variant, family: Family, chosen: Mapping[str, Style]) -> Style:
    """That of what was grown, or of what was trained alone."""
    return chosen[ALONE if variant.verdict == "baseline" else GROWN]


def _runs(folder: Path, family: Family) -> dict[str, dict[str, list[Run]]]:
    """Size -> grown or alone -> its runs, which lie beside family.json wherever the folder was moved."""
    found: dict[str, dict[str, list[Run]]] = {}
    for kind, entries in ((GROWN, family.members), (ALONE, family.controls)):
        for each in entries:
            run = read_run(folder / Path(each.run).name, each.run)
            found.setdefault(each.name, {}).setdefault(kind, []).append(run)
    return found


def _curves(name: str, runs: Mapping[str, Sequence[Run]], chosen: Mapping[str, Style]) -> list[Panel]:
    """Losses of one size over training FLOPs, those of the shared steps included."""
    growths = growth_flops(runs[GROWN])
    figures = {
        f"{clean(name)}: {title}": plots.curve_figure(
            f"{event}-{number}-{clean(name)}",
            [_bundle(kind, own, chosen[kind], event) for kind, own in runs.items()],
            QUANTITY["training_flops"].title,
            title,
            True,
            growths,
        )
        for number, (event, title) in enumerate((("validation", "held-out loss"), ("train", "training loss")))
    }
    return panels(figures)


def _bundle(kind: str, runs: Sequence[Run], style: Style, event: str) -> plots.Bundle:
    curves = [by_step(run, event, "loss") for run in runs]
    seeds = [against_flops(curve, run, _flops_per_token(run)) for curve, run in zip(curves, runs)]
    mean = against_flops(mean_over_seeds(curves), runs[0], _flops_per_token(runs[0]))
    return plots.Bundle(kind, style, seeds, mean, of_seeds(runs))


def _flops_per_token(run: Run) -> float:
    """Training FLOPs of a token, if the model stays the same; where it grew, `against_flops` knows more."""
    result = run.result
    return finite(result.training_flops) / finite(result.tokens) if result and result.tokens else float("nan")
