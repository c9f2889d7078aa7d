"""The state in which a model is tried rather than trained."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from widthwise.model.decoder import Decoder

SEED = 0
"""Of what a model draws at random while it is evaluated."""


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Without gradients; what is drawn at random is the same every time, and draws behind the block are as ever."""
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        yield


@contextmanager
def evaluating(model: Decoder) -> Iterator[torch.device]:
    """The model in evaluation mode, without gradients; yields its device.

    Whatever the model draws at random is the same every time, and training draws on afterwards as if nothing had been.
    """
    device, was_training = model.embedding.weight.device, model.training
    with repeatable(device):
        model.eval()
        try:
            yield device
        finally:
            model.train(was_training)
