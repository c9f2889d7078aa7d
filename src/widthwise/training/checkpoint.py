"""Checkpoints: a folder per step that appears whole or not at all, and every byte of which has a checksum.

checkpoints/step_00000100/
    model.safetensors       weights by parameter name, fp32
    optimizer.safetensors   PARAMETER.exp_avg, PARAMETER.exp_avg_sq, PARAMETER.step; of Muon PARAMETER.momentum_buffer
                            of n processes that share a model, n files each instead (training/saved_tensors.py)
    rng.safetensors         states of torch's generators
    state.json              where the run stands (training/state.py)
    manifest.json           size and sha256 of the files above, and the seal of the run, written last
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from widthwise.config_io import Config, UserError, parse
from widthwise.files import FileRecord, fsync_file, fsync_folder, read_json, read_json_mapping
from widthwise.model.decoder import Decoder
from widthwise.model.shards import held, held_rows, with_rows
from widthwise.recipe.optimizer import state_shapes
from widthwise.run_dir import Seal
from widthwise.sizes import Count
from widthwise.training.processes import ALONE, Processes
from widthwise.training.saved_tensors import SavedTensors, file_name, file_names, write_tensors
from widthwise.training.state import RunState

T = TypeVar("T")

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
    """None in checkpoints of older versions."""


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
    found = [path for path in folder.glob("step_*") if path.is_dir() and _name(_step(path.name)) == path.name]
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The step of a finished checkpoint, from its name."""
    return _step(path.name)


def _step(name: str) -> int:
    """The step in a name; -1 if there is none."""
    digits = name.removeprefix("step_")
    return int(digits) if digits.isdecimal() and len(digits) < 20 else -1


def latest_valid(folder: Path, processes: Processes = ALONE) -> tuple[Path | None, list[Damage]]:
    """The newest checkpoint whose files are what its manifest says, or None; and the newer ones that are not.

    Of several processes each reads its part of the files.
    """
    damages: list[Damage] = []
    for path in processes.first(lambda: checkpoint_paths(folder)):
        found = processes.together(lambda path=path: find_damage(path, processes.rank, processes.world_size))
        reason = next((each for each in found if each is not None), None)
        if reason is None:
            return path, damages
        damages.append(Damage(path, reason))
    return None, damages


def _manifest(path: Path) -> CheckpointManifest:
    return parse(CheckpointManifest, read_json(path / MANIFEST), f"{path / MANIFEST}")


def find_damage(path: Path, part: int = 0, n_parts: int = 1) -> str | None:
    """What is wrong with a checkpoint, or None. Reads every byte of every n_parts-th file, from number `part` on."""
    try:
        manifest = _manifest(path)
        identity = (manifest.format_version, _name(manifest.step), set(manifest.files))
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


def seal_of(path: Path) -> Seal | None:
    """What a valid checkpoint belongs to, if it says so."""
    return _manifest(path).seal


@dataclass(frozen=True)
class Snapshot:
    """What one process contributes to a checkpoint."""

    tensors: dict[str, dict[str, Tensor]]
    """File -> tensors, empty of a process whose shard another one writes."""

    @classmethod
    def of(cls, model: Decoder, optimizer: torch.optim.Optimizer, processes: Processes = ALONE) -> "Snapshot":
        """The tensors of this moment; they share the memory of the model. See `copied`."""
        if not processes.writes_shards:
            return cls({})
        shard, n_shards = processes.shard, processes.n_shards
        tensors = {
            file_name(MODEL, shard, n_shards): {name: held(each.detach()) for name, each in _weights(model).items()},
            file_name(OPTIMIZER, shard, n_shards): {
                name: held(each) for name, each in _optimizer_tensors(model, optimizer).items()
            },
        }
        return cls(tensors | ({RNG: _rng_states()} if processes.is_first else {}))

    def copied(self) -> "Snapshot":
        """The same in memory of its own, on the CPU, which training no longer changes."""
        return Snapshot(
            {
                file: {name: each.to("cpu", copy=True) for name, each in tensors.items()}
                for file, tensors in self.tensors.items()
            }
        )

    def write(self, folder: Path) -> dict[str, FileRecord]:
        """Writes the files; returns what they must be. Raises OSError, SafetensorError and UserError."""
        for name, tensors in self.tensors.items():
            write_tensors(tensors, folder / name)
        return {name: FileRecord.of(folder / name) for name in self.tensors}


def save(
    folder: Path,
    step: int,
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    seal: Seal | None = None,
) -> Path:
    """Writes the checkpoint of a process that is alone. See `write`."""
    return write(folder, step, Snapshot.of(model, optimizer), state, seal, ALONE)


