"""A SwiGLU computed in stripes of units, each only for the tokens that reach into it.

With tokens sorted from wide to narrow these are the first rows of x, so a view. Each stripe is a small feed-forward
whose output is added to its rows. Columns of w_down are used in place, which measurably costs a matrix product nothing.
The alternative, one bucket of tokens at a time with its whole prefix of units, reads the weights more often: equally
fast with 4096 tokens, slower with fewer.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from widthwise.kernels.dispatch import compute_dtype, refuse_double_backward
from widthwise.kernels.sliced_swiglu.buckets import Stripe, plan_stripes
from widthwise.kernels.sliced_swiglu.reference import Mask, unit_centres

ROW_TILE = {torch.bfloat16: 64}
"""Multiple to which the rows of a stripe are rounded up. A bf16 product on the CPU needs preparation for every new
shape, which took a fifth of the time with unrounded row counts; an fp32 product does not."""


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b without a temporary for the product, which saves up to 5% of the time."""
    torch.addmm(total, a, b, out=total)  # not addmm_, which torch's FLOP counter does not count


class _SlicedSwiGLU(torch.autograd.Function):
    """Keeps the sorted rows and each stripe's gate and up for the backward pass; hidden activations are recomputed.

    Autograd through slices would keep those too, and takes 5% longer with 4096 tokens and 40% longer with 256.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w_gate: Tensor,
        w_up: Tensor,
        w_down: Tensor,
        order: Tensor,
        stripes: list[Stripe],
        *masks: Tensor,
    ) -> Tensor:
        rows = x.index_select(0, order)  # x[order] takes six times as long in bf16
        out = x.new_zeros(len(x), len(w_down))
        kept = []
        for (units, n_rows, n_used, n_whole, masked_from), mask in zip(stripes, masks):
            gate, up = linear(rows[:n_rows], w_gate[units]), linear(rows[:n_rows], w_up[units])
            hidden = silu(gate[:n_used]).mul_(up[:n_used])
            hidden[n_whole:, masked_from:].mul_(mask[: n_used - n_whole])
            _add_product(out[:n_used], hidden, w_down[:, units].T)
            kept += gate, up
        inverse = order.argsort()
        ctx.save_for_backward(rows, w_gate, w_up, w_down, order, inverse, *masks, *kept)
        ctx.stripes = stripes
        return out.index_select(0, inverse)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        rows, w_gate, w_up, w_down, order, inverse, *rest = ctx.saved_tensors
        n_stripes = len(ctx.stripes)
        masks, gates, ups = rest[:n_stripes], rest[n_stripes::2], rest[n_stripes + 1 :: 2]
        grad = grad.index_select(0, order)
        grad_rows = torch.zeros_like(rows)
        grad_w_gate, grad_w_up, grad_w_down = (torch.zeros_like(weight) for weight in (w_gate, w_up, w_down))
        grad_masks: list[Tensor | None] = []
        for i, (stripe, mask, gate, up) in enumerate(zip(ctx.stripes, masks, gates, ups)):
            units, n_used = stripe.units, stripe.n_used
            masked = slice(stripe.n_whole, None), slice(stripe.masked_from, None)
            activation, grad_hidden = silu(gate), grad[: stripe.n_rows] @ w_down[:, units]
            hidden = activation * up
            grad_masks.append(grad_hidden[masked] * hidden[masked] if ctx.needs_input_grad[6 + i] else None)
            # What no token uses has no gradient but the mask's.
            x, grad_x, grad_out = (tensor[:n_used] for tensor in (rows, grad_rows, grad))
            gate, up, activation, hidden, grad_hidden = (
                tensor[:n_used] for tensor in (gate, up, activation, hidden, grad_hidden)
            )
            hidden[masked].mul_(mask[: n_used - stripe.n_whole])
            grad_hidden[masked].mul_(mask[: n_used - stripe.n_whole])
            _add_product(grad_w_down[:, units], grad_out.T, hidden)
            grad_up = activation.mul_(grad_hidden)
            grad_gate = torch.ops.aten.silu_backward(grad_hidden.mul_(up), gate)
            _add_product(grad_w_gate[units], grad_gate.T, x)
            _add_product(grad_w_up[units], grad_up.T, x)
            _add_product(grad_x, grad_gate, w_gate[units])
            _add_product(grad_x, grad_up, w_up[units])
        return grad_rows.index_select(0, inverse), grad_w_gate, grad_w_up, grad_w_down, None, None, *grad_masks


def sliced_swiglu(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    width: Tensor,
    mask: Mask,
    margin: float,
    overlap: float | None = None,
) -> Tensor:
    """See `reference.sliced_swiglu`. N > 0."""
    dtype = compute_dtype(x)
    widths, order = width.sort(descending=True)
    stripes = plan_stripes(
        widths.detach(), margin, margin if overlap is None else overlap, len(w_gate), ROW_TILE.get(dtype, 1)
    )
    masks = [
        mask(widths[n_whole:n_rows, None], unit_centres(units.start + masked_from, units.stop, widths)).to(dtype)
        for units, n_rows, _, n_whole, masked_from in stripes
    ]
    weights = (weight.to(dtype) for weight in (w_gate, w_up, w_down))
    return _SlicedSwiGLU.apply(x.to(dtype), *weights, order, stripes, *masks)
