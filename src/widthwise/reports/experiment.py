"""Pages of experiments, finished or not: of a comparison of named variants, of a family, and of any kind."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from widthwise.records.outcome import SIZE, Family, FamilyControl, Outcome, Search, Tuning
from widthwise.records.quantities import QUANTITY
from widthwise.records.run import PlannedRuns, Run
from widthwise.reports import experiment_sections
from widthwise.reports.charts import Figure, Looks, styles
from widthwise.reports.curves import curve_table, over_seeds
from widthwise.reports.experiment_sections import loss_figures
from widthwise.reports.forest import difference_figure
from widthwise.reports.formats import MISSING, clean, counted, fixed, percentage, sequence, shown, si
from widthwise.reports.growth import growth_section
from widthwise.reports.page import Code, Page, note, section
from widthwise.reports.run import read_run, reload_sentence
from widthwise.reports.shapes import width_figures
from widthwise.reports.sweep_page import ladder_answer, sweep_answer, sweep_page
from widthwise.reports.table import Table
from widthwise.reports.tables import progress_table
from widthwise.reports.widths_used import dynamic_width_section, virtual_width_section
from widthwise.run_dir import RunDir
from widthwise.runs.listing import listed_run, planned_run

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


def comparison_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of a comparison. Raises UserError if a run is broken."""
    runs = experiment_sections.read_runs(folder, outcome)
    results = experiment_sections.first_results(runs)
    looks = styles([variant.name for variant in outcome.variants], outcome.baseline)
    costs = {variant.name: variant.cost for variant in outcome.variants}
    search = Search.read_if_present(folder)
    of_one_budget = [candidate.name for candidate in search.candidates] if search else []
    curves = experiment_sections.loss_figures(runs, looks)
    means = {name: over_seeds(seeds, "validation").mean for name, seeds in runs.items()}
    table = curve_table("Held-out loss by step, mean over seeds", means).folded
    compared = [clean(variant.name) for variant in outcome.variants if variant.name != outcome.baseline]
    caption = experiment_sections.caption_of_results(outcome, results)
    return experiment_sections.experiment_page(
        outcome,
        runs,
        comparison_answer(outcome),
        experiment_sections.compared_question(compared, clean(outcome.baseline or ""), outcome),
        [difference_figure(outcome), *curves[:1]],
        [
            experiment_sections.results_section(outcome, caption, looks),
            experiment_sections.open_points_section(outcome),
            section("Width of every layer", note("width"), *width_figures(costs, looks, results)),
            experiment_sections.shape_section(outcome, of_one_budget),
            experiment_sections.equal_loss_section(outcome, looks),
            section("Tuning", tuning_table(outcome.tuning), note("tuning")),
            growth_section(runs, looks),
            experiment_sections.curves_section(outcome, curves, table),
            dynamic_width_section(results, looks),
            virtual_width_section(results, looks),
            experiment_sections.cost_section(outcome, looks),
        ],
    )


def comparison_answer(outcome: Outcome) -> list[str]:
    """Return the sentences that answer the question of a comparison, and the settings that differ."""
    lines = experiment_sections.baseline_answer(outcome)
    tuned = outcome.tuning.variants if outcome.tuning else ()
    at_limit = [clean(variant.name) for variant in tuned if variant.is_at_limit]
    if at_limit:
        verb = "was" if len(at_limit) == 1 else "were"
        lines.append(f"{sequence(at_limit)} {verb} best at an end of the grid: a better value may be outside it.")
    return [*lines, *experiment_sections.setting_sentences(outcome)]


def tuning_table(tuning: Tuning | None) -> Table | None:
    """Return the chosen values of each variant, and their loss in the sweep; None without tuning."""
    if tuning is None:
        return None
    rows = []
    for variant in tuning.variants:
        at_limit = "yes" if variant.is_at_limit else MISSING
        rows.append([clean(variant.name), clean(variant.in_words), fixed(variant.val_loss, 4), at_limit])
    seeds = f"{counted(len(tuning.seeds), 'seed')} ({', '.join(map(str, tuning.seeds))})"
    source = f"{clean(tuning.sweep)}: {percentage(tuning.steps)} of the steps, {seeds}"
    header = ["Variant", "values", "held-out loss", "at an end of the grid"]
    return Table(f"Values chosen before the comparison by {source}", header, rows, text_columns={"values"})


