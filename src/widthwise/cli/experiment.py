"""Verbs that train many runs and compare them, `compare`, `sweep` and `search`, and scaling laws, `fit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import PositiveInt

from widthwise.cli.options import Changes, JsonOption, Seeds, is_change
from widthwise.cli.progress import TrackerName, shown_progress, training_progress
from widthwise.cli.terminal import progress_console, say, say_result
from widthwise.config_io import Config
from widthwise.mistakes import RunFailed, UserError
from widthwise.records.outcome import Outcome
from widthwise.reports.formats import clean
from widthwise.reports.main_table import comparison_table
from widthwise.reports.tables import search_table, workload_table
from widthwise.runs.environment import command_line
from widthwise.shape.search_space import SearchSpace
from widthwise.training.launch import is_silent
from widthwise.yaml_io import recipe_name

if TYPE_CHECKING:
    from widthwise.experiments.plan import Plan


class TrainingOptions(Config):
    """Options of training many runs, which workers divide among themselves."""

    jobs: str = "auto"
    """Runs trained at the same time on this machine; auto: as many as fit on its cores or GPUs."""
    track: tuple[TrackerName, ...] = ()
    """Tracker that also gets the records of runs; repeat for several."""
    worker: bool = False
    """End when no run is left to begin, without waiting for the runs of other workers."""

    @property
    def n_jobs(self) -> int | None:
        """The number of jobs; None for auto. Raises UserError for anything else."""
        if self.jobs == "auto":
            return None
        if not self.jobs.isdecimal() or int(self.jobs) < 1:
            raise UserError(f"--jobs: got {self.jobs!r}; must be auto or a number of at least 1")
        return int(self.jobs)


class ExperimentOptions(Config):
    """Options that replace settings of an experiment's recipe."""

    out: Path | None = None
    """Folder; default: runs/RECIPE, or runs/RECIPE-vs-RECIPE."""
    seeds: Seeds = ()
    """Seed, repeat for several; default: the recipe's, or 1, 2 and 3."""
    match: str | None = None
    """Quantity that must match the baseline: params, layer_params (attention and feed-forward), active_params, flops,
    flops_causal, kv_bytes, training_flops, none."""
    adjust: str | None = None
    """Parts of all variants that are changed to match: ffn, d_model, or both in order: d_model,ffn."""
    dry_run: bool = False
    """Show the planned work without training."""


class CompareOptions(ExperimentOptions):
    """Options of a comparison."""

    rates_from: Path | None = None
    """Folder of a finished sweep of these variants; each variant gets the values of its best point."""


def compare(
    recipes: Annotated[list[str], typer.Argument(help="Recipes, the baseline first; then changes, as a.b=c.")],
    options: CompareOptions,
    training: Annotated[TrainingOptions, "Workers"],
    as_json: JsonOption = False,
) -> None:
    """Train matched recipes over several seeds with the same data order and report the paired differences.

    Pass several recipes (baseline first), or one with a compare section.

    Finished runs are not repeated: the same command continues an interrupted comparison. Several processes of the same
    command, on machines that share the folder, divide the runs.

    Example: `widthwise compare configs/uniform_200m.yaml configs/x_200m.yaml train.steps=2000`
    """
    from widthwise.experiments.compare import read_plan

    overrides = [argument for argument in recipes if is_change(argument)]
    paths = [Path(argument) for argument in recipes if not is_change(argument)]
    if not paths:
        raise UserError("compare: got no recipe; pass several, or one with a compare section")
    plan = read_plan(paths, overrides, options.seeds, options.match, options.adjust, rates_from=options.rates_from)
    if options.dry_run:
        show_workload(plan, as_json)
    else:
        run_and_report(plan, options.out or Path("runs") / plan.title, as_json, training)


class SweepOptions(ExperimentOptions):
    """Options of a sweep."""

    over: tuple[str, ...] = ()
    """optimizer.lr=0.002,0.004, or a range to search: 'optimizer.lr={low: 1e-4, high: 1e-2, log: true}'."""
    sampler: Literal["grid", "tpe", "random"] | None = None
    """Sampler of the points; default: grid, or tpe with --trials."""
    trials: PositiveInt | None = None
    """Points of a search by a sampler, without the baseline."""


def sweep(
    recipe: Annotated[Path, typer.Argument(help="Recipe with a sweep section, or any recipe with --over.")],
    options: SweepOptions,
    training: Annotated[TrainingOptions, "Workers"],
    overrides: Changes = None,
    as_json: JsonOption = False,
) -> None:
    """Train every combination of values, or the points of a sampler, with several seeds, and rank the points.

    Changes apply to the recipe, and so to every point.

    The same command continues an interrupted sweep; several processes of the command, on machines that share the
    folder, divide the runs. Failed points are recorded with the reason.

    Example: `widthwise sweep configs/sweep_shapes.yaml`, `widthwise sweep configs/small.yaml --over
    optimizer.lr=0.002,0.004`
    """
    from widthwise.experiments.sweep import read_axes, read_sweep

    search_settings = {"sampler": options.sampler, "n_trials": options.trials}
    settings = {
        "over": read_axes(options.over),
        "seeds": [*options.seeds],
        "match": options.match,
        "adjust": options.adjust,
        "search": {key: value for key, value in search_settings.items() if value is not None},
    }
    changes: dict[str, Any] = {key: value for key, value in settings.items() if value}
    if options.sampler == "grid":
        changes["search"] = None  # removes the search of the recipe
    plan = read_sweep(recipe, overrides or (), changes)
    if options.dry_run:
        show_workload(plan, as_json)
        return
    from widthwise.reports.writing import check_kind  # imports torch, which a dry run does not need

    folder = options.out or Path("runs") / plan.title
    check_kind(folder, Outcome.file_name)  # unlike a comparison, a sweep must not share the folder of a run
    run_and_report(plan, folder, as_json, training)


