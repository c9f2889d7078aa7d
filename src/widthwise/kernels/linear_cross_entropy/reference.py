"""Head and cross-entropy in plain torch."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, linear


class Teacher(NamedTuple):
    """Predictions to learn beside the targets: those of the same head for other hidden states."""

    hidden: Tensor
    """(..., d_model), as many as the student's. No gradient goes into them, nor through them into the head."""
    share: float
    """The share of the objective that the teacher has, from 0 to 1."""
    temperature: float


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    multiplier: float,
    z_coefficient: float = 0.0,
    teacher: Teacher | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of softmax(multiplier * hidden weight^T) against targets, in nats, in fp32 or wider.

    hidden: (..., d_model), weight: (vocab_size, d_model), targets: integers (...).
    Returns the scalar objective mean(loss + z_coefficient * log_normaliser^2) and, detached, the loss and the
    log-normaliser of every position, both (...). Source of the z-loss: PaLM, arXiv:2204.02311. With a teacher the loss
    in the objective is (1 - share) * loss + share * temperature^2 * KL(teacher || student), where both predict
    softmax(logits / temperature); Hinton et al. 2015, arXiv:1503.02531.
    """
    logits = _logits(hidden, weight, multiplier)
    loss = cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)
    log_normaliser = logits.logsumexp(dim=-1).view(targets.shape)
    objective = loss
    if teacher is not None:
        taught = _logits(teacher.hidden, weight, multiplier).detach()
        ours, aims = ((each / teacher.temperature).log_softmax(dim=-1) for each in (logits, taught))
        divergence = kl_div(ours, aims, reduction="none", log_target=True).sum(dim=-1).view(targets.shape)
        objective = (1 - teacher.share) * loss + teacher.share * teacher.temperature**2 * divergence
    objective = (objective + z_coefficient * log_normaliser.square()).mean()
    return objective, loss.detach(), log_normaliser.detach()


def _logits(hidden: Tensor, weight: Tensor, multiplier: float) -> Tensor:
    """(n, vocab_size), in fp32 or wider."""
    logits = linear(hidden, weight.to(hidden.dtype)).flatten(0, -2)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) * multiplier
