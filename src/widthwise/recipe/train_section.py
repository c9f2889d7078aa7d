"""The `train:` and `validation:` sections of a recipe: how long, how much at a time, what to keep and to look at."""

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import pydantic
from pydantic import Field

from widthwise.computing import ActivationCheckpointing, Precision
from widthwise.config_io import Config, UserError
from widthwise.files import PathText
from widthwise.model.config import ModelConfig
from widthwise.recipe.objective import DistillConfig, NestedConfig, WidthBudgetConfig
from widthwise.recipe.schedule import Steps
from widthwise.sizes import Count, VocabSize


class StopAtSpike(Config):
    """A run that has diverged stops; its last good checkpoint remains. Costs nothing."""

    kind: Literal["stop"] = "stop"
    window_steps: ClassVar[int] = 0
    max_skipped: ClassVar[int] = 0


class SkipSpike(Config):
    """A step whose gradient is not finite or far above the usual makes no update; its batch is passed over.

    Weights, optimizer state and width prices stay as they were; the learning rate schedule continues. Costs one wait
    for the device in each step, which otherwise runs ahead of it, and among several processes one message.
    """

    kind: Literal["skip"] = "skip"
    factor: float = Field(default=10.0, gt=1, allow_inf_nan=False)
    """Multiple of the median norm of the last `window_steps` updates a gradient norm may be."""
    window_steps: Annotated[int, Field(gt=0, le=100_000)] = 100
    """Before there were so many updates, only norms that are not finite count; a model that has grown starts again."""
    max_skipped: pydantic.PositiveInt = 5
    """Most steps in a row without an update; with one more the run stops."""

    def admits(self, grad_norm: float, earlier: Sequence[float]) -> bool:
        """Return True if a step makes its update. earlier: norms of the last `window_steps` steps that made one."""
        if not math.isfinite(grad_norm):
            return not earlier  # a first step that is not finite says that something else is wrong
        return len(earlier) < self.window_steps or grad_norm <= self.factor * statistics.median(earlier)


SpikePolicy = Annotated[StopAtSpike | SkipSpike, Field(discriminator="kind")]