def family_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of a family. Raises UserError if a run is broken."""
    family = outcome.family
    assert family is not None
    runs = experiment_sections.read_runs(folder, outcome)
    caption = experiment_sections.caption_of_results(outcome, experiment_sections.first_results(runs))
    of_groups = styles(outcome.groups)
    looks = {variant.name: of_groups[variant.group] for variant in outcome.variants}
    grown = [variant.name for variant in outcome.variants if variant.group != outcome.baseline_group]
    curves = _family_curves(outcome, runs, looks)
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
    rows = [_branch_row(member, "") for member in family.members]
    rows += [_branch_row(control, ", alone") for control in family.controls]
    caption = (
        f"Branched from {clean(family.sources[0])}: {si(family.family_flops)} training FLOPs in all, with the shared "
        f"{si(family.shared_flops)} counted once; {si(family.flops_alone)} if each is trained from scratch"
    )
    return Table(caption, ["Run", *(title for title, _ in BRANCH_COLUMNS.values())], rows)


def _branch_row(run: FamilyControl, mark: str) -> list[str]:
    cells = [shown(getattr(run, key, None), QUANTITY[name]) for key, (_, name) in BRANCH_COLUMNS.items()]
    return [f"{clean(run.name)}{mark}, seed {run.seed}", *cells]


def _family_curves(outcome: Outcome, runs: Mapping[str, Sequence[Run]], looks: Looks) -> list[Figure]:
    """Return the losses of each size."""
    sizes = dict.fromkeys(variant.values[SIZE] for variant in outcome.variants if variant.name in runs)
    curves = []
    for number, size in enumerate(sizes):
        variants = [variant for variant in outcome.variants if variant.name in runs and variant.values[SIZE] == size]
        of_size = {variant.name: runs[variant.name] for variant in variants}
        curves += experiment_sections.loss_figures(of_size, looks, f"-{number}", clean(size))
    return curves


_KINDS = {
    "comparison": (comparison_page, comparison_answer),
    "sweep": (sweep_page, sweep_answer),
    "ladder": (sweep_page, ladder_answer),
    "family": (family_page, family_answer),
}
"""Kind of an experiment -> functions that return its page and its answer."""


def experiment_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of the results of an experiment so far. Raises UserError if a run is broken."""
    page, _ = _KINDS[outcome.kind]
    return page(folder, outcome)


def answer(outcome: Outcome) -> list[str]:
    """Return a few sentences that answer the question of an experiment."""
    _, kind_answer = _KINDS[outcome.kind]
    return kind_answer(outcome)


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder has an experiment of which runs, points or the result are missing.

    Raises UserError for a broken record.
    """
    outcome = Outcome.read_if_present(folder)
    if outcome is not None and outcome.study is not None:
        return outcome.is_open
    planned = PlannedRuns.read_if_present(folder)
    if planned is None:
        return False
    return outcome is None or not all(RunDir(folder / run.path).has_result for run in planned.runs)


def live_page(folder: Path, refresh_seconds: int | None) -> Page:
    """Return the page of an unfinished experiment: the progress of each run, and the page of the results so far.

    Without results the page shows the curves of the runs.
    """
    planned = PlannedRuns.read_if_present(folder) or PlannedRuns(title="", command="", runs=())
    listed = {}
    for run in planned.runs:
        path = folder / run.path
        listed[path.name] = listed_run(path) if RunDir(path).exists else planned_run(path, run.n_steps)
    progress = section("Runs", progress_table(listed), note("unfinished"))
    lead = ""
    if listed:
        states = [run.state for run in listed.values()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        lead = f"{counted(len(listed), 'run')}: {counts}.{reload_sentence(refresh_seconds)}"
    outcome = Outcome.read_if_present(folder)
    if outcome is not None and outcome.is_open:
        page = experiment_page(folder, outcome)
        return replace(
            page,
            kind=f"{page.kind}, not finished",
            lead=f"{page.lead} {lead}",
            sections=[progress, *page.sections],
            refresh_seconds=refresh_seconds,
        )
    runs: dict[str, list[Run]] = {run.variant: [] for run in planned.runs}
    for run in planned.runs:
        if RunDir(folder / run.path).exists:
            runs[run.variant].append(read_run(folder / run.path, run.path))
    return Page(
        "experiment, not finished",
        planned.title,
        [],
        lead=lead,
        first=loss_figures(runs, styles(runs, planned.baseline)),
        sections=[progress, section("How to resume", Code(planned.command))],
        made_from=f"{PlannedRuns.file_name} and the run directories next to this page",
        refresh_seconds=refresh_seconds,
    )
