"""Head and cross-entropy in plain torch."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, multiplier: float, z_coefficient: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of softmax(multiplier * hidden weight^T) against targets, in nats, in fp32 or wider.

    hidden: (..., d_model), weight: (vocab_size, d_model), targets: integers (...).
    Returns the scalar objective mean(loss + z_coefficient * log_normaliser^2) and, detached, the loss and the
    log-normaliser of every position, both (...). Source of the z-loss: PaLM, arXiv:2204.02311.
    """
    logits = linear(hidden, weight.to(hidden.dtype)).flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) * multiplier
    loss = cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)
    log_normaliser = logits.logsumexp(dim=-1).view(targets.shape)
    objective = (loss + z_coefficient * log_normaliser.square()).mean()
    return objective, loss.detach(), log_normaliser.detach()
