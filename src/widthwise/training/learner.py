"""The model of a phase of training, with its optimizer and its objective."""

import torch
from torch import Tensor

from widthwise.data.boundaries import UNTOLD, Boundaries
from widthwise.model.decoder import Decoder, allocate, blueprint
from widthwise.model.initial_weights import initial_weights
from widthwise.model.memory import allocating
from widthwise.model.shards import put, set_whole, whole
from widthwise.recipe.growth_events import Phase
from widthwise.recipe.optimizers import set_lr
from widthwise.recipe.recipe import Recipe
from widthwise.training.assembly import assembled
from widthwise.training.entry_rates import EntryRates
from widthwise.training.growth_step import grow
from widthwise.training.norms import watched_layers
from widthwise.training.objective import Objective, carried_state
from widthwise.training.processes import ALONE, Processes
from widthwise.training.spikes import Gate
from widthwise.training.step import WHOLE_UPDATES, StepOutcome, optimizer_step


class Learner:
    """Takes the steps of one phase. Everything in it follows from the recipe and the model."""

    def __init__(
        self, recipe: Recipe, phase: Phase, model: Decoder, optimizer: torch.optim.Optimizer, processes: Processes
    ):
        self._recipe, self._config, self._processes = recipe, recipe.train, processes
        self.model, self.optimizer = model, optimizer
        self.device = processes.device
        self.objective = Objective(self._config, model.config, self.device)
        self._rates = _entry_rates(recipe, phase, model)
        self.gate = Gate(self._config.on_spike, processes)
        self.flops_per_token = self._config.flops_per_token(model.config, recipe.seq_len)
        """Training FLOPs, with every pass of a step."""

    @classmethod
    def untrained(cls, recipe: Recipe, phase: Phase, processes: Processes = ALONE) -> "Learner":
        """A phase's model with initial weights. Raises UserError where it does not fit into memory."""
        model = assembled(phase.model, recipe.train, processes)
        set_whole(initial_weights(model, recipe.train.seed))
        return cls(recipe, phase, model, recipe.optimizer_of(phase).build(model), processes)

    def grown(self, phase: Phase) -> "Learner":
        """The larger model of the next phase, which goes on from this one. Raises UserError as `untrained` does."""
        assert phase.growth is not None
        recipe, growth = self._recipe, phase.growth
        with allocating(f"growth.{growth.index}: the larger model does not fit into the memory of the device"):
            model = assembled(growth.plan.new, self._config, self._processes)
            optimizer = recipe.optimizer_of(phase).build(model)
            grow((self.model, self.optimizer), (model, optimizer), growth, self._config.seed)
            learner = Learner(recipe, phase, model, optimizer, self._processes)
        learner.objective.load_state(carried_state(self.objective.state(), self._config, self._config, growth.plan))
        return learner

    def set_progress(self, step: int) -> None:
        """Tells the model how far training has come."""
        self.model.progress.fill_(step / self._config.steps)

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        return self._recipe.optimizer.lr * self._recipe.lr_factor(step)

    def whole_model(self) -> Decoder | None:
        """The model without its division among processes, in the first of them; itself where there is one.

        Raises UserError in all of them where the first has no room for it.
        """
        if self._processes.world_size == 1:
            return self.model
        model = blueprint(self.model.config).to(self.model.embedding.weight.dtype)
        self._processes.first(lambda: allocate(model, self.device))
        own = dict(model.named_parameters())
        for name, parameter in self.model.named_parameters():
            weight = whole(parameter.detach())
            if self._processes.is_first:
                put(own[name], weight)
        return model if self._processes.is_first else None

    def make_step(self, step: int, batch: Tensor, boundaries: Boundaries = UNTOLD) -> StepOutcome:
        """One optimizer step. Raises UserError where its forward passes do not fit into memory."""
        self.set_progress(step)
        set_lr(self.optimizer, self.lr(step))
        with allocating(
            f"train.micro_batch_size: {min(self._config.sequences_per_pass, len(batch))} sequences do not fit into the "
            f"memory of the device; use a smaller divisor of the {len(batch)} that a process has of a step"
        ):
            batch, every = batch.to(self.device), self._config.norms_every
            is_watched = every is not None and step % every == 0
            moving = WHOLE_UPDATES if self._rates is None else self._rates.applied(step)
            with watched_layers(self.model, is_watched) as watch:
                return optimizer_step(
                    self.model,
                    self.optimizer,
                    batch,
                    self.objective,
                    self._config,
                    self._processes,
                    self.gate,
                    watch,
                    boundaries,
                    moving,
                )


def _entry_rates(recipe: Recipe, phase: Phase, model: Decoder) -> EntryRates | None:
    """The rates that follow from the growth with which a phase began, in this run or by `widthwise grow`."""
    if phase.growth is not None:
        return EntryRates(model, phase.growth.pace, phase.growth.plan)
    plan = None if recipe.rewarmup is None else recipe.rewarmup.plan(phase.model)
    return None if recipe.rewarmup is None or plan is None else EntryRates(model, recipe.rewarmup.pace, plan)
