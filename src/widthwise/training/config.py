"""The recipe: everything a run needs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Discriminator, Field, Tag

from widthwise.config_io import Config, UserError, parse, parse_yaml, read_recipe
from widthwise.data.config import DataConfig
from widthwise.data.prepared import PreparedData
from widthwise.model.config import ModelConfig, pflops_days
from widthwise.run_dir import RunDir
from widthwise.shape.breakdown import inspection
from widthwise.shape.template import ModelTemplate
from widthwise.training.held_out import HeldOut
from widthwise.training.optimizer import Optimizer
from widthwise.training.precision import Precision
from widthwise.training.schedule import Schedule
from widthwise.training.token_widths.budget import WidthBudgetConfig
from widthwise.training.token_widths.nested import NestedConfig

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class TrainConfig(Config):
    """How long, how much at a time, and what to keep."""

    steps: pydantic.PositiveInt
    """Optimizer steps."""
    batch_size: int = Field(gt=0, le=65_536)
    """Sequences per optimizer step, over all processes."""
    micro_batch_size: pydantic.PositiveInt | None = None
    """Sequences per forward pass; the whole batch where not given. Must divide batch_size."""
    precision: Precision = "bf16"
    """Type of the matrix products; weights and optimizer state are fp32."""
    compile: bool = False
    """Compile each layer. Pays on a GPU, and on a CPU in runs of more than about ten minutes."""
    seed: Seed = 42
    """Of the initial weights and of the data order."""
    max_grad_norm: pydantic.PositiveFloat = 1.0
    """Global norm to which gradients are clipped."""
    z_loss: pydantic.NonNegativeFloat = 0.0
    """Coefficient of the mean squared log-normaliser in the objective; never part of the reported loss."""
    width_budget: WidthBudgetConfig | None = None
    """What dynamic-width layers pay for width, in the objective; never part of the reported loss."""
    nested: NestedConfig | None = None
    """Further passes of every step at forced widths of the dynamic-width layers."""
    log_every: pydantic.PositiveInt = 10
    """Steps between records; a record holds the mean loss of the steps since the last."""
    validate_every: pydantic.PositiveInt | None = None
    """Steps between validations; only at the end where not given."""
    validation_tokens: pydantic.PositiveInt | None = None
    """Held-out tokens used by a validation, from the front; all where not given."""
    checkpoint_every: pydantic.PositiveInt | None = None
    """Steps between checkpoints; only at the end and on interruption where not given."""
    keep_last: pydantic.PositiveInt = 2
    """Checkpoints kept."""
    loss_window_steps: pydantic.PositiveInt = 1000
    """The reported training loss is the mean over this many last steps, or all of a shorter run (the paper's rule)."""
    max_loss_rise: pydantic.PositiveFloat = 3.0
    """Nats above the lowest logged loss at which a run stops as having diverged."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"micro_batch_size: got {self.micro_batch_size}; must divide batch_size = {self.batch_size}"
            )
        if self.width_budget is not None and self.nested is not None and not self.nested.chosen:
            raise ValueError("width_budget: has nothing to work on where nested.chosen is false")
        return self

    @property
    def sequences_per_pass(self) -> int:
        return self.micro_batch_size or self.batch_size

    @property
    def n_passes(self) -> int:
        """Forward and backward passes over the batch in an optimizer step."""
        return 1 if self.nested is None else self.nested.n_passes


def _form(model: Any) -> str:
    layers = model.get("layers") if isinstance(model, dict) else getattr(model, "layers", None)
    return "resolved" if isinstance(layers, (list, tuple)) else "template"


Model = Annotated[
    Annotated[ModelTemplate, Tag("template")] | Annotated[ModelConfig, Tag("resolved")], Discriminator(_form)
]


class Recipe(Config):
    """A run. `model` is either a template with a shape, or every layer; `resolved` turns the first into the second."""

    model: Model
    seq_len: pydantic.PositiveInt
    """Tokens per training sequence, and the context at which FLOPs are counted."""
    data: DataConfig = DataConfig()
    optimizer: Optimizer
    schedule: Schedule
    train: TrainConfig

    @property
    def explicit_model(self) -> ModelConfig:
        """The model with every layer written out. Raises UserError where the shape cannot be had."""
        return self.model if isinstance(self.model, ModelConfig) else self.model.resolve(self.seq_len)

    def resolved(self) -> "Recipe":
        """The same run with explicit layers."""
        return self.model_copy(update={"model": self.explicit_model})

    def check(self) -> None:
        """Raises UserError where the parts do not fit together, so that training could not work or not finish."""
        self.schedule.check(self.train.steps)
        if self.model.mtp is not None and self.model.mtp.n_depths >= self.seq_len:
            raise UserError(
                f"model.mtp.n_depths: got {self.model.mtp.n_depths}; must be less than seq_len = {self.seq_len}"
            )
        if self.train.width_budget is not None:
            self.train.width_budget.check(self.explicit_model)
        if self.train.nested is not None:
            self.train.nested.check(self.explicit_model)

    def held_out(self, data: PreparedData) -> HeldOut:
        """What validations look at."""
        train = self.train
        return HeldOut(data, self.seq_len, train.sequences_per_pass, train.validation_tokens, train.precision)

    @property
    def tokens_per_step(self) -> int:
        return self.train.batch_size * self.seq_len

    @property
    def n_tokens(self) -> int:
        """Tokens of the whole run."""
        return self.train.steps * self.tokens_per_step

    @property
    def n_token_passes(self) -> int:
        """Tokens of the whole run times the passes over each: what training compute is counted by."""
        return self.n_tokens * self.train.n_passes

    @property
    def pflops_days(self) -> float:
        """Training compute of the whole run, in PFLOP/s-days."""
        return pflops_days(self.explicit_model.cost().training_flops(self.seq_len), self.n_token_passes)


def load_recipe(path: Path, overrides: Sequence[str] | None = None) -> Recipe:
    """A recipe file with overrides, checked. Raises UserError."""
    return parse_recipe(read_recipe(path, overrides or ()), str(path))


def parse_recipe(data: dict[str, Any], where: str) -> Recipe:
    """The recipe of one run. Raises UserError for a mistake, and where the data describe a comparison of several."""
    if "compare" in data:
        raise UserError(f"{where}: has a compare section, so it describes several runs; `widthwise compare` runs them")
    return parse(Recipe, data, where)


def saved_recipe(run: RunDir) -> Recipe:
    """The resolved recipe of a run directory. Raises UserError where it is none."""
    where = f"{run.path}/config.yaml"
    return parse(Recipe, parse_yaml(run.config_yaml(), where), where)


def inspect_recipe(recipe: Recipe, against: Recipe | None = None) -> dict[str, Any]:
    """The inspection of a recipe's model beside that of `against`, by default `ModelTemplate.baseline`.

    Raises UserError for what `train` would refuse of the recipe.
    """
    recipe.check()
    config = recipe.explicit_model
    if against is not None:
        baseline, n_baseline_tokens = against.explicit_model, against.n_token_passes
    else:
        baseline = recipe.model.baseline().resolve(recipe.seq_len) if isinstance(recipe.model, ModelTemplate) else None
        n_baseline_tokens = recipe.n_token_passes
    summary = inspection(config, baseline, recipe.seq_len)
    summary["n_tokens"] = recipe.n_tokens
    summary["pflops_days"] = recipe.pflops_days
    if baseline is not None:
        summary["baseline"]["pflops_days"] = pflops_days(
            summary["baseline"]["flops_per_token"]["training"], n_baseline_tokens
        )
    return summary
