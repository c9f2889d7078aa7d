"""Generalized hyper-connections in plain torch. Source: virtual-width paper, arXiv:2511.11238, Eq. (6)-(10), Alg. 1-3.

The state of a token is n slots of b numbers. A sublayer reads n_read mixtures of the slots and writes n_write blocks
back; the slots themselves are carried over and mixed as well. The weights of all three mixtures are the columns of one
table of n rows, [read | carry | write]. Its carry part is stored as the deviation from the identity, because in bf16 a
carry of 1 + 2^-8 would round to 1.
"""

import torch
from torch import Tensor

from widthwise.kernels.dispatch import without_autocast


def read_slots(
    state: Tensor, static: Tensor, projection: Tensor | None, scale: Tensor | None, n_read: int, eps: float
) -> tuple[Tensor, Tensor]:
    """The input of a sublayer, and the coefficients that `write_slots` needs.

    coefficients = scale * tanh(state / rms(state) @ projection) + static, each slot normalised by itself.

    state: (B, T, n, b); static: (n, k), k = n_read + n + n_write; projection: (b, k), with the norm's gain folded in;
    scale: (n, k); both None if all tokens share the coefficients. -> (B, T, n_read * b) in the state's dtype, and
    (B, T, n, k), or `static` itself, in fp32 or wider.
    """
    with without_autocast(state):
        wide = state.to(torch.promote_types(state.dtype, torch.float32))
        coefficients = static.to(wide.dtype)
        if projection is not None and scale is not None:
            inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
            pre_activation = inverse_rms * (wide @ projection.to(wide.dtype))
            coefficients = scale * torch.tanh(pre_activation) + coefficients
        x = coefficients[..., :n_read].transpose(-1, -2) @ wide
        return x.flatten(-2).to(state.dtype), coefficients


def write_slots(state: Tensor, update: Tensor, coefficients: Tensor, n_read: int, multiplier: float) -> Tensor:
    """The state after a sublayer: state + carry^T state + multiplier * write update, in the state's dtype.

    state: (B, T, n, b); update: (B, T, n_write * b); coefficients: from `read_slots`.
    """
    with without_autocast(state):
        n_slots, slot_width = state.shape[-2:]
        wide = state.to(coefficients.dtype)
        blocks = update.to(coefficients.dtype).unflatten(-1, (-1, slot_width))
        carry = coefficients[..., n_read : n_read + n_slots]
        write = multiplier * coefficients[..., n_read + n_slots :]
        return (wide + carry.transpose(-1, -2) @ wide + write @ blocks).to(state.dtype)
