"""Records of runs: `result.json`, changes of the recipe, listings, and hints for folders that are not runs."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from widthwise.config_io import differences, refusing
from widthwise.files import read_json_mapping
from widthwise.mistakes import shortened
from widthwise.records.analysis import TokenWidths, VirtualWidth
from widthwise.records.cost import CostSummary
from widthwise.records.evaluation import Evaluation, TaskResult
from widthwise.records.record import FiniteOrNone, Number, Record, StoredRecord
from widthwise.records.resizing import Certificate, Shrinking


class GrowthRecord(Record):
    """The replacement of a run's model during the run, usually by a larger one."""

    event: Literal["growth", "grown"] = "growth"
    """growth: by the recipe, during the run; grown: by `grow`, before the first step of the run."""
    step: int
    """Number of steps before the growth."""
    tokens: int
    training_flops: Number
    """Training FLOPs of all steps before the growth."""
    params_before: Number
    params_after: Number
    loss_before: FiniteOrNone = None
    """Held-out loss just before the growth, in nats per token."""
    loss_after: FiniteOrNone = None


class DataCounts(Record):
    """Size of the text of a run, over all sources of a mixture. Bytes are of UTF-8."""

    n_train_tokens: int
    n_train_bytes: int
    n_held_out_tokens: int
    """All held-out tokens; the loss is measured on the first `train.validation_tokens`."""
    n_held_out_bytes: int


class TextResult(Record):
    """The loss on a text at the end of a run, in nats per token and other units."""

    loss: FiniteOrNone
    perplexity: FiniteOrNone = None
    bits_per_byte: FiniteOrNone = None
    window_losses: Sequence[float] = ()
    """Mean loss of every window of the text, in order, for paired comparisons."""


class RunResult(StoredRecord):
    """A finished run. Optional fields are absent for some kinds of models."""

    file_name: ClassVar[str] = "result.json"

    status: str = "finished"
    other_cpu_share: FiniteOrNone = None
    """Mean share of the machine's CPUs that other processes used during the run."""
    cost: CostSummary
    """Sizes and costs of the last model."""
    name: str | None = None
    seed: int | None = None
    steps: int | None = None
    tokens: int | None = None
    """Tokens of all steps, including the run that this run continues."""
    train_loss: FiniteOrNone = None
    """Mean of the last `loss_window_steps` steps."""
    loss_window_steps: int | None = None
    val_loss: FiniteOrNone = None
    """Held-out loss in nats per token."""
    val_perplexity: FiniteOrNone = None
    val_bits_per_byte: FiniteOrNone = None
    val_window_losses: Sequence[float] = ()
    """Mean loss of every held-out window, in order, for paired comparisons."""
    data: DataCounts | None = None
    val_losses: Mapping[str, float] | None = None
    """Mean held-out loss of each source of a mixture; None for a single source."""
    val_texts: Mapping[str, TextResult] | None = None
    """Name in `validation.texts` of the recipe -> result at the end; None without such texts."""
    val_tasks: Mapping[str, TaskResult] | None = None
    """Name in `validation.tasks` of the recipe -> result at the end; None without such tasks."""
    tokens_per_second: FiniteOrNone = None
    """Median over the training records of the last model, to exclude start-up and compilation."""
    wall_seconds: FiniteOrNone = None
    peak_memory_bytes: int | None = None
    """Peak memory of the run: of tensors on a GPU, otherwise of the whole process. None if unknown."""
    training_flops: FiniteOrNone = None
    """Training FLOPs of all passes over tokens, including the run that this run continues."""
    pflops_days: FiniteOrNone = None
    token_widths: TokenWidths | None = None
    """None for a model without dynamic-width layers."""
    expert_loads: Sequence[Sequence[float] | None] | None = None
    """For each layer, the share of the routed tokens of every expert; None if no layer routes."""
    val_mtp_losses: Sequence[float] | None = None
    """Held-out losses of multi-token prediction, nearest token first; None without it."""
    val_mtp_window_losses: Sequence[Sequence[float]] = ()
    """For each of `val_mtp_losses`, the mean loss of every held-out window."""
    virtual_width: VirtualWidth | None = None
    """None for a model without hyper-connections."""
    growth: Sequence[GrowthRecord] = ()
    """Growths in order of time; empty if the model never grew."""
    notes: Sequence[str] = ()
    doubts: Sequence[str] = ()
    """Reasons to doubt the last loss: a spike, or an earlier validation that was better."""

    @property
    def n_val_tokens(self) -> int | None:
        """Number of held-out tokens of `val_loss`; None if the windows or their length are unknown."""
        n_tokens = len(self.val_window_losses) * (self.cost.seq_len or 0)
        return n_tokens or None


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
    """The cut that made the run."""
    evaluations: Sequence[Evaluation] = ()
    """Results of `widthwise eval`, by step."""
    samples: Sequence[Mapping[str, Any]] = ()
    """Text generated at validations, if `train.sample` is set."""

    @property
    def name(self) -> str:
        return (self.result and self.result.name) or Path(self.path).name or self.path


