"""The boundary as one Triton kernel forward and one backward, plus one that sums the gradient of the projection.

Memory traffic is six states per boundary. Forward: the old state read, the new one written. Backward: the old state and
the gradient of the new one read, the gradient of the old one written, and the new state read once more for the gradient
of the projection. Kept for the backward pass: states (which the next boundary keeps too), updates and coefficients.

Gradients of parameters are the programs' partial sums, added in a fixed order, so that the same inputs give the same
bits.
"""

from typing import Any

from torch import Tensor

from widthwise.kernels.boundary import operators
from widthwise.kernels.boundary.reference import PendingWrite, Reading


def boundary(stream: Tensor | PendingWrite, reading: Reading) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.boundary`. States must be fp32 or narrower."""
    static, projection, scale, n_read, eps = reading
    state, update, coefficients, n_read_before, multiplier = (
        stream if isinstance(stream, PendingWrite) else (stream, None, None, 0, 1.0)
    )
    new_state, x, new_coefficients = operators.forward(
        state.contiguous(),
        None if update is None else update.contiguous(),
        _table(coefficients),
        n_read_before,
        multiplier,
        _table(static),
        None if projection is None else _table(projection.T),
        _table(scale),
        n_read,
        eps,
    )
    return state if update is None else new_state, x, static.float() if projection is None else new_coefficients


def _table(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.float().contiguous()


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    """Saves what the backward pass needs. inputs, output: of `operators.forward`."""
    state, update, coefficients, n_read_before, multiplier, static, projection, scale, n_read, eps = inputs
    new_state, _, new_coefficients = output
    ctx.save_for_backward(state, update, coefficients, static, projection, scale, new_state, new_coefficients)
    ctx.numbers = n_read_before, multiplier, n_read, eps


def _differentiate(
    ctx: Any, grad_new_state: Tensor, grad_x: Tensor, grad_new_coefficients: Tensor
) -> tuple[Tensor | None, ...]:
    """One gradient for each input of `operators.forward`."""
    grads = (grad.contiguous() for grad in (grad_new_state, grad_x, grad_new_coefficients))
    kept = ctx.saved_tensors  # unpacked once: activation checkpointing refuses a second time
    gradients = operators.backward(*grads, *kept, *ctx.numbers)
    state, update, coefficients, static, projection, scale = (
        None if leaf is None else gradient for leaf, gradient in zip(kept, gradients)
    )
    return state, update, coefficients, None, None, static, projection, scale, None, None


operators.forward.register_autograd(_differentiate, setup_context=_keep)
