"""The train state: the model of a phase with its optimizer and objective, and the step that trains it."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.kernels.dispatch import autocast
from widthwise.model.compiling import compile_layers
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, allocate, blueprint
from widthwise.model.memory import allocating
from widthwise.model.recompute import RECOMPUTE
from widthwise.model.shards import put, whole
from widthwise.recipe.growth_events import Phase
from widthwise.recipe.optimizers import set_lr
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.training.growth_step import EntryRates, grow
from widthwise.training.objective import Objective, carried_state
from widthwise.training.processes import ALONE, Processes
from widthwise.training.state import ALWAYS_OPEN, Gate
from widthwise.training.step_statistics import ChoiceMeans, LayerWatch, MTPLosses, choice_record
from widthwise.training.teacher import LoadedTeacher

WHOLE_UPDATES = nullcontext()
"""Lets the optimizer move all entries as it would."""


@dataclass(frozen=True)
class StepOutcome:
    """Tensors that still live on the device: reading one waits for the step to finish."""

    loss: Tensor
    """Mean language-model loss of the batch in nats per token, float64, without any auxiliary term; where there are
    several passes, of the first: the one at the widths that tokens choose, or at full width."""
    grad_norm: Tensor
    """Global norm of the gradient before clipping."""
    choices: ChoiceMeans
    """Choices of the layers, averaged over the batch; of the same pass."""
    mtp_losses: MTPLosses
    """Losses of the MTP heads, likewise."""
    n_skipped: int = 0
    """0 where the step has made its update; else how many in a row have not."""
    norms: Tensor | None = None
    """Norms of each layer, if they were due; see `LayerWatch.measured`."""


def optimizer_step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    objective: Objective,
    config: TrainConfig,
    processes: Processes = ALONE,
    gate: Gate = ALWAYS_OPEN,
    watch: LayerWatch | None = None,
    boundaries: Boundaries = NO_BOUNDARIES,
    moving: AbstractContextManager[None] = WHOLE_UPDATES,
) -> StepOutcome:
    """Moves the weights along the gradient of the mean objective over the batch, if the gate lets it.

    batch: this process's part of it, integers (B, seq_len + 1); all processes have equally many rows. The gradient does
    not depend on the number of sequences in a forward pass (`config.sequences_per_pass`), except for rounding and for
    terms that are not linear in the tokens: the balance loss of a mixture of experts and the damping of a width budget.
    Nor does it depend on the number of processes, with the same exceptions.
    moving: stands around the optimizer's own step.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=batch.device)
    choices, mtp_losses = ChoiceMeans(), MTPLosses()
    parts, passes = batch.split(config.sequences_per_pass), objective.draw_passes()
    for part, rows in enumerate(parts, start=1):
        weight = len(rows) / len(batch)
        for index, width_fraction in enumerate(passes):
            processes.set_gradient_sync(model, is_last=(part, index) == (len(parts), len(passes) - 1))
            tokens, targets = rows[:, :-1], rows[:, 1:]
            documents, positions = boundaries.documents(tokens), boundaries.positions(tokens)
            with autocast(batch.device, config.settled_precision):
                told, teacher = (documents, positions), objective.teacher
                # The call alone holds what the teacher says, so that the backward pass finds it gone.
                found = model.loss(
                    tokens, targets, objective.z_loss, width_fraction, *told, teacher and teacher.read(tokens, *told)
                )
            (objective.term(found, width_fraction) * weight).backward()
            if index == 0:
                loss += found.losses.sum(dtype=torch.float64)
                choices.add(found.choices, len(rows))
                mtp_losses.add(found.mtp_losses)
    if watch is not None:
        watch.before_update()
    grad_norm = whole(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
    n_skipped = gate.n_skipped(grad_norm)
    if not n_skipped:
        with moving:
            optimizer.step()
    sums = iter(processes.all_reduce_sum([loss, *choices.sums, *mtp_losses.sums]))
    loss = next(sums)
    choices.reduced(processes.world_size, sums)
    mtp_losses.reduced(processes.world_size, sums)
    if not n_skipped:
        objective.end_step(choices)
    norms = None if watch is None else watch.measured(processes)
    n_targets = batch[:, 1:].numel() * processes.world_size
    return StepOutcome(loss / n_targets, grad_norm, choices, mtp_losses, n_skipped, norms)


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


class TrainState:
    """Model, optimizer and objective of one phase, and the step that trains them."""

    def __init__(
        self,
        recipe: Recipe,
        phase: Phase,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        processes: Processes,
        teacher: LoadedTeacher | None = None,
    ):
        self._recipe, self._config, self._processes = recipe, recipe.train, processes
        self.model, self.optimizer = model, optimizer
        self.device = processes.device
        self.objective = Objective(self._config, model.config, self.device, teacher)
        self._rates = EntryRates.of(recipe, phase, model)
        self.gate = Gate(self._config.on_spike, processes)
        self.flops_per_token = self._config.flops_per_token(model.config, recipe.seq_len)
        """Training FLOPs, with every pass of a step."""

    @classmethod
    def untrained(
        cls, recipe: Recipe, phase: Phase, processes: Processes = ALONE, teacher: LoadedTeacher | None = None
    ) -> "TrainState":
        """A phase's model with initial weights. Raises UserError where it does not fit into memory."""
        model = assembled(phase.model, recipe.train, processes)
        model.init_weights(recipe.train.seed)
        return cls(recipe, phase, model, recipe.optimizer_of(phase).build(model), processes, teacher)

    def grown(self, phase: Phase) -> "TrainState":
        """The larger model of the next phase, which goes on from this one. Raises UserError as `untrained` does."""
        assert phase.growth is not None
        recipe, growth = self._recipe, phase.growth
        with allocating(f"growth.{growth.index}: the larger model does not fit into the memory of the device"):
            model = assembled(growth.plan.new, self._config, self._processes)
            optimizer = recipe.optimizer_of(phase).build(model)
            grow((self.model, self.optimizer), (model, optimizer), growth, self._config.seed)
            train_state = TrainState(recipe, phase, model, optimizer, self._processes, self.objective.teacher)
        train_state.objective.load_state(carried_state(self.objective.state(), self._config, self._config, growth.plan))
        return train_state

    def record(self, outcome: StepOutcome) -> dict[str, Any]:
        """Return the entries of a training record on MTP heads, choices and the objective.

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
            with LayerWatch(self.model) if is_watched else nullcontext() as watch:
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