PROCESS_KEYS = ("train.shards", "train.hang_seconds")
"""Keys of a recipe that configure the processes and do not change the results of a run."""
EDITABLE_KEYS = ("data.", *PROCESS_KEYS)
"""Beginnings of keys that a user may edit in config.yaml. Data may move because they have checksums."""
EDITABLE_FILE_KEYS = re.compile(r"validation\.(texts\.[^.]+\.source|tasks\.[^.]+\.file)")
"""Further editable keys: files of texts and tasks, which have checksums."""
FIXED_DATA_KEYS = ("data.mask_documents", "data.reset_positions")
"""Keys of the data section that must not be edited, because they determine how data are read."""
RESUME_KEYS = (
    "train.steps",
    "train.log_every",
    "train.norms_every",
    "train.validate_every",
    "train.sample",
    "train.checkpoint_every",
    "train.checkpoint_in_background",
    "train.keep_last",
    "train.keep_every",
    "train.max_loss_rise",
    *PROCESS_KEYS,
)
"""Keys that `resume` may change: length, logging and checkpoints of the run."""


TrainKey = Annotated[str, pydantic.Field(pattern=r"^train\.\w+$")]
"""Key of the section train of a recipe, with the name of the section."""


class Continuation(Record):
    """A change of settings when a run was resumed."""

    after_step: int
    before: Mapping[TrainKey, Any]
    """Key of the recipe -> old value."""
    after: Mapping[TrainKey, Any]
    """The same keys -> new values."""

    @property
    def description(self) -> str:
        """The changes as text, such as `train.steps from 9 to 18, train.log_every from 4 to 1`."""
        old = self.before
        changes = (f"{key} from {shortened(old.get(key))} to {shortened(new)}" for key, new in self.after.items())
        return ", ".join(changes)


def with_continuations(recipe: Any, continuations: Iterable[Continuation]) -> Any:
    """Return a recipe, as plain data, with the changes of all continuations. Raises UserError for another value."""
    for continuation in continuations:
        changes = {key.removeprefix("train."): value for key, value in continuation.after.items()}
        with refusing("the recipe has no section train", TypeError, KeyError):
            recipe = {**recipe, "train": {**recipe["train"], **changes}}
    return recipe


def describe_changes(before: Any, after: Any, skip_allowed: bool = False) -> list[str]:
    """Return the differences between two recipes as text.

    skip_allowed: omit changes that a user may make in config.yaml.
    """
    changes = list[str]()
    for key, old, new in differences(before, after):
        is_allowed = key.startswith(EDITABLE_KEYS) or EDITABLE_FILE_KEYS.fullmatch(key) is not None
        if key in FIXED_DATA_KEYS and (old or new):  # a missing key is the default, False
            is_allowed = False
        if not (skip_allowed and is_allowed):
            changes.append(f"{key} from {shortened(old)} to {shortened(new)}")
    return changes


RunState = Literal["running", "finished", "ready", "stopped", "failed", "waiting", "unreadable"]


class ListedRun(Record):
    """One run in a listing. Unknown values are None."""

    path: str
    state: RunState
    """running: a process has locked the folder. ready: imported or saved weights, and no step yet. stopped: not
    finished, and no process has locked the folder. failed: ended by an error, such as a diverged loss. waiting: not yet
    started by its experiment. unreadable: broken files."""
    step: int | None = None
    """Step of the last record."""
    n_steps: int | None = None
    loss: FiniteOrNone = None
    """Training loss of the last training record."""
    val_loss: FiniteOrNone = None
    """Held-out loss of the last validation."""
    tokens_per_second: FiniteOrNone = None
    age_seconds: FiniteOrNone = None
    """Time since the last record."""
    n_bytes: int | None = None
    """Size of all files."""
    reason: str | None = None


class PlannedRun(Record):
    """One run of an experiment, started or not."""

    path: str
    """Path inside the folder of the experiment."""
    variant: str
    seed: int
    n_steps: int


class PlannedRuns(StoredRecord):
    """`planned.json`: all runs of an experiment, written before the first run."""

    file_name: ClassVar[str] = "planned.json"

    title: str
    command: str
    baseline: str | None = None
    runs: Sequence[PlannedRun]
    """Runs in the order of training."""


def folder_hint(path: Path) -> str:
    """Return the end of an error about a path that is not a run directory, `; it is ...`; "" without a hint."""
    if not path.exists():
        runs = [str(config.parent) for config in path.parent.glob("*/config.yaml")]
        nearest = difflib.get_close_matches(str(path), runs, n=1)
        return "; there is no such folder" + "".join(f", did you mean {run}?" for run in nearest)
    if path.is_file():
        if path.suffix == ".yaml" and path.name != "config.yaml":
            return f"; it is a recipe: `widthwise train {path}` begins a run"
        return "; it is a file"
    for folder in (path / "runs", path):
        if any(folder.glob("*/config.yaml")):
            return f"; it holds several runs, which are {folder}/NAME"
    if (path / "config.json").is_file() and "model_type" in read_json_mapping(path / "config.json"):
        return f"; it is a Hugging Face folder: `widthwise import {path} RUN` makes a run of it"
    return ""
