"""A run at one of its checkpoints, from which another begins."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from widthwise.growth.optimizer_state import State
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.recipe.optimizer import Optimizer
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.trained import chosen_checkpoint, spent_by
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.growth_step import state_by_name
from widthwise.training.state import RunState, Spent


@dataclass(frozen=True)
class Source:
    """A run at its newest good checkpoint, or at another one."""

    run: RunDir
    recipe: Recipe
    saved: Path
    """Folder of the checkpoint."""
    damages: tuple[checkpoint_folder.Damage, ...]
    """Newer checkpoints that could not be used, where the newest was asked for."""

    @classmethod
    def of(cls, path: Path | str, step: int | None = None) -> "Source":
        """step: of the checkpoint; its newest good one where not given.

        Raises UserError where it is no run directory or has no such checkpoint that can be used.
        """
        run = RunDir(path)
        recipe = saved_recipe(run)
        found, damages = chosen_checkpoint(run, step)
        run.check_seal(checkpoint_folder.seal_of(found), found.name)
        return cls(run, recipe, found, tuple(damages))

    @property
    def step(self) -> int:
        return checkpoint_folder.step_of(self.saved)

    @property
    def spent(self) -> Spent:
        """What the run had cost by the step of the checkpoint."""
        return spent_by(self.run, self.recipe, self.step)

    @property
    def model(self) -> ModelConfig:
        """The model in the checkpoint."""
        return self.recipe.model_at(self.step)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that made the last step of the checkpoint."""
        return self.recipe.optimizer_of(self.recipe.phase_at(self.step))

    def load(self) -> tuple[dict[str, Tensor], State, RunState]:
        """Weights and optimizer state by parameter, and the state of the run. Sets torch's random state."""
        model = build(self.model, seed=0)
        optimizer = self.optimizer.build(model)
        state = checkpoint.load(self.saved, model, optimizer)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        return weights, state_by_name(model, optimizer), state
