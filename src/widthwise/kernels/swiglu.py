"""SwiGLU: silu(gate) * up, and the routed experts of a mixture. Both save gate and up for the backward pass."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, silu
from torch.utils.flop_counter import register_flop_formula

from widthwise.kernels.dispatch import compute_dtype, reference_wanted, refuse_double_backward, use_fused

ALIGNMENT_BYTES = 16
"""`torch.nn.functional.grouped_mm` requires that rows start at multiples of this."""


def reference_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, elementwise. gate, up: (..., d_ff) -> (..., d_ff)."""
    return silu(gate) * up


class _SwiGLU(torch.autograd.Function):
    """SwiGLU that recomputes silu(gate) in the backward pass instead of saving it."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), silu(gate).mul_(grad)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Compute `reference_swiglu`."""
    if not use_fused(gate):
        return reference_swiglu(gate, up)
    return _SwiGLU.apply(gate, up) if torch.is_grad_enabled() else silu(gate).mul_(up)


def reference_grouped_swiglu(
    x: Tensor, chosen: Tensor, weights: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor
) -> Tensor:
    """Return, for each token, the sum over its chosen experts of weight * w_down (silu(w_gate x) * w_up x).

    x: (n_tokens, d_model), chosen: expert indices (n_tokens, top_k), weights: (n_tokens, top_k), w_gate and w_up:
    (n_experts, d_expert, d_model), w_down: (n_experts, d_out, d_expert) -> (n_tokens, d_out), in the autocast dtype if
    autocast is on. No token is dropped, and an expert may get none. Sources: Shazeer et al. 2017, arXiv:1701.06538;
    Shazeer 2020, arXiv:2002.05202.
    """
    update = torch.zeros(len(x), w_down.shape[1], dtype=torch.promote_types(x.dtype, weights.dtype), device=x.device)
    for expert, (gate, up, down) in enumerate(zip(w_gate, w_up, w_down)):
        token, choice = (chosen == expert).nonzero(as_tuple=True)
        hidden = silu(linear(x[token], gate)) * linear(x[token], up)
        update = update.index_add(0, token, linear(hidden, down) * weights[token, choice, None])
    return update.to(compute_dtype(x))


@torch.library.custom_op("widthwise::grouped_mm", mutates_args=())
def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Multiply consecutive groups of rows by matrices, as one operator.

    Wraps `torch.nn.functional.grouped_mm`, which requires strides that are multiples of 16 bytes, has no fp64 form,
    can be traced in bf16 only, and is invisible to torch's FLOP counter.

    Group g is rows ends[g - 1] to ends[g] (exclusive). ends: int32 (n_groups,), ascending, the last one n_rows.

    a: (n_rows, k), b: (n_groups, k, n) -> (n_rows, n): each row times the matrix of its group.
    a: (m, n_rows), b: (n_rows, n) -> (n_groups, m, n): one product over the rows of each group, 0 for an empty group.
    """
    if a.dtype == torch.float64:
        groups = [slice(start, end) for start, end in pairwise([0, *ends.tolist()])]
        if b.dim() == 3:
            return torch.cat([a[rows] @ matrix for rows, matrix in zip(groups, b)])
        return torch.stack([a[:, rows] @ b[rows] for rows in groups])
    return torch.nn.functional.grouped_mm(_aligned(a), _aligned(b), offs=ends).contiguous()


@grouped_mm.register_fake
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    n_groups = () if b.dim() == 3 else (len(ends),)
    return a.new_empty(*n_groups, a.shape[0], b.shape[-1])


@register_flop_formula(torch.ops.widthwise.grouped_mm)
def _(a_shape: torch.Size, b_shape: torch.Size, *_: object, **__: object) -> int:
    return 2 * a_shape[0] * a_shape[1] * b_shape[-1]


def _aligned(matrices: Tensor) -> Tensor:
    """Return the same values, with rows (or contiguous columns) that start at multiples of ALIGNMENT_BYTES."""
    if matrices.stride(-1) != 1:
        return _aligned(matrices.mT).mT
    unit = ALIGNMENT_BYTES // matrices.element_size()
    if matrices.stride(-2) % unit == 0:
        return matrices
    n_columns = matrices.shape[-1]
    return pad(matrices, (0, unit - n_columns % unit))[..., :n_columns]


class _GroupedSwiGLU(torch.autograd.Function):
    """Grouped matrix products over tokens sorted by expert.

    The token counts of the experts stay on the device, so the host never waits for it. Gate and up of every (token,
    choice) are saved for the backward pass; sorted inputs and hidden activations are recomputed.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, chosen: Tensor, weights: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor
    ) -> Tensor:
        top_k = chosen.shape[1]
        # order: flat (token, choice) of each sorted row; inverse: its inverse; ends: the last row + 1 of each expert.
        experts, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(len(w_gate), device=x.device), right=True, out_int32=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        rows = x[order // top_k]  # (n_tokens * top_k, d_model)
        gate, up = (grouped_mm(rows, w.mT, ends) for w in (w_gate, w_up))
        hidden = silu(gate).mul_(up).mul_(weights.flatten()[order, None])
        ctx.save_for_backward(x, weights, w_gate, w_up, w_down, gate, up, order, inverse, ends)
        return _sum_choices(grouped_mm(hidden, w_down.mT, ends), inverse, top_k)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        x, weights, w_gate, w_up, w_down, gate, up, order, inverse, ends = ctx.saved_tensors
        top_k = weights.shape[1]
        weight = weights.flatten()[order, None]
        token = order // top_k
        grad_rows = grad[token]
        grad_hidden = grouped_mm(grad_rows, w_down, ends)
        activated = silu(gate)
        product = activated * up
        grad_weight = (grad_hidden * product).sum(dim=-1, dtype=weights.dtype)
        grad_w_down = grouped_mm(grad_rows.T, product.mul_(weight), ends)
        grad_product = grad_hidden.mul_(weight)
        grad_gate = torch.ops.aten.silu_backward(grad_product * up, gate)
        grad_up = activated.mul_(grad_product)
        rows = x[token]
        grad_w_gate, grad_w_up = (grouped_mm(grad.T, rows, ends) for grad in (grad_gate, grad_up))
        grad_choices = grouped_mm(grad_gate, w_gate, ends).add_(grouped_mm(grad_up, w_up, ends))
        grad_x = _sum_choices(grad_choices, inverse, top_k)
        return grad_x, None, grad_weight[inverse].view_as(weights), grad_w_gate, grad_w_up, grad_w_down


def _sum_choices(rows: Tensor, inverse: Tensor, top_k: int) -> Tensor:
    """Sum the sorted rows (n_tokens * top_k, n) of each token -> (n_tokens, n).

    Gathers rather than scatter-adds, so that the result is deterministic.
    """
    return rows[inverse].view(len(inverse) // top_k, top_k, rows.shape[1]).sum(dim=1)


def grouped_swiglu(x: Tensor, chosen: Tensor, weights: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """Compute `reference_grouped_swiglu` by grouped matrix products."""
    if reference_wanted():
        return reference_grouped_swiglu(x, chosen, weights, w_gate, w_up, w_down)
    dtype = compute_dtype(x)
    matrices = (matrix.to(dtype) for matrix in (w_gate, w_up, w_down))
    return _GroupedSwiGLU.apply(x.to(dtype), chosen, weights, *matrices)
