"""The kinds of work that make the numbers of an item: each plans, runs and reads back what a verb does."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, PositiveInt

from papers.demonstration import demonstrate, planned_expansions
from papers.numbers import (
    AnalysisQuantity,
    Measurements,
    TableQuantity,
    from_laws,
    of_runs,
    over_seeds,
)
from papers.questions import TEXT, write_questions
from papers.record import Demonstration
from widthwise.config_io import Config
from widthwise.data.config import open_data
from widthwise.evaluation.differences import all_differences, models_table
from widthwise.experiments.fitting import fit_groups
from widthwise.experiments.jobs import Jobs
from widthwise.experiments.plan import Plan, run_path
from widthwise.experiments.recipes import read_all
from widthwise.experiments.running import run_experiment
from widthwise.experiments.scaling_points import Axes, gather
from widthwise.files import write_atomic
from widthwise.mistakes import counted
from widthwise.recipe.recipe import load_recipe
from widthwise.recipe.train_section import Seeds
from widthwise.records.analysis import Analysis
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.outcome import Outcome
from widthwise.records.quantities import QUANTITY
from widthwise.records.record import StoredRecord, finite
from widthwise.records.scaling import ScalingLaws
from widthwise.runs.analyse import N_TOKENS, analyse, held_out_text
from widthwise.runs.environment import command_line
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
from widthwise.shape.template import ModelChange
from widthwise.training.observer import Observer
from widthwise.yaml_io import recipe_path

TINY = (
    "train.steps=3",
    "train.batch_size=2",
    "train.validate_every=null",
    "train.validation_tokens=1024",
    "train.loss_window_steps=1",
    "schedule.warmup_steps=1",
)
"""Overrides that make an experiment last seconds: it shows that the recipe works, not a paper's finding."""
MODELS, POINTS = "models", "points"
"""Folders of the trained models, inside that of their analysis or evaluation, and of a ladder's sizes, beside its laws;
a law is in a folder named after the quantity of its x axis."""


class Work(Config):
    """An experiment of a bundled recipe, in a folder of its own: the models of a compare or sweep section."""

    record: ClassVar[type[StoredRecord]] = Outcome
    """The record that it writes."""
    tiny_overrides: ClassVar[tuple[str, ...]] = ()
    """Overrides that its kind adds to TINY."""
    tiny_fields: ClassVar[Mapping[str, Any]] = {}
    recipe: str
    """Name of the bundled recipe that describes it."""
    overrides: tuple[str, ...] = ()
    """Changes to it, as on the command line."""
    overrides_of_tiny: tuple[str, ...] = ()
    """Further changes for its tiny form, beyond those of its kind."""
    folder: str | None = None
    """Name of its folder among the results; default: the recipe's name."""
    rows: dict[str, str] = Field(default_factory=dict)
    """Row of the item -> its name in the experiment, if it differs."""
    core_minutes: float | None = None
    """Its duration, in minutes of one CPU core."""

    @property
    def name(self) -> str:
        return self.folder or self.recipe

    @property
    def path(self) -> Path:
        return recipe_path(self.recipe)

    @property
    def tiny(self) -> Self:
        """The same experiment in a form that takes seconds."""
        overrides = (*self.overrides, *TINY, *self.tiny_overrides, *self.overrides_of_tiny)
        changes = {"overrides": overrides, "folder": f"{self.name}_tiny", "core_minutes": None, **self.tiny_fields}
        return self.model_copy(update=changes)

    @property
    def plan(self) -> Plan:
        """The experiment. Raises UserError if `compare` would refuse it."""
        return read_all(self.path, self.overrides)

    @property
    def workload(self) -> str:
        """The amount of work, in words. Raises UserError for a recipe that cannot be trained."""
        return self.plan.summary

    def train(self, folder: Path, observer: Observer, n_jobs: int | None) -> Plan:
        """Train the runs of the plan that have not finished."""
        plan = self.plan
        run_experiment(plan, folder, observer=observer, jobs=Jobs.of(plan, n_jobs))
        return plan

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        """Train the unfinished runs, and write the record. Returns the folders that have a report."""
        self.train(folder, observer, n_jobs)
        return [folder]

    def measured(self, folder: Path) -> Measurements | None:
        """Return the numbers in the folder, by the rows of the item; None if there are none. Raises UserError for a
        broken record."""
        if not (folder / self.record.file_name).is_file():
            return None
        return replace(self.numbers(self.record.read(folder)), rows=self.rows)

    def numbers(self, record: Any) -> Measurements:
        """Return the numbers of such a record, by its own names."""
        values = {own.name: {name: each.of_variant(own) for name, each in QUANTITY.items()} for own in record.variants}
        return Measurements(values, len(record.seeds), [own.cost.params["total"] for own in record.variants])


class ComparisonWork(Work):
    """A comparison, as it is."""

    kind: Literal["compare"] = "compare"
    tiny_overrides = ("compare.seeds=[1]",)


class SweepWork(Work):
    """A sweep, as it is."""

    kind: Literal["sweep"] = "sweep"
    tiny_overrides = ("sweep.seeds=[1]",)


