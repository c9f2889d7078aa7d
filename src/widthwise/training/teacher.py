"""The teacher of a run, whose predictions and hidden states a student learns in addition to its targets."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from widthwise.config_io import parse, refusing, to_data
from widthwise.files import FileRecord
from widthwise.kernels.linear_cross_entropy import Teacher
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.context import Stream
from widthwise.model.decoder import allocate, blueprint
from widthwise.model.eval_mode import evaluating
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.training import checkpoint
from widthwise.training.checkpoint_folder import MODEL, latest_valid, step_of, write_tensors
from widthwise.training.processes import ALONE, Processes

TEACHER_KEY = "teacher_step"
"""Key in `environment.json` of the step of the teacher's checkpoint; absent in a cut model before its training."""


ORIGIN = "origin.safetensors"
"""File of a run whose model was cut out of another model, and the key of its checksum in `environment.json`."""


class Origin(NamedTuple):
    """The parts of an old model from which a model was cut."""

    stream: Tensor
    """int64 (n,), the old coordinate of each coordinate of the stream; or fp32 (n_old, n), a rotation to columns."""
    layers: Tensor
    """int64 (n_layers,), the old layer of each layer, ascending."""
    first_rows: Tensor
    """fp32 (n_rows, n_columns), the first rows of the old embedding, which identify the old model."""

    @classmethod
    def read(cls, run: RunDir) -> "Origin | None":
        """Return the origin of the model of a run; None if it was not cut. Raises UserError for a damaged file."""
        path = run.path / ORIGIN
        record = run.environment().get(ORIGIN) if run.exists else None
        if record is None and not path.exists():
            return None
        if record is not None and FileRecord.of(path) != parse(FileRecord, record, f"{run.path}: {ORIGIN}"):
            raise UserError(f"{path}: was changed after it was written; cut the model again")
        with refusing(f"{path}: cannot be read", OSError, SafetensorError, TypeError):
            return cls(**load_file(path))

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the file into the folder of a run and return its entry of `environment.json`. Raises OSError."""
        write_tensors(self._asdict(), folder / ORIGIN)
        return {ORIGIN: to_data(FileRecord.of(folder / ORIGIN))}

    def is_of(self, config: ModelConfig) -> bool:
        """Return True if these can be parts of a model of this config."""
        n_old = config.n_coordinates
        is_turned = self.stream.dim() == 2 and self.stream.is_floating_point() and len(self.stream) == n_old
        ascends = _are_indices(self.layers, config.n_layers) and bool((self.layers.diff() > 0).all())
        has_rows = self.first_rows.dim() == 2 and self.first_rows.dtype == torch.float32
        return (is_turned or _are_indices(self.stream, n_old)) and ascends and has_rows


def _are_indices(tensor: Tensor, n: int) -> bool:
    """Return True for one or more whole numbers from 0 to n - 1."""
    is_vector = tensor.dim() == 1 and tensor.dtype == torch.int64 and len(tensor) > 0
    return is_vector and int(tensor.min()) >= 0 and int(tensor.max()) < n


class LoadedTeacher:
    """The teacher of a run, with the precision and the sharding of its student."""

    def __init__(self, recipe: Recipe, run: RunDir | None = None, processes: Processes = ALONE):
        """Load the teacher that a recipe names. Called by all processes.

        run: of the student, or None for a student with random weights. Raises UserError if the teacher has no good
        checkpoint, or if its hidden states do not correspond to the student's.
        """
        assert recipe.train.distill is not None
        self._config = recipe.train.distill
        source = RunDir(self._config.teacher)
        path, damages = latest_valid(source.checkpoints, processes)
        if path is None:
            reasons = "; ".join(map(str, damages)) or "nothing was saved yet"
            error = UserError(f"train.distill.teacher: {source.checkpoints}: no checkpoint to load ({reasons})")
            raise processes.on_every_rank(error)
        self.step = step_of(path)
        processes.all_gather(lambda: self._load(recipe, source, path, run, processes))

    def _load(self, recipe: Recipe, source: RunDir, path: Path, run: RunDir | None, processes: Processes) -> None:
        self._model = blueprint(saved_recipe(source).model_at(self.step)).requires_grad_(False)
        self._layers: list[int] = []
        """The layers whose states the last layers of the student learn, ascending."""
        if self._config.layers != "none":
            self._match(recipe, self._origin(run, path), processes.device)
        if recipe.train.settled_precision == "bf16":
            self._model.to(torch.bfloat16)
        if processes.n_shards > 1:
            processes.shard_model(self._model)
        allocate(self._model, processes.device, processes.n_shards)
        checkpoint.load_weights(path, self._model)

    def _origin(self, run: RunDir | None, path: Path) -> Origin:
        """Return the origin of a student; a student with random weights learns the states unchanged."""
        config = self._model.config
        where = f"train.distill.layers: got {self._config.layers}; {run and run.path}"
        origin = None if run is None else Origin.read(run)
        if origin is None:
            if run is not None and run.exists and TEACHER_KEY not in run.environment():
                raise UserError(f"{where} began with weights that were not cut out of the teacher; must be none")
            return Origin(torch.arange(config.n_coordinates), torch.arange(config.n_layers), torch.empty(0))
        if not origin.is_of(config):
            raise UserError(
                f"{where}: {ORIGIN}: does not fit a teacher of {config.n_layers} layers and "
                f"{config.n_coordinates} coordinates; restore the file, or set train.distill.layers=none"
            )
        with checkpoint.opened(path, MODEL) as saved:
            rows = saved.rows("embedding.weight", slice(0, len(origin.first_rows)))
        if not torch.equal(rows, origin.first_rows):
            raise UserError(f"{where} was not cut out of {path}, so their states do not correspond; must be none")
        return origin

    def _match(self, recipe: Recipe, origin: Origin, device: torch.device) -> None:
        """Set the states that the student learns. Raises UserError if a model of the student does not fit them."""
        stream = origin.stream
        n_layers = len(origin.layers)
        layers = self._config.layers
        for phase in recipe.phases:
            for parts, n_own, n_known in (
                ("coordinates of the stream", phase.model.n_coordinates, stream.shape[-1]),
                ("layers", phase.model.n_layers if layers == "all" else n_layers, n_layers),
            ):
                if n_own != n_known:
                    raise UserError(
                        f"train.distill.layers: got {layers}; the model has {n_own} {parts}, and {n_known} are known "
                        f"of {self._config.teacher}; must be as many, or cut out of it by `widthwise shrink`"
                    )
        self._stream = stream.to(device, copy=True)
        last = self._model.config.n_layers - 1
        # A layer before removed layers learns the input of the next kept layer.
        self._layers = [last] if layers == "last" else [*(origin.layers[1:] - 1).tolist(), last]

    def read(self, tokens: Tensor, documents: Tensor | None, positions: Tensor | None) -> Teacher:
        """Return the teacher's outputs for tokens, integers (B, T). documents, positions: see `Decoder.stream`."""
        model = self._model
        states: list[Tensor] = []

        def see(layer: int, stream: Stream) -> None:
            if layer in self._layers:
                state = model.slots(stream).flatten(-2)
                parts = self._stream
                states.append(state[..., parts] if parts.dim() == 1 else state @ parts.to(state.dtype))

        with evaluating(model):
            hidden = model.exit(model.stream(tokens, documents=documents, positions=positions, see=see))
        config = self._config
        return Teacher(hidden, model.output, config.weight, config.temperature, states, config.layers_weight)
