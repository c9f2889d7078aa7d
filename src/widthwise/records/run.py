"""Run directories: `result.json`, allowed changes to the recipe, listings, and folders mistaken for a run."""

import copy
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from widthwise.config_io import differences
from widthwise.files import read_json_mapping
from widthwise.mistakes import shortened
from widthwise.records.analysis import TokenWidths, VirtualWidth
from widthwise.records.certificate import Certificate
from widthwise.records.cost import CostSummary
from widthwise.records.evaluation import Evaluation, TaskResult
from widthwise.records.record import Known, Number, Record, StoredRecord
from widthwise.records.shrinking import Shrinking


class GrowthRecord(Record):
    """A step at which the model of a run was replaced by another one, usually a larger one."""

    event: Literal["growth", "grown"] = "growth"
    """growth: by the recipe, in the course of the run; grown: by `grow`, before the first step of the run."""
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
    """The text of a run, all sources of a mixture together; bytes are counted in UTF-8."""

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


class RunResult(StoredRecord):
    """A finished run. Optional fields are absent for some kinds of models."""

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
    """Tokens of all steps, including the run that this one continues."""
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
    """Results on the recipe's other texts at the end, by name; None for a recipe that names none."""
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
    """Training FLOPs of all steps, every pass over a token counted, including the run that this one continues."""
    pflops_days: Known = None
    token_widths: TokenWidths | None = None
    """None for a model without dynamic-width layers."""
    expert_loads: Sequence[Sequence[float] | None] | None = None
    """For each layer, every expert's share of the routed tokens; None if no layer routes."""
    val_mtp_losses: Sequence[float] | None = None
    """Held-out losses of multi-token prediction, nearest token first; None for a model without it."""
    val_mtp_window_losses: Sequence[Sequence[float]] = ()
    """For each of these losses, its mean in every held-out window, in order."""
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
    shrinking: Shrinking | None = None
    """The cut by which the run was made."""
    evaluations: Sequence[Evaluation] = ()
    """Results of `widthwise eval`, by step."""
    samples: Sequence[Mapping[str, Any]] = ()
    """Text that the model wrote at validations, if `train.sample` is set."""

    @property
    def name(self) -> str:
        return (self.result and self.result.name) or Path(self.path).name or self.path

    @property
    def cost(self) -> CostSummary | None:
        return self.result.cost if self.result else None


OF_PROCESSES = ("train.shards", "train.hang_seconds")
"""Keys of a recipe that describe the processes; changing them leaves the run the same."""
MAY_CHANGE = ("data.", *OF_PROCESSES)
"""Keys of a recipe that may be changed in config.yaml; data may move because checksums protect them."""
MAY_MOVE = re.compile(r"validation\.(texts\.[^.]+\.source|tasks\.[^.]+\.file)")
"""Further such keys: files of texts and tasks, which have checksums."""
MUST_STAY = ("data.mask_documents", "data.reset_positions")
"""Keys of the data section that must not change: they say how data are read."""
MAY_CONTINUE_WITH = (
    "train.steps",
    "train.log_every",
    "train.norms_every",
    "train.validate_every",
    "train.sample",
    "train.checkpoint_every",
    "train.checkpoint_in_background",
    "train.keep_last",
    "train.keep_every",
    "train.keep_best",
    "train.max_loss_rise",
    *OF_PROCESSES,
)
"""Keys that `resume` may change: the length of the run, and what is recorded and kept."""


class Continuation(Record):
    """One resumption of a run with other settings."""

    after_step: int
    before: Mapping[str, Any]
    """Key of the recipe -> its value before."""
    after: Mapping[str, Any]
    """The same keys -> their values after."""

    @property
    def words(self) -> str:
        """`train.steps from 9 to 18, train.log_every from 4 to 1`."""
        pairs = (f"{path} from {shortened(old)} to {shortened(self.after[path])}" for path, old in self.before.items())
        return ", ".join(pairs)


def continued(recipe: Any, continuations: Iterable[Continuation]) -> Any:
    """Return a recipe, as plain data, with the settings of continuations."""
    changed = copy.deepcopy(recipe)
    for continuation in continuations:
        for path, value in continuation.after.items():
            section, key = path.split(".")
            changed[section][key] = value
    return changed


def changes_in_words(before: Any, after: Any, of_the_same_run: bool = False) -> list[str]:
    """Return the differences between two recipes as text.

    of_the_same_run: leave out differences that config.yaml may have while it describes the same run.
    """
    changes = list[str]()
    for path, old, new in differences(before, after):
        may_change = path.startswith(MAY_CHANGE) or MAY_MOVE.fullmatch(path) is not None
        if path in MUST_STAY and (old or new):  # both are unset if the section was rewritten
            may_change = False
        if not (of_the_same_run and may_change):
            changes.append(f"{path} from {shortened(old)} to {shortened(new)}")
    return changes


RunState = Literal["running", "finished", "ready", "stopped", "failed", "waiting", "unreadable"]


class ListedRun(Record):
    """One run in a listing. What is not known yet is None."""

    path: str
    state: RunState
    """running: a process holds its folder. ready: weights of another source, such as an import, from which no step was
    made. stopped: begun, not finished, and not held. failed: it ended itself, as when the loss diverged. waiting: its
    experiment has not begun it. unreadable: its files are broken."""
    step: int | None = None
    """Step of its last record."""
    n_steps: int | None = None
    loss: Known = None
    """Training loss of its last record of training."""
    val_loss: Known = None
    """Held-out loss of its last validation."""
    tokens_per_second: Known = None
    age_seconds: Known = None
    """Time since its last record."""
    n_bytes: int | None = None
    """All its files together."""
    reason: str | None = None


class PlannedRun(Record):
    """One run of an experiment, begun or not."""

    path: str
    """Inside the folder of the experiment."""
    variant: str
    seed: int
    n_steps: int


class PlannedRuns(StoredRecord):
    """`planned.json`: all known runs of an experiment, written before the first of them begins."""

    file_name: ClassVar[str] = "planned.json"

    title: str
    command: str
    baseline: str | None = None
    runs: Sequence[PlannedRun]
    """In the order in which they are trained."""


def other_folder(path: Path) -> str:
    """Return `; it is ...`, the content of a path that is no run directory and the way to a run; "" if unknown."""
    if not path.exists():
        runs = [str(config.parent) for config in path.parent.glob("*/config.yaml")]
        near = difflib.get_close_matches(str(path), runs, n=1)
        return "; there is no such folder" + (f", did you mean {near[0]}?" if near else "")
    if path.is_file():
        is_recipe = path.suffix == ".yaml" and path.name != "config.yaml"
        return f"; it is a recipe: `widthwise train {path}` begins a run" if is_recipe else "; it is a file"
    for folder in (path / "runs", path):
        if any(folder.glob("*/config.yaml")):
            return f"; it holds several runs, which are {folder}/NAME"
    if (path / "config.json").is_file() and "model_type" in read_json_mapping(path / "config.json"):
        return f"; it is a Hugging Face folder: `widthwise import {path} RUN` makes a run of it"
    return ""
