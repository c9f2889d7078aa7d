"""Coefficients of hyper-connections for a few tokens at a time, so that they stay in the cache, and products with them.

The tables of many narrow slots are several times as large as the slots. For C tokens a table is (k, C, n), because the
product that computes it takes a quarter of the time if the small dimension k is the rows. The batched small products
with the table are as fast in this layout if C is odd; otherwise rows a power of two apart share a few cache lines.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from widthwise.kernels.manifold_connections import ManifoldSite

CHUNK_BYTES = 2**20
"""Size of the slots and coefficients of a chunk: about a second-level cache."""
MIN_MULTIPLICATIONS = 400
"""Multiplications r k w of one (r, k) by (k, w) product. For fewer, torch.bmm loops over single numbers, which takes
four times as long as a sum of outer products."""


class Scratch:
    """Memory that all chunks reuse, so that it stays in the cache."""

    def __init__(self, like: Tensor):
        self._like = like
        self._parts: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return uninitialised memory. Calls with one name share it; the first call must have the largest shape."""
        n_elements = math.prod(shape)
        if name not in self._parts:
            self._parts[name] = self._like.new_empty(n_elements)
        return self._parts[name][:n_elements].view(shape)


class Coefficients(NamedTuple):
    """The coefficients of a chunk. The fields after the table are for the derivative; None if all tokens share it."""

    table: Tensor
    """(k, C, n): the k coefficients of each slot of each token."""
    half_tanh: Any = None
    """(k, C, n): tanh(doubled / 2) / 2."""
    doubled: Any = None
    """(k, C, n): twice the projected, normalised state."""
    inverse_rms: Any = None
    """(C, n): 1 / rms of each slot."""


