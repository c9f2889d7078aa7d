"""The `train:` and `validation:` sections of a recipe: how long, how much at a time, what to keep and to look at.

Of layers that choose their width, training can put a price on the units that they use, and make passes at forced
widths: the loss alone does not reward a narrow width. The fraction of a layer's width is differentiable even where its
mask is not, so the term of a budget always has a gradient. It joins the objective only, never a reported loss.
"""

import math
import statistics
from collections.abc import Sequence
from operator import mul
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import pydantic
from pydantic import Field

from widthwise.computing import ActivationCheckpointing, Precision
from widthwise.config_io import Config, UserError
from widthwise.model.config import ModelConfig
from widthwise.model.dynamic_layers import chooses_width, dynamic_layers, flops_shares, forced_fractions
from widthwise.recipe.schedule import Steps
from widthwise.sizes import WIDEST, Count, NTokens, VocabSize

if TYPE_CHECKING:
    from torch import Tensor


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
    """Before there were so many updates, only norms that are not finite count; a model that has grown starts anew."""
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
"""Those of an experiment."""


class WidthBudgetConfig(Config):
    """price * (mean - target), where every step moves the price by rate * (mean - target), but not below 0.

    mean: the fraction of the hidden width that tokens use, over the tokens of a forward pass and over the layers,
    weighted by their FLOPs. The price settles where the mean meets the target; it is then what a unit more would be
    worth to the loss. Alone it lags: it still rises while the widths come down, and they overshoot. So in each forward
    pass `damping` * (mean - target) is added to it, again not below 0, which makes the term an augmented Lagrangian
    (Hestenes 1969); with damping 0 the term is linear in the tokens, and micro-batches do not matter.
    """

    kind: Literal["lagrangian"] = "lagrangian"
    target: float = Field(gt=0, le=1)
    """The mean fraction to come down to."""
    rate: pydantic.PositiveFloat = 0.003
    """Nats that the price rises in a step for all the width there is; damping / rate is how many steps it takes."""
    damping: pydantic.NonNegativeFloat = 1.0
    """Nats for all the width there is."""

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where the model has no width to choose, or cannot be as narrow as the target."""
        if not chooses_width(model):
            raise UserError(
                "train.width_budget: no layer of the model chooses its width; those of ffn.kind 'dynamic' and "
                "'dynamic_hourglass' do, with a mask and min_fraction below 1"
            )
        layers = dynamic_layers(model)
        least = sum(map(mul, flops_shares(layers), (layer.narrowest for layer in layers)))
        if self.target <= least:
            raise UserError(
                f"train.width_budget.target: got {self.target}; must be above {least:.4g}, the narrowest that the "
                "model allows (min_fraction of ffn)"
            )

    def term(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        """Return the term of the objective, in nats."""
        return self._moved(price, mean.detach(), self.damping) * (mean - self.target)

    def next_price(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        """Return the price of the next step from the mean of the whole batch. It starts at 0."""
        return self._moved(price, mean, self.rate)

    def _moved(self, price: "Tensor", mean: "Tensor", gain: float) -> "Tensor":
        return (price + gain * (mean - self.target)).clamp(min=0)


class NestedConfig(Config):
    """Every step also minimises the loss at full width, and at a narrower width drawn for the step; weights are 1.

    A width is forced on all tokens and all dynamic layers.
    """

    n_widths: Count = Field(default=4, ge=2)
    """Widths, in equal steps from the narrowest a token can have to the full one."""
    chosen: bool = True
    """A step still has its pass at the widths that tokens choose. Without it nothing trains the choice, and
    the reported training loss is the one at full width."""

    @property
    def n_passes(self) -> int:
        """Forward and backward passes over the batch in a step."""
        return 2 + self.chosen

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where no layer of the model has narrower widths."""
        layers = dynamic_layers(model)
        if not layers or forced_fractions(layers, self.n_widths)[0] == 1:
            raise UserError(
                "train.nested: no layer of the model has more than one width; only ffn.kind 'dynamic' and "
                "'dynamic_hourglass' with min_fraction below 1 do"
            )