def search(
    base: Annotated[Path, typer.Argument(help="Recipe of the baseline, whose model sets the budget.")],
    space: Annotated[SearchSpace, "What to search"],
    overrides: Changes = None,
    top: Annotated[int, typer.Option(min=1, help="Number of shapes to show and write.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Folder for search.json and recipes that extend the base.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Enumerate hourglass shapes with the base's parameters, FLOPs or KV cache, ranked by their other costs.

    Costs do not determine the loss: `compare` trains the recipes that --out writes. Changes apply to the base and to
    all recipes.

    Example: `widthwise search conventional_113m --n-blocks 1,2,4 --n-layers 6,12 --ratio 0.4,0.5`
    """
    from widthwise.recipe.design import search_recipe, write_search

    summary = search_recipe(base, overrides or (), space).summary(top)
    recipes = [] if out is None else write_search(base, overrides or (), summary, out)
    say_result(summary, as_json, tables=[search_table(summary, recipe_name(base))])
    if recipes and not as_json:
        say(f"wrote {len(recipes)} recipes to {recipes[0].parent}")


class FitOptions(Config):
    """Options of `fit`."""

    x: str = "training_flops"
    """training_flops, tokens, params, layer_params, average_width, kv_bytes ..., or a column."""
    y: str = "val_loss"
    """val_loss, val_loss_next_2, train_loss, val_bits_per_byte, or a column."""
    group_by: Annotated[str | None, typer.Option("--group")] = None
    """One curve for each value of this column or key of a sweep, or for each folder: folder."""
    baseline: str | None = None
    """Group with which the rest are compared; default: the baseline of the comparisons."""
    law: str | None = None
    """power, power_irreducible or log_linear; default: the law that predicts left-out points best."""
    out: Path | None = None
    """Folder; default: runs/fit-NAMES-Y-X."""


def fit(
    paths: Annotated[list[Path], typer.Argument(help="Comparisons, sweeps, runs, or your own .csv tables.")],
    options: FitOptions,
    as_json: JsonOption = False,
) -> None:
    """Fit the loss as a function of compute, parameters or width, with intervals, and the savings at equal loss.

    Example: `widthwise fit runs/ladder_small --x training_flops --y val_loss --baseline uniform`
    """
    from widthwise.experiments.fitting import fit_groups
    from widthwise.experiments.scaling_points import Axes, gather
    from widthwise.reports.scaling import law_tables, saving_table, scaling_answer
    from widthwise.reports.writing import check_kind, write_report

    title = "-".join(path.stem if path.suffix == ".csv" else path.resolve().name for path in paths)
    folder = options.out or Path("runs") / f"fit-{title}-{options.y}-{options.x}"
    check_kind(folder, "scaling.json")
    gathered = gather(paths, Axes(options.x, options.y, options.group_by), options.baseline)
    with shown_progress(progress_console()) as observer:
        scaling = fit_groups(gathered, title, command_line(), options.law, observer)
    files = [scaling.write(folder), *reversed(write_report([folder]))]
    answer = [*scaling_answer(scaling)]
    for group in scaling.groups:
        answer += [f"{group.name}: {kind}: {law.reason}." for kind, law in group.fits.items() if law.reason]
    say_result(scaling, as_json, answer, [*law_tables(scaling), saving_table(scaling)], files)


def run_and_report(plan: "Plan", folder: Path, as_json: bool, training: TrainingOptions) -> None:
    """Train the runs of an experiment, show their progress, write the report, and print the result.

    Raises RunFailed if all points of a search failed.
    """
    from widthwise.experiments.jobs import Jobs
    from widthwise.experiments.running import run_experiment
    from widthwise.experiments.scheduler import HeldElsewhere
    from widthwise.reports.comparison_page import tuning_table
    from widthwise.reports.writing import answer, write_report

    jobs = Jobs.of(plan, training.n_jobs)
    with training_progress(training.track) as observer:
        for line in (plan.summary, *plan.notes):
            observer.message(line)
        try:
            outcome = run_experiment(plan, folder, command_line(), observer, jobs, waits=not training.worker)
        except HeldElsewhere as error:
            observer.message(str(error))
            return
    if is_silent():
        return
    files = reversed(write_report([folder]))
    failed = [point for point in outcome.unfinished_points if point.state == "failed"]
    reasons = [f"{point.name}: {clean(point.reason or '')}" for point in failed]
    tables = [comparison_table(outcome), tuning_table(outcome.tuning)]
    say_result(outcome, as_json, [*answer(outcome), *reasons], tables, files)
    if outcome.study is not None and not outcome.study.n_finished:
        raise RunFailed(f"{folder}: all {outcome.study.n_failed} points failed")


def show_workload(plan: "Plan", as_json: bool) -> None:
    """Print a table of the planned work and the adjustments, or JSON."""
    work = plan.workload()
    say_result(work, as_json, (), [workload_table(work, plan.point_title)], notes=[plan.summary, *plan.notes])
