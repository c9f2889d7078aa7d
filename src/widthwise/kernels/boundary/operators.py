"""Launches the Triton kernels of a boundary, as operators that torch.compile treats as opaque nodes of its graph.

States are (..., n, b), updates (..., n_write * b), tables of coefficients (n, k) or (..., n, k), in fp32; all are
contiguous. Outputs that belong to an input of None are empty tensors, because operators cannot return None.
"""

from typing import Any

import torch
from torch import Tensor

from widthwise.kernels.boundary.backward_kernel import boundary_backward, projection_backward
from widthwise.kernels.boundary.forward_kernel import boundary_forward

NUMBERS_PER_WARP = 1024
"""Numbers of the padded state per warp in the forward pass (32 per thread); half of that in the backward pass."""
PROGRAMS_PER_PROCESSOR = 4
"""Programs of the backward kernel for each multiprocessor of the GPU."""
N_INTERPRETED_PROGRAMS = 3
"""The same in all under Triton's interpreter: few, but enough to test partial sums."""
ROWS, COLUMN_DIMS = 32, 128
"""Tile of the kernel for the projection's gradient: slots (of any tokens), and numbers of a slot."""


def _padded(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


class _Sizes:
    """The sizes for which both kernels are compiled."""

    def __init__(self, state: Tensor, update: Tensor | None, static: Tensor, n_read: int, n_read_before: int):
        n_slots, slot_width = state.shape[-2:]
        slots, dims = _padded(n_slots), _padded(slot_width)
        self.n_tokens = state.numel() // (n_slots * slot_width)
        self.n_padded_numbers = slots * dims
        self.constants = {
            "N": n_slots,
            "B": slot_width,
            "N_READ_BEFORE": n_read_before,
            "N_WRITE_BEFORE": 0 if update is None else update.shape[-1] // slot_width,
            "N_READ": n_read,
            "K": static.shape[-1],
            "SLOTS": slots,
            "DIMS": dims,
            "WRITES": update is not None,
        }

    def n_warps(self, numbers_per_warp: int) -> int:
        return max(1, min(16, self.n_padded_numbers // numbers_per_warp))


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    if all(grid):
        kernel[grid](*arguments, **constants)


def _max_programs(x: Tensor) -> int:
    if not x.is_cuda:
        return N_INTERPRETED_PROGRAMS
    return PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(x.device).multi_processor_count


def _token_stride(coefficients: Tensor | None) -> int:
    """Distance between the tables of consecutive tokens, in numbers; 0 for a table that all tokens share."""
    if coefficients is None or coefficients.dim() == 2:
        return 0
    return coefficients.shape[-2] * coefficients.shape[-1]


def _outputs(
    state: Tensor, update: Tensor | None, static: Tensor, projection: Tensor | None, n_read: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of `forward`, uninitialised."""
    tokens, slot_width = state.shape[:-2], state.shape[-1]
    return (
        state.new_empty(0) if update is None else torch.empty_like(state),
        state.new_empty((*tokens, n_read * slot_width)),
        static.new_empty(0 if projection is None else (*tokens, *static.shape)),
    )


@torch.library.custom_op("widthwise::boundary", mutates_args=())
def forward(
    state: Tensor,
    update: Tensor | None,
    coefficients: Tensor | None,
    n_read_before: int,
    multiplier: float,
    static: Tensor,
    projection: Tensor | None,
    scale: Tensor | None,
    n_read: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The new state, x and the new coefficients. projection: (k, b)."""
    sizes = _Sizes(state, update, static, n_read, n_read_before)
    new_state, x, new_coefficients = _outputs(state, update, static, projection, n_read)
    _launch(
        boundary_forward,
        (sizes.n_tokens,),
        state,
        state if update is None else update,
        static if coefficients is None else coefficients,
        _token_stride(coefficients),
        multiplier,
        static,
        static if projection is None else projection,
        static if scale is None else scale,
        eps,
        new_state,
        x,
        new_coefficients,
        **sizes.constants,
        DYNAMIC=projection is not None,
        num_warps=sizes.n_warps(NUMBERS_PER_WARP),
    )
    return new_state, x, new_coefficients


@forward.register_fake
def _(state, update, coefficients, n_read_before, multiplier, static, projection, scale, n_read, eps):
    return _outputs(state, update, static, projection, n_read)


@torch.library.custom_op("widthwise::boundary_backward", mutates_args=())
def backward(
    grad_new_state: Tensor,
    grad_x: Tensor,
    grad_new_coefficients: Tensor,
    state: Tensor,
    update: Tensor | None,
    coefficients: Tensor | None,
    static: Tensor,
    projection: Tensor | None,
    scale: Tensor | None,
    new_state: Tensor,
    new_coefficients: Tensor,
    n_read_before: int,
    multiplier: float,
    n_read: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of state, update, coefficients, static, projection and scale."""
    sizes = _Sizes(state, update, static, n_read, n_read_before)
    is_dynamic, n_programs = projection is not None, min(_max_programs(state), sizes.n_tokens)
    tokens = state.shape[:-2]
    grad_state = torch.empty_like(state)
    grad_update = state.new_empty(0) if update is None else torch.empty_like(update)
    grad_coefficients = static.new_zeros(0 if coefficients is None else (*tokens, *coefficients.shape[-2:]))
    weighted = static.new_empty((*tokens, *static.shape) if is_dynamic else 0)
    static_partials = static.new_empty((n_programs, *static.shape))
    scale_partials = torch.empty_like(static_partials) if is_dynamic else static.new_empty((n_programs, 0))
    _launch(
        boundary_backward,
        (n_programs,),
        state,
        state if update is None else update,
        static if coefficients is None else coefficients,
        _token_stride(coefficients),
        multiplier,
        new_coefficients if is_dynamic else static,
        _token_stride(new_coefficients if is_dynamic else None),
        static if projection is None else projection,
        static if scale is None else scale,
        eps,
        grad_new_state,
        grad_x,
        grad_new_coefficients,
        grad_state,
        grad_update,
        grad_coefficients,
        weighted,
        static_partials,
        scale_partials,
        sizes.n_tokens,
        **sizes.constants,
        COLUMNS=_padded(static.shape[-1]),
        DYNAMIC=is_dynamic,
        num_warps=sizes.n_warps(NUMBERS_PER_WARP // 2),
    )
    if coefficients is not None and coefficients.dim() == 2:
        grad_coefficients = grad_coefficients.flatten(0, -3).sum(dim=0)
    return (
        grad_state,
        grad_update,
        grad_coefficients,
        static_partials.sum(dim=0),
        _projection_gradient(state if update is None else new_state, weighted) if is_dynamic else static.new_empty(0),
        scale_partials.sum(dim=0),
    )


def _projection_gradient(state: Tensor, weighted: Tensor) -> Tensor:
    """(k, b): weighted^T state over the slots of all tokens. weighted: (..., n, k)."""
    n_coefficients, slot_width = weighted.shape[-1], state.shape[-1]
    n_rows = weighted.numel() // n_coefficients
    n_programs = min(_max_programs(state), -(-n_rows // ROWS))
    partials = weighted.new_empty((n_programs, n_coefficients, slot_width))
    _launch(
        projection_backward,
        (-(-slot_width // COLUMN_DIMS), n_programs),
        state,
        weighted,
        partials,
        n_rows,
        B=slot_width,
        K=n_coefficients,
        ROWS=ROWS,
        DIMS=COLUMN_DIMS,
        COLUMNS=max(16, _padded(n_coefficients)),
        # tf32 represents a bf16 state exactly, and the other factor to 11 bits.
        PRECISION="ieee" if state.dtype == torch.float32 else "tf32",
    )
    return partials.sum(dim=0)


@backward.register_fake
def _(grad_new_state, grad_x, grad_new_coefficients, state, update, coefficients, static, projection, scale, *_):
    leaves = state, update, coefficients, static, projection, scale
    return tuple(static.new_empty(0) if leaf is None else torch.empty_like(leaf) for leaf in leaves)
