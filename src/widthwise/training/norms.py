"""Norms of each layer in one step: of its gradient, its weights and their update, and the stream that it gives out."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from widthwise.model.decoder import Decoder
from widthwise.model.recompute import Recompute
from widthwise.model.shards import held
from widthwise.training.processes import Processes

KEYS = ("grad_norms", "weight_norms", "update_norms", "output_rms")
"""What a record holds, each with one entry per layer."""


class LayerWatch(Recompute):
    """Runs the layers of a model as they are run anyway, and looks at what comes out.

    It stands outside of them: a compiled layer stays compiled, and one that runs again in the backward pass is seen
    once. Nothing of it has a gradient, and no random number is drawn.
    """

    def __init__(self, model: Decoder):
        super().__init__(model.recompute.every)
        self._model, n_layers = model, len(model.layers)
        self._squares = torch.zeros(n_layers, dtype=torch.float64, device=model.progress.device)
        self._n_numbers = [0] * n_layers
        self._before: list[list[Tensor]] = []
        self._sums: list[Tensor] = []

    def run(self, index: int, layer: Callable[..., Any], *inputs: Any, cache: Any = None) -> Any:
        """See `Recompute.run`. Further heads run as well, and are not looked at."""
        found = super().run(index, layer, *inputs, cache=cache)
        if layer is self._model.layers[index]:
            config = self._model.config
            with torch.no_grad():
                output = config.residual.to_slots(found[0], config.widths[index])
                self._squares[index] += _square(output)
            self._n_numbers[index] += output.numel()
        return found

    @torch.no_grad()
    def before_update(self) -> None:
        """Looks at gradients and weights, and copies the weights. Called between backward pass and update."""
        weights = [list(layer.parameters()) for layer in self._model.layers]
        gradients = [[each.grad for each in own if each.grad is not None] for own in weights]
        self._sums = [_sum_of_squares(own, self._squares) for own in (*gradients, *weights)]
        self._before = [[held(each).clone() for each in own] for own in weights]

    @torch.no_grad()
    def measured(self, processes: Processes) -> Tensor:
        """(4, n_layers) float64, in the order of KEYS. Called by all processes after the update, or without one.

        Sums are over what each process holds, so that no tensor is gathered.
        """
        layers = zip(self._model.layers, self._before, strict=True)
        changes = [[held(now) - then for now, then in zip(layer.parameters(), own)] for layer, own in layers]
        local = [*self._sums, *(_sum_of_squares(own, self._squares) for own in changes)]
        of_held, outputs = processes.all_reduce_sum([torch.stack(local), self._squares])
        n_copies = processes.world_size // processes.n_shards
        n_numbers = torch.tensor(self._n_numbers, device=outputs.device) * processes.world_size
        return torch.stack((*(of_held / n_copies).view(3, -1), outputs / n_numbers)).sqrt()


def _square(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).square()


def _sum_of_squares(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    return sum((_square(held(each)) for each in tensors), start=like.new_zeros(()))


@contextmanager
def watched_layers(model: Decoder, is_due: bool) -> Iterator[LayerWatch | None]:
    """Looks at the layers in the block, if it is due."""
    if not is_due:
        yield None
        return
    usual, watch = model.recompute, LayerWatch(model)
    model.recompute = watch
    try:
        yield watch
    finally:
        model.recompute = usual


def norms_record(norms: Tensor) -> dict[str, list[float | None]]:
    """What `LayerWatch.measured` found, for a record. None where it is not finite. Waits for the device."""
    values = [[value if math.isfinite(value) else None for value in row] for row in norms.tolist()]
    return dict(zip(KEYS, values))
