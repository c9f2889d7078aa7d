"""The folder of a run's checkpoints: their tensors, listing, validation and retention.

Named tensors are in one safetensors file, or in one file per shard with some rows of every tensor:

model.safetensors                       the whole model
model-00001-of-00002.safetensors, ...   the rows of the first of two shards (see `model.shards.rows_of_shard`), ...

Scalars (0-d tensors) are in the files of all shards.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from widthwise.config_io import Config, parse
from widthwise.files import FileRecord, fsync, with_default_permissions
from widthwise.mistakes import UserError
from widthwise.model.shards import rows_of_shard
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.record import SealedFile
from widthwise.run_dir import Seal
from widthwise.sizes import Count
from widthwise.training.processes import ALONE, Processes

FORMAT_VERSION = 1
MODEL = "model"
OPTIMIZER = "optimizer"
RNG = "rng.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"
FLOATS = ("F64", "F32", "F16", "BF16")
"""Allowed dtypes, by their safetensors names."""


def file_name(stem: str, shard: int = 0, n_shards: int = 1) -> str:
    """Return the name of the tensor file of a shard. stem: MODEL or OPTIMIZER; shard: counted from 0."""
    return f"{stem}.safetensors" if n_shards == 1 else f"{stem}-{shard + 1:05d}-of-{n_shards:05d}.safetensors"


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a file that survives a power cut once this returns. Raises OSError, also on a full disk."""
    with with_default_permissions(path):
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        except SafetensorError as error:
            raise OSError(str(error)) from None
    fsync(path)


class SavedTensors:
    """Tensors of a checkpoint by name, whole or some of their rows, from the files of all shards. See `opened`."""

    def __init__(self, paths: Sequence[Path], files: list[Any]):
        """files: opened by safetensors, one for each path. Raises UserError if files have different names."""
        self.path = paths[0]
        self._files = files
        self.names = set(files[0].keys())
        for path, file in zip(paths, files):
            unmatched = self.names ^ set(file.keys())
            if unmatched:
                raise UserError(f"{path}: holds other tensors than {self.path.name}, such as {min(unmatched)}")

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, stem: str, n_shards: int) -> Iterator["SavedTensors"]:
        """Open the tensors of all shards for a `with` block. Raises UserError if a file cannot be read."""
        paths = [folder / file_name(stem, shard, n_shards) for shard in range(n_shards)]
        path = paths[0]
        with ExitStack() as stack:
            try:
                files = []
                for path in paths:
                    files.append(stack.enter_context(safe_open(path, framework="pt")))
                yield cls(paths, files)
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path}: cannot be read ({error})") from None

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a whole tensor. Raises UserError if it is not a float, or if shards disagree."""
        parts = [file.get_slice(name) for file in self._files]
        shapes = [part.get_shape() for part in parts]
        types = [part.get_dtype() for part in parts]
        for dtype in types:
            if dtype not in FLOATS or dtype != types[0]:
                raise UserError(f"{self.path}: {name} is of type {dtype}; must be a float, the same in every shard")
        is_scalar = not shapes[0]
        row_shape = shapes[0][1:]
        n_rows = sum(shape[0] for shape in shapes if shape)
        for shard, shape in enumerate(shapes):
            rows = rows_of_shard(n_rows, shard, len(shapes))
            if shape != ([] if is_scalar else [rows.stop - rows.start, *row_shape]):
                raise UserError(f"{self.path}: {name} has shape {tuple(shape)} in shard {shard + 1} of {len(shapes)}")
        return torch.Size([] if is_scalar else [n_rows, *row_shape])

    def check(self, expected: Mapping[str, torch.Size]) -> None:
        """Raise UserError if names or shapes differ from the expected ones."""
        for name in sorted(expected.keys() | self.names):
            saved_shape = tuple(self.shape(name)) if name in self.names else None
            shape = tuple(expected[name]) if name in expected else None
            if saved_shape != shape:
                raise UserError(f"{self.path}: {name} has shape {saved_shape}; must be {shape}")

    def whole(self, name: str) -> Tensor:
        """Return a copy of a whole tensor."""
        return self.rows(name, slice(None))

    def rows(self, name: str, rows: slice) -> Tensor:
        """Return a copy of some rows of a tensor, read from the files that hold them; a scalar is returned whole."""
        shape = self.shape(name)
        if not shape:
            return self._files[0].get_tensor(name)
        first, end, _ = rows.indices(shape[0])
        parts = []
        for shard, file in enumerate(self._files):
            shard_rows = rows_of_shard(shape[0], shard, len(self._files))
            start = max(first, shard_rows.start)
            stop = min(end, shard_rows.stop)
            if start < stop:
                parts.append(file.get_slice(name)[start - shard_rows.start : stop - shard_rows.start])
        return torch.cat(parts) if parts else self._files[0].get_slice(name)[0:0]


def file_names(n_shards: int = 1) -> list[str]:
    """Return the names of the files of a checkpoint except its manifest. n_shards: shards of the model."""
    tensors = [file_name(stem, shard, n_shards) for stem in (MODEL, OPTIMIZER) for shard in range(n_shards)]
    return [*tensors, RNG, STATE]


class CheckpointManifest(Config):
    """The content of manifest.json."""

    format_version: int
    step: int
    n_shards: Count = 1
    files: dict[str, FileRecord]
    seal: Seal | None = None
    """The run of the checkpoint; None if it was saved outside a run."""

    def content(self) -> str:
        """Return the content of the file, without values that equal their defaults."""
        return SealedFile.content(self.model_dump(exclude_none=True, exclude_defaults=True))


@dataclass(frozen=True)
class Damage:
    """A damaged checkpoint, with the reason."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"checkpoint {self.path.name} is damaged ({self.reason})"


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return the finished checkpoints of a run's `checkpoints` folder, newest first.

    Folders with other names, such as a user's copies, are neither used nor deleted.
    """
    paths = [path for path in folder.glob("step_*") if path.is_dir() and folder_name(step_of(path)) == path.name]
    return sorted(paths, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, from its name; -1 for another name."""
    digits = path.name.removeprefix("step_")
    return int(digits) if digits.isdecimal() and len(digits) < 20 else -1


