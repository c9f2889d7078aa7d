"""The `train:` and `validation:` sections of a recipe: steps, batches, checkpoints and validation."""

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import pydantic
from pydantic import Field

from widthwise.computing import ActivationCheckpointing, Precision
from widthwise.config_io import Config
from widthwise.files import PathText
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.recipe.objective import DistillConfig, NestedConfig, WidthBudgetConfig
from widthwise.recipe.schedule import Steps
from widthwise.sizes import Count, VocabSize


class StopAtSpike(Config):
    """Stop a run that has diverged. Its last good checkpoint remains. This costs nothing."""

    kind: Literal["stop"] = "stop"
    window_steps: ClassVar[int] = 0
    max_skipped: ClassVar[int] = 0


class SkipSpike(Config):
    """Skip the update of a step whose gradient is not finite or unusually large.

    Weights, optimizer state and width prices do not change; the learning rate schedule continues. Each step then waits
    for the device, and several processes exchange one message.
    """

    kind: Literal["skip"] = "skip"
    factor: float = Field(default=10.0, gt=1, allow_inf_nan=False)
    """Largest gradient norm, as a multiple of the median norm of the last `window_steps` updates."""
    window_steps: Annotated[int, Field(gt=0, le=100_000)] = 100
    """Number of updates in the median. Before that, only non-finite norms are skipped. Growth restarts the count."""
    max_skipped: pydantic.PositiveInt = 5
    """Most consecutive steps without an update. One more stops the run."""

    def admits(self, grad_norm: float, earlier: Sequence[float]) -> bool:
        """Return True if a step updates the model. earlier: norms of the last `window_steps` updates."""
        if not math.isfinite(grad_norm):
            return not earlier  # a first step that is not finite has another cause
        return len(earlier) < self.window_steps or grad_norm <= self.factor * statistics.median(earlier)


SpikePolicy = Annotated[StopAtSpike | SkipSpike, Field(discriminator="kind")]


class SampleConfig(Config):
    """Prompts for the model, and the sampling of its continuations, with the same draws every time."""

    prompts: tuple[str, ...] = Field(default=("",), min_length=1)
    """Texts to continue; an empty text starts a document."""
    n_tokens: Count = 64
    """Tokens of each continuation, fewer if the model ends the document."""
    temperature: pydantic.NonNegativeFloat = 0.8
    """0 takes the most probable token."""
    top_k: VocabSize | None = None
    """Draw from the k most probable tokens only."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the fewest tokens whose probabilities reach this sum."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the draws, the same at every validation."""


Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _check_seeds(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"got {list(seeds)}; each seed may be given once")
    return seeds


Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), pydantic.AfterValidator(_check_seeds)]
"""Seeds of an experiment."""


