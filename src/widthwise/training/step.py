"""One optimizer step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.kernels.precision import Precision, autocast
from widthwise.model.decoder import Decoder
from widthwise.training.choice_metrics import ChoiceMeans
from widthwise.training.mtp_losses import MTPLosses
from widthwise.training.objective import WidthBudget


@dataclass(frozen=True)
class StepOutcome:
    """Tensors that still live on the device: reading one waits for the step to finish."""

    loss: Tensor
    """Mean language-model loss of the batch in nats per token, float64, without any auxiliary term; of the first pass
    where there are several."""
    grad_norm: Tensor
    """Global norm of the gradient before clipping."""
    choices: ChoiceMeans
    """What the layers chose, over the batch; of the first pass too."""
    mtp_losses: MTPLosses
    """Of the further heads, likewise."""


def optimizer_step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    *,
    micro_batch_size: int,
    precision: Precision,
    z_loss: float,
    max_grad_norm: float,
    passes: Sequence[float | None] = (None,),
    width_budget: WidthBudget | None = None,
) -> StepOutcome:
    """Moves the weights along the gradient of the mean objective over the batch. batch: integers (B, seq_len + 1).

    passes: the objective is the sum over forward passes at these forced widths; None leaves the width to the tokens,
    and only there the budget joins. The gradient does not depend on `micro_batch_size`, the number of sequences in a
    forward pass, except for rounding and for terms that are not linear in the tokens: a mixture's balance loss, and of
    budgets the quadratic term, damping and spread.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=batch.device)
    choices, mtp_losses = ChoiceMeans(), MTPLosses()
    for rows in batch.split(micro_batch_size):
        weight = len(rows) / len(batch)
        for index, width_fraction in enumerate(passes):
            with autocast(batch.device, precision):
                found = model.loss(rows[:, :-1], rows[:, 1:], z_loss, width_fraction)
            objective = found.objective
            if width_budget is not None and width_fraction is None:
                objective = objective + width_budget.term(found.choices)
            (objective * weight).backward()
            if index == 0:
                loss += found.losses.sum(dtype=torch.float64)
                choices.add(found.choices, len(rows))
                mtp_losses.add(found.mtp_losses)
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    if width_budget is not None:
        width_budget.end_step(choices.by_layer("width_fraction"))
    return StepOutcome(loss / batch[:, 1:].numel(), grad_norm, choices, mtp_losses)
