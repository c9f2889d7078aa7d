"""Routed SwiGLU experts as a loop over the experts."""

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from widthwise.kernels.dispatch import compute_dtype


def grouped_swiglu(x: Tensor, chosen: Tensor, weights: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """For each token, the sum over its chosen experts of weight * w_down (silu(w_gate x) * w_up x).

    x: (n_tokens, d_model), chosen: integers (n_tokens, top_k), weights: (n_tokens, top_k), w_gate and w_up: (n_experts,
    d_expert, d_model), w_down: (n_experts, d_out, d_expert) -> (n_tokens, d_out), in the autocast dtype if autocast
    is on. No token is dropped, and an expert may get none. Sources: Shazeer et al. 2017, arXiv:1701.06538; Shazeer
    2020, arXiv:2002.05202.
    """
    update = torch.zeros(len(x), w_down.shape[1], dtype=torch.promote_types(x.dtype, weights.dtype), device=x.device)
    for expert, (gate, up, down) in enumerate(zip(w_gate, w_up, w_down)):
        token, choice = (chosen == expert).nonzero(as_tuple=True)
        hidden = silu(linear(x[token], gate)) * linear(x[token], up)
        update = update.index_add(0, token, linear(hidden, down) * weights[token, choice, None])
    return update.to(compute_dtype(x))
