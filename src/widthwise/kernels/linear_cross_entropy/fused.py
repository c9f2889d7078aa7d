"""Head and cross-entropy in chunks of positions. Gradients are computed in the forward pass, so no logits are kept.

This pays on every device: with a vocabulary of 100,263, the logits of 4,096 tokens are 1.6 GB in fp32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from widthwise.kernels.dispatch import refuse_double_backward

LOGITS_PER_CHUNK = {"cpu": 2**21, "cuda": 2**28}
"""Logits held at a time, by device: few enough for the CPU's caches, enough for efficient matrix products on a GPU."""


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        multiplier: float,
        z_coefficient: float,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        compute_weight = weight.to(hidden.dtype)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        loss = hidden.new_empty(len(hidden), dtype=wide)
        log_normaliser = torch.empty_like(loss)
        grad_hidden = torch.empty_like(hidden) if with_gradient else None
        grad_weight = torch.zeros_like(weight) if with_gradient else None
        n_rows = max(1, LOGITS_PER_CHUNK.get(hidden.device.type, 2**24) // len(weight))
        for rows in (slice(i, i + n_rows) for i in range(0, len(hidden), n_rows)):
            target = targets[rows, None]
            logits = linear(hidden[rows], compute_weight).to(wide).mul_(multiplier)
            log_probs = log_softmax(logits, dim=-1)
            chosen = log_probs.gather(1, target)
            loss[rows] = -chosen[:, 0]
            log_normaliser[rows] = (logits.gather(1, target) - chosen)[:, 0]
            if grad_hidden is not None and grad_weight is not None:
                # d loss / d logits = softmax - onehot; the z-loss adds 2 z log_normaliser softmax.
                grad = log_probs.exp_()
                if z_coefficient:
                    grad.mul_(1 + 2 * z_coefficient * log_normaliser[rows, None])
                grad.scatter_add_(1, target, torch.full_like(chosen, -1.0))
                grad = grad.mul_(multiplier / len(hidden)).to(hidden.dtype)
                torch.mm(grad, compute_weight, out=grad_hidden[rows])
                grad_weight += grad.T @ hidden[rows]
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(loss, log_normaliser)
        return (loss + z_coefficient * log_normaliser.square()).mean(), loss, log_normaliser

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        grad_hidden, grad_weight = (own * grad.to(own.dtype) for own in ctx.saved_tensors)
        return grad_hidden, grad_weight, None, None, None, None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, multiplier: float, z_coefficient: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.linear_cross_entropy`."""
    with_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    objective, loss, log_normaliser = _LinearCrossEntropy.apply(
        hidden.flatten(0, -2), weight, targets.flatten(), multiplier, z_coefficient, with_gradient
    )
    return objective, loss.view(targets.shape), log_normaliser.view(targets.shape)
