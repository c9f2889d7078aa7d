"""Random tensors, and comparisons of two computations with all their gradients."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.model.axes import LayerNorm, RMSNorm
from widthwise.model.context import PassContext
from widthwise.model.norm import PLACEMENTS, NormConfig, NormSite, Place


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normal numbers of this shape; they are equal in all dtypes except for rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@torch.no_grad()
def randomised(module: nn.Module, seed: int = 0, size: float = 1.0) -> nn.Module:
    """Fill the module with random weights of std `size`, plus 1 in norms, and return it."""
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            seed += 1
            parameter.copy_(size * random(*parameter.shape, seed=seed) + isinstance(part, (RMSNorm, LayerNorm)))
    return module


def norm_site(placement: str, d_model: int, d_out: int, kind: str = "rms") -> NormSite:
    """Return the site of a feed-forward's norm, which divides by the width that it normalises.

    placement: "pre", "reordered", "both" or "none".
    """
    width = d_out if placement == "reordered" else d_model
    place = (PLACEMENTS | {"none": Place()})[placement]
    return NormSite(place, NormConfig(kind=kind, eps=1e-5, norm_dim=width))


CONTEXT = PassContext(rope={}, masks={None: None})
"""The context for a feed-forward, in which no token depends on others."""


def assert_same(
    ours: Tensor | list[Tensor],
    truth: Tensor | list[Tensor],
    inputs: Iterable[Tensor],
    inputs_of_truth: Iterable[Tensor] | None = None,
    rtol: float = 1e-9,
    atol: float = 1e-10,
) -> None:
    """Compare values, and the gradients of one random combination of them with respect to the inputs.

    inputs_of_truth: inputs of `truth` if they are other tensors than those of `ours`.
    """
    actual = [ours] if isinstance(ours, Tensor) else list(ours)
    expected = [truth] if isinstance(truth, Tensor) else list(truth)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    inputs = list(inputs)
    actual_gradients = _gradients(actual, inputs)
    expected_gradients = _gradients(expected, list(inputs_of_truth or inputs))
    for gradient, wanted in zip(actual_gradients, expected_gradients, strict=True):
        size = 1.0 if wanted is None else max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(gradient, wanted, rtol=rtol, atol=atol * size)


def _gradients(values: list[Tensor], inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of a fixed random combination of the values."""
    combination = sum((value * random(*value.shape, seed=5 + i).to(value)).sum() for i, value in enumerate(values))
    return torch.autograd.grad(combination, inputs, allow_unused=True, retain_graph=True)


def with_gradients(op: Callable[..., Tensor], *arguments: Any) -> tuple[Tensor, ...]:
    """Return the output, and the gradients of all arguments that require one, 0 if unused.

    The gradient of the output is fixed and random.
    """
    out = op(*arguments)
    out_gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    inputs = [argument for argument in arguments if isinstance(argument, Tensor) and argument.requires_grad]
    return out, *torch.autograd.grad(out, inputs, out_gradient, materialize_grads=True)


def assert_forms_agree(
    ours: Callable[..., Tensor], truth: Callable[..., Tensor], *arguments: Any, rtol: float, atol: float | None = None
) -> Tensor:
    """Compare outputs and gradients of two functions for these arguments. Return our output. atol: rtol if omitted."""
    actual, expected = (with_gradients(form, *arguments) for form in (ours, truth))
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol if atol is None else atol)
    return actual[0]
