"""Head and cross-entropy, in chunks of positions, so that the logits of all positions are never in memory.

This saves memory on every device: with a vocabulary of 100,263, the logits of 4,096 tokens are 1.6 GB in fp32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, linear

from widthwise.kernels.dispatch import reference_wanted, refuse_double_backward, soft_capped, widened

LOGITS_PER_CHUNK = {"cpu": 2**20, "cuda": 2**28}
"""Logits of a chunk by device, 2^24 for other devices: few enough for a CPU's caches, enough for fast GPU products."""
MIN_ROWS = 256
"""Smallest number of positions in a chunk, because each chunk adds to the gradient of the whole matrix."""


class Head(NamedTuple):
    """The output matrix of a model, with the multiplier and the cap of its logits."""

    weight: Tensor
    """(vocab_size, d_model)"""
    multiplier: float = 1.0
    cap: float | None = None
    """Bound of the logits after the multiplier, see `soft_capped`; None: no bound."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states (..., d_model), flattened to (n, vocab_size), in fp32 or wider."""
        products = linear(hidden, self.weight.to(hidden.dtype)).flatten(0, -2)
        return soft_capped(widened(products) * self.multiplier, self.cap)


class Teacher(NamedTuple):
    """A model whose predictions are learned in addition to the targets. It receives no gradient."""

    hidden: Tensor
    """(..., d_teacher), the input of the teacher's head at the student's positions."""
    head: Head
    share: float
    """Share of the teacher in the objective, from 0 to 1."""
    temperature: float


