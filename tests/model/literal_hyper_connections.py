"""Generalized hyper-connections by the formulas of the virtual-width paper, for comparison:

    x_k = sum_i A[i, k] H_i        H'_j = sum_k B[k, j] Z_k + sum_i A[i, m + j] H_i

Source: arXiv:2511.11238, Eq. (6)-(10). A state has the slots H_1, ..., H_n: (B, T, n, slot_width). Nothing from the
library's forward pass is used.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def normalised(x: Tensor, eps: float, divisor: int) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) / divisor + eps).sqrt()


def coefficients(site, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights of slot i in each read block, of slot i in each carried slot, and of each written block in
    slot i: row i of three matrices, which depends only on slot i.
    """
    config, n = site.config, state.shape[-2]
    divisor = config.slot_norm_dim or config.slot_width
    table, n_mixed = site.static.weight.view(n, -1), site.n_read + n
    if config.dynamic:
        projected = (normalised(state, config.eps, divisor) * site.norm.weight) @ site.dynamic.weight.T
        if config.scale == "numbers":
            by_mixing, by_writing = site.scale.weight
            mixed, written = projected[..., :n_mixed].tanh(), projected[..., n_mixed:].tanh()
            table = table + torch.cat((by_mixing * mixed, by_writing * written), dim=-1)
        else:
            table = table + site.scale.weight.view(n, -1) * (projected / math.sqrt(divisor)).tanh()
    writes = table[..., n_mixed:]
    if config.writes == "own":
        writes = writes * (torch.arange(n)[:, None] % site.n_write == torch.arange(site.n_write))
    return table[..., : site.n_read], table[..., site.n_read : n_mixed] + torch.eye(n), writes


def through(site, state: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the state after a sublayer, a function (B, T, d_read) -> (B, T, d_write)."""
    reads, carries, writes = coefficients(site, state)
    x = reads.transpose(-1, -2) @ state
    z = sublayer(x.flatten(-2)).unflatten(-1, (-1, site.config.slot_width))
    return site.config.multiplier * writes @ z + carries.transpose(-1, -2) @ state


def entered(model, rows: Tensor) -> Tensor:
    """rows: (B, T, embedding_width), of the embedding -> the state before the first layer."""
    residual = model.config.residual
    if residual.embedding == "expand":
        rows = rows @ model.entry.w_expand.weight.T
    blocks = rows.unflatten(-1, (-1, residual.slot_width))
    match residual.embedding:
        case "direct" | "expand":
            return blocks
        case "pad":
            return torch.nn.functional.pad(blocks, (0, 0, 0, residual.n_slots - blocks.shape[-2]))
        case "copies":
            return torch.cat([blocks] * (residual.n_slots // blocks.shape[-2]), dim=-2)
        case "slot":
            return model.entry.w_expand.weight @ blocks
    raise AssertionError(residual.embedding)


def left(model, state: Tensor) -> Tensor:
    """Return the input of the last norm, (B, T, d_model), from the state after the last layer."""
    residual, d_model = model.config.residual, model.config.d_model
    if residual.group_norm is not None:
        groups = state.flatten(-2).unflatten(-1, (-1, d_model))
        if residual.group_norm == "layer":
            groups = groups - groups.mean(-1, keepdim=True)
        groups = normalised(groups, model.config.final_norm.eps, residual.group_norm_dim or d_model)
        flat = groups.flatten(-2) * model.exit.group_norm.norm.weight
        if residual.group_norm == "layer":
            flat = flat + model.exit.group_norm.bias.weight
        state = flat.view_as(state)
    if residual.reduce == "sum":
        return state.flatten(-2).unflatten(-1, (-1, d_model)).sum(-2)
    weights = model.exit.reduce.w_reduce.weight
    return state.flatten(-2) @ weights.T if residual.reduce == "full" else (weights @ state).flatten(-2)
