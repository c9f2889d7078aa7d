"""The folder of a run's checkpoints: which there are, which are whole, which are kept."""

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from widthwise.config_io import Config, UserError, parse
from widthwise.files import FileRecord
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.record import SealedFile
from widthwise.run_dir import Seal
from widthwise.sizes import Count
from widthwise.training.processes import ALONE, Processes
from widthwise.training.saved_tensors import file_names

FORMAT_VERSION = 1
MODEL = "model"
OPTIMIZER = "optimizer"
RNG = "rng.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"


def files(n_shards: int = 1) -> list[str]:
    """The files of a checkpoint besides its manifest. n_shards: over how many processes the model was divided."""
    return [*file_names(MODEL, n_shards), *file_names(OPTIMIZER, n_shards), RNG, STATE]


class CheckpointManifest(Config):
    """The content of manifest.json."""

    format_version: int
    step: int
    n_shards: Count = 1
    files: dict[str, FileRecord]
    seal: Seal | None = None
    """The run that it belongs to; None where it was saved outside of one."""

    def content(self) -> str:
        """The content of the file: what equals its default is left out."""
        return SealedFile.content(self.model_dump(exclude_none=True, exclude_defaults=True))


@dataclass(frozen=True)
class Damage:
    """A checkpoint that cannot be used, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"checkpoint {self.path.name} is damaged ({self.reason})"


def checkpoint_paths(folder: Path) -> list[Path]:
    """The finished checkpoints of a run's `checkpoints` folder, newest first.

    Only what `save` names is one: a copy under another name is its owner's, neither used nor deleted.
    """
    found = [path for path in folder.glob("step_*") if path.is_dir() and name_of(step_of(path)) == path.name]
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, from its name; -1 for another name."""
    digits = path.name.removeprefix("step_")
    return int(digits) if digits.isdecimal() and len(digits) < 20 else -1


def latest_valid(folder: Path, processes: Processes = ALONE) -> tuple[Path | None, list[Damage]]:
    """The newest checkpoint whose files are what its manifest says, or None; and the newer ones that are not.

    Each of several processes reads its part of the files.
    """
    damages: list[Damage] = []
    for path in processes.on_rank_zero(lambda: checkpoint_paths(folder)):
        found = processes.all_gather(lambda path=path: find_damage(path, processes.rank, processes.world_size))
        reason = next((each for each in found if each is not None), None)
        if reason is None:
            return path, damages
        damages.append(Damage(path, reason))
    return None, damages


def manifest_of(path: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint. Raises UserError where there is none or it is damaged."""
    return parse(CheckpointManifest, SealedFile(path / MANIFEST).read(), f"{path / MANIFEST}")


def find_damage(path: Path, part: int = 0, n_parts: int = 1) -> str | None:
    """Return the damage of a checkpoint, or None. Reads every byte of every n_parts-th file, from number `part` on."""
    try:
        manifest = manifest_of(path)
        identity = (manifest.format_version, name_of(manifest.step), set(manifest.files))
        if identity != (FORMAT_VERSION, path.name, set(files(manifest.n_shards))):
            return f"{MANIFEST} is not of this checkpoint, or of another version"
        for name, record in list(manifest.files.items())[part::n_parts]:
            found = FileRecord.of(path / name)
            if found.n_bytes != record.n_bytes:
                return f"{name} has {found.n_bytes} bytes instead of {record.n_bytes}"
            if found.sha256 != record.sha256:
                return f"{name} does not match its checksum"
    except UserError as error:
        return str(error).removeprefix(f"{path}/")
    return None


def remove_partial(folder: Path) -> None:
    """Deletes what killed processes left half-written. Only for the holder of the run's lock."""
    for path in folder.glob(".step_*.partial"):
        if path == partial_of(folder, step_of(Path(path.stem[1:]))):
            shutil.rmtree(path, ignore_errors=True)


def name_of(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step_{step:08d}"


def partial_of(folder: Path, step: int) -> Path:
    """Return the folder in which it is written before it is renamed."""
    return folder / f".{name_of(step)}.partial"


@dataclass(frozen=True)
class Retention:
    """Retention of the good checkpoints of a run."""

    last: int
    """Number of the newest that are kept."""
    every: int | None = None
    """Steps whose multiples are kept for good."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """Held-out losses by step, of those that may be the best; with some, the best that is still there is kept."""

    @classmethod
    def of(cls, config: TrainConfig, held_out_losses: Mapping[int, float]) -> Self:
        """The rules of a recipe. held_out_losses: by step, of all validations on record.

        What a signal left between two checkpoints is never the best: a run that was not stopped does not have it.
        """
        every = config.checkpoint_every
        candidates = {
            step: loss
            for step, loss in held_out_losses.items()
            if config.keep_best and every is not None and (step % every == 0 or step == config.steps)
        }
        return cls(config.keep_last, config.keep_every, candidates)

    def kept(self, steps: Sequence[int]) -> set[int]:
        """The steps of those kept. steps: of all good ones, newest first."""
        kept = set(steps[: self.last])
        kept |= {step for step in steps if self.every is not None and step % self.every == 0}
        best = self.best(steps)
        return kept if best is None else kept | {best}

    def best(self, steps: Iterable[int]) -> int | None:
        """The step with the lowest loss, the first of equal ones; None where none of them may be the best."""
        known = [(self.losses[step], step) for step in steps if math.isfinite(self.losses.get(step, math.nan))]
        return min(known)[1] if known else None


def prune(folder: Path, rules: Retention, damages: Iterable[Damage] = (), recipe: str | None = None) -> None:
    """Deletes the good checkpoints that no rule keeps. Call when the newest is complete.

    damages: what `latest_valid` found; those are deleted too, unless they have been written anew since. recipe: that of
    the seals of this run; checkpoints sealed with another stay.
    """
    own = [path for path in checkpoint_paths(folder) if _may_go(path, recipe)]
    damaged = {damage.path for damage in damages if damage.path in own and find_damage(damage.path)}
    good = [path for path in own if path not in damaged]
    kept = rules.kept([step_of(path) for path in good])
    for path in (*(path for path in good if step_of(path) not in kept), *damaged):
        shutil.rmtree(path, ignore_errors=True)


def _may_go(path: Path, recipe: str | None) -> bool:
    """Return True for a checkpoint of this run, or one too damaged or too old to tell."""
    try:
        seal = manifest_of(path).seal
    except UserError:
        return True
    return recipe is None or seal is None or seal.recipe == recipe
