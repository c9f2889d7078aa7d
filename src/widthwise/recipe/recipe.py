"""The recipe, which has everything that a run needs."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pydantic

from widthwise.computing import Precision
from widthwise.config_io import Config, checked_copy, mistakes_of, parse, to_data
from widthwise.data.config import DataConfig, DataSection
from widthwise.data.loader import HeldOut
from widthwise.data.mixture import OpenedData
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig, pflops_days
from widthwise.model.dynamic_layers import chooses_width
from widthwise.recipe.growth_events import GrowthEvent, Phase, Rewarmup, grown_phases
from widthwise.recipe.objective import TeacherSizes
from widthwise.recipe.optimizer import Optimizer
from widthwise.recipe.schedule import ENDLESS, FlopBudget, Schedule
from widthwise.recipe.train_section import TrainConfig, ValidationConfig
from widthwise.records.run import PROCESS_KEYS, describe_changes
from widthwise.run_dir import RunDir
from widthwise.shape.template import ModelSection
from widthwise.sizes import NTokens
from widthwise.yaml_io import parse_yaml, read_recipe

DERIVED = ("explicit_model", "phases")
"""Cached properties of a recipe."""


class Recipe(Config):
    """A run. `model` is a template with a shape, or explicit layers; `resolved` turns the former into the latter.

    Models are derived once and cached; a copy derives them again.
    """

    model: ModelSection
    seq_len: NTokens
    """Tokens per training sequence, and context length for FLOPs."""
    data: DataSection = DataConfig()
    validation: ValidationConfig = ValidationConfig()
    optimizer: Optimizer
    schedule: Schedule
    train: TrainConfig
    growth: tuple[GrowthEvent, ...] = ()
    """Growth of the model into larger ones with the same function, first to last."""
    rewarmup: Rewarmup | None = None
    """Learning rates after a growth, written by `widthwise grow`."""

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _solve_steps(cls, data: Any, read: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        budget = FlopBudget.of(data)
        if budget is not None:
            endless = read({**data, "train": {**data["train"], "steps": ENDLESS}})._with_teacher_sizes()
            data = {**data, "train": {**data["train"], "steps": endless.steps_within(budget)}}
        return read(data)._with_teacher_sizes()

    def _with_teacher_sizes(self) -> Self:
        """Return the recipe with the sizes of its teacher. Raise UserError if the teacher does not fit."""
        distill = self.train.distill
        if distill is None:
            return self
        if distill.sizes and (distill.sizes.teacher, distill.sizes.seq_len) == (distill.teacher, self.seq_len):
            return self
        with mistakes_of("train.distill.teacher"):
            model = saved_recipe(RunDir(distill.teacher)).final_model
        if model.positions is not None and self.seq_len > model.positions.n_positions:
            raise UserError(
                f"train.distill.teacher: {distill.teacher} reads at most {model.positions.n_positions} tokens; must be "
                f"at least seq_len = {self.seq_len}"
            )
        sizes = TeacherSizes.of(distill.teacher, model, self.seq_len)
        train = self.train.model_copy(update={"distill": distill.model_copy(update={"sizes": sizes})})
        return self.model_copy(update={"train": train})

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        for name in DERIVED:
            vars(copied).pop(name, None)
        return copied

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state to pickle, without derived values, because growth plans contain functions."""
        state = super().__getstate__()
        fields = {name: value for name, value in vars(self).items() if name not in DERIVED}
        return {**state, "__dict__": fields}

    @cached_property
    def explicit_model(self) -> ModelConfig:
        """The model of the first step with explicit layers. Raises UserError if the shape is impossible."""
        return self.model.resolve(self.seq_len)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the run: one, unless the model grows. Raises UserError if a model is impossible."""
        first = Phase(0, self.train.steps, self.model, self.explicit_model, None)
        if not self.growth:
            return (first,)
        return grown_phases(first, self.growth, self.seq_len, self.optimizer.settling_steps)

    def phase_at(self, step: int) -> Phase:
        """Return the phase of a step, counted from 1; the first phase for step 0."""
        return next(phase for phase in self.phases if step <= phase.end)

    def model_at(self, step: int) -> ModelConfig:
        """Return the model in the checkpoint of a step, before a growth at that step."""
        return self.phase_at(step).model

    @property
    def final_model(self) -> ModelConfig:
        return self.phases[-1].model

    def optimizer_of(self, phase: Phase) -> Optimizer:
        """Return the optimizer of a phase, with rates multiplied for parameters that growth has multiplied."""
        factors = self.optimizer.adamw.scaled
        for earlier in self.phases:
            if earlier.growth is not None and earlier.start <= phase.start:
                from widthwise.growth.plan import grown_factors

                factors = grown_factors(earlier.growth.plan, factors)
        return self.optimizer.with_scaled(factors)

    def freezes(self, phase: Phase) -> bool:
        """Return True if old entries are frozen in some steps of a phase."""
        if phase.growth is None:
            return self.rewarmup is not None and self.rewarmup.grown_from is not None
        return phase.growth.rewarmup.freeze_steps > 0

    def resolved(self) -> "Recipe":
        """Return the recipe with explicit layers for every model."""
        growth = tuple(phase.growth.resolved() for phase in self.phases if phase.growth is not None)
        return checked_copy(self, "recipe", model=self.explicit_model, growth=growth)

    def settled(self, choose: Callable[[], Precision]) -> "Recipe":
        """Return the recipe with precision `auto` replaced by the result of `choose`."""
        if self.train.precision != "auto":
            return self
        return checked_copy(self, "recipe", train=checked_copy(self.train, "train", precision=choose()))

    def lr_factor(self, step: int) -> float:
        """Return the factor of the optimizer's rates at a step, counted from 1."""
        factor = self.schedule.factor(step, self.optimizer.lr, self.train.steps, self.tokens_per_step)
        growths = (phase.growth.rewarmup.factor(step) for phase in self.phases if phase.growth is not None)
        return factor * min(growths, default=1.0) * (1.0 if self.rewarmup is None else self.rewarmup.factor(step))

    def check(self) -> None:
        """Raise UserError if parts of the recipe conflict, so that training would fail.

        If the model grows, each key of `lr_factors` must match parameters of every model.
        """
        self.schedule.check(self.train.steps)
        for phase in self.phases:
            with nullcontext() if phase.growth is None else mistakes_of(f"growth.{phase.growth.index}"):
                self._check_model(phase.model)
        if len(self.phases) == 1 or not self.optimizer.adamw.lr_factors:
            return
        from widthwise.model.decoder import blueprint

        for phase in self.phases:
            try:
                self.optimizer_of(phase).build(blueprint(phase.model))
            except UserError as error:
                raise UserError(f"{error} (after step {phase.start}, in the model that grew)") from None

    def _check_model(self, model: ModelConfig) -> None:
        if model.positions is not None and self.seq_len > model.positions.n_positions:
            raise UserError(
                f"seq_len: got {self.seq_len}; must be at most model.positions.n_positions = "
                f"{model.positions.n_positions}"
            )
        if model.mtp is not None and model.mtp.n_depths >= self.seq_len:
            raise UserError(f"model.mtp.n_depths: got {model.mtp.n_depths}; must be less than seq_len = {self.seq_len}")
        if self.train.width_budget is not None and (chooses_width(model) or model is self.final_model):
            self.train.width_budget.check(model)  # a model that growth makes dynamic has no widths before
        if self.train.nested is not None:
            self.train.nested.check(model)
        if self.train.distill is not None:
            self.train.distill.check(model)

    def held_out(self, data: OpenedData, n_processes: int = 1) -> HeldOut:
        """Return the settings of validations, with as many windows per pass as in training with n_processes.

        Raises UserError if the recipe masks documents but the data do not separate them.
        """
        train = self.train
        n_windows = min(train.sequences_per_pass, train.batch_size // n_processes)
        limits = train.validation_tokens, train.settled_precision, self.data.boundaries(data), train.validation_skip
        return HeldOut(data, self.seq_len, n_windows, *limits)

    @property
    def tokens_per_step(self) -> int:
        return self.train.batch_size * self.seq_len

    @property
    def n_tokens(self) -> int:
        """Tokens of the whole run."""
        return self.train.steps * self.tokens_per_step

    def training_flops_until(self, step: int) -> float:
        """Return the training FLOPs of the run up to a step, each step with its model."""
        return sum(
            self.train.flops_per_token(phase.model, self.seq_len)
            * (min(step, phase.end) - phase.start)
            * self.tokens_per_step
            for phase in self.phases
            if phase.start < step
        )

    @property
    def training_flops(self) -> float:
        """Training FLOPs of the whole run."""
        return self.training_flops_until(self.train.steps)

    def steps_within(self, budget: FlopBudget, step: int = 0, spent_flops: float = 0.0) -> int:
        """Return the number of steps with which a run spends the budget, if it continues at a step after spent_flops.

        It does not depend on train.steps unless a growth comes after it. Raises UserError if no step remains.
        """
        last = self.phases[-1]
        start = max(last.start, step)
        before = spent_flops + self.training_flops_until(start) - self.training_flops_until(step)
        per_token = self.train.flops_per_token(last.model, self.seq_len)
        n_steps = round((budget.training_flops - before) / (per_token * self.tokens_per_step))
        if n_steps < 1:
            raise UserError(
                f"train.steps: got training_flops {budget.training_flops:.4g}, which leave no step for the last model: "
                f"the steps up to {start} take {before:.4g}"
            )
        return start + n_steps

    @property
    def pflops_days(self) -> float:
        """Training compute of the whole run, in PFLOP/s-days."""
        return pflops_days(self.training_flops, 1)


def load_recipe(path: Path | str, overrides: Sequence[str] | None = None) -> Recipe:
    """Read and check a recipe file with overrides. Raise UserError for mistakes."""
    return parse_recipe(read_recipe(path, overrides or ()), str(path))


SEVERAL_RUNS = ("compare", "sweep")
"""Sections by which a file describes several runs, and the verbs that run them."""


def describes_several(data: Mapping[str, Any]) -> bool:
    """Return True if the data of a recipe have a section of variants, points or rungs."""
    return any(section in data for section in SEVERAL_RUNS)


def parse_recipe(data: dict[str, Any], where: str) -> Recipe:
    """Return the recipe of one run. Raise UserError for mistakes, and if the data describe several runs."""
    for section in SEVERAL_RUNS:
        if section in data:
            raise UserError(
                f"{where}: has a {section} section, so it describes several runs; use `widthwise {section}` for "
                f"all of them, `widthwise train --variant NAME` for one, or {section}=null for the rest of the recipe"
            )
    return parse(Recipe, data, where)


def saved_recipe(run: RunDir) -> Recipe:
    """Return the resolved recipe of a run directory. Raise UserError if it is no run directory."""
    where = f"{run.path}/config.yaml"
    return parse(Recipe, parse_yaml(run.config_yaml(), where), where)


def check_same_recipe(run: RunDir, recipe: Recipe) -> None:
    """Raise UserError if the run was begun with a recipe other than this resolved one.

    An option that is newer than the run counts as its default.
    """
    changes = describe_changes(to_data(saved_recipe(run)), to_data(recipe))
    changes = [change for change in changes if not change.startswith(PROCESS_KEYS)]
    if changes:
        first = ", ".join(changes[:3])
        raise UserError(f"{run.path}: holds a run of another recipe ({first}); choose another folder with --out")
