"""A SwiGLU in which each token has a width: it uses only its first hidden units and skips the rest."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from widthwise.kernels.dispatch import compute_dtype, refuse_double_backward, use_fused
from widthwise.kernels.swiglu import swiglu

Mask = Callable[[Tensor, Tensor], Tensor]
"""Elementwise and differentiable function of widths (n, 1) and unit centres (m,), with values (n, m)."""


class Edge(NamedTuple):
    """A mask that falls from 1 to 0 around the width w of a token; c_i = i + 1/2 is the centre of unit i."""

    mask: Mask
    margin: float
    """Units on each side of the width: the mask is exactly 1 where c_i < w - margin, exactly 0 where c_i > w, and its
    derivative is 0 where |c_i - w| > margin. 0 for a hard mask. For a straight-through mask, the distance at which its
    derivative is lost in rounding. Infinite for a sigmoid, which is never 0 or 1 and is not sliced."""


UNIT_TILE = 64
"""Edges of buckets of units are multiples of this, because matrix products are fastest at such sizes."""
N_BUCKETS = 8
"""Largest number of widths to which the widths of tokens are rounded up. Four waste more units, and were never faster
for 128 tokens or more."""
ROW_TILE = {torch.bfloat16: 64}
"""Multiple to which the rows of a stripe are rounded up; 1 for other dtypes. A bf16 product on the CPU needs
preparation for every new shape, which took a fifth of the time without rounding; an fp32 product does not."""


def unit_centres(start: int, stop: int, like: Tensor) -> Tensor:
    """Return i + 1/2 for the units start <= i < stop, with the dtype and device of `like`."""
    return torch.arange(start, stop, dtype=like.dtype, device=like.device) + 0.5


def reference_sliced_swiglu(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, width: Tensor, edge: Edge
) -> Tensor:
    """Return w_down (silu(w_gate x) * (w_up x) * mask(width, c)), where c_i = i + 1/2 is the centre of unit i.

    x: (N, d_model), w_gate and w_up: (d_ff, d_model), w_down: (d_out, d_ff), width: (N,), in units, fp32 or wider
    -> (N, d_out), in the autocast dtype if autocast is on, otherwise in the dtype of x. This form skips no units, for
    any margin of the edge.
    """
    hidden = silu(linear(x, w_gate)) * linear(x, w_up)
    values = edge.mask(width[:, None], unit_centres(0, len(w_gate), width))
    return linear(hidden * values.to(hidden.dtype), w_down)


def whole_units(width: Tensor, margin: float, d_ff: int) -> Tensor:
    """Return the number of leading units with mask 1 and derivative 0. Arguments as in `reached_units`."""
    return (width.detach() - margin - 0.5).ceil().clamp(0, d_ff).long()


def reached_units(width: Tensor, margin: float, d_ff: int) -> Tensor:
    """Return the number of leading units that a token needs. All later units have mask 0 and derivative 0.

    width: (...), in units; margin: see `Edge` -> integers (...).
    """
    return (width.detach() + margin + 0.5).floor().clamp(0, d_ff).long()


def bucket_edges(d_ff: int) -> list[int]:
    """Return at most `N_BUCKETS` nearly evenly spaced edges, the last d_ff, the rest multiples of `UNIT_TILE`."""
    n_tiles = -(-d_ff // UNIT_TILE)
    n_buckets = min(N_BUCKETS, n_tiles)
    return [*(UNIT_TILE * round(n_tiles * i / n_buckets) for i in range(1, n_buckets)), d_ff]


def bucketed_units(width: Tensor, margin: float, d_ff: int) -> Tensor:
    """Return the units computed for a token: its reached units rounded up to a bucket edge (0 stays 0).

    Arguments as in `reached_units` -> integers (...). The sum over tokens times 4 d_model + 2 d_out is the number of
    FLOPs of the forward pass in stripes, except for the few rows that `plan_stripes` adds by rounding and the rows of
    derivatives beyond the width, which w_down skips.
    """
    ends = torch.tensor([0, *bucket_edges(d_ff)], device=width.device)
    return ends[torch.searchsorted(ends, reached_units(width, margin, d_ff))]


def units_for_all(width: Tensor, margin: float, d_ff: int) -> int:
    """Return the number of units of the widest token, rounded up to a multiple of `UNIT_TILE`, at most d_ff."""
    n_units = max(reached_units(width, margin, d_ff).tolist(), default=0)
    return min(d_ff, -(-n_units // UNIT_TILE) * UNIT_TILE)


class Stripe(NamedTuple):
    """A rectangle of the matrix of tokens and units, with tokens sorted from wide to narrow."""

    units: slice
    n_rows: int
    """Computed tokens; all later tokens have mask 0 and derivative 0 in the stripe."""
    n_used: int
    """Leading tokens with a mask that may be above 0; the computed tokens after them have only a derivative."""
    n_whole: int
    """Leading tokens with mask 1 in the whole stripe, to which the mask need not be applied."""
    masked_from: int
    """First unit of the stripe to which the mask is applied; before it the mask is 1 for all computed tokens."""


def plan_stripes(width: Tensor, margin: float, d_ff: int, row_tile: int) -> list[Stripe]:
    """Return the fewest stripes, in the order of units, that compute every token up to its bucket edge.

    width: (N,) with N > 0, descending; margin: see `Edge`. `n_rows` and `n_used` are rounded up to a multiple of
    `row_tile`, at most N.
    """
    edges = bucket_edges(d_ff)
    starts = torch.tensor([0, *edges[:-1]], device=width.device)
    stops = torch.tensor(edges, device=width.device)
    reached = torch.stack([reached_units(width, distance, d_ff) for distance in (margin, 0.0)])
    n_tokens = (reached[..., None] > starts).sum(dim=1)  # (2, n_buckets), with units in each bucket
    n_rows, n_used = (-(-n_tokens // row_tile) * row_tile).clamp(max=len(width))
    whole = whole_units(width, margin, d_ff)
    n_whole = (whole[:, None] >= stops).sum(dim=0)
    least_whole = whole[(n_rows - 1).clamp(min=0)]  # of the narrowest computed token
    counts = torch.stack([n_rows, n_used, n_whole, least_whole], dim=1).tolist()  # the only wait for a device
    stripes = []
    start = 0
    for i, (stop, (rows, used_rows, whole_rows, least)) in enumerate(zip(edges, counts)):
        if rows == 0:
            break
        if i + 1 < len(edges) and counts[i + 1][:2] == [rows, used_rows]:
            continue  # no token ends at this edge: the next bucket belongs to the same stripe
        stripes.append(Stripe(slice(start, stop), rows, used_rows, whole_rows, max(0, least - start)))
        start = stop
    return stripes


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to the total without a temporary for the product, which saves up to 5% of the time."""
    torch.addmm(total, a, b, out=total)  # not addmm_, which torch's FLOP counter does not count


