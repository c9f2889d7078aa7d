"""Evaluation mode, without gradients and with the same random draws every time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

SEED = 0
"""Seed of random draws in evaluation."""


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Disable gradients and seed random draws. The generators then continue as if nothing had run."""
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Put the model into evaluation mode without gradients, and yield its device.

    Random draws are the same every time, and the generators of training continue as if nothing had run.
    """
    device = next(model.parameters()).device
    was_training = model.training
    with repeatable(device):
        model.eval()
        try:
            yield device
        finally:
            model.train(was_training)
