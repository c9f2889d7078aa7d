"""Which form of an operation runs, and in which type."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from widthwise.config_io import UserError

VARIABLE = "WIDTHWISE_KERNELS"
"""The environment variable that chooses among FORMS."""
FORMS = ("fused", "reference", "triton")
"""Hand-written forms for the CPU, the default; plain torch everywhere; and besides the default what is in Triton."""


def use_fused(x: Tensor) -> bool:
    """Whether the hand-written form is meant for this tensor.

    It is written for eager execution on the CPU; under torch.compile and on a GPU the compiler fuses the reference.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not reference_wanted()


def reference_wanted() -> bool:
    """Whether the environment turns the hand-written forms off."""
    return _wanted() == "reference"


def triton_wanted() -> bool:
    """Whether the environment turns on what is written in Triton."""
    return _wanted() == "triton"


def _wanted() -> str:
    value = os.environ.get(VARIABLE) or "fused"
    if value not in FORMS:
        raise UserError(f"{VARIABLE}: got {value!r}; allowed: {', '.join(FORMS)}")
    return value


def refuse_double_backward() -> None:
    """Called by hand-written backward passes, whose own derivative would be silently wrong. Raises RuntimeError."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "fused kernels have no second derivative: set WIDTHWISE_KERNELS=reference for create_graph=True"
        )


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type matrix products of `x` run in: the autocast type where autocast is on, else its own."""
    device = x.device.type
    is_autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)  # not on meta
    return torch.get_autocast_dtype(device) if is_autocast else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager:
    """For what must run in the type of its tensors; meta tensors know no autocast."""
    device = x.device.type
    has_autocast = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if has_autocast else nullcontext()
