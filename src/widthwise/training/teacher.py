"""The teacher of a run, whose predictions a student learns in addition to its targets."""

from pathlib import Path

import torch
from torch import Tensor

from widthwise.kernels.linear_cross_entropy import Teacher
from widthwise.mistakes import UserError
from widthwise.model.decoder import allocate, blueprint
from widthwise.model.eval_mode import evaluating
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.training import checkpoint
from widthwise.training.checkpoint_folder import latest_valid, step_of
from widthwise.training.processes import ALONE, Processes

TEACHER_KEY = "teacher_step"
"""Key in `environment.json` of the step of the teacher's checkpoint; absent in a cut model before its training."""


class LoadedTeacher:
    """The teacher of a run, with the precision and the sharding of its student."""

    def __init__(self, recipe: Recipe, processes: Processes = ALONE):
        """Load the teacher that a recipe names. Called by all processes.

        Raises UserError if the teacher has no good checkpoint.
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
        processes.all_gather(lambda: self._load(recipe, source, path, processes))

    def _load(self, recipe: Recipe, source: RunDir, path: Path, processes: Processes) -> None:
        self._model = blueprint(saved_recipe(source).model_at(self.step)).requires_grad_(False)
        if recipe.train.settled_precision == "bf16":
            self._model.to(torch.bfloat16)
        if processes.n_shards > 1:
            processes.shard_model(self._model)
        allocate(self._model, processes.device, processes.n_shards)
        checkpoint.load_weights(path, self._model)

    def read(self, tokens: Tensor, documents: Tensor | None, positions: Tensor | None) -> Teacher:
        """Return the teacher's predictions for tokens, integers (B, T). documents, positions: see `Decoder.stream`."""
        model = self._model
        with evaluating(model):
            hidden = model.exit(model.stream(tokens, documents=documents, positions=positions))
        return Teacher(hidden, model.output, self._config.weight, self._config.temperature)
