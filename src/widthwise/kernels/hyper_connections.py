"""Generalized hyper-connections: the residual state of a token consists of slots that sublayers read and write.

Source: virtual-width paper, arXiv:2511.11238, Eq. (6)-(10), Alg. 1-3. The state is n slots of b numbers. A sublayer
reads n_read mixtures of the slots and writes n_write blocks back; the slots themselves are carried over and mixed as
well. The weights of all three mixtures are the columns of one table of n rows, [read | carry | write]. Its carry part
is stored as the deviation from the identity, because in bf16 a carry of 1 + 2^-8 would round to 1.

The fused form has a hand-written backward pass that recomputes most states. A read works on a few tokens at a time and
returns the sublayer's input, the carried state and the coefficients of the write. For the backward pass a site keeps
its sublayer's update and, at every state_every-th site, the state. Other states are recomputed from the previous state
and the update, by repeating the write. No sublayer runs twice, and the result is bitwise the same. Source: section 3.5
of the paper.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widthwise.kernels.dispatch import refuse_double_backward, use_fused, widened, without_autocast
from widthwise.kernels.hyper_connections_chunks import Chunks, Site, add_product, product
from widthwise.kernels.manifold_connections import ManifoldForm


class FreeForm(NamedTuple):
    """Coefficients without a constraint: scale * tanh(state / rms(state) @ projection) + static.

    Each slot is normalised separately. Parameters: static (n, k), k = n_read + n + n_write; projection (b, k), with the
    norm's gain folded in, and scale (n, k), both None if all tokens share the coefficients.
    """

    n_read: int
    eps: float

    def reference(
        self, state: Tensor, static: Tensor, projection: Tensor | None, scale: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the input of a sublayer, and the coefficients for `reference_write_slots`.

        state: (B, T, n, b) -> (B, T, n_read * b) in its dtype; (B, T, n, k), or `static` itself, in fp32 or wider.
        """
        with without_autocast(state):
            wide = widened(state)
            coefficients = static.to(wide.dtype)
            if projection is not None and scale is not None:
                inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
                coefficients = scale * torch.tanh(inverse_rms * (wide @ projection.to(wide.dtype))) + coefficients
            x = coefficients[..., : self.n_read].transpose(-1, -2) @ wide
            return x.flatten(-2).to(state.dtype), coefficients

    def site(self, parameters: Sequence[Tensor | None], dtype: torch.dtype) -> Site:
        """Return the parameters in the layout of chunks."""
        static, projection, scale = (None if table is None else table.T.to(dtype).contiguous() for table in parameters)
        assert static is not None
        n_slots = static.shape[1]
        static = static.clone()  # with one slot or coefficient it still shares the parameter's memory
        static[self.n_read : self.n_read + n_slots].diagonal().add_(1)
        return Site(static, projection, scale, self.n_read, self.eps)


Form = FreeForm | ManifoldForm
"""A form of the coefficients."""


def reference_write_slots(
    state: Tensor, update: Tensor, coefficients: Tensor, n_read: int, multiplier: float
) -> Tensor:
    """Return the state after a sublayer, state + carry^T state + multiplier * write update, in the state's dtype.

    state: (B, T, n, b); update: (B, T, n_write * b); coefficients: from the `reference` of a form.
    """
    with without_autocast(state):
        n_slots, slot_width = state.shape[-2:]
        wide = state.to(coefficients.dtype)
        blocks = update.to(coefficients.dtype).unflatten(-1, (-1, slot_width))
        carry = coefficients[..., n_read : n_read + n_slots]
        write = multiplier * coefficients[..., n_read + n_slots :]
        return (wide + carry.transpose(-1, -2) @ wide + write @ blocks).to(state.dtype)


class FusedRead(NamedTuple):
    """Result of a fused read for the write that follows."""

    carried: Tensor
    """(B, T, n, b), fp32 or wider: the mixed state. The write overwrites it."""
    write: Tensor
    """(N, n_write, n), N = B * T: weights of the written blocks in each slot."""
    dtype: torch.dtype
    """The dtype of the state."""
    reading: Any
    """Node of the read in autograd's graph; None without gradients."""


def _slots(state: Tensor) -> Tensor:
    """Reshape (B, T, n, b) to (N, n, b), fp32 or wider."""
    return widened(state.flatten(0, -3)).contiguous()


