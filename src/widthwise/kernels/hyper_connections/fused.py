"""Slots read and written with a hand-written backward pass that recomputes most states.

Tables of coefficients are stored as (k, N, n), N = B * T: the product that makes them takes a quarter of the time with
its small dimension as rows, and the batched small products are indifferent to it.

For the backward pass a site keeps its sublayer's update and, at every state_every-th site, the state. A state that was
not kept is recomputed by repeating the write that made it, from the previous state and the update. No sublayer runs
twice, and the result is bitwise the same; so are the recomputed coefficients. Source: virtual-width paper,
arXiv:2511.11238, section 3.5.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from widthwise.kernels.dispatch import refuse_double_backward, without_autocast


class FusedRead(NamedTuple):
    """What a write needs from its read."""

    state: Tensor
    """(B, T, n, b), returned by the read. `_Write.backward` passes the gradient of the written state to it unchanged,
    and `_Read.backward` applies the carry, in a sum that it computes anyway."""
    carry: Tensor
    """(n, N, n), how much of each old slot a new slot keeps; new slots first."""
    write: Tensor
    """(n_write, N, n), how much of each written block a slot takes."""
    reading: Any
    """The read in autograd's graph; None without gradients."""


class _Coefficients(NamedTuple):
    """The coefficients of one site. All but the table only serve the derivative, and are None if tokens share them."""

    table: Tensor
    """(k, N, n): the k coefficients of each slot of each token."""
    tanh: Tensor | None = None
    """(k, N, n): tanh(pre_activation)."""
    pre_activation: Tensor | None = None
    """(k, N, n): the projected, normalised state."""
    inverse_rms: Tensor | None = None
    """(N, n): 1 / rms of each slot."""


class _Site(NamedTuple):
    """State and coefficients of one site, which the backward passes of its read and its write share."""

    state: Tensor
    """(N, n, b), fp32 or wider"""
    coefficients: _Coefficients

    def parts(self, n_read: int) -> tuple[Tensor, ...]:
        """The coefficients of read, carry and write, split along k."""
        n_slots = self.state.shape[1]
        return self.coefficients.table.tensor_split((n_read, n_read + n_slots))


def _site(state: Tensor, static: Tensor, projection: Tensor | None, scale: Tensor | None, eps: float) -> _Site:
    """Computes the coefficients. state: (B, T, n, b); the other arguments as in `reference.read_slots`."""
    wide = state.flatten(0, -3).to(torch.promote_types(state.dtype, torch.float32)).contiguous()
    n_tokens, n_slots, slot_width = wide.shape
    start = _by_column(static, wide)
    if projection is None or scale is None:
        return _Site(wide, _Coefficients(start.expand(-1, n_tokens, -1)))
    norm = torch.linalg.vector_norm(wide, dim=-1)
    inverse_rms = norm.square_().div_(slot_width).add_(eps).rsqrt_()
    product = torch.mm(projection.to(wide.dtype).T, wide.view(-1, slot_width).T)
    pre_activation = product.view(len(product), n_tokens, n_slots).mul_(inverse_rms)
    # tanh(x) = 2 sigmoid(2 x) - 1 in less than half the time; exact to 1e-7 in fp32, the rounding of a coefficient of 1
    tanh = torch.mul(pre_activation, 2).sigmoid_().mul_(2).sub_(1)
    table = torch.addcmul(start, _by_column(scale, wide), tanh)
    return _Site(wide, _Coefficients(table, tanh, pre_activation, inverse_rms))


def _by_column(table: Tensor, like: Tensor) -> Tensor:
    """(n, k) -> (k, 1, n)"""
    return table.to(like.dtype).T.contiguous()[:, None]