class AnalysisWork(Work):
    """A comparison whose models are analysed on held-out text."""

    kind: Literal["analysis"] = "analysis"
    record = Analysis
    tiny_overrides = ("compare.seeds=[1, 2]",)
    tiny_fields: ClassVar = {"n_tokens": 512}
    n_tokens: PositiveInt = N_TOKENS
    read: dict[str, AnalysisQuantity] = Field(min_length=1)
    """Quantity -> where the analysis has it."""

    @property
    def workload(self) -> str:
        return f"{self.plan.summary}; each analysed on {self.n_tokens:,} tokens"

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        models = folder / MODELS
        paths = [models / run_path(*key) for key in self.train(models, observer, n_jobs).order]
        analyse(paths, n_tokens=self.n_tokens, observer=observer).write(folder)
        return [models, folder]

    def numbers(self, record: Analysis) -> Measurements:
        return of_runs(
            {
                model.name: {key: place.read(model, record.thresholds) for key, place in self.read.items()}
                for model in record.models
            }
        )


class EvaluationWork(Work):
    """A comparison whose models read held-out text and answer questions made from it.

    Those of a seed are compared with the baseline's of the same seed.
    """

    kind: Literal["evaluation"] = "evaluation"
    record = EvaluationTable
    tiny_overrides = ("compare.seeds=[1, 2]",)
    tiny_fields: ClassVar = {"n_items": 6, "n_text_bytes": 2000}
    n_items: PositiveInt = 400
    """Questions of each kind."""
    n_text_bytes: PositiveInt = 200_000
    """Held-out text that is read."""
    read: dict[str, TableQuantity] = Field(min_length=1)
    """Quantity -> where the table has it."""

    @property
    def workload(self) -> str:
        return f"{self.plan.summary}; each evaluated on up to {2 * self.n_items:,} questions"

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        models = folder / MODELS
        plan = self.train(models, observer, n_jobs)
        documents = [each.text for each in held_out_text(open_data(plan.reference.data, observer.preparing))]
        write_atomic(folder / TEXT, "\n".join(documents).encode()[: self.n_text_bytes].decode(errors="ignore"))
        questions = write_questions(documents, self.n_items, folder)
        asked = EvaluationConfig(texts=(str(folder / TEXT),), task_files=tuple(map(str, questions)))
        paths, baseline = {key: str(models / run_path(*key)) for key in plan.order}, str(plan.baseline)
        evaluations = [evaluate_run(path, asked, observer) for path in paths.values()]
        beside = {path: paths[baseline, seed] for (name, seed), path in paths.items() if name != baseline}
        differences = all_differences(evaluations, beside, by_step=False)
        models_table(evaluations, differences, command_line()).write(folder)
        return [models, folder]

    def numbers(self, record: EvaluationTable) -> Measurements:
        cells = {
            row.name: {(column.name, column.metric): cell.value for column, cell in zip(record.columns, row.cells)}
            for row in record.rows
        }
        return of_runs(
            {
                run: {
                    key: place.times * finite(own.get((place.column, place.metric))) for key, place in self.read.items()
                }
                for run, own in cells.items()
            }
        )


class LadderWork(Work):
    """A ladder, and laws through its sizes."""

    kind: Literal["ladder"] = "ladder"
    tiny_overrides = ("sweep.seeds=[1]", "sweep.tokens_per_param=0.005")
    over: tuple[str, ...] = ("training_flops",)
    """Quantities of the x axes, one law over each."""

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        points = folder / POINTS
        baseline = self.train(points, observer, n_jobs).baseline_group
        for x in self.over:
            gathered = gather([points], Axes(x, "val_loss"), baseline)
            command = f"widthwise fit {points} --x {x} --y val_loss --baseline {baseline}"
            fit_groups(gathered, POINTS, command).write(folder / x)
        return [points, *(folder / x for x in self.over)]

    def measured(self, folder: Path) -> Measurements | None:
        """Return the numbers of the laws that were fitted."""
        there = {x: ScalingLaws.read(folder / x) for x in self.over if (folder / x / ScalingLaws.file_name).is_file()}
        return replace(from_laws(there), rows=self.rows) if there else None


class DemonstrationWork(Work):
    """The model of a recipe, drawn with every seed, and expansions of it; nothing is trained."""

    kind: Literal["demonstration"] = "demonstration"
    record = Demonstration
    tiny_fields: ClassVar = {"seeds": (1, 2)}
    expansions: dict[str, ModelChange] = Field(min_length=1)
    """Row -> the sizes of the larger model, as changes to the model section."""
    seeds: Seeds = (1, 2, 3)

    @property
    def workload(self) -> str:
        recipe = load_recipe(self.path, self.overrides)
        n_params, n = recipe.final_model.cost().params, len(planned_expansions(recipe, self.expansions))
        return f"{counted(n, 'expansion')} of a model of {n_params:,.0f} parameters, {counted(len(self.seeds), 'seed')}"

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        demonstrate(self.path, self.overrides, self.expansions, self.seeds, observer).write(folder)
        return []

    def numbers(self, record: Demonstration) -> Measurements:
        found = record.expansions
        values = {name: {key: over_seeds(own) for key, own in each.quantities.items()} for name, each in found.items()}
        return Measurements(values, len(record.seeds), [each.params for each in found.values()])


AnyWork = Annotated[
    ComparisonWork | AnalysisWork | EvaluationWork | SweepWork | LadderWork | DemonstrationWork, Discriminator("kind")
]