def write(
    folder: Path,
    step: int,
    snapshot: Snapshot,
    state: Mapping[str, Any],
    seal: Seal | None,
    processes: Processes,
) -> Path:
    """Writes the checkpoint of a step; when this returns, it survives a power cut. Called by all processes.

    A checkpoint of the same step, which can only be a damaged one, is replaced. Earlier checkpoints are not touched.
    Raises UserError in all processes where one of them cannot write, as on a full disk.
    """
    path, partial = folder / _name(step), _partial(folder, step)

    def begin() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def finish() -> None:
        _save_json(state, partial / STATE)
        records[STATE] = FileRecord.of(partial / STATE)
        manifest = CheckpointManifest(
            format_version=FORMAT_VERSION, step=step, n_shards=processes.n_shards, files=records, seal=seal
        )
        _save_json(manifest.model_dump(exclude_none=True, exclude_defaults=True), partial / MANIFEST)
        fsync_folder(partial)
        if path.exists():
            shutil.rmtree(path)
        os.replace(partial, path)
        fsync_folder(folder)

    try:
        processes.first(_refusing(begin))
        records: dict[str, FileRecord] = {}
        for written in processes.together(_refusing(lambda: snapshot.write(partial))):
            records |= written
        processes.first(_refusing(finish))
    except UserError as error:
        processes.first(lambda: shutil.rmtree(partial, ignore_errors=True))
        raise processes.said(
            UserError(f"{path}: cannot be written ({error}); the checkpoints before it are intact")
        ) from None
    return path


def _refusing(work: Callable[[], T]) -> Callable[[], T]:
    """The same work, which raises UserError where it cannot write."""

    def refusing() -> T:
        try:
            return work()
        except (OSError, SafetensorError) as error:
            raise UserError(str(getattr(error, "strerror", None) or error)) from None

    return refusing


def load_weights(path: Path, model: Decoder) -> None:
    """Fills the model from a valid checkpoint, each process its rows. Raises UserError where they do not fit."""
    targets = _weights(model)
    with _opened(path, MODEL) as saved:
        saved.check({name: tensor.shape for name, tensor in targets.items()})
        for name, target in targets.items():
            held(target).copy_(saved.rows(name, held_rows(target)))


def read_weights(path: Path, model: Decoder) -> dict[str, Tensor]:
    """The weights of a valid checkpoint. Raises UserError where they do not fit the model, which may have none yet."""
    with _opened(path, MODEL) as saved:
        saved.check({name: tensor.shape for name, tensor in _weights(model).items()})
        return {name: saved.whole(name) for name in saved.names}


def load(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> RunState:
    """Fills model, optimizer and random generators from a valid checkpoint and returns where the run stood.

    Raises UserError where what it holds is of another model, optimizer or step.
    """
    load_weights(path, model)
    _load_optimizer(path, model, optimizer)
    _load_rng(path)
    state = RunState.read(read_json_mapping(path / STATE), f"{path / STATE}")
    if state.step != step_of(path):
        raise UserError(f"{path / STATE}: step: got {state.step}; must be {step_of(path)}")
    return state


def _load_optimizer(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
    """Fills the optimizer. Each parameter must have its whole state in the file, or, like a new one, none of it."""
    parameters, shapes = dict(model.named_parameters()), state_shapes(optimizer)
    with _opened(path, OPTIMIZER) as saved:
        begun = {key.rpartition(".")[0] for key in saved.names} & parameters.keys()
        saved.check({f"{name}.{part}": shape for name in begun for part, shape in shapes[parameters[name]].items()})
        for key in saved.names:
            name, _, part = key.rpartition(".")
            parameter = parameters[name]
            has_rows = len(saved.shape(key)) > 0
            value = saved.rows(key, held_rows(parameter)) if has_rows else saved.whole(key)
            # Copied: a tensor may lie anywhere in a mapped file, and kernels may round differently by alignment.
            value = value.to(parameter.device, copy=True)
            optimizer.state[parameter][part] = with_rows(parameter, value) if has_rows else value


def _load_rng(path: Path) -> None:
    try:
        states = load_file(path / RNG)
        torch.set_rng_state(states["cpu"].clone())
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"].clone())
    except (KeyError, TypeError, RuntimeError, OSError, SafetensorError) as error:
        raise UserError(f"{path / RNG}: holds no state of torch's generators ({error})") from None


def _opened(path: Path, stem: str) -> AbstractContextManager[SavedTensors]:
    return SavedTensors.opened(path, stem, _manifest(path).n_shards)


def prune(folder: Path, keep_last: int, damages: Iterable[Damage] = ()) -> None:
    """Deletes all but the newest `keep_last` good checkpoints. Call when the newest is complete.

    damages: what `latest_valid` found; of those, checkpoints that have been written anew since are good.
    """
    damaged = {damage.path for damage in damages if find_damage(damage.path)}
    good = [path for path in checkpoint_paths(folder) if path not in damaged]
    for path in (*good[keep_last:], *damaged):
        shutil.rmtree(path, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Deletes what killed processes left half-written. Only for the holder of the run's lock."""
    for path in folder.glob(".step_*.partial"):
        if path == _partial(folder, _step(path.name[1:].removesuffix(".partial"))):
            shutil.rmtree(path, ignore_errors=True)


def _name(step: int) -> str:
    return f"step_{step:08d}"


def _partial(folder: Path, step: int) -> Path:
    return folder / f".{_name(step)}.partial"


def _weights(model: Decoder) -> dict[str, Tensor]:
    """Every tensor of the model once: tied ones under the first of their names."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensors.setdefault(id(tensor), (name, tensor))
    return {name: tensor.detach() for name, tensor in tensors.values()}


def _optimizer_tensors(model: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}.{part}": value
        for name, parameter in model.named_parameters()
        for part, value in optimizer.state[parameter].items()
    }


def _rng_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _save_json(data: Any, path: Path) -> None:
    path.write_text(json.dumps(data) + "\n")
    fsync_file(path)