class TrainConfig(Config):
    """Steps, batches and checkpoints of a run."""

    steps: Steps
    """Optimizer steps of the run, or a budget for them: `{training_flops: 1e15}`."""
    batch_size: Count
    """Sequences per optimizer step, over all processes."""
    micro_batch_size: Count | None = None
    """Sequences per forward pass; default: the whole batch. Must divide batch_size."""
    shards: Count = 1
    """Processes that share one copy of the model and of the optimizer's state, sharded by rows; 1: each process has a
    copy. Must divide the number of processes. It may change when a run is resumed."""
    hang_seconds: pydantic.PositiveFloat = 1800
    """Time that a process waits for other processes, at the start and within a step, before it reports the missing one
    and exits."""
    precision: Literal["auto", "fp32", "bf16"] = "bf16"
    """Dtype of matrix products; weights and optimizer state are fp32. `auto`: bf16 if its products are clearly faster
    than fp32 on the machine that starts the run (`runs.environment.faster_precision`), otherwise fp32. Plans assume
    bf16."""
    compile: bool = False
    """Compile each layer. Worthwhile on a GPU, and on a CPU in runs of more than about ten minutes."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Layers that the backward pass recomputes: `none`, every `layer`, or every second one (`selective`)."""
    seed: Seed = 42
    """Seed of the initial weights and of the data order."""
    max_grad_norm: pydantic.PositiveFloat = 1.0
    """Largest global norm of gradients, to which they are clipped."""
    z_loss: pydantic.NonNegativeFloat = 0.0
    """Coefficient of the mean squared log-normaliser in the objective; never part of the reported loss."""
    width_budget: WidthBudgetConfig | None = None
    """Price of width in dynamic-width layers, in the objective; never part of the reported loss."""
    nested: NestedConfig | None = None
    """Additional passes in every step at forced widths of dynamic-width layers."""
    distill: DistillConfig | None = None
    """Trained model whose predictions this model also learns."""
    log_every: pydantic.PositiveInt = 10
    """Steps between records, each with the mean loss of the steps since the last one."""
    norms_every: pydantic.PositiveInt | None = None
    """Steps between records of the norms of each layer; default: no records."""
    validate_every: pydantic.PositiveInt | None = None
    """Steps between validations; default: only at the end."""
    sample: SampleConfig | None = None
    """Texts that the model generates at each validation; default: none."""
    validation_tokens: pydantic.PositiveInt | None = None
    """First held-out tokens that a validation uses; default: all."""
    validation_skip: pydantic.NonNegativeInt = 0
    """First held-out tokens that a validation skips."""
    checkpoint_every: pydantic.PositiveInt | None = None
    """Steps between checkpoints; default: only at the end and on interruption."""
    checkpoint_in_background: bool = False
    """Continue training while a checkpoint is written. Needs memory for a copy of weights and optimizer state;
    worthwhile with a slow disk."""
    keep_last: pydantic.PositiveInt = 2
    """Number of newest checkpoints to keep."""
    keep_every: pydantic.PositiveInt | None = None
    """Keep checkpoints whose step is a multiple of this forever. Must be a multiple of checkpoint_every."""
    loss_window_steps: pydantic.PositiveInt = 1000
    """Last steps whose mean is the reported training loss; all steps of a shorter run. As in the paper."""
    max_loss_rise: pydantic.PositiveFloat = 3.0
    """A run has diverged if its loss is this many nats above the lowest logged loss."""
    on_spike: SpikePolicy = StopAtSpike()
    """Reaction to divergence and to steps with an unusual gradient."""

    @property
    def settled_precision(self) -> Precision:
        """The precision, after `Recipe.settled` has replaced `auto`."""
        assert self.precision != "auto", "call Recipe.settled first"
        return self.precision

    @pydantic.model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"micro_batch_size: got {self.micro_batch_size}; must divide batch_size = {self.batch_size}"
            )
        if self.width_budget is not None and self.nested is not None and not self.nested.chosen:
            raise ValueError("width_budget: has nothing to work on where nested.chosen is false")
        if self.distill is not None and self.nested is not None:
            raise ValueError("distill: cannot be combined with nested; give one of them")
        every = self.checkpoint_every
        if self.keep_every is not None and (every is None or self.keep_every % every):
            raise ValueError(f"keep_every: got {self.keep_every}; must be a multiple of checkpoint_every = {every}")
        return self

    @property
    def sequences_per_pass(self) -> int:
        return self.micro_batch_size or self.batch_size

    def rows_of_process(self, n: int) -> int:
        """Return the sequences per step of each of n processes. Raise UserError if sizes do not divide evenly."""
        if n % self.shards:
            raise UserError(
                f"train.shards: got {self.shards}; must divide the number of processes, which is {n}; "
                f"`train.shards={math.gcd(self.shards, n)}` does, also to resume a run"
            )
        if self.batch_size % n:
            raise UserError(
                f"train.batch_size: got {self.batch_size}; must be a multiple of the number of processes, which is {n}"
            )
        n_rows = self.batch_size // n
        if n_rows % min(self.sequences_per_pass, n_rows):
            raise UserError(
                f"train.micro_batch_size: got {self.sequences_per_pass}; must divide the {n_rows} sequences that each "
                f"of {n} processes has of a step"
            )
        return n_rows

    def flops_per_token(self, model: ModelConfig, seq_len: int) -> float:
        """Return the training FLOPs per token of a step, including all passes and a teacher's forward pass."""
        flops = self.n_passes * model.cost().training_flops(seq_len)
        if self.distill is not None:
            assert self.distill.sizes is not None, "set when a recipe is read"
            flops += self.distill.sizes.flops_per_token
        return flops

    @property
    def n_passes(self) -> int:
        """Forward and backward passes over the batch in an optimizer step."""
        return 1 if self.nested is None else 2 + self.nested.chosen


Name = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class ValidationText(Config):
    """A text, read in windows of seq_len and with the tokenizer of the held-out text."""

    source: PathText
    """A prepared folder, whose held-out part is read, or a source for `widthwise data prepare`."""
    field: str = "text"
    """Key of the text in JSONL, or column in Parquet."""
    max_tokens: pydantic.PositiveInt | None = None
    """First tokens to predict; default: all."""


class ValidationTask(Config):
    """Questions with known answers; see `evaluation.local_tasks`."""

    file: PathText
    """A JSONL file."""
    delimiter: str = " "
    """Separator of question and answer."""
    limit: Count | None = None
    """First questions to ask; default: all."""


class ValidationConfig(Config):
    """Texts and tasks by name. Every validation of a run uses all of them."""

    texts: dict[Name, ValidationText] = Field(default_factory=dict)
    tasks: dict[Name, ValidationTask] = Field(default_factory=dict)