def reference_linear_cross_entropy(
    hidden: Tensor, head: Head, targets: Tensor, z_coefficient: float = 0.0, teacher: Teacher | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the objective of a linear head, and the cross-entropy loss in nats, in fp32 or wider.

    hidden: (..., d_model), targets: integers (...).
    Returns the scalar objective mean(loss + z_coefficient * log_normaliser^2) and, detached, the loss and the
    log-normaliser of every position, both (...). Source of the z-loss: PaLM, arXiv:2204.02311. With a teacher, the loss
    in the objective is replaced by (1 - share) * loss + share * temperature^2 * KL(teacher || student), where both
    predict softmax(logits / temperature); Hinton et al. 2015, arXiv:1503.02531.
    """
    logits = head.logits(hidden)
    loss = cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)
    log_normaliser = logits.logsumexp(dim=-1).view(targets.shape)
    objective = loss
    if teacher is not None:
        teacher_logits = teacher.head.logits(teacher.hidden).detach()
        student_log, teacher_log = ((x / teacher.temperature).log_softmax(dim=-1) for x in (logits, teacher_logits))
        divergence = kl_div(student_log, teacher_log, reduction="none", log_target=True).sum(dim=-1).view(targets.shape)
        objective = (1 - teacher.share) * loss + teacher.share * teacher.temperature**2 * divergence
    objective = (objective + z_coefficient * log_normaliser.square()).mean()
    return objective, loss.detach(), log_normaliser.detach()


def rows_per_chunk(device_type: str, vocab_size: int) -> int:
    """Return the number of positions in a chunk."""
    return max(MIN_ROWS, LOGITS_PER_CHUNK.get(device_type, 2**24) // vocab_size)


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss in chunks. Gradients are computed in the forward pass, so that no logits are saved."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        multiplier: float,
        cap: float | None,
        targets: Tensor,
        z_coefficient: float,
        teacher: Teacher | None,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        compute_weight = weight.to(hidden.dtype)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        loss = hidden.new_empty(len(hidden), dtype=wide)
        log_normaliser = torch.empty_like(loss)
        objective = loss if teacher is None else torch.empty_like(loss)
        grad_hidden = torch.empty_like(hidden) if with_gradient else None
        grad_weight = torch.zeros_like(weight) if with_gradient and ctx.needs_input_grad[1] else None
        n_rows = rows_per_chunk(hidden.device.type, len(weight))
        share = 0.0 if teacher is None else teacher.share
        grad_divergence = None
        if teacher is not None:
            teacher_hidden = teacher.hidden.flatten(0, -2)
            # Cast once, not for every chunk.
            teacher_head = teacher.head._replace(weight=teacher.head.weight.to(teacher_hidden.dtype))
            teacher = teacher._replace(hidden=teacher_hidden, head=teacher_head)
        for rows in (slice(i, i + n_rows) for i in range(0, len(hidden), n_rows)):
            target = targets[rows, None]
            logits = linear(hidden[rows], compute_weight).to(wide)
            if multiplier != 1:
                logits.mul_(multiplier)
            if cap is not None:
                logits.div_(cap).tanh_().mul_(cap)
            probs = torch.softmax(logits, dim=-1)
            # log_sum = log sum exp(logits - highest), because the highest probability is 1 / sum exp(logits - highest).
            highest = logits.amax(dim=-1)
            log_sum = probs.amax(dim=-1).log_().neg_()
            loss[rows] = highest - logits.gather(1, target)[:, 0] + log_sum
            log_normaliser[rows] = highest + log_sum
            if teacher is not None:
                teacher_logits = teacher.head.logits(teacher.hidden[rows])
                divergence, grad_divergence = _divergence(logits, teacher_logits, teacher.temperature)
                objective[rows] = torch.lerp(loss[rows], divergence, share)
            if grad_hidden is not None:
                # d loss / d logits = softmax - onehot; the z-loss adds 2 z log_normaliser softmax.
                if z_coefficient or share:
                    probs.mul_(1 - share + 2 * z_coefficient * log_normaliser[rows, None])
                grad = probs.scatter_add_(1, target, probs.new_full((1, 1), share - 1.0).expand_as(target))
                if grad_divergence is not None:
                    grad.add_(grad_divergence, alpha=share)
                if cap is not None:  # d tanh(x) / dx = 1 - tanh(x)^2
                    grad.addcmul_(grad, logits.div_(cap).square_(), value=-1)
                grad = grad.to(hidden.dtype)
                torch.mm(grad, compute_weight, out=grad_hidden[rows])
                if grad_weight is not None:
                    grad_weight += grad.T @ hidden[rows]
        if grad_hidden is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
            ctx.scale = multiplier / max(1, len(hidden))
        ctx.mark_non_differentiable(loss, log_normaliser)
        return (objective + z_coefficient * log_normaliser.square()).mean(), loss, log_normaliser

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        grad_hidden, grad_weight = (
            None if gradient is None else gradient * (grad * ctx.scale) for gradient in ctx.saved_tensors
        )
        return grad_hidden, grad_weight, None, None, None, None, None, None


def _divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return temperature^2 * KL(teacher || student), (n,), and its gradient by the student's logits (n, vocab_size)."""
    student_log, teacher_log = ((x / temperature).log_softmax(dim=-1) for x in (logits, teacher_logits))
    teacher_probs = teacher_log.exp()
    divergence = (teacher_probs * teacher_log.sub_(student_log)).sum(dim=-1)
    return temperature**2 * divergence, student_log.exp_().sub_(teacher_probs).mul_(temperature)


def linear_cross_entropy(
    hidden: Tensor, head: Head, targets: Tensor, z_coefficient: float = 0.0, teacher: Teacher | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `reference_linear_cross_entropy`."""
    if reference_wanted():
        return reference_linear_cross_entropy(hidden, head, targets, z_coefficient, teacher)
    with_gradient = torch.is_grad_enabled() and (hidden.requires_grad or head.weight.requires_grad)
    objective, loss, log_normaliser = _LinearCrossEntropy.apply(
        hidden.flatten(0, -2), *head, targets.flatten(), z_coefficient, teacher, with_gradient
    )
    return objective, loss.view(targets.shape), log_normaliser.view(targets.shape)
