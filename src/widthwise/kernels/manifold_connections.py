"""Manifold-constrained hyper-connections: coefficients of slots whose carry is doubly stochastic.

Source: mHC, Xie et al. 2025, arXiv:2512.24880; permutations: mHC-lite, arXiv:2601.05732. A layer reads one mixture of
the n slots of a token, with weights between 0 and 1, and adds its update to each slot, with weights between 0 and 2.
Rows and columns of the carry sum to 1, so a product of carries of any number of layers neither grows nor vanishes.

`kernels.hyper_connections` reads, writes and recomputes states; this file computes the coefficients. In the fused form
the tokens are the last axis of the logits, (..., C) for C tokens, so that every operation runs over consecutive tokens.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from widthwise.kernels.dispatch import widened, without_autocast
from widthwise.kernels.hyper_connections_chunks import Scratch


class Sinkhorn(NamedTuple):
    """A positive matrix whose columns and rows are divided by their sums in turn, columns first and last.

    The matrices between the steps are not saved: the backward pass multiplies the result by the sums to return to
    them. `eps` is added to every sum, and `entry_eps` to every entry before the first division.
    """

    n_iterations: int
    eps: float
    entry_eps: float

    def reference(self, logits: Tensor, n_slots: int) -> Tensor:
        """logits: (..., n * n) -> (..., n, n); entry (j, k) is the weight of slot j in the next slot k."""
        carry = logits.unflatten(-1, (n_slots, n_slots)).softmax(dim=-1) + self.entry_eps
        for dim in self._dims(-2, -1):
            carry = carry / (carry.sum(dim=dim, keepdim=True) + self.eps)
        return carry

    def forward(self, logits: Tensor, n_slots: int) -> tuple[Tensor, Any]:
        """logits: (n * n, C) -> (n, n, C), and the arguments of `backward`."""
        weights = logits.view(n_slots, n_slots, -1).softmax(dim=1)
        carry = weights + self.entry_eps
        sums = []
        for dim in self._dims(0, 1):
            sums.append(carry.sum(dim=dim, keepdim=True).add_(self.eps))
            carry.div_(sums[-1])
        return carry, (weights, sums, carry)

    def backward(self, grad: Tensor, weights: Tensor, sums: list[Tensor], carry: Tensor) -> Tensor:
        """grad: (n, n, C), overwritten -> gradient of the logits, (n * n, C)."""
        carry = carry.clone()
        for dim, total in zip(reversed(self._dims(0, 1)), reversed(sums)):
            grad.sub_((grad * carry).sum(dim=dim, keepdim=True)).div_(total)
            carry.mul_(total)
        return _softmax_backward(grad, weights, dim=1).flatten(0, 1)

    def _dims(self, column: int, row: int) -> list[int]:
        """Return the summed dimension of each step."""
        return [column, row] * (self.n_iterations - 1) + [column]


class Permutations(NamedTuple):
    """A mean of all n! permutation matrices, weighted by a softmax: doubly stochastic up to rounding."""

    def reference(self, logits: Tensor, n_slots: int) -> Tensor:
        """logits: (..., n!) -> (..., n, n), as for `Sinkhorn`."""
        return (logits.softmax(dim=-1) @ _permutations(n_slots, logits)).unflatten(-1, (n_slots, n_slots))

    def forward(self, logits: Tensor, n_slots: int) -> tuple[Tensor, Any]:
        """logits: (n!, C) -> (n, n, C), and the arguments of `backward`."""
        weights = logits.softmax(dim=0)
        return (_permutations(n_slots, logits).T @ weights).view(n_slots, n_slots, -1), (weights,)

    def backward(self, grad: Tensor, weights: Tensor) -> Tensor:
        """grad: (n, n, C) -> gradient of the logits, (n!, C)."""
        return _softmax_backward(_permutations(len(grad), grad) @ grad.flatten(0, 1), weights, dim=0)


Carry = Sinkhorn | Permutations


def _permutations(n_slots: int, like: Tensor) -> Tensor:
    """Return all permutation matrices, flattened, (n!, n * n)."""
    places = torch.tensor(list(permutations(range(n_slots))), device=like.device)
    return one_hot(places, n_slots).flatten(1).to(like.dtype)


def _softmax_backward(grad: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Return the gradient of the logits of a softmax with the output `weights`."""
    product = grad * weights
    return product - weights * product.sum(dim=dim, keepdim=True)


