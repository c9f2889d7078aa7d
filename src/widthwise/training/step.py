"""One optimizer step: gradients, clipping and update."""

from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.kernels.precision import autocast
from widthwise.model.decoder import Decoder
from widthwise.recipe.recipe import TrainConfig
from widthwise.training.choice_metrics import ChoiceMeans
from widthwise.training.mtp_losses import MTPLosses
from widthwise.training.objective import Objective


@dataclass(frozen=True)
class StepOutcome:
    """Tensors that still live on the device: reading one waits for the step to finish."""

    loss: Tensor
    """Mean language-model loss of the batch in nats per token, float64, without any auxiliary term; of the first pass
    where there are several."""
    grad_norm: Tensor
    """Global norm of the gradient before clipping."""
    choices: ChoiceMeans
    """What the layers chose, averaged over the batch; of the first pass too."""
    mtp_losses: MTPLosses
    """The losses of the further heads, likewise."""


def optimizer_step(
    model: Decoder, optimizer: torch.optim.Optimizer, batch: Tensor, objective: Objective, config: TrainConfig
) -> StepOutcome:
    """Moves the weights along the gradient of the mean objective over the batch. batch: integers (B, seq_len + 1).

    The gradient does not depend on the number of sequences in a forward pass (`config.sequences_per_pass`), except for
    rounding and for terms that are not linear in the tokens: the balance loss of a mixture of experts, and in a width
    budget the quadratic term, damping and spread.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=batch.device)
    choices, mtp_losses = ChoiceMeans(), MTPLosses()
    passes = objective.draw_passes()
    for rows in batch.split(config.sequences_per_pass):
        weight = len(rows) / len(batch)
        for index, width_fraction in enumerate(passes):
            with autocast(batch.device, config.precision):
                found = model.loss(rows[:, :-1], rows[:, 1:], objective.z_loss, width_fraction)
            (objective.term(found, width_fraction) * weight).backward()
            if index == 0:
                loss += found.losses.sum(dtype=torch.float64)
                choices.add(found.choices, len(rows))
                mtp_losses.add(found.mtp_losses)
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    optimizer.step()
    objective.end_step(choices)
    return StepOutcome(loss / batch[:, 1:].numel(), grad_norm, choices, mtp_losses)
