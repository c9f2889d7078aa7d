"""Generalized hyper-connections as the virtual-width paper's formulas say them, for comparison: slot by slot.

    x_k = sum_i A[i, k] H_i        H'_j = sum_k B[k, j] Z_k + sum_i A[i, m + j] H_i

Source: arXiv:2511.11238, Eq. (6)-(10). A state is a list of its slots H_1, ..., H_n, each (B, T, slot_width); a weight
is one number for each token, (B, T, 1), or one for all. Nothing of the library's forward pass is used.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

State = list[Tensor]


def normalised(x: Tensor, eps: float, divisor: int) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) / divisor + eps).sqrt()


def coefficients(site, state: State) -> list[list[Tensor]]:
    """The table of coefficients. Row i says what slot i gives to each block that is read and to each slot, and what it
    takes of each block that is written; it depends on slot i alone.
    """
    n, divisor = len(state), site.config.slot_norm_dim or state[0].shape[-1]
    n_read, config = site.n_read, site.config
    table = []
    for i, slot in enumerate(state):
        values = site.static.weight.view(n, -1)[i]
        if config.dynamic:
            x = normalised(slot, config.eps, divisor) * site.norm.weight
            projected = x @ site.dynamic.weight.T
            if config.scale == "numbers":
                by_mixing, by_writing = site.scale.weight
                values = values + torch.cat(
                    (by_mixing * projected[..., : n_read + n].tanh(), by_writing * projected[..., n_read + n :].tanh()),
                    dim=-1,
                )
            else:
                values = values + site.scale.weight.view(n, -1)[i] * (projected / math.sqrt(divisor)).tanh()
        row = list(values.split(1, dim=-1))
        row[n_read + i] = row[n_read + i] + 1
        if config.writes == "own":
            taken = row.pop()
            row += [taken if k == i % site.n_write else torch.zeros_like(taken) for k in range(site.n_write)]
        table.append(row)
    return table


def through(site, state: State, sublayer: Callable[[Tensor], Tensor]) -> State:
    """The state behind a sublayer (B, T, d_read) -> (B, T, d_write)."""
    n, m, table = len(state), site.n_read, coefficients(site, state)
    x = [sum(table[i][k] * state[i] for i in range(n)) for k in range(m)]
    z = sublayer(torch.cat(x, dim=-1)).split(site.config.slot_width, dim=-1)
    return [
        site.config.multiplier * sum(table[j][m + n + k] * z[k] for k in range(len(z)))
        + sum(table[i][m + j] * state[i] for i in range(n))
        for j in range(n)
    ]


def mixtures(weights: Tensor, blocks: State) -> State:
    return [sum(weight * block for weight, block in zip(row, blocks, strict=True)) for row in weights]


def entered(model, rows: Tensor) -> State:
    """rows: (B, T, embedding_width), of the table -> the state before the first layer."""
    residual = model.config.residual
    if residual.embedding == "expand":
        rows = rows @ model.entry.w_expand.weight.T
    n, given = residual.n_slots, list(rows.split(residual.slot_width, dim=-1))
    match residual.embedding:
        case "direct" | "expand":
            return given
        case "pad":
            return given + [torch.zeros_like(given[0])] * (n - len(given))
        case "copies":
            return given * (n // len(given))
        case "slot":
            return mixtures(model.entry.w_expand.weight, given)
    raise AssertionError(residual.embedding)


def left(model, state: State) -> Tensor:
    """The state after the last layer -> what the last norm is of, (B, T, d_model)."""
    residual, d_model, eps = model.config.residual, model.config.d_model, model.config.final_norm.eps
    divisor = residual.group_norm_dim or d_model
    flat = torch.cat(state, dim=-1)
    if residual.group_norm is not None:
        groups = list(flat.split(d_model, dim=-1))
        if residual.group_norm == "layer":
            groups = [group - group.mean(-1, keepdim=True) for group in groups]
        flat = (
            torch.cat([normalised(group, eps, divisor) for group in groups], dim=-1) * model.exit.group_norm.norm.weight
        )
        if residual.group_norm == "layer":
            flat = flat + model.exit.group_norm.bias.weight
    if residual.reduce == "sum":
        return sum(flat.split(d_model, dim=-1))
    weights = model.exit.reduce.w_reduce.weight
    if residual.reduce == "full":
        return flat @ weights.T
    return torch.cat(mixtures(weights, list(flat.split(residual.slot_width, dim=-1))), dim=-1)