def _blocks(x: Tensor, state: Tensor) -> Tensor:
    """Reshape (B, T, d) to (N, d / b, b), in the dtype of the state (N, n, b)."""
    n_tokens, _, slot_width = state.shape
    return x.reshape(n_tokens, x.shape[-1] // slot_width, slot_width).to(state.dtype)


def _gradients(
    chunks: Chunks, grad_x: Tensor, grad_carried: Tensor, grad_write: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    """Run the backward pass of a read. Overwrites its coefficients.

    Returns the gradients of the state (N, n, b), and of the site's tables, summed over the tokens.
    """
    site = chunks.site
    slot_width = chunks.state.shape[-1]
    grad_state = torch.empty_like(chunks.state)
    sums = [None if table is None else torch.zeros_like(table) for table in site.tables]
    n_mixed = grad_x.shape[1] + grad_carried.shape[1]
    for rows, chunk, coefficients in chunks:
        table = coefficients.table
        n_tokens, n_slots, _ = chunk.shape
        mixed = chunks.scratch("mixed", n_tokens, n_mixed, slot_width)
        torch.cat((grad_x[rows], grad_carried[rows]), dim=1, out=mixed)
        grad_mixed = chunks.scratch("grad_mixed", n_tokens, n_mixed, n_slots)
        torch.bmm(mixed, chunk.transpose(1, 2), out=grad_mixed)
        columns = grad_mixed.transpose(0, 1), grad_write[rows].transpose(0, 1)
        grad = torch.cat(columns, out=chunks.scratch("grad", *table.shape))
        grad_chunk = grad_state[rows]
        torch.bmm(table[:n_mixed].permute(1, 2, 0), mixed, out=grad_chunk)
        site.backward(chunk, coefficients, grad, grad_chunk, sums)
    return grad_state, sums


class _Read(torch.autograd.Function):
    """Mix the slots, a few tokens at a time, into the sublayer's input and the carried state."""

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, form: Form, state_every: int, *parameters: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        with without_autocast(state):
            slots = _slots(state)
            site = form.site(parameters, slots.dtype)
            n_tokens, n_slots, slot_width = slots.shape
            n_read, n_carried, n_write = site.sizes
            x = slots.new_empty(*state.shape[:-2], n_read * slot_width)
            x_slots = x.view(n_tokens, n_read, slot_width)
            carried = slots.new_empty(*state.shape[:-2], n_carried, slot_width)
            carried_slots = carried.view(n_tokens, n_carried, slot_width)
            write = slots.new_empty(n_tokens, n_write, n_slots)
            for rows, chunk, coefficients in Chunks(slots, site):
                table = coefficients.table.transpose(0, 1)  # (C, n_read + n + n_write, n)
                read, carry, write[rows] = table.split(site.sizes, dim=1)
                product(read, chunk, out=x_slots[rows])
                product(carry, chunk, out=carried_slots[rows])
        x = x.to(state.dtype)
        # One state in state_every is saved; the others are recomputed by repeating their write.
        producer: Any = state.grad_fn if isinstance(state.grad_fn, _Write._backward_cls) else None
        ctx.n_since_kept = 0 if producer is None else (producer.reading.n_since_kept + 1) % state_every
        ctx.producer = producer if ctx.n_since_kept else None
        ctx.save_for_backward(None if ctx.n_since_kept else state, *parameters)
        ctx.form = form
        ctx.shape = state.shape
        ctx.dtype = state.dtype
        ctx.chunks = ctx.parameters = None
        return x, carried, write

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_x: Tensor, grad_carried: Tensor, grad_write: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        with without_autocast(grad_x):
            chunks = _chunks_of(ctx)
            parameters = ctx.parameters
            ctx.chunks = ctx.parameters = None  # a read runs after its write in the backward pass, so free the cache
            grads = _blocks(grad_x, chunks.state), grad_carried.flatten(0, -3), grad_write
            grad_state, sums = _gradients(chunks, *grads)
        tables = (
            None if parameter is None or gradient is None else gradient.T.to(parameter.dtype)
            for parameter, gradient in zip(parameters, sums, strict=True)
        )
        return grad_state.view(ctx.shape).to(ctx.dtype), None, None, *tables


class _Write(torch.autograd.Function):
    """Add the update to the carried state, in place."""

    @staticmethod
    def forward(
        ctx: Any, carried: Tensor, write: Tensor, dtype: torch.dtype, reading: Any, update: Tensor, multiplier: float
    ) -> Tensor:
        ctx.reading = reading
        ctx.multiplier = multiplier
        ctx.update = None
        ctx.save_for_backward(update)
        with without_autocast(carried):
            slots = carried.flatten(0, -3)
            add_product(slots, write.transpose(1, 2), _blocks(update, slots), multiplier)
        written = carried.to(dtype)
        if written is carried:
            ctx.mark_dirty(carried)
        return written

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        update = _update_of(ctx)
        ctx.update = None
        with without_autocast(grad):
            chunks = _chunks_of(ctx.reading).of_the_write()
            state = chunks.state
            blocks = _blocks(update, state)
            wide = grad.reshape(state.shape).to(state.dtype)
            grad_write = state.new_empty(*blocks.shape[:2], state.shape[1])
            grad_update = torch.empty_like(blocks)
            for rows, _, (table, *_) in chunks:
                torch.bmm(blocks[rows], wide[rows].transpose(1, 2), out=grad_write[rows])
                product(table[-blocks.shape[1] :].transpose(0, 1), wide[rows], out=grad_update[rows])
            grad_write.mul_(ctx.multiplier)
            grad_update = grad_update.mul_(ctx.multiplier).view(update.shape).to(update.dtype)
        return grad, grad_write, None, None, grad_update, None


def _chunks_of(reading: Any) -> Chunks:
    """Return state and coefficients of a read, computed once per backward pass and cached on its graph node.

    Parameters are cached too, because activation checkpointing unpacks a saved tensor only once in a pass. Coefficients
    larger than the state are not cached: computing them again takes no longer than fetching them.
    """
    if reading.chunks is None:
        state, *reading.parameters = reading.saved_tensors
        slots = _slots(_recomputed(reading.producer, reading.dtype) if state is None else state)
        site = reading.form.site(reading.parameters, slots.dtype)
        reading.chunks = Chunks(slots, site, keeps=site.n_kept <= math.prod(slots.shape[1:]))
    return reading.chunks


def _update_of(writing: Any) -> Tensor:
    """Return the update of a write, cached on its graph node until its backward pass for the same reason."""
    if writing.update is None:
        (writing.update,) = writing.saved_tensors
    return writing.update


def _recomputed(writing: Any, dtype: torch.dtype) -> Tensor:
    """Recompute the state (N, n, b) after a write. writing: its node in autograd's graph."""
    chunks = _chunks_of(writing.reading)
    state = torch.empty_like(chunks.state)
    blocks = _blocks(_update_of(writing), chunks.state)
    for rows, chunk, (table, *_) in chunks:
        _, carry, write = table.transpose(0, 1).split(chunks.site.sizes, dim=1)
        add_product(product(carry, chunk, out=state[rows]), write.transpose(1, 2), blocks[rows], writing.multiplier)
    return state.to(dtype)


class ReferenceRead(NamedTuple):
    """Result of a reference read for the write that follows."""

    state: Tensor
    coefficients: Tensor
    n_read: int


def read_slots(
    state: Tensor, form: Form, parameters: Sequence[Any], state_every: int
) -> tuple[Tensor, ReferenceRead | FusedRead]:
    """Return the input of a sublayer, and the argument of `write_slots`.

    parameters: of the form, the first one not None; state_every: the hand-written form keeps one state of so many
    consecutive sites for the backward pass.
    """
    is_recorded = any(x is not None and x.requires_grad for x in (state, parameters[0]))  # or no read is in the graph
    if use_fused(state) and (is_recorded or not torch.is_grad_enabled()):
        x, carried, write = _Read.apply(state, form, state_every, *parameters)
        return x, FusedRead(carried, write, x.dtype, x.grad_fn)
    x, coefficients = form.reference(state, *parameters)
    return x, ReferenceRead(state, coefficients, form.n_read)


def write_slots(read: ReferenceRead | FusedRead, update: Tensor, multiplier: float) -> Tensor:
    """Return the state after a sublayer. Overwrites the read, so call it only once. See `reference_write_slots`."""
    if isinstance(read, FusedRead):
        return _Write.apply(*read, update, multiplier)
    return reference_write_slots(read.state, update, read.coefficients, read.n_read, multiplier)
