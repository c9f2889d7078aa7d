"""`result.json`, and a whole run directory in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from widthwise.records.analysis import TokenWidths, VirtualWidth
from widthwise.records.certificate import Certificate
from widthwise.records.cost import CostSummary
from widthwise.records.evaluation import Evaluation, Scores
from widthwise.records.record import Known, Number, Record, StoredRecord

Descent = Literal["grown", "baked", "padded"]
"""Event that opens the records of a run made by a command from the state of another run."""
DESCENTS: tuple[Descent, ...] = get_args(Descent)


class GrowthRecord(Record):
    """A step at which the model of a run was replaced by another one, usually a larger one."""

    event: Literal["growth"] | Descent = "growth"
    """growth: by the recipe, in the course of the run; otherwise by a command."""
    step: int
    """Number of steps before it."""
    tokens: int
    training_flops: Number
    """Training FLOPs of all steps before it."""
    params_before: Number
    params_after: Number
    loss_before: Known = None
    """Held-out loss just before it, in nats per token."""
    loss_after: Known = None


class DataCounts(Record):
    """The text that a run had to read, all sources of a mixture together; bytes are those of UTF-8."""

    n_train_tokens: int
    n_train_bytes: int
    n_held_out_tokens: int
    """All the held-out text; the loss is measured on the first `train.validation_tokens` of them."""
    n_held_out_bytes: int


class TextResult(Record):
    """The loss on a text at the end of a run, in nats per token and otherwise."""

    loss: Known
    perplexity: Known = None
    bits_per_byte: Known = None
    window_losses: Sequence[float] = ()
    """Mean loss of every window of the text, in order: what a paired comparison pairs."""


class TaskResult(Record):
    """The scores on a task at the end of a run."""

    n_items: int
    chance: Known = None
    """The accuracy of guessing at random."""
    n_cut_contexts: int = 0
    """Contexts that were too long for a window and lost their beginning."""
    metrics: Scores


class RunResult(StoredRecord):
    """A finished run. Optional fields are absent for some kinds of models or from files of older versions."""

    file_name: ClassVar[str] = "result.json"

    status: str = "finished"
    other_cpu_share: Known = None
    """Share of the machine's CPUs that other processes used during the run."""
    cost: CostSummary
    """Sizes and costs of the last model."""
    name: str | None = None
    seed: int | None = None
    steps: int | None = None
    tokens: int | None = None
    """Tokens of all steps, those of a run that this one continues included."""
    train_loss: Known = None
    """Mean of the last `loss_window_steps` steps."""
    loss_window_steps: int | None = None
    val_loss: Known = None
    """Held-out loss in nats per token."""
    val_perplexity: Known = None
    val_bits_per_byte: Known = None
    val_window_losses: Sequence[float] = ()
    """Mean loss of every held-out window, in order: what a paired comparison pairs."""
    data: DataCounts | None = None
    val_losses: Mapping[str, float] | None = None
    """Mean loss over the held-out windows of each source of a mixture; None for data of one source."""
    val_texts: Mapping[str, TextResult] | None = None
    """Those of the recipe's other texts, by name; None for a recipe that names none."""
    val_tasks: Mapping[str, TaskResult] | None = None
    """Results on the recipe's tasks at the end, by name; None for a recipe that names none."""
    best_step: int | None = None
    """Step of the checkpoint with the lowest held-out loss, where `train.keep_best` keeps it."""
    tokens_per_second: Known = None
    """Median over the records of the last model, so that start-up, compilation and hiccups do not count."""
    wall_seconds: Known = None
    peak_memory_bytes: int | None = None
    """Most memory that this run held: of tensors on a GPU, otherwise of the whole process. None if it is unknown."""
    training_flops: Known = None
    """Training FLOPs of all steps, every pass over a token counted, those of a run that this one continues included."""
    pflops_days: Known = None
    token_widths: TokenWidths | None = None
    """None for a model without dynamic-width layers."""
    expert_loads: Sequence[Sequence[float] | None] | None = None
    """For each layer, every expert's share of the routed tokens; None if no layer routes."""
    val_mtp_losses: Sequence[float] | None = None
    """Held-out losses of multi-token prediction, nearest token first; None for a model without it."""
    val_mtp_window_losses: Sequence[Sequence[float]] = ()
    """For each of them, its mean loss in every held-out window, in order."""
    virtual_width: VirtualWidth | None = None
    """None for a model without hyper-connections."""
    growth: Sequence[GrowthRecord] = ()
    """Growths in order of time; empty if the model stayed the same."""
    notes: Sequence[str] = ()
    doubts: Sequence[str] = ()
    """Events of the run that cast doubt on its last loss: a spike, or a better validation before."""

    @property
    def n_val_tokens(self) -> int | None:
        """Held-out tokens over which `val_loss` is the mean; None where the windows or their length are unknown."""
        return len(self.val_window_losses) * (self.cost.seq_len or 0) or None


@dataclass(frozen=True)
class Run:
    """A run directory in memory; `result` is None while the run has not finished."""

    path: str
    config_yaml: str
    environment: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    result: RunResult | None
    growths: Sequence[GrowthRecord] = ()
    certificate: Certificate | None = None
    """Certificate of the last growth by a command."""
    evaluations: Sequence[Evaluation] = ()
    """Results of `widthwise eval`, by step."""
    samples: Sequence[Mapping[str, Any]] = ()
    """Text that the model wrote at validations, where `train.sample` asks for it."""

    @property
    def name(self) -> str:
        return (self.result and self.result.name) or Path(self.path).name or self.path

    @property
    def cost(self) -> CostSummary | None:
        return self.result.cost if self.result else None
