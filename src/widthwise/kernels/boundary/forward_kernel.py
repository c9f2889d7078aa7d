"""The forward pass of a boundary in Triton: one program per token, holding the token's whole state in registers.

Rows are the N slots, padded to the power of two SLOTS; columns the B numbers of a slot, padded to DIMS. All arithmetic
is fp32. Tables of coefficients are processed column by column, so that no n x k table takes up registers.
"""

# pyright: reportMissingImports=false
import triton
import triton.language as tl


@triton.jit
def slots_of(state, N: tl.constexpr, B: tl.constexpr, SLOTS: tl.constexpr, DIMS: tl.constexpr):
    """(SLOTS, DIMS): the state of one token."""
    slot, dim = tl.arange(0, SLOTS)[:, None], tl.arange(0, DIMS)[None, :]
    return tl.load(state + slot * B + dim, mask=(slot < N) & (dim < B), other=0).to(tl.float32)


@triton.jit
def store_slots(state, values, N: tl.constexpr, B: tl.constexpr, SLOTS: tl.constexpr, DIMS: tl.constexpr):
    slot, dim = tl.arange(0, SLOTS)[:, None], tl.arange(0, DIMS)[None, :]
    tl.store(state + slot * B + dim, values, mask=(slot < N) & (dim < B))


@triton.jit
def row_of(matrix, i, B: tl.constexpr, DIMS: tl.constexpr):
    """(DIMS,): a slot, a block of a sublayer's input or output, or a row of the projection."""
    dim = tl.arange(0, DIMS)
    return tl.load(matrix + i * B + dim, mask=dim < B, other=0).to(tl.float32)


@triton.jit
def column_of(table, k, N: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr):
    """(SLOTS,): column k of a table of n x K coefficients."""
    slot = tl.arange(0, SLOTS)
    return tl.load(table + slot * K + k, mask=slot < N, other=0)


@triton.jit
def store_column(table, k, values, N: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr):
    slot = tl.arange(0, SLOTS)
    tl.store(table + slot * K + k, values, mask=slot < N)


@triton.jit
def carry_of(table, i, N: tl.constexpr, N_READ: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr):
    """(SLOTS,): how much of slot i is added to each slot; slot i itself is carried with 1 plus this."""
    slot = tl.arange(0, SLOTS)
    return tl.load(table + i * K + N_READ + slot, mask=slot < N, other=0)


@triton.jit
def written(
    state,
    update,
    coefficients,
    multiplier,
    N: tl.constexpr,
    B: tl.constexpr,
    N_READ: tl.constexpr,
    N_WRITE: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """(SLOTS, DIMS): the state after the write, rounded to its dtype."""
    K: tl.constexpr = N_READ + N + N_WRITE
    h = slots_of(state, N, B, SLOTS, DIMS)
    for i in range(N):
        h += carry_of(coefficients, i, N, N_READ, K, SLOTS)[:, None] * row_of(state, i, B, DIMS)[None, :]
    for k in range(N_WRITE):
        weight = multiplier * column_of(coefficients, N_READ + N + k, N, K, SLOTS)
        h += weight[:, None] * row_of(update, k, B, DIMS)[None, :]
    return h.to(state.dtype.element_ty).to(tl.float32)


@triton.jit
def inverse_rms_of(h, eps, B: tl.constexpr):
    """(SLOTS,): 1 / rms of each slot."""
    return tl.rsqrt(tl.sum(h * h, axis=1) / B + eps)


@triton.jit
def tanh(x):
    decay = tl.exp(-2 * tl.abs(x))
    magnitude = (1 - decay) / (1 + decay)
    return tl.where(x < 0, -magnitude, magnitude)


@triton.jit
def coefficient_column(
    h,
    inverse_rms,
    k,
    static,
    projection,
    scale,
    N: tl.constexpr,
    B: tl.constexpr,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
    DYNAMIC: tl.constexpr,
):
    """(SLOTS,): column k of the coefficients with which the state h is read."""
    column = column_of(static, k, N, K, SLOTS)
    if DYNAMIC:
        activation = tanh(inverse_rms * tl.sum(h * row_of(projection, k, B, DIMS)[None, :], axis=1))
        column += column_of(scale, k, N, K, SLOTS) * activation
    return column


@triton.jit
def boundary_forward(
    state,
    update,
    coefficients,
    token_stride,
    multiplier,
    static,
    projection,
    scale,
    eps,
    new_state,
    x,
    new_coefficients,
    N: tl.constexpr,
    B: tl.constexpr,
    N_READ_BEFORE: tl.constexpr,
    N_WRITE_BEFORE: tl.constexpr,
    N_READ: tl.constexpr,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
    WRITES: tl.constexpr,
    DYNAMIC: tl.constexpr,
):
    """projection: (K, b). token_stride: 0 if all tokens share `coefficients`."""
    token = tl.program_id(0).to(tl.int64)
    state += token * N * B
    if WRITES:
        coefficients += token * token_stride
        update += token * N_WRITE_BEFORE * B
        h = written(state, update, coefficients, multiplier, N, B, N_READ_BEFORE, N_WRITE_BEFORE, SLOTS, DIMS)
        store_slots(new_state + token * N * B, h, N, B, SLOTS, DIMS)
    else:
        h = slots_of(state, N, B, SLOTS, DIMS)
    inverse_rms = inverse_rms_of(h, eps, B)
    new_coefficients += token * N * K
    dim = tl.arange(0, DIMS)
    for k in range(N_READ):
        column = coefficient_column(h, inverse_rms, k, static, projection, scale, N, B, K, SLOTS, DIMS, DYNAMIC)
        if DYNAMIC:
            store_column(new_coefficients, k, column, N, K, SLOTS)
        tl.store(x + (token * N_READ + k) * B + dim, tl.sum(column[:, None] * h, axis=0), mask=dim < B)
    if DYNAMIC:
        for k in range(N_READ, K):
            column = coefficient_column(h, inverse_rms, k, static, projection, scale, N, B, K, SLOTS, DIMS, DYNAMIC)
            store_column(new_coefficients, k, column, N, K, SLOTS)
