"""Checkpoints: a folder per step that appears whole or not at all, and every byte of which has a checksum.

checkpoints/step_00000100/
    model.safetensors       weights by parameter name, fp32
    optimizer.safetensors   PARAMETER.exp_avg, PARAMETER.exp_avg_sq, PARAMETER.step; of Muon PARAMETER.momentum_buffer
    rng.safetensors         states of torch's generators
    state.json              where the run stands (training/state.py)
    manifest.json           size and sha256 of the files above, and the seal of the run, written last
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from widthwise.config_io import Config, UserError, parse
from widthwise.files import FileRecord, fsync_file, fsync_folder, read_json, read_json_mapping
from widthwise.model.decoder import Decoder
from widthwise.recipe.optimizer import state_shapes
from widthwise.run_dir import Seal
from widthwise.training.state import RunState

FORMAT_VERSION = 1
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
RNG = "rng.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"
FILES = (MODEL, OPTIMIZER, RNG, STATE)


class CheckpointManifest(Config):
    """The content of manifest.json."""

    format_version: int
    step: int
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


def latest_valid(folder: Path) -> tuple[Path | None, list[Damage]]:
    """The newest checkpoint whose files are what its manifest says, or None; and the newer ones that are not."""
    damages: list[Damage] = []
    for path in checkpoint_paths(folder):
        reason = find_damage(path)
        if reason is None:
            return path, damages
        damages.append(Damage(path, reason))
    return None, damages


def _manifest(path: Path) -> CheckpointManifest:
    return parse(CheckpointManifest, read_json(path / MANIFEST), f"{path / MANIFEST}")


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None. Reads every byte."""
    try:
        manifest = _manifest(path)
        identity = (manifest.format_version, _name(manifest.step), set(manifest.files))
        if identity != (FORMAT_VERSION, path.name, set(FILES)):
            return f"{MANIFEST} is not of this checkpoint, or of another version"
        for name, record in manifest.files.items():
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


def save(
    folder: Path,
    step: int,
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    seal: Seal | None = None,
) -> Path:
    """Writes the checkpoint of a step; when this returns, it survives a power cut. Raises UserError on a full disk.

    A checkpoint of the same step, which can only be a damaged one, is replaced. Earlier checkpoints are not touched.
    """
    path, partial = folder / _name(step), _partial(folder, step)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _save_tensors(_weights(model), partial / MODEL)
        _save_tensors(_optimizer_tensors(model, optimizer), partial / OPTIMIZER)
        _save_tensors(_rng_states(), partial / RNG)
        _save_json(state, partial / STATE)
        manifest = CheckpointManifest(
            format_version=FORMAT_VERSION,
            step=step,
            files={name: FileRecord.of(partial / name) for name in FILES},
            seal=seal,
        )
        _save_json(manifest.model_dump(exclude_none=True), partial / MANIFEST)
        fsync_folder(partial)
        if path.exists():
            shutil.rmtree(path)
        os.replace(partial, path)
        fsync_folder(folder)
    except (OSError, SafetensorError, UserError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be written ({reason}); the checkpoints before it are intact") from None
    return path


def load_weights(path: Path, model: Decoder) -> None:
    """Fills the model from a valid checkpoint. Raises UserError where they do not fit."""
    saved = read_weights(path, model)
    for name, target in _weights(model).items():
        target.copy_(saved[name])


def read_weights(path: Path, model: Decoder) -> dict[str, Tensor]:
    """The weights of a valid checkpoint. Raises UserError where they do not fit the model, which may have none yet."""
    saved = _load_tensors(path / MODEL)
    _check_shapes(saved, {name: tensor.shape for name, tensor in _weights(model).items()}, path / MODEL)
    return saved


def load(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> RunState:
    """Fills model, optimizer and random generators from a valid checkpoint and returns where the run stood.

    Raises UserError where what it holds is of another model, optimizer or step.
    """
    load_weights(path, model)
    _load_optimizer(path / OPTIMIZER, model, optimizer)
    _load_rng(path / RNG)
    state = RunState.read(read_json_mapping(path / STATE), f"{path / STATE}")
    if state.step != step_of(path):
        raise UserError(f"{path / STATE}: step: got {state.step}; must be {step_of(path)}")
    return state


def _load_optimizer(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
    """Fills the optimizer. Each parameter must have its whole state in the file, or, like a new one, none of it."""
    parameters, shapes, saved = dict(model.named_parameters()), state_shapes(optimizer), _load_tensors(path)
    begun = {key.rpartition(".")[0] for key in saved} & parameters.keys()
    wanted = {f"{name}.{part}": shape for name in begun for part, shape in shapes[parameters[name]].items()}
    _check_shapes(saved, wanted, path)
    for key, value in saved.items():
        name, _, part = key.rpartition(".")
        # Copied, because a tensor may lie anywhere in a mapped file, and kernels may round differently by alignment.
        optimizer.state[parameters[name]][part] = value.to(parameters[name].device, copy=True)


def _load_rng(path: Path) -> None:
    states = _load_tensors(path)
    try:
        torch.set_rng_state(states["cpu"].clone())
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"].clone())
    except (KeyError, TypeError, RuntimeError) as error:
        raise UserError(f"{path}: holds no state of torch's generators ({error})") from None


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def _check_shapes(found: Mapping[str, Tensor], wanted: Mapping[str, torch.Size], path: Path) -> None:
    for name in wanted.keys() | found.keys():
        shapes = [tuple(found[name].shape) if name in found else None, tuple(wanted[name]) if name in wanted else None]
        if shapes[0] != shapes[1]:
            raise UserError(f"{path}: {name} has shape {shapes[0]}; must be {shapes[1]}")
        if not found[name].is_floating_point():
            raise UserError(f"{path}: {name} is of type {found[name].dtype}; must be a float")


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


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    fsync_file(path)


def _save_json(data: Any, path: Path) -> None:
    path.write_text(json.dumps(data) + "\n")
    fsync_file(path)