class SampleConfig(Config):
    """Prompts that the model continues, and the sampling of its tokens, with the same draws every time."""

    prompts: tuple[str, ...] = pydantic.Field(default=("",), min_length=1)
    """Texts to continue; an empty one begins a document."""
    n_tokens: Count = 64
    """Tokens of each continuation, which ends earlier where the model ends the document."""
    temperature: pydantic.NonNegativeFloat = 0.8
    """0 takes the most probable token."""
    top_k: VocabSize | None = None
    """Draw from the k most probable tokens only."""
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Draw from the fewest tokens whose probabilities reach this sum."""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**63)
    """Seed of the draws, the same at every validation."""


Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _check_seeds(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"got {list(seeds)}; each seed may be given once")
    return seeds


Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), pydantic.AfterValidator(_check_seeds)]
"""Seeds of an experiment."""


class TrainConfig(Config):
    """The length of a run, its batches, and the checkpoints to keep."""

    steps: Steps
    """Optimizer steps of the run; or `{training_flops: 1e15}`, from which they follow."""
    batch_size: Count
    """Sequences per optimizer step, over all processes."""
    micro_batch_size: Count | None = None
    """Sequences per forward pass; the whole batch where not given. Must divide batch_size."""
    shards: Count = 1
    """Processes that hold one copy of the model and of the optimizer's state together, each its rows; 1: each holds
    all. Must divide the number of processes. It may be another when a run is resumed."""
    hang_seconds: pydantic.PositiveFloat = 1800
    """Time that a process waits for the others, as they join and within a step, before it names the missing one and
    ends."""
    precision: Literal["auto", "fp32", "bf16"] = "bf16"
    """Type of the matrix products; weights and optimizer state are fp32. `auto`: bf16 if the machine that starts the
    run multiplies it clearly faster than fp32 (`runs.speed.faster_precision`), else fp32; predictions count bf16."""
    compile: bool = False
    """Compile each layer. Pays on a GPU, and on a CPU in runs of more than about ten minutes."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Layers that the backward pass runs again instead of keeping it: no layer, every `layer`, or every second one."""
    seed: Seed = 42
    """Seed of the initial weights and of the data order."""
    max_grad_norm: pydantic.PositiveFloat = 1.0
    """Global norm to which gradients are clipped."""
    z_loss: pydantic.NonNegativeFloat = 0.0
    """Coefficient of the mean squared log-normaliser in the objective; never part of the reported loss."""
    width_budget: WidthBudgetConfig | None = None
    """Price that dynamic-width layers pay for width, in the objective; never part of the reported loss."""
    nested: NestedConfig | None = None
    """Further passes of every step at forced widths of the dynamic-width layers."""
    distill: DistillConfig | None = None
    """Trained model from whose predictions this one learns besides."""
    log_every: pydantic.PositiveInt = 10
    """Steps between records; a record holds the mean loss of the steps since the last."""
    norms_every: pydantic.PositiveInt | None = None
    """Steps between records of the norms of each layer; none where not given."""
    validate_every: pydantic.PositiveInt | None = None
    """Steps between validations; only at the end where not given."""
    sample: SampleConfig | None = None
    """Texts that the model writes at each validation; none where not given."""
    validation_tokens: pydantic.PositiveInt | None = None
    """Held-out tokens used by a validation, from the front; all where not given."""
    validation_skip: pydantic.NonNegativeInt = 0
    """Held-out tokens at the front that a validation leaves out."""
    checkpoint_every: pydantic.PositiveInt | None = None
    """Steps between checkpoints; only at the end and on interruption where not given."""
    checkpoint_in_background: bool = False
    """Training continues while a checkpoint is written. Needs room for a copy of weights and optimizer state in
    the machine's memory; pays where the disk is slow."""
    keep_last: pydantic.PositiveInt = 2
    """Newest checkpoints that are kept."""
    keep_every: pydantic.PositiveInt | None = None
    """Checkpoints whose step is a multiple of this are kept for good; must be a multiple of checkpoint_every."""
    keep_best: bool = False
    """Keep the checkpoint with the lowest held-out loss. Of checkpoint_every and validate_every, one must
    be a multiple of the other."""
    loss_window_steps: pydantic.PositiveInt = 1000
    """The reported training loss is the mean over this many last steps, or all of a shorter run (the paper's rule)."""
    max_loss_rise: pydantic.PositiveFloat = 3.0
    """Nats above the lowest logged loss at which a run has diverged."""
    on_spike: SpikePolicy = StopAtSpike()
    """Fate of a run that has diverged, and of a step with an unusual gradient."""

    @property
    def settled_precision(self) -> Precision:
        """The type that a machine has chosen, where the recipe left it to one."""
        assert self.precision != "auto", "Recipe.settled comes first"
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
        if self.keep_best:
            pair = sorted((every or 0, self.validate_every or 0))
            if not pair[0] or pair[1] % pair[0]:
                raise ValueError(
                    f"keep_best: got true with checkpoint_every = {every} and validate_every = {self.validate_every}; "
                    "both must be given, one as a multiple of the other, so that checkpoints have a held-out loss"
                )
        return self

    @property
    def sequences_per_pass(self) -> int:
        return self.micro_batch_size or self.batch_size

    def rows_of_process(self, n: int) -> int:
        """Sequences of a step that each of n processes has. Raises UserError where a number does not divide another."""
        if n % self.shards:
            raise UserError(
                f"train.shards: got {self.shards}; must divide the number of processes, which is {n}; "
                f"`train.shards={math.gcd(self.shards, n)}` does, also for a run that is resumed"
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
        """Training FLOPs of a step for each of its tokens, with every pass over it and a teacher's forward pass."""
        flops = self.n_passes * model.cost().training_flops(seq_len)
        if self.distill is not None:
            assert self.distill.sizes is not None, "a recipe that was read has them"
            flops += self.distill.sizes.flops_per_token
        return flops

    @property
    def n_passes(self) -> int:
        """Forward and backward passes over the batch in an optimizer step."""
        return 1 if self.nested is None else self.nested.n_passes


Name = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class ValidationText(Config):
    """A text, read in windows of the recipe's seq_len as the held-out text is, with the same tokenizer."""

    source: PathText
    """A prepared folder, of which the held-out part is read, or a source that `widthwise data prepare` takes."""
    field: str = "text"
    """Key of the text in JSONL, or column in Parquet."""
    max_tokens: pydantic.PositiveInt | None = None
    """Tokens that are predicted, from the front; all where not given."""


class ValidationTask(Config):
    """Questions with known answers; see `evaluation.local_tasks`."""

    file: PathText
    """A JSONL file."""
    delimiter: str = " "
    """Text between question and answer."""
    limit: Count | None = None
    """Questions from the front; all where not given."""


class ValidationConfig(Config):
    """Texts and tasks by name. Every validation of a run reads all texts and asks all questions."""

    texts: dict[Name, ValidationText] = pydantic.Field(default_factory=dict)
    tasks: dict[Name, ValidationTask] = pydantic.Field(default_factory=dict)
