"""Routed SwiGLU experts as grouped matrix products over tokens sorted by expert, with a hand-written backward pass.

The host never waits for the device: the token counts of the experts stay on it. Kept for the backward pass are gate and
up of every choice; sorted inputs and hidden activations are recomputed.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from widthwise.kernels.dispatch import compute_dtype, refuse_double_backward
from widthwise.kernels.grouped_swiglu.grouped_mm import grouped_mm


class _GroupedSwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, chosen: Tensor, weights: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor
    ) -> Tensor:
        n_experts, top_k = len(w_gate), chosen.shape[1]
        # order: the flat (token, choice) at each sorted row; place: its inverse; ends: the last row + 1 of each expert.
        experts, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(n_experts, device=x.device), right=True, out_int32=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        rows = _sorted(x, order, top_k)
        gate, up = grouped_mm(rows, w_gate.mT, ends), grouped_mm(rows, w_up.mT, ends)
        hidden = silu(gate).mul_(up).mul_(weights.flatten()[order, None])
        ctx.save_for_backward(x, weights, w_gate, w_up, w_down, gate, up, order, place, ends)
        return _summed(grouped_mm(hidden, w_down.mT, ends), place, top_k)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        x, weights, w_gate, w_up, w_down, gate, up, order, place, ends = ctx.saved_tensors
        top_k = weights.shape[1]
        weight = weights.flatten()[order, None]
        grad_rows = _sorted(grad, order, top_k)
        grad_hidden = grouped_mm(grad_rows, w_down, ends)
        activated = silu(gate)
        product = activated * up
        grad_weight = (grad_hidden * product).sum(dim=-1, dtype=weights.dtype)
        grad_w_down = grouped_mm(grad_rows.T, product.mul_(weight), ends)
        grad_product = grad_hidden.mul_(weight)
        grad_gate = torch.ops.aten.silu_backward(grad_product * up, gate)
        grad_up = activated.mul_(grad_product)
        rows = _sorted(x, order, top_k)
        grad_w_gate, grad_w_up = grouped_mm(grad_gate.T, rows, ends), grouped_mm(grad_up.T, rows, ends)
        grad_x = _summed(grouped_mm(grad_gate, w_gate, ends).add_(grouped_mm(grad_up, w_up, ends)), place, top_k)
        return grad_x, None, grad_weight[place].view_as(weights), grad_w_gate, grad_w_up, grad_w_down


def _sorted(x: Tensor, order: Tensor, top_k: int) -> Tensor:
    """x: (n_tokens, n) -> (n_tokens * top_k, n): one row for each choice, sorted by expert."""
    return x[order // top_k]


def _summed(rows: Tensor, place: Tensor, top_k: int) -> Tensor:
    """The adjoint of `_sorted`. It gathers rather than scatter-adds, so that the result is deterministic."""
    return rows[place].view(len(place) // top_k, top_k, rows.shape[1]).sum(dim=1)


def grouped_swiglu(x: Tensor, chosen: Tensor, weights: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """See `reference.grouped_swiglu`."""
    dtype = compute_dtype(x)
    matrices = (matrix.to(dtype) for matrix in (w_gate, w_up, w_down))
    return _GroupedSwiGLU.apply(x.to(dtype), chosen, weights, *matrices)
