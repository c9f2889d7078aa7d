"""The choice between the fused and the reference form of an operation, its dtype, and soft caps."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from widthwise.computing import Precision
from widthwise.mistakes import UserError

VARIABLE = "WIDTHWISE_KERNELS"
"""Environment variable that selects one of FORMS."""
FORMS = ("fused", "reference")
"""`fused` (default): hand-written forms on the devices for which they were written; `reference`: plain torch."""


def use_fused(x: Tensor) -> bool:
    """Return True in eager execution on the CPU, for operations whose fused form is faster there only.

    Under torch.compile and on a GPU the reference is used, and the compiler fuses it.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not reference_wanted()


def reference_wanted() -> bool:
    """Return True if the environment selects the reference forms. Raise UserError for an unknown form."""
    value = os.environ.get(VARIABLE) or "fused"
    if value not in FORMS:
        raise UserError(f"{VARIABLE}: got {value!r}; allowed: {', '.join(FORMS)}")
    return value == "reference"


def refuse_double_backward() -> None:
    """Raise RuntimeError if autograd records a hand-written backward pass: its derivative would be silently wrong."""
    if torch.is_grad_enabled():
        raise RuntimeError("fused kernels have no second derivative; for create_graph set WIDTHWISE_KERNELS=reference")


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of `x`: the autocast dtype if autocast is on, otherwise the dtype of `x`."""
    device = x.device.type
    is_autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_autocast else x.dtype


def widened(x: Tensor) -> Tensor:
    """Return x in fp32 or wider, for sums and squares."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def soft_capped(x: Tensor, cap: float | None) -> Tensor:
    """Return cap * tanh(x / cap), between -cap and cap, or x without a cap. Source: Gemma 2, arXiv:2408.00118."""
    return x if cap is None else cap * torch.tanh(x / cap)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context that turns autocast off on the device of `x`, if it has autocast (the meta device has none)."""
    device = x.device.type
    has_autocast = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if has_autocast else nullcontext()


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context of a forward pass: for bf16, matrix products in bf16 and the rest in fp32; else all in fp32.

    Clear the autocast cache first, because inside an outer autocast it keeps bf16 copies of weights after an update.
    """
    torch.clear_autocast_cache()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
