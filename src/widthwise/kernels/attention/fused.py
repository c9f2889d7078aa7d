"""Attention in blocks on the CPU. Autograd keeps queries, keys and values."""

from typing import Any

import torch
from torch import Tensor

from widthwise.kernels.attention import operators
from widthwise.kernels.dispatch import compute_dtype


def attention(queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None = None) -> Tensor:
    """See `reference.attention`. It has no second derivative."""
    dtype = compute_type(queries)
    queries, keys, values = (x.to(dtype) for x in (queries, keys, values))
    return operators.forward(queries, keys, values, scale, documents)


def compute_type(queries: Tensor) -> torch.dtype:
    """The type in which it runs: that of scaled_dot_product_attention, for which autocast leaves fp64 alone."""
    return queries.dtype if queries.dtype == torch.float64 else compute_dtype(queries)


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    """Saves what the backward pass needs. inputs, output: of `operators.forward`."""
    queries, keys, values, scale, documents = inputs
    ctx.save_for_backward(queries, keys, values, documents)
    ctx.scale = scale


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """One gradient for each input of `operators.forward`."""
    queries, keys, values, documents = ctx.saved_tensors  # once: activation checkpointing refuses a second time
    gradients = operators.backward(grad, queries, keys, values, ctx.scale, documents)
    return *gradients, None, None


operators.forward.register_autograd(_differentiate, setup_context=_keep)