def _blocks(x: Tensor, state: Tensor) -> Tensor:
    """(B, T, d) -> (N, d / b, b), in the type of the state (N, n, b)."""
    n_tokens, _, slot_width = state.shape
    return x.reshape(n_tokens, x.shape[-1] // slot_width, slot_width).to(state.dtype)


def _written(state: Tensor, carry: Tensor, write: Tensor, update: Tensor, multiplier: float) -> Tensor:
    """state + carry^T state + multiplier * write update. state: (N, n, b) -> the same shape."""
    written = torch.baddbmm(state, carry.transpose(0, 1), state)
    return torch.baddbmm(written, write.permute(1, 2, 0), _blocks(update, state), alpha=multiplier, out=written)


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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with without_autocast(state):
            site = _site(state, static, projection, scale, eps)
            read, carry, write = site.parts(n_read)
            x = torch.bmm(read.transpose(0, 1), site.state).to(state.dtype)
        # One state in state_every is saved; the write that made any other one can remake it.
        producer: Any = state.grad_fn if isinstance(state.grad_fn, _Write._backward_cls) else None
        ctx.n_since_kept = 0 if producer is None else (producer.reading.n_since_kept + 1) % state_every
        ctx.producer = producer if ctx.n_since_kept else None
        ctx.save_for_backward(None if ctx.n_since_kept else state, static, projection, scale)
        ctx.n_read, ctx.eps, ctx.shape, ctx.dtype = n_read, eps, state.shape, state.dtype
        ctx.site = ctx.parameters = None
        return x.view(*state.shape[:-2], n_read * state.shape[-1]), state.view_as(state), carry, write

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_x: Tensor, grad_state: Tensor, grad_carry: Tensor, grad_write: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        with without_autocast(grad_x):
            site = _site_of(ctx)
            static, projection, scale = ctx.parameters
            ctx.site = ctx.parameters = None  # the read runs last in a backward pass, so that the cache can go
            state, (_, tanh, pre_activation, inverse_rms) = site
            slot_width = state.shape[-1]
            blocks = _blocks(grad_x, state)
            grad_read = torch.bmm(blocks, state.transpose(1, 2)).transpose(0, 1)
            grad = torch.cat((grad_read, grad_carry, grad_write))
            grad_static = grad.sum(dim=1).T.to(static.dtype)
            read, carry, _ = site.parts(ctx.n_read)
            carried = grad_state.reshape(state.shape).to(state.dtype)
            grad_state = torch.baddbmm(carried, carry.permute(1, 2, 0), carried)
            torch.baddbmm(grad_state, read.permute(1, 2, 0), blocks, out=grad_state)
            grad_projection = grad_scale = None
            if projection is not None and scale is not None:
                assert tanh is not None
                assert pre_activation is not None
                assert inverse_rms is not None
                grad_scale = torch.mul(grad, tanh).sum(dim=1).T.to(scale.dtype)
                grad = torch.ops.aten.tanh_backward(grad.mul_(_by_column(scale, state)), tanh)
                share = torch.mul(grad, pre_activation).sum(dim=0).mul_(inverse_rms.square()).div_(slot_width)
                rows = grad.mul_(inverse_rms).flatten(1)
                grad_projection = torch.mm(rows, state.view(-1, slot_width)).T.to(projection.dtype)
                flat = grad_state.view(-1, slot_width)
                torch.addmm(flat, rows.T, projection.to(state.dtype).T, out=flat)
                grad_state.addcmul_(state, share[..., None], value=-1)
        grad_state = grad_state.view(ctx.shape).to(ctx.dtype)
        return grad_state, grad_static, grad_projection, grad_scale, None, None, None


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, state: Tensor, carry: Tensor, write: Tensor, reading: Any, update: Tensor, multiplier: float
    ) -> Tensor:
        ctx.reading, ctx.multiplier, ctx.update = reading, multiplier, None
        ctx.save_for_backward(update)
        with without_autocast(state):
            wide = state.flatten(0, -3).to(carry.dtype)
            written = _written(wide, carry, write, update, multiplier)
        return written.view(state.shape).to(state.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        update, ctx.update = _update_of(ctx), None
        with without_autocast(grad):
            site = _site_of(ctx.reading)
            state = site.state
            _, _, write = site.parts(ctx.reading.n_read)
            wide = grad.reshape(state.shape).to(state.dtype)
            grad_carry = torch.bmm(wide, state.transpose(1, 2)).transpose(0, 1)
            blocks = _blocks(update, state)
            grad_write = torch.bmm(blocks, wide.transpose(1, 2)).mul_(ctx.multiplier).transpose(0, 1)
            grad_update = torch.bmm((ctx.multiplier * write).transpose(0, 1), wide)
        grad_update = grad_update.view(update.shape).to(update.dtype)
        return grad, grad_carry, grad_write, None, grad_update, None  # the read applies the carry to `grad`


def _site_of(reading: Any) -> _Site:
    """State and coefficients of a read, computed once per backward pass and cached on its graph node.

    So are the parameters, because activation checkpointing unpacks a saved tensor only once in a pass.
    """
    if reading.site is None:
        state, static, projection, scale = reading.saved_tensors
        reading.parameters = static, projection, scale
        if state is None:
            state = _made_again(reading.producer, reading.shape, reading.dtype)
        reading.site = _site(state, static, projection, scale, reading.eps)
    return reading.site


def _update_of(writing: Any) -> Tensor:
    """The update that a write added, cached on its graph node until its own backward pass for the same reason."""
    if writing.update is None:
        (writing.update,) = writing.saved_tensors
    return writing.update


def _made_again(writing: Any, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Recomputes the state that a write left. writing: its node in autograd's graph."""
    site = _site_of(writing.reading)
    _, carry, write = site.parts(writing.reading.n_read)
    return _written(site.state, carry, write, _update_of(writing), writing.multiplier).view(shape).to(dtype)


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
    x, state, carry, write = _Read.apply(state, static, projection, scale, n_read, eps, state_every)
    return x, FusedRead(state, carry, write, x.grad_fn)


def write_slots(kept: FusedRead, update: Tensor, multiplier: float) -> Tensor:
    """See `reference.write_slots`."""
    return _Write.apply(*kept, update, multiplier)
