"""Batches that make a gradient explode, chosen by their number."""

from collections.abc import Mapping

import torch

from widthwise.data.loader import Loader
from widthwise.model.decoder import Decoder


def spoil(
    monkeypatch, factors: Mapping[int, float], moved: Mapping[int, int] | None = None, part: str = "objective"
) -> None:
    """Multiplies the objective of batches by a factor. Batches are numbered from 0 on, as the loader does.

    moved: number -> number of the batch that is given out instead; part: `losses` for the reported losses.
    """
    number, load, loss = -1, Loader.batch, Decoder.loss

    def batch(loader: Loader, step: int) -> torch.Tensor:
        nonlocal number
        number = (moved or {}).get(step, step)
        return load(loader, number)

    def spoilt(model: Decoder, *arguments, **options):
        found = loss(model, *arguments, **options)
        return found._replace(**{part: getattr(found, part) * factors.get(number, 1.0)})

    monkeypatch.setattr(Loader, "batch", batch)
    monkeypatch.setattr(Decoder, "loss", spoilt)
