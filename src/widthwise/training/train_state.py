"""The train state: the model of a phase with its optimizer and objective, and the step that trains it.

Call chain of a step: `TrainingLoop._step` in loop.py, `TrainState.train_step`, `Objective.backward` in objective.py.
"""

import math
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, allocate, blueprint
from widthwise.model.execution import compile_layers
from widthwise.model.memory import allocating
from widthwise.model.recompute import RECOMPUTE
from widthwise.model.shards import put, whole
from widthwise.recipe.growth_events import Phase
from widthwise.recipe.optimizers import set_lr
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import StopAtSpike, TrainConfig
from widthwise.training.growth_step import FrozenEntries, grow
from widthwise.training.objective import LoadedTeacher, Objective
from widthwise.training.processes import ALONE, Processes
from widthwise.training.state import RunState
from widthwise.training.step_statistics import ChoiceMeans, LayerWatch, choice_record


@dataclass(frozen=True)
class StepOutcome:
    """The results of a step, on the device; reading one waits for the step to finish.

    If the step has several passes, loss, choices and mtp_losses are of the first: in it tokens choose their widths, or
    have the full width.
    """

    loss: Tensor
    """Mean language-model loss of the batch in nats per token, float64, without auxiliary terms."""
    grad_norm: Tensor
    """Global norm of the gradient before clipping."""
    choices: ChoiceMeans
    """Choices of the layers, averaged over the batch."""
    mtp_losses: Tensor
    """Mean loss of each MTP head over the positions that it predicts, float64 (n_depths,)."""
    n_skipped: int = 0
    """0 if the step updated the weights, otherwise the number of consecutive steps without an update."""
    norms: Tensor | None = None
    """See `LayerWatch.norms`; None unless due."""


