"""Checkpoints: a folder per step, written atomically, with a checksum of every file.

checkpoints/step_00000100/
    model.safetensors       weights by parameter name, fp32; at step 0 of a cut model in bf16 if it was stored so
    optimizer.safetensors   of AdamW PARAMETER.exp_avg, PARAMETER.exp_avg_sq, PARAMETER.step; of Muon
                            PARAMETER.momentum_buffer. With n shards, model and optimizer have n files each instead
                            (training/checkpoint_folder.py).
    rng.safetensors         states of torch's generators
    state.json              the state of the run (training/state.py)
    manifest.json           size and sha256 of the files above, and the seal of the run, written last
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._pytree import tree_map_only

from widthwise.config_io import parse, refusing
from widthwise.files import FileRecord, fsync, read_json_mapping
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder
from widthwise.model.shards import held, held_rows, with_rows
from widthwise.recipe.optimizers import state_shapes
from widthwise.run_dir import Seal
from widthwise.training.checkpoint_folder import (
    FORMAT_VERSION,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STATE,
    CheckpointManifest,
    SavedTensors,
    checkpoint_paths,
    file_name,
    folder_name,
    manifest_of,
    partial_folder,
    step_of,
    write_tensors,
)
from widthwise.training.processes import ALONE, Processes
from widthwise.training.state import RunState

Snapshot = dict[str, dict[str, Tensor]]
"""File name -> tensors by name: all tensors that one rank writes into a checkpoint."""


def take_snapshot(model: Decoder, optimizer: torch.optim.Optimizer, processes: Processes = ALONE) -> Snapshot:
    """Return the current tensors, which share the memory of the model; empty if another rank writes this shard."""
    if processes.rank >= processes.n_shards:  # the first replica of the model writes
        return {}
    shard = (processes.shard, processes.n_shards)
    parameters = dict(model.named_parameters())  # a tied one has the first of its names
    weights = {name: held(parameter.detach()) for name, parameter in parameters.items()}
    snapshot: Snapshot = {file_name(MODEL, *shard): weights}
    snapshot[file_name(OPTIMIZER, *shard)] = {
        f"{name}.{part}": held(value)
        for name, parameter in parameters.items()
        for part, value in optimizer.state[parameter].items()
    }
    if processes.is_rank_zero:
        snapshot[RNG] = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            snapshot[RNG]["cuda"] = torch.cuda.get_rng_state()
    return snapshot


def write(
    folder: Path,
    step: int,
    snapshot: Snapshot,
    state: Mapping[str, Any],
    seal: Seal | None = None,
    processes: Processes = ALONE,
) -> Path:
    """Write the checkpoint of a step; once this returns, it survives a power cut. Called by all processes.

    A checkpoint of the same step, which can only be a damaged one, is replaced. Earlier checkpoints are not touched.
    Raises UserError in all processes if one of them cannot write, as on a full disk.
    """
    path = folder / folder_name(step)
    partial = partial_folder(folder, step)

    records: dict[str, FileRecord] = {}

    def begin() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def write_snapshot() -> dict[str, FileRecord]:
        for name, tensors in snapshot.items():
            write_tensors(tensors, partial / name)
        return {name: FileRecord.of(partial / name) for name in snapshot}

    def finish() -> None:
        (partial / STATE).write_text(json.dumps(state) + "\n")
        fsync(partial / STATE)
        records[STATE] = FileRecord.of(partial / STATE)
        manifest = CheckpointManifest(
            format_version=FORMAT_VERSION, step=step, n_shards=processes.n_shards, files=records, seal=seal
        )
        (partial / MANIFEST).write_text(manifest.content())
        fsync(partial / MANIFEST)
        fsync(partial)
        if path.exists():
            shutil.rmtree(path)
        os.replace(partial, path)
        fsync(folder)

    try:
        processes.on_rank_zero(begin)
        for shard_records in processes.all_gather(write_snapshot):
            records.update(shard_records)
        processes.on_rank_zero(finish)
    except (OSError, UserError) as error:
        processes.on_rank_zero(lambda: shutil.rmtree(partial, ignore_errors=True))
        reason = getattr(error, "strerror", None) or error
        before = "; the checkpoints before it are intact; `resume` with a lower train.keep_last deletes some"
        intact = before if checkpoint_paths(folder) else ""
        raise processes.on_every_rank(UserError(f"{path}: cannot be written ({reason}){intact}")) from None
    return path


def load_weights(path: Path, model: Decoder) -> None:
    """Fill the rows of the model that this process holds. Raises UserError for other names or shapes.

    path: a valid checkpoint.
    """
    parameters = dict(model.named_parameters())
    with open_tensors(path, MODEL) as saved:
        saved.check({name: parameter.shape for name, parameter in parameters.items()})
        for name, parameter in parameters.items():
            held(parameter.detach()).copy_(saved.rows(name, held_rows(parameter)))


def read_weights(path: Path, model: Decoder) -> dict[str, Tensor]:
    """Return the weights of a valid checkpoint in fp32. Raises UserError for other names or shapes than the model's.

    model: may be on the meta device.
    """
    with open_tensors(path, MODEL) as saved:
        saved.check({name: parameter.shape for name, parameter in model.named_parameters()})
        return {name: saved.whole(name).float() for name in saved.names}


def load(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> RunState:
    """Fill model, optimizer and random generators from a valid checkpoint; return the state of the run.

    Raises UserError for a checkpoint of another model, optimizer or step.
    """
    load_weights(path, model)
    _load_optimizer(path, model, optimizer)
    errors = (KeyError, TypeError, RuntimeError, OSError, SafetensorError)
    with refusing(f"{path / RNG}: holds no state of torch's generators", *errors):
        rng_states = load_file(path / RNG)
        torch.set_rng_state(rng_states["cpu"].clone())
        if "cuda" in rng_states and torch.cuda.is_available():
            torch.cuda.set_rng_state(rng_states["cuda"].clone())
    state = parse(RunState, read_json_mapping(path / STATE), f"{path / STATE}")
    if state.step != step_of(path):
        raise UserError(f"{path / STATE}: step: got {state.step}; must be {step_of(path)}")
    return state


def _load_optimizer(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
    """Fill the optimizer. A parameter has its whole state in the file, or none if it was never updated.

    Raises UserError for other names or shapes.
    """
    parameters = dict(model.named_parameters())
    shapes = state_shapes(optimizer)
    with open_tensors(path, OPTIMIZER) as saved:
        updated = {key.rpartition(".")[0] for key in saved.names} & parameters.keys()
        saved.check({f"{name}.{part}": shape for name in updated for part, shape in shapes[parameters[name]].items()})
        for key in sorted(saved.names):
            name, _, part = key.rpartition(".")
            parameter = parameters[name]
            # Copied, because the alignment of a tensor in a mapped file may change how kernels round.
            value = saved.rows(key, held_rows(parameter)).to(parameter.device, copy=True)
            optimizer.state[parameter][part] = with_rows(parameter, value) if value.shape else value


def open_tensors(path: Path, stem: str) -> AbstractContextManager[SavedTensors]:
    """Open the tensors of a valid checkpoint for a `with` block. stem: MODEL or OPTIMIZER."""
    return SavedTensors.opened(path, stem, manifest_of(path).n_shards)


class Saver(AbstractContextManager["Saver"]):
    """Writes snapshots one after the other. At the end of its `with` block all of them are on disk."""

    def __init__(self, processes: Processes, in_background: bool):
        """in_background: copy each snapshot and write it in a thread."""
        self._thread = ThreadPoolExecutor(1, "checkpoint") if in_background else None
        self._processes = processes.for_background_thread() if in_background else processes
        self._pending: Future[None] | None = None

    def save(self, snapshot: Snapshot, write: Callable[[Snapshot, Processes], None]) -> None:
        """Call `write` on a snapshot after the previous one is written. Called by all processes for the same step.

        Raises the error of `write`; in the background, the error of the previous snapshot.
        """
        if self._thread is None:
            write(snapshot, self._processes)
            return
        self.wait()
        copied = tree_map_only(Tensor, lambda tensor: tensor.to("cpu", copy=True), snapshot)  # training changes it
        self._pending = self._thread.submit(write, copied, self._processes)

    def wait(self) -> None:
        """Wait until the last snapshot is written. Raises its error."""
        if self._pending is not None:
            self._pending.result()

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        if error[0] is None:
            self.wait()
