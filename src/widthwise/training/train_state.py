"""The train state: the model of a phase with its optimizer, objective and learning rates of grown entries."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from widthwise.data.boundaries import NO_BOUNDARIES, Boundaries
from widthwise.growth.plan import GrowthPlan
from widthwise.model.compiling import compile_layers
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, allocate, blueprint
from widthwise.model.initial_weights import initial_weights
from widthwise.model.memory import allocating
from widthwise.model.recompute import RECOMPUTE
from widthwise.model.shards import held, held_rows, put, set_whole, whole
from widthwise.recipe.growth_events import Pace, Phase
from widthwise.recipe.optimizers import set_lr
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.training.growth_step import grow
from widthwise.training.means import choice_record
from widthwise.training.norms import watched_layers
from widthwise.training.objective import Objective, carried_state
from widthwise.training.processes import ALONE, Processes
from widthwise.training.spikes import Gate
from widthwise.training.step import WHOLE_UPDATES, StepOutcome, optimizer_step


def assembled(config: ModelConfig, train: TrainConfig, processes: Processes) -> Decoder:
    """A model compiled and divided as a recipe says, whose weights are still to be set. Called by all processes.

    The order matters: a compiled layer is divided as one, and nothing has memory before it is divided. Raises UserError
    where a process has no room for its part.
    """
    model = blueprint(config)
    model.recompute = RECOMPUTE[train.activation_checkpointing]
    if train.compile:
        torch.compiler.reset()  # what was compiled for a smaller model counts towards the limit of graphs
        compile_layers(model)
    processes.shard_model(model)
    allocate(model, processes.device, processes.n_shards)
    return model


@dataclass(frozen=True)
class EntryRates:
    """Gives the new and the old entries of a model rates of their own, whatever its optimizer is.

    The update of AdamW and of Muon is the rate times what follows from gradients and moments, which know no rate, and
    times the weight for decay. So a part of the update is exactly the update at that part of the rate, entry by entry,
    and all of it and none of it are exact bit by bit. Moments of entries that stay still go on as if they moved. All
    follows from the step, so that a run can be resumed anywhere; each process does it to the rows that it holds.
    """

    model: Decoder
    pace: Pace
    plan: GrowthPlan

    @contextmanager
    def applied(self, step: int) -> Iterator[None]:
        """Whatever moves the weights in the block moves them by as much as their rates at this step say."""
        new, old = self.pace.of_new(step), self.pace.of_old(step)
        if new == old == 1.0:
            yield
            return
        parameters = dict(self.model.named_parameters())
        before = {name: held(each.detach()).clone() for name, each in parameters.items()}
        yield
        for name, each in parameters.items():
            moved = held(each.detach())
            share = torch.where(self._is_new[name], new, old).to(moved.dtype)
            moved.copy_(torch.lerp(before[name], moved, share))

    @cached_property
    def _is_new(self) -> Mapping[str, Tensor]:
        """bool, by parameter: the new ones among the entries that this process holds."""
        new, parameters = self.plan.is_new(), dict(self.model.named_parameters())
        return {name: new[name][held_rows(each)].to(held(each).device) for name, each in parameters.items()}


class TrainState:
    """Model, optimizer and objective of one phase, and the step that trains them."""

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
    def untrained(cls, recipe: Recipe, phase: Phase, processes: Processes = ALONE) -> "TrainState":
        """A phase's model with initial weights. Raises UserError where it does not fit into memory."""
        model = assembled(phase.model, recipe.train, processes)
        set_whole(initial_weights(model, recipe.train.seed))
        return cls(recipe, phase, model, recipe.optimizer_of(phase).build(model), processes)

    def grown(self, phase: Phase) -> "TrainState":
        """The larger model of the next phase, which goes on from this one. Raises UserError as `untrained` does."""
        assert phase.growth is not None
        recipe, growth = self._recipe, phase.growth
        with allocating(f"growth.{growth.index}: the larger model does not fit into the memory of the device"):
            model = assembled(growth.plan.new, self._config, self._processes)
            optimizer = recipe.optimizer_of(phase).build(model)
            grow((self.model, self.optimizer), (model, optimizer), growth, self._config.seed)
            train_state = TrainState(recipe, phase, model, optimizer, self._processes)
        train_state.objective.load_state(carried_state(self.objective.state(), self._config, self._config, growth.plan))
        return train_state

    def record(self, outcome: StepOutcome) -> dict[str, Any]:
        """The entries of a training record on further heads, choices and the objective.

        Called by all processes that share the model, between a step and the next.
        """
        choices = choice_record(self.model, outcome.choices)
        return {**outcome.mtp_losses.record(), **choices, **self.objective.record()}

    def set_progress(self, step: int) -> None:
        """Tells the model how far training has come."""
        self.model.progress.fill_(step / self._config.steps)

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        return self._recipe.optimizer.lr * self._recipe.lr_factor(step)

    def gathered_model(self) -> Decoder | None:
        """The model without its division among processes, in the first of them; itself where there is one.

        Raises UserError in all of them where the first has no room for it.
        """
        if self._processes.world_size == 1:
            return self.model
        model = blueprint(self.model.config).to(self.model.embedding.weight.dtype)
        self._processes.on_rank_zero(lambda: allocate(model, self.device))
        own = dict(model.named_parameters())
        for name, parameter in self.model.named_parameters():
            weight = whole(parameter.detach())
            if self._processes.is_rank_zero:
                put(own[name], weight)
        return model if self._processes.is_rank_zero else None

    def train_step(self, step: int, batch: Tensor, boundaries: Boundaries = NO_BOUNDARIES) -> StepOutcome:
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