def build_uninitialised(config: ModelConfig, train: TrainConfig, processes: Processes) -> Decoder:
    """Return a compiled and sharded model with uninitialised weights. Called by all processes.

    The order matters: a compiled layer is sharded as one, and memory is allocated after sharding. Raises UserError if
    a shard does not fit into the memory of its process.
    """
    model = blueprint(config)
    model.recompute = RECOMPUTE[train.activation_checkpointing]
    if train.compile:
        torch.compiler.reset()  # graphs of a smaller model count towards the limit
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
        processes: Processes = ALONE,
        teacher: LoadedTeacher | None = None,
    ):
        self._recipe = recipe
        self._config = recipe.train
        self._processes = processes
        self.model = model
        self.optimizer = optimizer
        self.device = processes.device
        self.objective = Objective(self._config, model.config, self.device, teacher)
        self._frozen = FrozenEntries.of(recipe, phase, model)
        self._norms: deque[float] = deque(maxlen=self._config.on_spike.window_steps)
        """Gradient norms of the last updates."""
        self._n_skipped = 0
        """Number of consecutive steps without an update."""
        self.flops_per_token = self._config.flops_per_token(model.config, recipe.seq_len)
        """Training FLOPs, with every pass of a step."""

    @classmethod
    def untrained(
        cls, recipe: Recipe, phase: Phase, processes: Processes = ALONE, teacher: LoadedTeacher | None = None
    ) -> "TrainState":
        """Return the state of a phase with initial weights. Raises UserError if it does not fit into memory."""
        model = build_uninitialised(phase.model, recipe.train, processes)
        model.init_weights(recipe.train.seed)
        return cls(recipe, phase, model, recipe.optimizer_of(phase).build(model), processes, teacher)

    def grown(self, phase: Phase) -> "TrainState":
        """Return the state of the next phase, grown from this one. Raises UserError as `untrained` does."""
        assert phase.growth is not None
        recipe = self._recipe
        growth = phase.growth
        with allocating(f"growth.{growth.index}: the larger model does not fit into the memory of the device"):
            model = build_uninitialised(growth.plan.new, self._config, self._processes)
            optimizer = recipe.optimizer_of(phase).build(model)
            grow((self.model, self.optimizer), (model, optimizer), growth, self._config.seed)
            train_state = TrainState(recipe, phase, model, optimizer, self._processes, self.objective.teacher)
        train_state.objective.load_state(self.objective.state())
        return train_state

    def record(self, outcome: StepOutcome) -> dict[str, Any]:
        """Return the entries of a training record on MTP heads and choices, and the width price of the next step.

        Called by all processes that share the model, between two steps.
        """
        record: dict[str, Any] = {}
        if len(outcome.mtp_losses):
            record["mtp_losses"] = outcome.mtp_losses.tolist()
        record |= choice_record(self.model, outcome.choices)
        if prices := self.objective.state():
            record["width_price"] = prices[0]
        return record

    def save_to(self, state: RunState) -> None:
        """Store what later steps depend on besides model and optimizer in the state of the run."""
        state.width_prices = self.objective.state()
        state.grad_norms = list(self._norms)
        state.n_skipped = self._n_skipped

    def load(self, state: RunState) -> None:
        """Restore what `save_to` stored."""
        self.objective.load_state(state.width_prices)
        self._norms.extend(state.grad_norms)
        self._n_skipped = state.n_skipped

    def lr(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        return self._recipe.optimizer.lr * self._recipe.lr_factor(step)

    def gathered_model(self) -> Decoder | None:
        """Return the unsharded model on rank 0, None on other ranks; with one process the model itself.

        Called by all processes. Raises UserError on all of them if the model does not fit into the memory of rank 0.
        """
        if self._processes.world_size == 1:
            return self.model
        model = blueprint(self.model.config).to(self.model.embedding.weight.dtype)
        self._processes.on_rank_zero(lambda: allocate(model, self.device))
        parameters = dict(model.named_parameters())
        for name, parameter in self.model.named_parameters():
            weight = whole(parameter.detach())
            if self._processes.is_rank_zero:
                put(parameters[name], weight)
        return model if self._processes.is_rank_zero else None

    def train_step(self, step: int, batch: Tensor, boundaries: Boundaries = NO_BOUNDARIES) -> StepOutcome:
        """Update the weights by the gradient of the mean objective over a batch, unless `train.on_spike` skips it.

        batch: the rows of this process, integers (B, seq_len + 1); B is the same on all processes. Raises UserError if
        the forward passes do not fit into memory.
        """
        config = self._config
        processes = self._processes
        set_lr(self.optimizer, self.lr(step))
        watch = None
        if config.norms_every is not None and step % config.norms_every == 0:
            watch = LayerWatch(self.model)
        with (
            allocating(
                f"train.micro_batch_size: {min(config.sequences_per_pass, len(batch))} sequences do not fit into the "
                f"memory of the device; use a smaller divisor of the {len(batch)} that a process has of a step"
            ),
            watch or nullcontext(),
        ):
            batch = batch.to(self.device)
            self.optimizer.zero_grad(set_to_none=True)
            loss, choices, mtp_sums = self.objective.backward(self.model, batch, boundaries, processes)
            if watch is not None:
                watch.before_update()
            grad_norm = whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm))
            n_skipped = self._count_skipped(grad_norm)
            if n_skipped == 0:
                with nullcontext() if self._frozen is None else self._frozen.applied(step):
                    self.optimizer.step()
            loss, *choice_sums, mtp_sums = processes.all_reduce_sum([loss, *choices.sums, mtp_sums])
            mean_loss = loss / (batch[:, 1:].numel() * processes.world_size)
            choices.set_reduced(processes.world_size, choice_sums)
            if n_skipped == 0:
                self.objective.end_step(choices)
            norms = None if watch is None else watch.norms(processes)
            return StepOutcome(mean_loss, grad_norm, choices, mtp_sums[0] / mtp_sums[1], n_skipped, norms)

    def _count_skipped(self, grad_norm: Tensor) -> int:
        """Return 0 if the step updates the weights, and k for the k-th consecutive step without an update.

        The result is the same on all ranks. Waits for the device unless the policy is `stop`. grad_norm: of all
        processes, before clipping.
        """
        policy = self._config.on_spike
        if isinstance(policy, StopAtSpike):
            return 0
        local_norm = grad_norm.item()
        (norm,) = self._processes.all_reduce_max(local_norm if math.isfinite(local_norm) else math.inf)
        if policy.admits(norm, self._norms):
            self._norms.append(norm)
            self._n_skipped = 0
        else:
            self._n_skipped += 1
        return self._n_skipped
