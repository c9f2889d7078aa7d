"""An operation with its gradients, to be compared with another form of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def with_gradients(op: Callable[..., Tensor], *arguments: Any) -> tuple[Tensor, ...]:
    """The output and, for a fixed random direction of it, the gradients of all arguments that want one, 0 if unused."""
    out = op(*arguments)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    wanted = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
    return out, *torch.autograd.grad(out, wanted, direction, materialize_grads=True)
