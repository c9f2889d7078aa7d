"""Hyper-connections at the boundary of two sublayers: the write of one and the read of the next in one operation."""

import importlib.util
import os

import torch
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.kernels.boundary import reference
from widthwise.kernels.boundary.reference import PendingWrite, Reading, written
from widthwise.kernels.dispatch import VARIABLE, reference_wanted, triton_wanted


def boundary(stream: Tensor | PendingWrite, reading: Reading) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.boundary`."""
    if not use_triton(stream):
        return reference.boundary(stream, reading)
    from widthwise.kernels.boundary import fused  # Triton is optional, and slow to import.

    return fused.boundary(stream, reading)


def use_triton(stream: Tensor | PendingWrite) -> bool:
    """Whether the Triton form is meant for this state: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""
    x = stream.state if isinstance(stream, PendingWrite) else stream
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return (
        (x.is_cuda or is_interpreted)
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and not reference_wanted()
        and importlib.util.find_spec("triton") is not None
    )


def defers_writes(stream: Tensor | PendingWrite) -> bool:
    """Whether a model defers each write to the next read: if WIDTHWISE_KERNELS=triton asks for it and Triton can run.

    Not the default, because the kernels have not been timed on a GPU yet. Raises UserError if it is asked for and
    cannot run. On the meta device nothing runs, so there no write is deferred.
    """
    if not triton_wanted() or (isinstance(stream, Tensor) and stream.is_meta):
        return False
    if not use_triton(stream):
        raise UserError(f"{VARIABLE}: got triton; it needs the package triton, a CUDA device and fp32, bf16 or fp16")
    return True


__all__ = ["PendingWrite", "Reading", "boundary", "defers_writes", "use_triton", "written"]
