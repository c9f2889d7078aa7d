"""One optimizer step: gradients, clipping and update, and its outcome, which the device may still be computing."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widthwise.data.boundaries import NO_BOUNDARIES, Boundaries
from widthwise.kernels.precision import autocast
from widthwise.model.decoder import Decoder
from widthwise.model.shards import whole
from widthwise.recipe.train_section import TrainConfig
from widthwise.training.means import ChoiceMeans, MTPLosses
from widthwise.training.norms import LayerWatch, norms_record
from widthwise.training.objective import Objective
from widthwise.training.processes import ALONE, Processes
from widthwise.training.spikes import ALWAYS_OPEN, Gate, skipped_record

WHOLE_UPDATES = nullcontext()
"""Lets the optimizer move all entries as it would."""


@dataclass(frozen=True)
class StepOutcome:
    """Tensors that still live on the device: reading one waits for the step to finish."""

    loss: Tensor
    """Mean language-model loss of the batch in nats per token, float64, without any auxiliary term; where there are
    several passes, of the one at the widths that tokens choose, or at full width."""
    grad_norm: Tensor
    """Global norm of the gradient before clipping."""
    choices: ChoiceMeans
    """What the layers chose, averaged over the batch; of the same pass."""
    mtp_losses: MTPLosses
    """The losses of the further heads, likewise."""
    n_skipped: int = 0
    """0 where the step has made its update; else how many in a row have not."""
    norms: Tensor | None = None
    """Those of each layer, if they were asked for; see `LayerWatch.measured`."""


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
    terms that are not linear in the tokens: the balance loss of a mixture of experts, and in a width budget the
    quadratic term, damping and spread. Nor does it depend on the number of processes, with the same exceptions.
    moving: stands around the optimizer's own step.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=batch.device)
    choices, mtp_losses = ChoiceMeans(), MTPLosses()
    parts, passes = batch.split(config.sequences_per_pass), objective.draw_passes()
    reported = passes.index(None) if None in passes else 0
    for part, rows in enumerate(parts, start=1):
        weight, teacher = len(rows) / len(batch), None
        for index, width_fraction in enumerate(passes):
            processes.set_gradient_sync(model, is_last=(part, index) == (len(parts), len(passes) - 1))
            tokens, targets = rows[:, :-1], rows[:, 1:]
            documents, positions = boundaries.documents(tokens), boundaries.positions(tokens)
            teaches = index == 0 and objective.pull is not None
            with autocast(batch.device, config.settled_precision):
                found = model.loss(
                    tokens, targets, objective.z_loss, width_fraction, documents, positions, teacher, teaches
                )
            (objective.term(found, width_fraction) * weight).backward()
            if teaches:
                teacher = objective.teacher(found)
            if index == reported:
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
    loss, *sums = processes.all_reduce_sum([loss, *choices.sums, *mtp_losses.sums])
    choices = choices.over(processes.world_size, sums[: len(choices.sums)])
    mtp_losses = mtp_losses.over(processes.world_size, sums[len(choices.sums) :])
    if not n_skipped:
        objective.end_step(choices)
    norms = None if watch is None else watch.measured(processes)
    n_targets = batch[:, 1:].numel() * processes.world_size
    return StepOutcome(loss / n_targets, grad_norm, choices, mtp_losses, n_skipped, norms)


class ReadStep(NamedTuple):
    """A step whose loss and gradient norm have been read."""

    step: int
    outcome: StepOutcome
    loss: float
    grad_norm: float

    def records(self) -> dict[str, dict[str, Any]]:
        """Event -> what is recorded of this step alone: norms that were asked for, and that it made no update."""
        found: dict[str, dict[str, Any]] = {}
        if self.outcome.norms is not None:
            found["norms"] = norms_record(self.outcome.norms)
        if self.outcome.n_skipped:
            found["skipped"] = skipped_record(self.loss, self.grad_norm)
        return found


class AsyncLosses:
    """Outcomes of steps that are still on the device; reading them waits for it."""

    def __init__(self) -> None:
        self._outcomes: list[StepOutcome] = []

    def add(self, outcome: StepOutcome) -> None:
        self._outcomes.append(outcome)

    def read(self, last_step: int) -> list[ReadStep]:
        """Wait for the device and return all outcomes in order. last_step: the number of the newest."""
        outcomes, self._outcomes = self._outcomes, []
        if not outcomes:
            return []
        pairs = torch.stack([torch.stack((each.loss, each.grad_norm.double())) for each in outcomes]).tolist()
        first = last_step - len(outcomes) + 1
        return [ReadStep(first + i, outcome, *pair) for i, (outcome, pair) in enumerate(zip(outcomes, pairs))]
