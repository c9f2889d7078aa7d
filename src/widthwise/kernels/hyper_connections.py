"""Generalized hyper-connections: the residual state of a token consists of slots that sublayers read and write.

Source: virtual-width paper, arXiv:2511.11238, Eq. (6)-(10), Alg. 1-3. The state is n slots of b numbers. At a site, a
sublayer reads n_read mixtures of the slots and writes n_write blocks back, and the carry mixes the slots. The weights
of all three are the columns of one table of n rows, [read | carry | write]. Its carry part is stored as the deviation
from the identity, because in bf16 a carry of 1 + 2^-8 would round to 1.

The fused form has a hand-written backward pass that recomputes most states. A read works on a few tokens at a time and
returns the sublayer's input, the carried state and the coefficients of the write. For the backward pass every site
saves its sublayer's update, and one site in state_every saves its state. The other states are recomputed from the
previous state and the update, by repeating the write. No sublayer runs twice, and the result is bitwise the same.
Source: section 3.5 of the paper.
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

    Each slot is normalised separately. Parameters: static (n, k), k = n_read + n + n_write; projection (b, k), which
    includes the gain of the norm, and scale (n, k), both None if all tokens share the coefficients.
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
        static = static.clone()  # with one slot or coefficient, `contiguous` did not copy the parameter
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


class ReferenceRead(NamedTuple):
    """The result of a reference read, which the write of the site needs."""

    state: Tensor
    coefficients: Tensor
    n_read: int

    def write(self, update: Tensor, multiplier: float) -> Tensor:
        """Return the state after a sublayer, see `reference_write_slots`."""
        return reference_write_slots(self.state, update, self.coefficients, self.n_read, multiplier)


class FusedRead(NamedTuple):
    """The result of a fused read, which the write of the site needs."""

    carried: Tensor
    """(B, T, n, b), fp32 or wider: the mixed state. The write overwrites it."""
    coefficients: Tensor
    """(N, n_write, n), N = B * T: weights of the written blocks in each slot."""
    dtype: torch.dtype
    """The dtype of the state."""
    read_node: Any
    """Node of the read in autograd's graph; None without gradients."""

    def write(self, update: Tensor, multiplier: float) -> Tensor:
        """Return the state after a sublayer, see `reference_write_slots`. Call only once: it overwrites `carried`."""
        return _Write.apply(*self, update, multiplier)


def _slots(state: Tensor) -> Tensor:
    """Reshape (B, T, n, b) to (N, n, b), N = B * T, in fp32 or wider."""
    return widened(state.flatten(0, -3)).contiguous()


def _blocks(x: Tensor, state: Tensor) -> Tensor:
    """Reshape (B, T, d) to (N, d / b, b), in the dtype of the state (N, n, b)."""
    n_tokens, _, slot_width = state.shape
    return x.reshape(n_tokens, x.shape[-1] // slot_width, slot_width).to(state.dtype)


def _gradients(
    chunks: Chunks, grad_x: Tensor, grad_carried: Tensor, grad_write: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    """Run the backward pass of a read, which overwrites its coefficients.

    grad_x: (N, n_read, b), grad_carried: (N, n, b), grad_write: (N, n_write, n) -> the gradient of the state (N, n, b),
    and the gradients of the site's tables, summed over the tokens.
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
        # One state in state_every is saved; the others are recomputed by repeating the write that returned them.
        write_node: Any = state.grad_fn if isinstance(state.grad_fn, _Write._backward_cls) else None
        ctx.n_since_saved = 0 if write_node is None else (write_node.read_node.n_since_saved + 1) % state_every
        ctx.write_node = write_node if ctx.n_since_saved else None
        ctx.save_for_backward(None if ctx.n_since_saved else state, *parameters)
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
            ctx.chunks = ctx.parameters = None  # free the cache: backward of the read is the last to use it
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
        ctx: Any, carried: Tensor, write: Tensor, dtype: torch.dtype, read_node: Any, update: Tensor, multiplier: float
    ) -> Tensor:
        ctx.read_node = read_node
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
            chunks = _chunks_of(ctx.read_node).for_write()
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


def _chunks_of(read_node: Any) -> Chunks:
    """Return state and coefficients of a read, computed once per backward pass and cached on its graph node.

    Parameters are cached too, because activation checkpointing unpacks a saved tensor only once in a pass. Coefficients
    larger than the state are not cached: computing them again takes no longer than reading them from memory.
    """
    if read_node.chunks is None:
        state, *read_node.parameters = read_node.saved_tensors
        slots = _slots(_recomputed(read_node.write_node, read_node.dtype) if state is None else state)
        site = read_node.form.site(read_node.parameters, slots.dtype)
        read_node.chunks = Chunks(slots, site, is_cached=site.n_coefficients <= math.prod(slots.shape[1:]))
    return read_node.chunks


def _update_of(write_node: Any) -> Tensor:
    """Return the update of a write, cached on its graph node, because a saved tensor is unpacked once in a pass."""
    if write_node.update is None:
        (write_node.update,) = write_node.saved_tensors
    return write_node.update


def _recomputed(write_node: Any, dtype: torch.dtype) -> Tensor:
    """Return the state (N, n, b) after a write, by repeating the write."""
    chunks = _chunks_of(write_node.read_node)
    state = torch.empty_like(chunks.state)
    blocks = _blocks(_update_of(write_node), chunks.state)
    for rows, chunk, (table, *_) in chunks:
        _, carry, write = table.transpose(0, 1).split(chunks.site.sizes, dim=1)
        add_product(product(carry, chunk, out=state[rows]), write.transpose(1, 2), blocks[rows], write_node.multiplier)
    return state.to(dtype)


def read_slots(
    state: Tensor, form: Form, parameters: Sequence[Any], state_every: int
) -> tuple[Tensor, ReferenceRead | FusedRead]:
    """Return the input of a sublayer, and the read whose `write` adds the sublayer's update.

    parameters: of the form, the first one not None; state_every: the fused form saves the state of one in state_every
    consecutive sites for the backward pass.
    """
    # The fused form needs the node of the read in autograd's graph.
    is_recorded = any(x is not None and x.requires_grad for x in (state, parameters[0]))
    if use_fused(state) and (is_recorded or not torch.is_grad_enabled()):
        x, carried, write = _Read.apply(state, form, state_every, *parameters)
        return x, FusedRead(carried, write, x.dtype, x.grad_fn)
    x, coefficients = form.reference(state, *parameters)
    return x, ReferenceRead(state, coefficients, form.n_read)