class _SlicedSwiGLU(torch.autograd.Function):
    """Stripes of units, each computed only for the tokens that use its units.

    Tokens are sorted from wide to narrow, so that the tokens of a stripe are the first rows of x, which needs no copy.
    Each stripe is a small feed-forward whose output is added to its rows. Columns of w_down are used in place, at no
    measurable cost. The alternative, one bucket of tokens at a time with all its units, reads the weights more often:
    it is as fast with 4096 tokens and slower with fewer.

    The sorted rows and each stripe's gate and up are saved for the backward pass; hidden activations are recomputed.
    Autograd through slices would save those too, and takes 5% longer with 4096 tokens and 40% longer with 256.
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
        gates_and_ups = []
        for (units, n_rows, n_used, n_whole, masked_from), mask in zip(stripes, masks):
            gate, up = (linear(rows[:n_rows], w[units]) for w in (w_gate, w_up))
            hidden = silu(gate[:n_used]).mul_(up[:n_used])
            hidden[n_whole:, masked_from:].mul_(mask[: n_used - n_whole])
            _add_product(out[:n_used], hidden, w_down[:, units].T)
            gates_and_ups += gate, up
        inverse = order.argsort()
        ctx.save_for_backward(rows, w_gate, w_up, w_down, order, inverse, *masks, *gates_and_ups)
        ctx.stripes = stripes
        return out.index_select(0, inverse)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        rows, w_gate, w_up, w_down, order, inverse, *rest = ctx.saved_tensors
        n_stripes = len(ctx.stripes)
        masks = rest[:n_stripes]
        gates = rest[n_stripes::2]
        ups = rest[n_stripes + 1 :: 2]
        grad = grad.index_select(0, order)
        grad_rows = torch.zeros_like(rows)
        grad_w_gate, grad_w_up, grad_w_down = (torch.zeros_like(weight) for weight in (w_gate, w_up, w_down))
        grad_masks: list[Tensor | None] = []
        for i, (stripe, mask, gate, up) in enumerate(zip(ctx.stripes, masks, gates, ups)):
            units, n_rows, n_used, n_whole, masked_from = stripe
            masked = slice(n_whole, None), slice(masked_from, None)
            activation = silu(gate)
            grad_hidden = grad[:n_rows] @ w_down[:, units]
            hidden = activation * up
            grad_masks.append(grad_hidden[masked] * hidden[masked] if ctx.needs_input_grad[6 + i] else None)
            # Tokens after n_used have only the gradient of the mask.
            x, grad_x, grad_out = (tensor[:n_used] for tensor in (rows, grad_rows, grad))
            gate, up, activation, hidden, grad_hidden = (
                tensor[:n_used] for tensor in (gate, up, activation, hidden, grad_hidden)
            )
            hidden[masked].mul_(mask[: n_used - n_whole])
            grad_hidden[masked].mul_(mask[: n_used - n_whole])
            _add_product(grad_w_down[:, units], grad_out.T, hidden)
            grad_up = activation.mul_(grad_hidden)
            grad_gate = torch.ops.aten.silu_backward(grad_hidden.mul_(up), gate)
            _add_product(grad_w_gate[units], grad_gate.T, x)
            _add_product(grad_w_up[units], grad_up.T, x)
            _add_product(grad_x, grad_gate, w_gate[units])
            _add_product(grad_x, grad_up, w_up[units])
        return grad_rows.index_select(0, inverse), grad_w_gate, grad_w_up, grad_w_down, None, None, *grad_masks


def fused_sliced_swiglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, width: Tensor, edge: Edge) -> Tensor:
    """Compute `reference_sliced_swiglu` in stripes of sorted tokens. N > 0."""
    dtype = compute_dtype(x)
    widths, order = width.sort(descending=True)
    stripes = plan_stripes(widths.detach(), edge.margin, len(w_gate), ROW_TILE.get(dtype, 1))
    masks = [
        edge.mask(widths[n_whole:n_rows, None], unit_centres(units.start + masked_from, units.stop, widths)).to(dtype)
        for units, n_rows, _, n_whole, masked_from in stripes
    ]
    weights = (weight.to(dtype) for weight in (w_gate, w_up, w_down))
    return _SlicedSwiGLU.apply(x.to(dtype), *weights, order, stripes, *masks)


def sliced_is_faster(n_tokens: int, dtype: torch.dtype) -> bool:
    """Return True if stripes of sorted tokens are faster than the masked form, which computes all units.

    Measured on one CPU thread at d_model 768, d_ff 2048 and widths spread evenly from 0 to d_ff. Time relative to the
    masked form (forward / with backward, if they differ): in fp32 1.0 / 1.1 for 16 tokens, 0.9 for 32, 0.8 for 64; in
    bf16 1.2 for 64 tokens, 0.9 / 1.0 for 128, 0.9 for 256. For thousands of tokens, stripes were not slower even if all
    tokens used all units.
    """
    return n_tokens >= (128 if dtype == torch.bfloat16 else 32)


def sliced_swiglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, width: Tensor, edge: Edge) -> Tensor:
    """Compute `reference_sliced_swiglu`: many tokens in stripes, a few tokens up to the units of the widest one.

    Compute all units under torch.compile, because token counts are known only at run time, and on a GPU, where reading
    these counts stalls the queue. Slicing has not been measured on a GPU.
    """
    if use_fused(x):
        if sliced_is_faster(len(x), compute_dtype(x)):
            all_are_whole = bool((whole_units(width, edge.margin, len(w_gate)) == len(w_gate)).all())
            if all_are_whole and not width.requires_grad:  # otherwise stripes give the width its gradient of 0
                return linear(swiglu(linear(x, w_gate), linear(x, w_up)), w_down)
            return fused_sliced_swiglu(x, w_gate, w_up, w_down, width, edge)
        n_units = units_for_all(width, edge.margin, len(w_gate))
        return reference_sliced_swiglu(x, w_gate[:n_units], w_up[:n_units], w_down[:, :n_units], width, edge)
    return reference_sliced_swiglu(x, w_gate, w_up, w_down, width, edge)
