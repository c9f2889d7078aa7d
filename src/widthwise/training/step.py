"""One optimizer step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.model.decoder import Decoder
from widthwise.training.config import Precision


@dataclass(frozen=True)
class StepOutcome:
    """Scalars that still live on the device: reading one waits for the step to finish."""

    loss: Tensor
    """Mean language-model loss of the batch in nats per token, float64, without any auxiliary term."""
    grad_norm: Tensor
    """Global norm of the gradient before clipping."""


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context of a forward pass: matrix products in bf16 and everything else in fp32, or all in fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def optimizer_step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    *,
    micro_batch_size: int,
    precision: Precision,
    z_loss: float,
    max_grad_norm: float,
) -> StepOutcome:
    """Moves the weights along the gradient of the mean objective over the batch. batch: integers (B, seq_len + 1).

    The gradient does not depend on `micro_batch_size`, the number of sequences in a forward pass, except for rounding.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=batch.device)
    for rows in batch.split(micro_batch_size):
        with autocast(batch.device, precision):
            found = model.loss(rows[:, :-1], rows[:, 1:], z_loss)
        (found.objective * (len(rows) / len(batch))).backward()
        loss += found.losses.sum(dtype=torch.float64)
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return StepOutcome(loss / batch[:, 1:].numel(), grad_norm)
