"""The backward pass of a boundary in Triton: the derivative of `reference.boundary`.

For a slot h of b numbers with coefficients C = static + scale * tanh(P), P = inverse_rms * (h @ projection^T):

    dP = dC * scale * (1 - tanh(P)^2)
    dh = inverse_rms * (dP @ projection) - inverse_rms^2 / b * sum(dP * P) * h + shares of the read and of the new state

where the second term is the derivative of the norm. Each program loops over tokens with a stride and sums gradients of
parameters in registers; the programs' sums are added outside, in a fixed order. The new state is recomputed from the
old one, which must be read anyway.
"""

# pyright: reportMissingImports=false
import triton
import triton.language as tl

from widthwise.kernels.boundary.forward_kernel import (
    carry_of,
    column_of,
    inverse_rms_of,
    row_of,
    slots_of,
    store_column,
    store_slots,
    tanh,
    written,
)


@triton.jit
def through_coefficient(
    h,
    inverse_rms,
    grad_column,
    k,
    projection,
    scale,
    weighted,
    grad_h,
    grad_scale,
    rms_pull,
    N: tl.constexpr,
    B: tl.constexpr,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Adds the share of column k of the coefficients to grad_h, grad_scale and rms_pull = sum(dP * P).

    Stores inverse_rms * dP in `weighted`, from which `projection_backward` makes the gradient of the projection.
    """
    row = row_of(projection, k, B, DIMS)[None, :]
    pre_activation = inverse_rms * tl.sum(h * row, axis=1)
    activation = tanh(pre_activation)
    grad_scale += tl.where(tl.arange(0, COLUMNS)[None, :] == k, (grad_column * activation)[:, None], 0)
    grad_pre_activation = grad_column * column_of(scale, k, N, K, SLOTS) * (1 - activation * activation)
    rms_pull += grad_pre_activation * pre_activation
    weight = inverse_rms * grad_pre_activation
    store_column(weighted, k, weight, N, K, SLOTS)
    return grad_h + weight[:, None] * row, grad_scale, rms_pull


@triton.jit
def through_write(
    grad_h,
    state,
    update,
    coefficients,
    multiplier,
    grad_state,
    grad_update,
    grad_coefficients,
    N: tl.constexpr,
    B: tl.constexpr,
    N_READ: tl.constexpr,
    N_WRITE: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Stores the gradients of the old state, the update, and the carry and write coefficients."""
    K: tl.constexpr = N_READ + N + N_WRITE
    slot, dim = tl.arange(0, SLOTS), tl.arange(0, DIMS)
    for i in range(N):
        carry = carry_of(coefficients, i, N, N_READ, K, SLOTS) + (slot == i)
        tl.store(grad_state + i * B + dim, tl.sum(carry[:, None] * grad_h, axis=0), mask=dim < B)
        grad_carry = tl.sum(row_of(state, i, B, DIMS)[None, :] * grad_h, axis=1)
        tl.store(grad_coefficients + i * K + N_READ + slot, grad_carry, mask=slot < N)
    for k in range(N_WRITE):
        weight = multiplier * column_of(coefficients, N_READ + N + k, N, K, SLOTS)
        tl.store(grad_update + k * B + dim, tl.sum(weight[:, None] * grad_h, axis=0), mask=dim < B)
        grad_write = multiplier * tl.sum(row_of(update, k, B, DIMS)[None, :] * grad_h, axis=1)
        store_column(grad_coefficients, N_READ + N + k, grad_write, N, K, SLOTS)


@triton.jit
def boundary_backward(
    state,
    update,
    coefficients,
    token_stride,
    multiplier,
    new_coefficients,
    new_token_stride,
    projection,
    scale,
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
    n_tokens,
    N: tl.constexpr,
    B: tl.constexpr,
    N_READ_BEFORE: tl.constexpr,
    N_WRITE_BEFORE: tl.constexpr,
    N_READ: tl.constexpr,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WRITES: tl.constexpr,
    DYNAMIC: tl.constexpr,
):
    """projection: (K, b). Token strides: 0 if all tokens share the coefficients."""
    program = tl.program_id(0).to(tl.int64)
    column_number = tl.arange(0, COLUMNS)[None, :]
    grad_static = tl.zeros([SLOTS, COLUMNS], tl.float32)
    grad_scale = tl.zeros([SLOTS, COLUMNS], tl.float32)
    for token in range(program, n_tokens, tl.num_programs(0)):
        own_state = state + token * N * B
        own_update = update + token * N_WRITE_BEFORE * B
        own_coefficients = coefficients + token * token_stride
        if WRITES:
            h = written(
                own_state, own_update, own_coefficients, multiplier,
                N, B, N_READ_BEFORE, N_WRITE_BEFORE, SLOTS, DIMS,
            )  # fmt: skip
            grad_h = slots_of(grad_new_state + token * N * B, N, B, SLOTS, DIMS)
        else:
            h = slots_of(own_state, N, B, SLOTS, DIMS)
            grad_h = tl.zeros([SLOTS, DIMS], tl.float32)
        own_new = new_coefficients + token * new_token_stride
        own_grad_x = grad_x + token * N_READ * B
        own_grad_new = grad_new_coefficients + token * N * K
        own_weighted = weighted + token * N * K
        inverse_rms = inverse_rms_of(h, eps, B)
        rms_pull = tl.zeros([SLOTS], tl.float32)
        for k in range(N_READ):
            column = column_of(own_new, k, N, K, SLOTS)
            grad_block = row_of(own_grad_x, k, B, DIMS)
            grad_h += column[:, None] * grad_block[None, :]
            grad_column = tl.sum(h * grad_block[None, :], axis=1)
            if DYNAMIC:
                grad_column += column_of(own_grad_new, k, N, K, SLOTS)
                grad_h, grad_scale, rms_pull = through_coefficient(
                    h, inverse_rms, grad_column, k, projection, scale, own_weighted, grad_h, grad_scale, rms_pull,
                    N, B, K, SLOTS, DIMS, COLUMNS,
                )  # fmt: skip
            grad_static += tl.where(column_number == k, grad_column[:, None], 0)
        if DYNAMIC:
            for k in range(N_READ, K):
                grad_column = column_of(own_grad_new, k, N, K, SLOTS)
                grad_h, grad_scale, rms_pull = through_coefficient(
                    h, inverse_rms, grad_column, k, projection, scale, own_weighted, grad_h, grad_scale, rms_pull,
                    N, B, K, SLOTS, DIMS, COLUMNS,
                )  # fmt: skip
                grad_static += tl.where(column_number == k, grad_column[:, None], 0)
            grad_h -= (inverse_rms * inverse_rms * rms_pull / B)[:, None] * h
        if WRITES:
            through_write(
                grad_h, own_state, own_update, own_coefficients, multiplier,
                grad_state + token * N * B, grad_update + token * N_WRITE_BEFORE * B,
                grad_coefficients + token * N * (N_READ_BEFORE + N + N_WRITE_BEFORE),
                N, B, N_READ_BEFORE, N_WRITE_BEFORE, SLOTS, DIMS,
            )  # fmt: skip
        else:
            store_slots(grad_state + token * N * B, grad_h, N, B, SLOTS, DIMS)
    store_slots(static_partials + program * N * K, grad_static, N, K, SLOTS, COLUMNS)
    if DYNAMIC:
        store_slots(scale_partials + program * N * K, grad_scale, N, K, SLOTS, COLUMNS)


@triton.jit
def projection_backward(
    state,
    weighted,
    partials,
    n_rows,
    B: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program's share of weighted^T @ state (K, b), for DIMS of its columns. Rows: the slots of all tokens."""
    program, n_programs = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    dim = tl.program_id(0) * DIMS + tl.arange(0, DIMS)[None, :]
    total = tl.zeros([COLUMNS, DIMS], tl.float32)
    for start in range(program * ROWS, n_rows, n_programs * ROWS):
        own_row = start + row
        inside = own_row < n_rows
        h = tl.load(state + own_row * B + dim, mask=inside & (dim < B), other=0).to(tl.float32)
        weight = tl.load(weighted + own_row * K + column, mask=inside & (column < K), other=0)
        total += tl.dot(tl.trans(weight), h, input_precision=PRECISION)
    place = tl.arange(0, COLUMNS)[:, None]
    tl.store(partials + (program * K + place) * B + dim, total, mask=(place < K) & (dim < B))