class Site(NamedTuple):
    """The parameters of one site, or of its write only, in the layout of chunks."""

    static: Tensor
    """(k, n), where 1 is added to the diagonal of the carry, which is stored as the deviation from the identity."""
    projection: Tensor | None
    """(k, b)"""
    scale: Tensor | None
    """(k, n)"""
    n_read: int
    eps: float

    chunk_factor = 1
    """Size of the chunks, as a multiple of CHUNK_BYTES."""

    @property
    def tables(self) -> tuple[Tensor | None, ...]:
        """The parameters, transposed."""
        return self.static, self.projection, self.scale

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of rows of the table that read, carry and write."""
        n_rows, n_slots = self.static.shape
        return self.n_read, n_slots, n_rows - self.n_read - n_slots

    @property
    def n_coefficients(self) -> int:
        """Number of coefficients of a token."""
        return self.static.numel()

    def coefficients(self, chunk: Tensor, scratch: Scratch) -> Coefficients:
        """Return the coefficients of a chunk (C, n, b). The next call with the same scratch overwrites them."""
        n_tokens, n_slots, slot_width = chunk.shape
        if self.projection is None or self.scale is None:
            return Coefficients(self.static[:, None].expand(-1, n_tokens, -1))
        inverse_rms = torch.linalg.vector_norm(chunk, dim=-1).square_().div_(slot_width).add_(self.eps).rsqrt_()
        shape = len(self.static), n_tokens, n_slots
        doubled = scratch("doubled", *shape)
        torch.mm(self.projection, chunk.view(-1, slot_width).T, out=doubled.flatten(1))
        doubled.mul_(2 * inverse_rms)
        # tanh(x) = 2 sigmoid(2 x) - 1 takes a fifth of the time. In fp32 it is exact to 1e-7, the rounding of 1.
        half_tanh = torch.sigmoid(doubled, out=scratch("half_tanh", *shape)).sub_(0.5)
        table = scratch("table", *shape)
        torch.addcmul(self.static[:, None], self.scale[:, None], half_tanh, value=2, out=table)
        return Coefficients(table, half_tanh, doubled, inverse_rms)

    def backward(self, chunk: Tensor, coefficients: Coefficients, grad: Tensor, grad_chunk: Tensor, sums: Any) -> None:
        """Add the gradients of `tables` to `sums`, and of the state to grad_chunk (C, n, b).

        grad: gradient of the coefficients' table. Overwrites grad and the coefficients.
        """
        grad_static, grad_projection, grad_scale = sums
        grad_static.add_(grad.sum(dim=1))
        if grad_projection is None or grad_scale is None:
            return
        assert self.projection is not None
        assert self.scale is not None
        table, half_tanh, doubled, inverse_rms = coefficients
        slot_width = chunk.shape[-1]
        by_scale = torch.mul(grad, half_tanh, out=table)
        grad_scale.add_(by_scale.sum(dim=1), alpha=2)
        grad.addcmul_(by_scale, half_tanh, value=-4).mul_(self.scale[:, None])  # 1 - tanh^2
        share = torch.mul(grad, doubled, out=by_scale).sum(dim=0).mul_(inverse_rms.square()).div_(2 * slot_width)
        by_slot = grad.mul_(inverse_rms).flatten(1)
        grad_projection.addmm_(by_slot, chunk.view(-1, slot_width))
        grad_chunk.view(-1, slot_width).addmm_(by_slot.T, self.projection)
        grad_chunk.addcmul_(chunk, share[..., None], value=-1)

    def write_only(self) -> "Site":
        """Return the site with the coefficients of the write only."""
        first = self.n_read + self.static.shape[-1]
        if self.projection is None or self.scale is None:
            return self._replace(static=self.static[first:], n_read=0)
        return Site(self.static[first:], self.projection[first:], self.scale[first:], 0, self.eps)


class Chunks:
    """The state of a site in chunks of an odd number of tokens, with the coefficients of each chunk."""

    def __init__(self, state: Tensor, site: "Site | ManifoldSite", is_cached: bool = False):
        """state: (N, n, b). is_cached: keep all coefficients for the next pass; otherwise a chunk overwrites them."""
        self.state = state
        self.site = site
        self.scratch = Scratch(state)
        self._cache: dict[int, Any] | None = {} if is_cached else None

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Any]]:
        """Yield the tokens of each chunk, their state (C, n, b), and their coefficients."""
        n_tokens, n_slots, slot_width = self.state.shape
        n_numbers = n_slots * slot_width + self.site.n_coefficients
        size = CHUNK_BYTES * self.site.chunk_factor // (self.state.element_size() * n_numbers) | 1
        for start in range(0, n_tokens, size):
            rows = slice(start, start + size)
            chunk = self.state[rows]
            if self._cache is None:
                coefficients: Any = self.site.coefficients(chunk, self.scratch)
            elif start in self._cache:
                coefficients = self._cache[start]
            else:
                coefficients = self._cache[start] = self.site.coefficients(chunk, Scratch(chunk))
            yield rows, chunk, coefficients

    def for_write(self) -> "Chunks":
        """Return chunks whose tables end with the coefficients of the write.

        If all coefficients are cached, these are the same chunks; otherwise only the part of the write is computed.
        """
        return Chunks(self.state, self.site.write_only()) if self._cache is None else self


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Write the batched product a @ b to `out`. a: (N, r, k), b: (N, k, w), out: (N, r, w)."""
    return torch.bmm(a, b, out=out) if _is_large(a, b) else add_product(out.zero_(), a, b, 1.0)


def add_product(total: Tensor, a: Tensor, b: Tensor, factor: float) -> Tensor:
    """Add factor * (a @ b) to the total (N, r, w). a, b: as in `product`."""
    if _is_large(a, b):
        return total.baddbmm_(a, b, alpha=factor)
    for i in range(b.shape[1]):
        total.addcmul_(a[..., i : i + 1], b[:, i : i + 1], value=factor)
    return total


def _is_large(a: Tensor, b: Tensor) -> bool:
    return a.shape[1] * b.shape[1] * b.shape[2] >= MIN_MULTIPLICATIONS
