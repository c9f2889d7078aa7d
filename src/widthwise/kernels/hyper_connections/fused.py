"""Slots read, carried and written with a hand-written backward pass that recomputes most states.

A read works on a few tokens at a time; what leaves it is the sublayer's input, the carried state and the coefficients
of the write.

For the backward pass a site keeps its sublayer's update and, at every state_every-th site, the state. A state that was
not kept is recomputed by repeating the write that made it, from the previous state and the update. No sublayer runs
twice, and the result is bitwise the same. Source: virtual-width paper, arXiv:2511.11238, section 3.5.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from widthwise.kernels.dispatch import refuse_double_backward, without_autocast
from widthwise.kernels.hyper_connections.coefficients import Chunks, Site, site_of
from widthwise.kernels.hyper_connections.products import add_product, product


class FusedRead(NamedTuple):
    """What a write needs from its read."""

    carried: Tensor
    """(B, T, n, b), fp32 or wider: the state, mixed among its slots. The write overwrites it."""
    write: Tensor
    """(N, n_write, n), N = B * T: how much of each written block a slot takes."""
    dtype: torch.dtype
    """The type of the state."""
    reading: Any
    """The read in autograd's graph; None without gradients."""


def _slots(state: Tensor) -> Tensor:
    """(B, T, n, b) -> (N, n, b), fp32 or wider."""
    return state.flatten(0, -3).to(torch.promote_types(state.dtype, torch.float32)).contiguous()


