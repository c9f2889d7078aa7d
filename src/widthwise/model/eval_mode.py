"""Evaluation mode: no gradients, and the same random draws every time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

SEED = 0
"""Seeds the random draws of a model under evaluation."""


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """No gradients, and the same random draws every time; the generators continue afterwards as if nothing had run."""
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """The model in evaluation mode, without gradients; yields its device.

    Random draws are the same every time, and the generators of training continue as if nothing had run.
    """
    device, was_training = next(model.parameters()).device, model.training
    with repeatable(device):
        model.eval()
        try:
            yield device
        finally:
            model.train(was_training)
