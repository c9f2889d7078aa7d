"""The model of a phase of training, with its optimizer and its objective."""

import torch
from torch import Tensor

from widthwise.model.compiling import compile_layers
from widthwise.model.decoder import Decoder, build
from widthwise.model.memory import allocating
from widthwise.model.recompute import RECOMPUTE
from widthwise.recipe.growth_events import Phase
from widthwise.recipe.optimizer import set_lr
from widthwise.recipe.recipe import Recipe
from widthwise.training.growth_step import grow
from widthwise.training.objective import Objective, carried_state
from widthwise.training.step import StepOutcome, optimizer_step


class Learner:
    """Takes the steps of one phase. Everything in it follows from the recipe and the model."""

    def __init__(self, recipe: Recipe, model: Decoder, optimizer: torch.optim.Optimizer):
        self._recipe, self._config = recipe, recipe.train
        self.model, self.optimizer = model, optimizer
        self.device = model.embedding.weight.device
        model.recompute = RECOMPUTE[self._config.activation_checkpointing]
        if self._config.compile:
            torch.compiler.reset()  # what was compiled for a smaller model counts towards the limit of graphs
            compile_layers(model)
        self.objective = Objective(self._config, model.config, self.device)
        self.flops_per_token = model.config.cost().training_flops(recipe.seq_len) * self._config.n_passes
        """Training FLOPs, with every pass of a step."""

    @classmethod
    def untrained(cls, recipe: Recipe, phase: Phase, device: torch.device) -> "Learner":
        """A phase's model with initial weights. Raises UserError where it does not fit into memory."""
        model = build(phase.model, recipe.train.seed, device)
        return cls(recipe, model, recipe.optimizer_of(phase).build(model))

    def grown(self, phase: Phase) -> "Learner":
        """The larger model of the next phase, which goes on from this one. Raises UserError as `untrained` does."""
        assert phase.growth is not None
        recipe, growth = self._recipe, phase.growth
        with allocating(f"growth.{growth.index}: the larger model does not fit into the memory of the device"):
            grown = grow(self.model, self.optimizer, growth, recipe.optimizer_of(phase), self._config.seed)
            learner = Learner(recipe, *grown)
        learner.objective.load_state(carried_state(self.objective.state(), self._config, self._config, growth.plan))
        return learner

    def set_progress(self, step: int) -> None:
        """Tells the model how far training has come."""
        self.model.progress.fill_(step / self._config.steps)

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        return self._recipe.optimizer.lr * self._recipe.lr_factor(step)

    def make_step(self, step: int, batch: Tensor) -> StepOutcome:
        """One optimizer step. Raises UserError where its forward passes do not fit into memory."""
        self.set_progress(step)
        set_lr(self.optimizer, self.lr(step))
        with allocating(
            f"train.micro_batch_size: {self._config.sequences_per_pass} sequences do not fit into the memory of the "
            f"device; use a smaller divisor of train.batch_size = {self._config.batch_size}"
        ):
            return optimizer_step(self.model, self.optimizer, batch.to(self.device), self.objective, self._config)
