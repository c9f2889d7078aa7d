"""The page of a family: models of several sizes, grown from one run, and the same models trained alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from widthwise.records.outcome import SIZE, Family, FamilyControl, Outcome
from widthwise.records.quantities import QUANTITY
from widthwise.records.run import Run
from widthwise.reports import experiment_sections as shared
from widthwise.reports.charts import Figure, Looks, styles
from widthwise.reports.comparison_page import (
    baseline_answer,
    cost_section,
    curves_over_flops,
    equal_loss_answer,
    loss_curves_note,
)
from widthwise.reports.curves import curve_figure
from widthwise.reports.experiment_figures import difference_figure
from widthwise.reports.formats import clean, sequence, shown, si
from widthwise.reports.growth import growth_flops, growth_section
from widthwise.reports.page import Page, section
from widthwise.reports.table import Table

BRANCH_COLUMNS = {
    "params": ("params", "params"),
    "start": ("branched after step", "steps"),
    "tokens": ("tokens", "tokens"),
    "flops": ("training FLOPs", "training_flops"),
    "flops_alone": ("FLOPs alone", "training_flops"),
    "val_loss": ("held-out loss", "val_loss"),
}
"""Key of a member of a family -> its title, and the quantity that formats it."""
_ALONE = {"tokens": " on as many tokens", "flops": " with as many training FLOPs"}


def family_page(folder: Path, outcome: Outcome, family: Family) -> Page:
    """Return the page of a family. Raises UserError if a run is broken."""
    runs = shared.read_runs(folder, outcome)
    results = shared.first_results(runs)
    of_groups = styles(outcome.groups)
    looks = {variant.name: of_groups[variant.group] for variant in outcome.variants}
    grown = [variant.name for variant in outcome.variants if variant.group != outcome.baseline_group]
    curves = _curves(outcome, runs, looks)
    return Page(
        "family",
        clean(outcome.title),
        family_answer(outcome, family),
        lead=family_question(outcome, family),
        badges=shared.badges(outcome),
        first=[difference_figure(outcome, looks), *curves[:1]],
        sections=[
            shared.results_section(outcome, shared.caption_of_results(outcome, results), looks, branch_table(family)),
            shared.equal_loss_section(outcome, styles(grown)),
            growth_section({name: runs[name] for name in grown if name in runs}, looks),
            section("Loss curves", *curves, loss_curves_note(outcome)),
            cost_section(outcome, looks),
            shared.data_section(outcome, runs),
            shared.reproduce_section(outcome, runs),
        ],
        made_from=f"{Outcome.file_name} of {outcome.created}",
        files=shared.table_files(outcome),
    )


def family_question(outcome: Outcome, family: Family) -> str:
    """Return the question that a family answers, and how it was trained."""
    trained, _ = shared.seeds_and_match(outcome)
    sizes = [clean(point.name) for point in outcome.points if point.group == "grown"]
    verb = "does" if len(sizes) == 1 else "do"
    alone = f", beside the same trained alone{_ALONE[family.alone]}" if family.alone else ""
    return f"What {verb} {sequence(sizes)} cost and reach, grown from {clean(family.sources[0])}{alone}? {trained}"


def family_answer(outcome: Outcome, family: Family) -> list[str]:
    """Return what the family saved, and how the grown models compare with those trained alone."""
    times = family.flops_alone / family.family_flops
    saved = (
        f"Trained from the start, over as many tokens, these models would take {times:.2f} times the training FLOPs."
    )
    return [saved, *baseline_answer(outcome), *equal_loss_answer(outcome), *shared.setting_sentences(outcome)]


def branch_table(family: Family) -> Table:
    """Return one row for each run of a family, the grown ones first."""
    rows = [_branch_row(member, "") for member in family.members]
    rows += [_branch_row(control, ", alone") for control in family.controls]
    caption = (
        f"Branched from {clean(family.sources[0])}: together {si(family.family_flops)} training FLOPs, the shared "
        f"{si(family.shared_flops)} counted once; each from the start {si(family.flops_alone)}"
    )
    return Table(caption, ["Run", *(title for title, _ in BRANCH_COLUMNS.values())], rows)


def _branch_row(run: FamilyControl, mark: str) -> list[str]:
    cells = [shown(getattr(run, key, None), QUANTITY[name]) for key, (_, name) in BRANCH_COLUMNS.items()]
    return [f"{clean(run.name)}{mark}, seed {run.seed}", *cells]


def _curves(outcome: Outcome, runs: Mapping[str, Sequence[Run]], looks: Looks) -> list[Figure]:
    """Return losses over training FLOPs, size by size."""
    sizes = dict.fromkeys(variant.values[SIZE] for variant in outcome.variants if variant.name in runs)
    curves = []
    for number, size in enumerate(sizes):
        variants = [each for each in outcome.variants if each.name in runs and each.values[SIZE] == size]
        grown = growth_flops(run for variant in variants for run in runs[variant.name])
        for event, title in shared.LOSSES.items():
            key, name = f"{event}-flops-{number}", f"{clean(size)}: {title.lower()}"
            by_flops = curves_over_flops(variants, runs, event)
            curves.append(curve_figure(key, name, by_flops, looks, "training FLOPs", title.lower(), True, grown))
    return [figure for figure in curves if figure is not None]