class TeacherSizes(Config):
    """Sizes of a teacher, read from its run once, so that the costs of its student can be told without it."""

    teacher: str
    seq_len: NTokens
    vocab_size: VocabSize
    params: pydantic.PositiveInt
    flops_per_token: pydantic.PositiveFloat
    """Forward FLOPs at seq_len, those of the head included."""
    d_model: int = Field(default=0, ge=0, le=WIDEST)
    """0, as all that follow, in a recipe of a version that did not count them."""
    root_params: pydantic.NonNegativeInt = 0
    """Parameters in no layer."""
    layer_params: pydantic.NonNegativeInt = 0
    """Parameters of the largest layer."""
    pass_elements: pydantic.NonNegativeInt = 0
    """Most numbers per token that its forward pass holds: those of one sublayer, and the stream around it."""

    @classmethod
    def of(cls, teacher: str, model: ModelConfig, seq_len: int) -> "TeacherSizes":
        """Return the sizes of a model. teacher: its run."""
        sublayers = [list(costs.values()) for costs in model.layer_costs()]
        of_layers = [sum(cost.params for cost in costs) for costs in sublayers]
        widest = max(cost.activation_bytes(4) / 4 for costs in sublayers for cost in costs)
        return cls(
            teacher=teacher,
            seq_len=seq_len,
            vocab_size=model.vocab_size,
            params=int(model.cost().params),
            flops_per_token=model.inference_cost().forward_flops(seq_len),
            d_model=model.d_model,
            root_params=int(model.cost().params - sum(of_layers)),
            layer_params=int(max(of_layers)),
            pass_elements=math.ceil(4 * model.d_model + widest),
        )


class DistillConfig(Config):
    """The model also learns the predictions of a trained one; Hinton et al. 2015, arXiv:1503.02531.

    The objective is (1 - weight) * loss + weight * temperature^2 * KL(teacher || student), where both predict
    softmax(logits / temperature). With `layers` it is also layers_weight times the mean, over those layers and all
    tokens, of |h - a|^2 / |a|^2, where h is the stream behind a layer, with what narrow layers carry past them, and a
    the teacher's, in the coordinates to which `shrink` turned and cut it; of a student that was not cut, as it is.
    Reported losses are those of the targets, and MTP heads learn from targets alone.
    """

    teacher: str
    """Run directory, relative to the working directory. Its newest good checkpoint is read when training starts."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """Share of the teacher in the objective."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Above 1 the student learns more of what the teacher holds unlikely."""
    layers: Literal["none", "last", "all"] = "none"
    """Layers that learn the teacher's hidden states besides: none, the last, or every one."""
    layers_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor of the mean squared distance between the states, where layers learn them."""
    sizes: TeacherSizes | None = None
    """Written when the recipe is read."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "DistillConfig":
        if self.layers == "none" and self.layers_weight != 1:
            raise ValueError(f"layers_weight: got {self.layers_weight}; has nothing to weigh where layers is none")
        return self

    def are_known(self, seq_len: int) -> bool:
        """Return True if the sizes are those of this teacher at seq_len."""
        return self.sizes is not None and (self.sizes.teacher, self.sizes.seq_len) == (self.teacher, seq_len)

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where student and teacher predict different tokens."""
        if self.sizes is not None and self.sizes.vocab_size != model.vocab_size:
            raise UserError(
                f"train.distill.teacher: {self.teacher} has vocab_size {self.sizes.vocab_size}; must be "
                f"model.vocab_size = {model.vocab_size}"
            )


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
    """Time that a process waits for the others within a step before it says which one is missing, and ends."""
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
    """Training goes on while a checkpoint is written. Needs room for a copy of weights and optimizer state in
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
            raise UserError(f"train.shards: got {self.shards}; must divide the number of processes, which is {n}")
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

    source: str
    """A prepared folder, of which the held-out part is read, or whatever `widthwise data prepare` takes."""
    field: str = "text"
    """Key of the text in JSONL, or column in Parquet."""
    max_tokens: pydantic.PositiveInt | None = None
    """Tokens that are predicted, from the front; all where not given."""


class ValidationTask(Config):
    """Questions with known answers; see `evaluation.local_tasks`."""

    file: str
    """A JSONL file."""
    delimiter: str = " "
    """Text between question and answer."""
    limit: Count | None = None
    """Questions that are asked, from the front; all where not given."""


class ValidationConfig(Config):
    """Texts and tasks by name. Every validation of a run reads all texts and asks all questions."""

    texts: dict[Name, ValidationText] = pydantic.Field(default_factory=dict)
    tasks: dict[Name, ValidationTask] = pydantic.Field(default_factory=dict)