def _blocks(x: Tensor, state: Tensor) -> Tensor:
    """(B, T, d) -> (N, d / b, b), in the type of the state (N, n, b)."""
    n_tokens, _, slot_width = state.shape
    return x.reshape(n_tokens, x.shape[-1] // slot_width, slot_width).to(state.dtype)


def _mixtures(table: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
    """Read (C, n_read, n), carry (C, n, n) and write (C, n_write, n) of a chunk's table (k, C, n)."""
    read, carry, write = table.transpose(0, 1).tensor_split((site.n_read, site.n_read + table.shape[-1]), dim=1)
    return read, carry, write


def _add_blocks(carried: Tensor, write: Tensor, blocks: Tensor, multiplier: float) -> None:
    """Turns what is carried, of all tokens or a chunk, into the state after a write."""
    add_product(carried, write.transpose(1, 2), blocks, multiplier)


class _Gradients(NamedTuple):
    """The gradients of what a read took: of the state (N, n, b), and of its site's tables, (k, n) and (k, b), which are
    summed over the tokens."""

    state: Tensor
    static: Tensor
    projection: Tensor | None
    scale: Tensor | None


def _gradients(chunks: Chunks, grad_x: Tensor, grad_carried: Tensor, grad_write: Tensor) -> _Gradients:
    """The backward pass of a read, whose coefficients it overwrites."""
    state, site, scratch = chunks.state, chunks.site, chunks.scratch
    slot_width = state.shape[-1]
    sums = [None if table is None else torch.zeros_like(table) for table in site[:3]]
    gradients = _Gradients(torch.empty_like(state), *sums)  # pyright: ignore[reportArgumentType]
    for rows, chunk, (table, half_tanh, doubled, inverse_rms) in chunks:
        n_tokens, n_slots, _ = chunk.shape
        n_mixed = site.n_read + n_slots
        mixed = torch.cat(
            (grad_x[rows], grad_carried[rows]), dim=1, out=scratch("mixed", n_tokens, n_mixed, slot_width)
        )
        grad_mixed = torch.bmm(mixed, chunk.transpose(1, 2), out=scratch("grad_mixed", n_tokens, n_mixed, n_slots))
        columns = grad_mixed.transpose(0, 1), grad_write[rows].transpose(0, 1)
        grad = torch.cat(columns, out=scratch("grad", *table.shape))
        gradients.static.add_(grad.sum(dim=1))
        grad_chunk = gradients.state[rows]
        torch.bmm(table[:n_mixed].permute(1, 2, 0), mixed, out=grad_chunk)
        if gradients.projection is None or gradients.scale is None:
            continue
        assert site.projection is not None
        assert site.scale is not None
        assert half_tanh is not None
        assert doubled is not None
        assert inverse_rms is not None
        by_scale = torch.mul(grad, half_tanh, out=table)
        gradients.scale.add_(by_scale.sum(dim=1), alpha=2)
        grad.addcmul_(by_scale, half_tanh, value=-4).mul_(site.scale[:, None])  # 1 - tanh^2
        share = torch.mul(grad, doubled, out=by_scale).sum(dim=0).mul_(inverse_rms.square()).div_(2 * slot_width)
        by_slot = grad.mul_(inverse_rms).flatten(1)
        gradients.projection.addmm_(by_slot, chunk.view(-1, slot_width))
        grad_chunk.view(-1, slot_width).addmm_(by_slot.T, site.projection)
        grad_chunk.addcmul_(chunk, share[..., None], value=-1)
    return gradients


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        state: Tensor,
        static: Tensor,
        projection: Tensor | None,
        scale: Tensor | None,
        n_read: int,
        eps: float,
        state_every: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with without_autocast(state):
            slots = _slots(state)
            site = site_of((static, projection, scale), n_read, eps, slots.dtype)
            n_tokens, n_slots, slot_width = slots.shape
            x = slots.new_empty(*state.shape[:-2], n_read * slot_width)
            x_slots = x.view(n_tokens, n_read, slot_width)
            carried = slots.new_empty(state.shape)
            carried_slots = carried.view(slots.shape)
            write = slots.new_empty(n_tokens, static.shape[1] - n_read - n_slots, n_slots)
            for rows, chunk, (table, *_) in Chunks(slots, site):
                read, carry, write[rows] = _mixtures(table, site)
                product(read, chunk, out=x_slots[rows])
                product(carry, chunk, out=carried_slots[rows])
        x = x.to(state.dtype)
        # One state in state_every is saved; the write that made any other one can remake it.
        producer: Any = state.grad_fn if isinstance(state.grad_fn, _Write._backward_cls) else None
        ctx.n_since_kept = 0 if producer is None else (producer.reading.n_since_kept + 1) % state_every
        ctx.producer = producer if ctx.n_since_kept else None
        ctx.save_for_backward(None if ctx.n_since_kept else state, static, projection, scale)
        ctx.n_read, ctx.eps, ctx.shape, ctx.dtype = n_read, eps, state.shape, state.dtype
        ctx.chunks = ctx.parameters = None
        return x, carried, write

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_x: Tensor, grad_carried: Tensor, grad_write: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        with without_autocast(grad_x):
            chunks, parameters = _chunks_of(ctx), ctx.parameters
            ctx.chunks = ctx.parameters = None  # the read runs last in a backward pass, so that the cache can go
            state = chunks.state
            gradients = _gradients(chunks, _blocks(grad_x, state), grad_carried.reshape(state.shape), grad_write)
        grad_state = gradients.state.view(ctx.shape).to(ctx.dtype)
        tables = (
            None if parameter is None or gradient is None else gradient.T.to(parameter.dtype)
            for parameter, gradient in zip(parameters, gradients[1:], strict=True)
        )
        return grad_state, *tables, None, None, None


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, carried: Tensor, write: Tensor, dtype: torch.dtype, reading: Any, update: Tensor, multiplier: float
    ) -> Tensor:
        ctx.reading, ctx.multiplier, ctx.update = reading, multiplier, None
        ctx.save_for_backward(update)
        with without_autocast(carried):
            slots = carried.flatten(0, -3)
            _add_blocks(slots, write, _blocks(update, slots), multiplier)
        written = carried.to(dtype)
        if written is carried:
            ctx.mark_dirty(carried)
        return written

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        update, ctx.update = _update_of(ctx), None
        with without_autocast(grad):
            chunks = _chunks_of(ctx.reading).of_the_write()
            state = chunks.state
            blocks, wide = _blocks(update, state), grad.reshape(state.shape).to(state.dtype)
            grad_write, grad_update = state.new_empty(*blocks.shape[:2], state.shape[1]), torch.empty_like(blocks)
            for rows, _, (table, *_) in chunks:
                torch.bmm(blocks[rows], wide[rows].transpose(1, 2), out=grad_write[rows])
                product(table[-blocks.shape[1] :].transpose(0, 1), wide[rows], out=grad_update[rows])
            grad_write.mul_(ctx.multiplier)
            grad_update = grad_update.mul_(ctx.multiplier).view(update.shape).to(update.dtype)
        return grad, grad_write, None, None, grad_update, None


def _chunks_of(reading: Any) -> Chunks:
    """State and coefficients of a read, computed once per backward pass and cached on its graph node.

    So are the parameters, because activation checkpointing unpacks a saved tensor only once in a pass. Coefficients
    that are more than the state itself are not cached: to compute them again takes no longer than to fetch them.
    """
    if reading.chunks is None:
        state, *reading.parameters = reading.saved_tensors
        slots = _slots(_made_again(reading.producer, reading.dtype) if state is None else state)
        site = site_of(reading.parameters, reading.n_read, reading.eps, slots.dtype)
        reading.chunks = Chunks(slots, site, keeps=len(site.static) <= slots.shape[-1])
    return reading.chunks


def _update_of(writing: Any) -> Tensor:
    """The update that a write added, cached on its graph node until its own backward pass for the same reason."""
    if writing.update is None:
        (writing.update,) = writing.saved_tensors
    return writing.update


def _made_again(writing: Any, dtype: torch.dtype) -> Tensor:
    """Recomputes the state (N, n, b) that a write left. writing: its node in autograd's graph."""
    chunks = _chunks_of(writing.reading)
    made, blocks = torch.empty_like(chunks.state), _blocks(_update_of(writing), chunks.state)
    for rows, chunk, (table, *_) in chunks:
        _, carry, write = _mixtures(table, chunks.site)
        _add_blocks(product(carry, chunk, out=made[rows]), write, blocks[rows], writing.multiplier)
    return made.to(dtype)


def read_slots(
    state: Tensor,
    static: Tensor,
    projection: Tensor | None,
    scale: Tensor | None,
    n_read: int,
    eps: float,
    state_every: int,
) -> tuple[Tensor, FusedRead]:
    """See `reference.read_slots`. state_every: one in this many consecutive sites keeps its state."""
    x, carried, write = _Read.apply(state, static, projection, scale, n_read, eps, state_every)
    return x, FusedRead(carried, write, x.dtype, x.grad_fn)


def write_slots(kept: FusedRead, update: Tensor, multiplier: float) -> Tensor:
    """See `reference.write_slots`. A read can be written after only once, because its carried state is overwritten."""
    return _Write.apply(*kept, update, multiplier)
