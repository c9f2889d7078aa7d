"""What a run directory holds: `result.json`, and a run with all its files in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from widthwise.records.certificate import Certificate
from widthwise.records.cost import CostSummary
from widthwise.records.dynamic_width import TokenWidths
from widthwise.records.record import Known, Number, Record, StoredRecord
from widthwise.records.virtual_width import VirtualWidth


class GrowthRecord(Record):
    """A moment at which the model of a run became another one, most often a larger one."""

    event: Literal["growth", "grown", "baked", "padded"] = "growth"
    """In the course of the run; or by a verb, where the run begins where another one stood."""
    step: int
    """Steps done before."""
    tokens: int
    training_flops: Number
    """Of all steps before."""
    params_before: Number
    params_after: Number
    loss_before: Known = None
    """Held out."""
    loss_after: Known = None


class RunResult(StoredRecord):
    """A finished run. Optional fields are those that not every kind of model has, or not every version wrote."""

    file_name: ClassVar[str] = "result.json"

    status: str = "finished"
    other_cpu_share: Known = None
    """Share of the CPUs of the machine that other processes used meanwhile."""
    cost: CostSummary
    """Of the last model."""
    name: str | None = None
    seed: int | None = None
    steps: int | None = None
    tokens: int | None = None
    """Of all steps, those of a run included that this one comes from."""
    train_loss: Known = None
    """Mean of the last `loss_window_steps` steps."""
    loss_window_steps: int | None = None
    val_loss: Known = None
    """Nats per token."""
    val_perplexity: Known = None
    val_bits_per_byte: Known = None
    val_window_losses: Sequence[float] = ()
    """Mean loss of every held-out window, in order: what a paired comparison pairs."""
    tokens_per_second: Known = None
    """Of the last model's median record, so that neither start-up nor compilation nor a hiccup counts."""
    wall_seconds: Known = None
    peak_memory_bytes: int | None = None
    """Most memory ever held: by tensors on a GPU, elsewhere by the whole process."""
    training_flops: Known = None
    """Of all steps, all passes over a token counted, those of a run included that this one comes from."""
    pflops_days: Known = None
    """The same in PFLOP/s-days."""
    token_widths: TokenWidths | None = None
    """None for a model without dynamic-width layers."""
    expert_loads: Sequence[Sequence[float] | None] | None = None
    """A layer's shares of the routed choices, one an expert; None where no layer routes."""
    val_mtp_losses: Sequence[float] | None = None
    """Of the further heads, nearest first; None for a model without."""
    virtual_width: VirtualWidth | None = None
    """None for a model without hyper-connections."""
    growth: Sequence[GrowthRecord] = ()
    """In order; empty where the model stayed the same."""
    notes: Sequence[str] = ()
    """What a reader of the numbers should know."""


@dataclass(frozen=True)
class Run:
    """A run directory in memory; `result` is None while the run has not finished."""

    path: str
    config_yaml: str
    environment: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    result: RunResult | None
    growths: Sequence[GrowthRecord] = ()
    """In order."""
    certificate: Certificate | None = None
    """Of the last growth by a verb."""

    @property
    def name(self) -> str:
        return (self.result and self.result.name) or Path(self.path).name or self.path

    @property
    def cost(self) -> CostSummary | None:
        return self.result.cost if self.result else None
