"""Random numbers, and two computations compared with all their gradients."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.model.axes import LayerNorm, RMSNorm
from widthwise.model.context import PassContext
from widthwise.model.norm import PLACEMENTS, NormConfig, NormSite, Place


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same numbers in every type, but for rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@torch.no_grad()
def randomised(module: nn.Module, seed: int = 0, size: float = 1.0) -> nn.Module:
    """With random weights, the gains of its norms around 1."""
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
    place = PLACEMENTS.get(placement, Place())
    return NormSite(place, NormConfig(kind=kind, eps=1e-5, norm_dim=width))


CONTEXT = PassContext(rope={}, masks={None: None})
"""The context of a feed-forward, which depends on no other token."""


def assert_same(
    ours: Tensor | list[Tensor],
    truth: Tensor | list[Tensor],
    inputs: Iterable[Tensor],
    inputs_of_truth: Iterable[Tensor] | None = None,
    rtol: float = 1e-9,
    atol: float = 1e-10,
) -> None:
    """The values, and the gradients of one random combination of them, by the same inputs or by those of the truth."""
    found, expected = ([each] if isinstance(each, Tensor) else list(each) for each in (ours, truth))
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    inputs = list(inputs)
    gradients = [
        torch.autograd.grad(
            sum((value * random(*value.shape, seed=5 + i).to(value)).sum() for i, value in enumerate(values)),
            list(of),
            allow_unused=True,
            retain_graph=True,
        )
        for values, of in ((found, inputs), (expected, inputs_of_truth or inputs))
    ]
    for gradient, wanted in zip(*gradients, strict=True):
        size = 1.0 if wanted is None else max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(gradient, wanted, rtol=rtol, atol=atol * size)


def with_gradients(op: Callable[..., Tensor], *arguments: Any) -> tuple[Tensor, ...]:
    """The output and, for a fixed random direction of it, the gradients of all arguments that want one, 0 if unused."""
    out = op(*arguments)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    wanted = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
    return out, *torch.autograd.grad(out, wanted, direction, materialize_grads=True)


def assert_forms_agree(
    ours: Callable[..., Tensor], truth: Callable[..., Tensor], *arguments: Any, rtol: float, atol: float | None = None
) -> Tensor:
    """Both have the same output and gradients of these arguments. Returns our output. atol: rtol if omitted."""
    found, expected = (with_gradients(form, *arguments) for form in (ours, truth))
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol if atol is None else atol)
    return found[0]