class ManifoldForm(NamedTuple):
    """Coefficients of a site, from logits = state / rms(state) @ projection + static, one norm for all slots.

    Parameters: static (1, k), projection (n * b, k). The k logits are n of the read, n of the write, and the carry's;
    at the exit of the model, where slots are only read, the carry is None and k = n. norm_dim: divisor of the
    sum of squares of all slots; read_eps: added to the sigmoids of the read; read_shares: (n,), factors of the read.
    """

    norm_dim: int
    eps: float
    read_eps: float
    read_shares: tuple[float, ...]
    carry: Carry | None

    n_read = 1

    def site(self, parameters: Sequence[Tensor | None], dtype: torch.dtype) -> "ManifoldSite":
        """Return the parameters in the layout of chunks."""
        static, projection = (table.T.to(dtype).contiguous() for table in parameters if table is not None)
        return ManifoldSite(self, static, projection, static.new_tensor(self.read_shares))

    def reference(self, state: Tensor, static: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of a sublayer, and the coefficients for `reference_write_slots`.

        state: (B, T, n, b) -> (B, T, b) in its dtype; (B, T, n, 1 + n + 1), or (B, T, n, 1) without a carry, in fp32 or
        wider, [read | carry minus the identity | write].
        """
        with without_autocast(state):
            wide = widened(state)
            n_slots = len(self.read_shares)
            flat = wide.flatten(-2)
            inverse_rms = torch.rsqrt(flat.square().sum(dim=-1, keepdim=True) / self.norm_dim + self.eps)
            logits = inverse_rms * (flat @ projection.to(wide.dtype)) + static.to(wide.dtype)
            read, write, carry = logits.tensor_split((n_slots, 2 * n_slots), dim=-1)
            shares = logits.new_tensor(self.read_shares)
            coefficients = (shares * (torch.sigmoid(read) + self.read_eps))[..., None]
            x = (coefficients.transpose(-1, -2) @ wide).flatten(-2).to(state.dtype)
            if self.carry is None:
                return x, coefficients
            identity = torch.eye(n_slots, dtype=logits.dtype, device=logits.device)
            carried = self.carry.reference(carry, n_slots) - identity
            return x, torch.cat((coefficients, carried, 2 * torch.sigmoid(write)[..., None]), dim=-1)


class ManifoldCoefficients(NamedTuple):
    """The coefficients of a chunk, and the saved inputs of their derivative.

    table: (1 + n + 1, C, n), [read | carry | write] of each slot, or (1, C, n) without a carry; gates: (2 n, C) or
    (n, C), sigmoids of reads and writes; normalised: (k, C), logits without the static part; inverse_rms: (C,);
    carry: arguments of the carry's `backward`.
    """

    table: Tensor
    gates: Tensor
    normalised: Tensor
    inverse_rms: Tensor
    carry: Any


class ManifoldSite(NamedTuple):
    """The parameters of one site in the layout of chunks; see `hyper_connections_chunks.Site`.

    static: (k, 1); projection: (k, n * b); shares: (n,), factors of the reads.
    """

    form: ManifoldForm
    static: Tensor
    projection: Tensor
    shares: Tensor

    chunk_factor = 16  # the divisions are many operations on few numbers

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The parameters, transposed."""
        return self.static, self.projection

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of rows of the table that read, carry and write."""
        return (1, 0, 0) if self.form.carry is None else (1, len(self.form.read_shares), 1)

    @property
    def n_coefficients(self) -> int:
        """Number of logits of a token. Sums that the carry saves are not counted: dividing again would take longer."""
        return len(self.static)

    def coefficients(self, chunk: Tensor, scratch: Scratch) -> ManifoldCoefficients:
        """Return the coefficients of a chunk (C, n, b)."""
        n_tokens, n_slots, _ = chunk.shape
        flat = chunk.view(n_tokens, -1)
        total = torch.linalg.vector_norm(flat, dim=-1).square_()
        inverse_rms = total.div_(self.form.norm_dim).add_(self.form.eps).rsqrt_()
        normalised = torch.mm(self.projection, flat.T).mul_(inverse_rms)
        logits = normalised + self.static
        gates = torch.sigmoid(logits[: 2 * n_slots])
        table = chunk.new_empty(sum(self.sizes), n_tokens, n_slots)
        torch.mul(gates[:n_slots].T + self.form.read_eps, self.shares, out=table[0])
        saved = None
        if self.form.carry is not None:
            carry, saved = self.form.carry.forward(logits[2 * n_slots :], n_slots)
            table[1:-1] = carry.permute(1, 2, 0)
            torch.mul(gates[n_slots:].T, 2, out=table[-1])
        return ManifoldCoefficients(table, gates, normalised, inverse_rms, saved)

    def backward(
        self, chunk: Tensor, coefficients: ManifoldCoefficients, grad: Tensor, grad_chunk: Tensor, sums: Any
    ) -> None:
        """Add gradients of the tables to `sums`, and of the state to grad_chunk (C, n, b). grad: of the table."""
        grad_static, grad_projection = sums
        n_slots = chunk.shape[1]
        grads = [(grad[0] * self.shares).T]
        if self.form.carry is not None:
            grads.append(grad[-1].T * 2)
        gates = coefficients.gates
        grads = [torch.cat(grads) * gates * (1 - gates)]
        if self.form.carry is not None:
            grad_carry = grad[1 : 1 + n_slots].permute(2, 0, 1).contiguous()
            grads.append(self.form.carry.backward(grad_carry, *coefficients.carry))
        grad_logits = torch.cat(grads)
        grad_static.add_(grad_logits.sum(dim=1, keepdim=True))
        flat = chunk.view(len(chunk), -1)
        share = (grad_logits * coefficients.normalised).sum(dim=0)
        share.mul_(coefficients.inverse_rms.square()).div_(self.form.norm_dim)
        grad_logits.mul_(coefficients.inverse_rms)
        grad_projection.addmm_(grad_logits, flat)
        grad_chunk.view_as(flat).addmm_(grad_logits.T, self.projection).addcmul_(flat, share[:, None], value=-1)

    def write_only(self) -> "ManifoldSite":
        """Return the whole site, because all its coefficients come from one product."""
        return self
