"""The page of a family: models of several sizes grown from one run, and the same models trained alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from widthwise.records.outcome import SIZE, Family, Outcome
from widthwise.records.quantities import QUANTITY
from widthwise.records.run import Run
from widthwise.reports import experiment_sections
from widthwise.reports.charts import Figure, Looks, styles
from widthwise.reports.forest import difference_figure
from widthwise.reports.formats import clean, sequence, shown, si
from widthwise.reports.growth import growth_section
from widthwise.reports.page import Page
from widthwise.reports.table import Table

BRANCH_COLUMNS = {
    "params": ("params", "params"),
    "start": ("branched after step", "steps"),
    "tokens": ("tokens", "tokens"),
    "flops": ("training FLOPs", "training_flops"),
    "flops_alone": ("FLOPs alone", "training_flops"),
    "val_loss": ("held-out loss", "val_loss"),
}
"""Field of a member of a family -> title, and name of the quantity with its format."""
_ALONE = {"tokens": " on as many tokens", "flops": " with as many training FLOPs"}


def family_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of a family. Raises UserError if a run is broken."""
    family = outcome.family
    assert family is not None
    runs = experiment_sections.read_runs(folder, outcome)
    caption = experiment_sections.caption_of_results(outcome, experiment_sections.first_results(runs))
    of_groups = styles(outcome.groups)
    looks = {variant.name: of_groups[variant.group] for variant in outcome.variants}
    grown = [variant.name for variant in outcome.variants if variant.group != outcome.baseline_group]
    curves = _curves(outcome, runs, looks)
    return experiment_sections.experiment_page(
        outcome,
        runs,
        family_answer(outcome),
        family_question(outcome, family),
        [difference_figure(outcome), *curves[:1]],
        [
            experiment_sections.results_section(outcome, caption, looks, branch_table(family)),
            experiment_sections.equal_loss_section(outcome, styles(grown)),
            growth_section({name: runs[name] for name in grown if name in runs}, looks),
            experiment_sections.curves_section(outcome, curves),
            experiment_sections.cost_section(outcome, looks),
        ],
    )


def family_question(outcome: Outcome, family: Family) -> str:
    """Return the question that a family answers, and the seeds."""
    trained, _ = experiment_sections.seeds_and_match(outcome)
    sizes = [clean(point.name) for point in outcome.points if point.group == "grown"]
    verb = "does" if len(sizes) == 1 else "do"
    alone = ""
    if family.alone:
        models = "model" if len(sizes) == 1 else "models"
        alone = f", compared with the same {models} trained alone{_ALONE[family.alone]}"
    return f"What {verb} {sequence(sizes)} cost and reach, grown from {clean(family.sources[0])}{alone}? {trained}"


def family_answer(outcome: Outcome) -> list[str]:
    """Return what the family saved, and how the grown models compare with models trained alone."""
    assert outcome.family is not None
    times = outcome.family.flops_alone / outcome.family.family_flops
    saved = f"Trained from scratch on as many tokens, these models would take {times:.2f} times the training FLOPs."
    compared = experiment_sections.baseline_answer(outcome)
    return [saved, *compared, *experiment_sections.setting_sentences(outcome)]


def branch_table(family: Family) -> Table:
    """Return a row for each run of a family, grown models first."""
    rows = []
    for mark, models in (("", family.members), (", alone", family.controls)):
        for model in models:
            cells = [shown(getattr(model, key, None), QUANTITY[name]) for key, (_, name) in BRANCH_COLUMNS.items()]
            rows.append([f"{clean(model.name)}{mark}, seed {model.seed}", *cells])
    caption = (
        f"Branched from {clean(family.sources[0])}: {si(family.family_flops)} training FLOPs in all, with the shared "
        f"{si(family.shared_flops)} counted once; {si(family.flops_alone)} if each is trained from scratch"
    )
    return Table(caption, ["Run", *(title for title, _ in BRANCH_COLUMNS.values())], rows)


def _curves(outcome: Outcome, runs: Mapping[str, Sequence[Run]], looks: Looks) -> list[Figure]:
    """Return the losses of each size."""
    sizes = dict.fromkeys(variant.values[SIZE] for variant in outcome.variants if variant.name in runs)
    curves = []
    for number, size in enumerate(sizes):
        variants = [variant for variant in outcome.variants if variant.name in runs and variant.values[SIZE] == size]
        of_size = {variant.name: runs[variant.name] for variant in variants}
        curves += experiment_sections.loss_figures(of_size, looks, f"-{number}", clean(size))
    return curves
