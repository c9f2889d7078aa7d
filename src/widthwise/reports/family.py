"""The report of a family: `report.html`, `table.csv` and `table.tex`; and its tables and sentences for the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from widthwise.records.comparison import Alone, Family, FamilySize, Variant
from widthwise.records.estimate import NO_VERDICT, Estimate
from widthwise.records.quantities import QUANTITY
from widthwise.records.record import finite
from widthwise.records.run import Run
from widthwise.reports.comparison import main_table
from widthwise.reports.comparison.equal_loss import equal_loss_section
from widthwise.reports.comparison.main_table import csv_text, latex_text
from widthwise.reports.page import plots
from widthwise.reports.page.formats import MISSING, clean, fixed, percentage, shown, si, with_interval
from widthwise.reports.page.html import FoldedRecipe, Panel, legend, panels, render, sequence, write_all
from widthwise.reports.page.plots import against_flops, by_step, mean_over_seeds, of_seeds
from widthwise.reports.page.svg import Style, styles, swatch
from widthwise.reports.page.table import Table
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
        "family.html",
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


PARAMS, TOKENS, FLOPS, LOSS = (QUANTITY[name] for name in ("params", "tokens", "training_flops", "val_loss"))
COLUMNS = (
    ("params", PARAMS.brief_title, PARAMS),
    ("start", "branched after step", QUANTITY["steps"]),
    ("tokens", TOKENS.brief_title, TOKENS),
    ("flops", FLOPS.brief_title, FLOPS),
    ("flops_alone", "FLOPs alone", FLOPS),
    ("val_loss", LOSS.title, LOSS),
)
"""Key of a member, title, and the quantity as which it is shown."""
AS_MANY: dict[Alone, str] = {"tokens": "on as many tokens", "flops": "with as many training FLOPs"}


def member_table(family: Family) -> Table:
    """One row for each model that was grown."""
    has_seeds = len(family.sources) > 1
    rows = [
        [_named(each.name, each.seed, has_seeds), *(shown(each[key], quantity) for key, _, quantity in COLUMNS)]
        for each in family.members
    ]
    return Table(f"branched from {clean(family.source)}", ["", *(title for _, title, _ in COLUMNS)], rows)


def control_table(family: Family) -> Table | None:
    """One row for each model that was trained alone; None without any."""
    if family.alone is None:
        return None
    has_seeds = len(family.sources) > 1
    rows = [
        [
            _named(each.name, each.seed, has_seeds),
            shown(each.tokens, TOKENS),
            shown(each.flops, FLOPS),
            shown(each.val_loss, LOSS),
        ]
        for each in family.controls
    ]
    caption = f"trained alone, {AS_MANY[family.alone]}"
    return Table(caption, ["", TOKENS.brief_title, FLOPS.brief_title, LOSS.title], rows)


def _named(name: str, seed: int | None, has_seeds: bool) -> str:
    return f"{clean(name)}, seed {seed}" if has_seeds else clean(name)


def size_table(family: Family) -> Table | None:
    """Grown against alone, one row for each recipe; None without controls."""
    if family.alone is None:
        return None
    rows = [[clean(size.name), *_cells(size)] for size in family.sizes]
    header = ["", "held-out loss, grown", f"alone, {AS_MANY[family.alone]}", "grown minus alone", "verdict on grown"]
    return Table(f"{LOSS.title}, mean over seeds", header, rows, words={"verdict on grown"})


def _cells(size: FamilySize) -> Sequence[str]:
    return _loss(size.grown), _loss(size.alone), _difference(size.difference), size.verdict or MISSING


def _loss(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else fixed(estimate.mean, 4)


def _difference(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else with_interval(estimate, 4)


def sentences(family: Family) -> Iterator[str]:
    """What the family cost, and how each size compares with the model trained alone."""
    together, alone = family.family_flops, family.flops_alone
    yield (
        f"Together {si(together)} training FLOPs, the shared {si(family.shared_flops)} counted once; runs of the same "
        f"models over as many tokens, each from the start, take {si(alone)}, {alone / together:.2f} times as many."
    )
    if family.sentence:
        yield from family.sentence.splitlines()
        return
    for size in family.sizes:
        if family.alone is not None and size.difference is not None:
            told = NO_VERDICT if size.verdict == "no verdict" else size.verdict
            yield (
                f"{clean(size.name)}, grown: {_difference(size.difference)} nats against the same model trained alone "
                f"{AS_MANY[family.alone]} ({told})."
            )
