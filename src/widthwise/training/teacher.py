"""The teacher of a run: its predictions and hidden states, which a student learns in addition to its targets."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from widthwise.config_io import UserError, parse, refusing, to_data
from widthwise.files import FileRecord
from widthwise.kernels.linear_cross_entropy import Teacher
from widthwise.model.config import ModelConfig
from widthwise.model.context import Stream
from widthwise.model.decoder import allocate, blueprint
from widthwise.model.eval_mode import evaluating
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.processes import ALONE, Processes
from widthwise.training.saved_tensors import write_tensors

TEACHER_KEY = "teacher_step"
"""Key in `environment.json` of the step of the teacher's checkpoint: of a run that another verb has made, once it is
trained."""


ORIGIN = "origin.safetensors"
"""File of a run whose model was cut out of another one, and the key of its checksum in `environment.json`."""


class Origin(NamedTuple):
    """Where the parts of a model that was cut out of another one come from."""

    stream: Tensor
    """int64 (n,), the old coordinate of the stream at each new one; or fp32 (n_old, n), a column for each new one."""
    layers: Tensor
    """int64 (n_layers,), the old layer at each new one, ascending."""
    first_rows: Tensor
    """fp32 (n_rows, n_columns), the first rows of the old embedding, by which the model that was cut is known."""

    @classmethod
    def read(cls, run: RunDir) -> "Origin | None":
        """Return the origin of the model of a run; None where it was not cut. Raises UserError for a broken file."""
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
        """Return True if these are parts of a model of that config."""
        n_old, layers = config.n_coordinates, self.layers
        is_turned = self.stream.dim() == 2 and self.stream.is_floating_point() and len(self.stream) == n_old
        ascends = _are_indices(layers, config.n_layers) and bool((layers.diff() > 0).all())
        has_rows = self.first_rows.dim() == 2 and self.first_rows.dtype == torch.float32
        return (is_turned or _are_indices(self.stream, n_old)) and ascends and has_rows


def _are_indices(tensor: Tensor, n: int) -> bool:
    """Return True for one or more whole numbers from 0 to n - 1."""
    is_vector = tensor.dim() == 1 and tensor.dtype == torch.int64 and len(tensor) > 0
    return is_vector and int(tensor.min()) >= 0 and int(tensor.max()) < n


class LoadedTeacher:
    """The teacher of a run, in bf16 where the run multiplies in it, divided among processes as its student is."""

    def __init__(self, recipe: Recipe, run: RunDir | None = None, processes: Processes = ALONE):
        """Load the teacher that a recipe names. Called by all processes.

        run: the student's; None: a student with random weights. Raises UserError where the teacher has no good
        checkpoint, and where nothing says which of its hidden states are those that the student is to learn.
        """
        assert recipe.train.distill is not None
        self._config, source = recipe.train.distill, RunDir(recipe.train.distill.teacher)
        found, damages = checkpoint_folder.latest_valid(source.checkpoints, processes)
        if found is None:
            reasons = "; ".join(map(str, damages)) or "nothing was saved yet"
            error = UserError(f"train.distill.teacher: {source.checkpoints}: no checkpoint to load ({reasons})")
            raise processes.on_every_rank(error)
        self.step = checkpoint_folder.step_of(found)
        processes.all_gather(lambda: self._load(recipe, source, found, run, processes))

    def _load(self, recipe: Recipe, source: RunDir, path: Path, run: RunDir | None, processes: Processes) -> None:
        self._model = blueprint(saved_recipe(source).model_at(self.step)).requires_grad_(False)
        self._layers: list[int] = []
        """The layers whose states the last ones of the student learn, ascending."""
        if self._config.layers != "none":
            self._match(recipe, self._origin(run, path), processes.device)
        if recipe.train.settled_precision == "bf16":
            self._model.to(torch.bfloat16)
        if processes.n_shards > 1:
            processes.shard_model(self._model)
        allocate(self._model, processes.device, processes.n_shards)
        checkpoint.load_weights(path, self._model)

    def _origin(self, run: RunDir | None, path: Path) -> Origin:
        """Return the origin of a student; one whose weights were drawn learns the states as they are."""
        config, where = self._model.config, f"train.distill.layers: got {self._config.layers}; {run and run.path}"
        origin = None if run is None else Origin.read(run)
        if origin is None:
            if run is not None and run.exists and TEACHER_KEY not in run.environment():
                raise UserError(f"{where} began with weights that were not cut out of the teacher; must be none there")
            return Origin(torch.arange(config.n_coordinates), torch.arange(config.n_layers), torch.empty(0))
        if not origin.is_of(config):
            raise UserError(
                f"{where}: {ORIGIN}: does not fit a teacher of {config.n_layers} layers and "
                f"{config.n_coordinates} coordinates; restore the file, or set train.distill.layers=none"
            )
        with checkpoint.opened(path, checkpoint_folder.MODEL) as saved:
            rows = saved.rows("embedding.weight", slice(0, len(origin.first_rows)))
        if not torch.equal(rows, origin.first_rows):
            raise UserError(f"{where} was not cut out of {path}, so that nothing relates their states")
        return origin

    def _match(self, recipe: Recipe, origin: Origin, device: torch.device) -> None:
        """Find the states that the student learns. Raises UserError where one of its models has others."""
        (stream, kept, _), layers = origin, self._config.layers
        for phase in recipe.phases:
            for parts, n_own, n_known in (
                ("coordinates of the stream", phase.model.n_coordinates, stream.shape[-1]),
                ("layers", phase.model.n_layers if layers == "all" else len(kept), len(kept)),
            ):
                if n_own != n_known:
                    raise UserError(
                        f"train.distill.layers: got {layers}; the model has {n_own} {parts}, and {n_known} are known "
                        f"of {self._config.teacher}; must be as many, or cut out of it by `widthwise shrink`"
                    )
        self._stream, last = stream.to(device, copy=True), self._model.config.n_layers - 1
        # A layer behind which some were cut off learns what the next one that was kept has read.
        self._layers = [last] if layers == "last" else [*(kept[1:] - 1).tolist(), last]

    def read(self, tokens: Tensor, documents: Tensor | None, positions: Tensor | None) -> Teacher:
        """Return what the teacher says of tokens, integers (B, T). documents, positions: see `Decoder.stream`."""
        model, states = self._model, list[Tensor]()

        def see(layer: int, stream: Stream) -> None:
            if layer in self._layers:
                state, place = model.slots(stream).flatten(-2), self._stream
                states.append(state[..., place] if place.dim() == 1 else state @ place.to(state.dtype))

        with evaluating(model):
            hidden = model.exit(model.stream(tokens, documents=documents, positions=positions, see=see))
        head = model.head.weight, model.config.logit_multiplier
        return Teacher(hidden, *head, self._config.weight, self._config.temperature, states, self._config.layers_weight)