def latest_valid(folder: Path, processes: Processes = ALONE) -> tuple[Path | None, list[Damage]]:
    """Return the newest checkpoint whose files match its manifest, or None, and the damage of the newer ones.

    Called by all processes; each of them checks some of the files.
    """
    damages: list[Damage] = []
    for path in processes.on_rank_zero(lambda: checkpoint_paths(folder)):
        gathered = processes.all_gather(lambda path=path: find_damage(path, processes.rank, processes.world_size))
        reasons = [reason for reason in gathered if reason is not None]
        if not reasons:
            return path, damages
        damages.append(Damage(path, reasons[0]))
    return None, damages


def manifest_of(path: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint. Raises UserError where there is none or it is damaged."""
    return parse(CheckpointManifest, SealedFile(path / MANIFEST).read(), f"{path / MANIFEST}")


def find_damage(path: Path, part: int = 0, n_parts: int = 1) -> str | None:
    """Return the reason why a checkpoint is damaged, or None.

    Reads the manifest and one of n_parts of the files: those with the indices part, part + n_parts, ...
    """
    try:
        manifest = manifest_of(path)
        identity = (manifest.format_version, folder_name(manifest.step), set(manifest.files))
        if identity != (FORMAT_VERSION, path.name, set(file_names(manifest.n_shards))):
            return f"{MANIFEST} is not of this checkpoint, or of another version"
        for name, record in list(manifest.files.items())[part::n_parts]:
            actual = FileRecord.of(path / name)
            if actual.n_bytes != record.n_bytes:
                return f"{name} has {actual.n_bytes} bytes instead of {record.n_bytes}"
            if actual.sha256 != record.sha256:
                return f"{name} does not match its checksum"
    except UserError as error:
        return str(error).removeprefix(f"{path}/")
    return None


def remove_partial(folder: Path) -> None:
    """Delete the partial checkpoints of killed processes. Only for the holder of the run's lock."""
    for path in folder.glob(".step_*.partial"):
        step = step_of(Path(path.stem.removeprefix(".")))
        if path == partial_folder(folder, step):  # otherwise it is a user's folder
            shutil.rmtree(path, ignore_errors=True)


def folder_name(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step_{step:08d}"


def partial_folder(folder: Path, step: int) -> Path:
    """Return the folder in which a checkpoint is written before it is renamed."""
    return folder / f".{folder_name(step)}.partial"


def kept_steps(steps: Sequence[int], config: TrainConfig) -> set[int]:
    """Return the steps of the checkpoints to keep. steps: of all good checkpoints, newest first."""
    every = config.keep_every
    return {*steps[: config.keep_last], *(step for step in steps if every is not None and step % every == 0)}


def prune(folder: Path, config: TrainConfig, damages: Iterable[Damage] = (), recipe: str | None = None) -> None:
    """Delete the good checkpoints that no rule keeps. Call when the newest is complete.

    damages: from `latest_valid`; these checkpoints are deleted too, unless they were rewritten since. recipe: sha256
    of the run's recipe; checkpoints whose seal has another one stay. None: any recipe.
    """
    candidates = []
    for path in checkpoint_paths(folder):
        try:
            seal = manifest_of(path).seal
        except UserError:  # damaged
            seal = None
        if recipe is None or seal is None or seal.recipe == recipe:
            candidates.append(path)
    damaged = {damage.path for damage in damages if damage.path in candidates and find_damage(damage.path)}
    steps_to_keep = kept_steps([step_of(path) for path in candidates if path not in damaged], config)
    for path in candidates:
        if path in damaged or step_of(path) not in steps_to_keep:
            shutil.rmtree(path, ignore_errors=True)
