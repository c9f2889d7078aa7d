"""Chooses the form of an operation (hand-written or reference) and the dtype it runs in."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from widthwise.computing import Precision
from widthwise.config_io import UserError

VARIABLE = "WIDTHWISE_KERNELS"
"""The environment variable that chooses among FORMS."""
FORMS = ("fused", "reference")
"""`fused` (default): hand-written forms where one is meant for the device; `reference`: plain torch everywhere."""


def use_fused(x: Tensor) -> bool:
    """Return whether the hand-written form is meant for this tensor: eager execution on the CPU.

    Under torch.compile and on a GPU the reference is used, which the compiler fuses itself.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not reference_wanted()


def reference_wanted() -> bool:
    """Return whether the environment turns the hand-written forms off. Raises UserError if it names no form."""
    value = os.environ.get(VARIABLE) or "fused"
    if value not in FORMS:
        raise UserError(f"{VARIABLE}: got {value!r}; allowed: {', '.join(FORMS)}")
    return value == "reference"


def refuse_double_backward() -> None:
    """Raises RuntimeError if a hand-written backward pass is itself differentiated, which would be silently wrong."""
    if torch.is_grad_enabled():
        raise RuntimeError("fused kernels have no second derivative; for create_graph set WIDTHWISE_KERNELS=reference")


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which matrix products of `x` run: the autocast dtype if autocast is on, else the dtype of `x`."""
    device = x.device.type
    is_autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_autocast else x.dtype


def widened(x: Tensor) -> Tensor:
    """x in fp32 or wider, for sums and squares."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context that turns autocast off on the device of `x`, if it has autocast (the meta device has none)."""
    device = x.device.type
    has_autocast = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if has_autocast else nullcontext()


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context of a forward pass: matrix products in bf16 and everything else in fp32, or all in fp32.

    Inside of somebody else's autocast, casts of the weights would be kept beyond an update: they are forgotten here.
    """
    torch.clear_autocast_cache()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
