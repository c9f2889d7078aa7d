"""Statistics of a step for its record: choices averaged over passes, and norms of the layers."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from widthwise.model.context import Choices
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.dynamic_module import DynamicWidth
from widthwise.model.recompute import Recompute
from widthwise.model.shards import held, whole
from widthwise.training.processes import Processes

REPORTED = {
    "width_fraction": "width_fraction",
    "expert_load": "expert_load_max",
    "balance_loss": "balance_loss",
    "router_z_loss": "router_z_loss",
}
"""Choice -> its key in a record. Of a choice with several numbers, such as expert loads, a record has the largest."""
NORM_KEYS = ("grad_norms", "weight_norms", "update_norms", "output_rms")
"""Keys of a record of norms. Each has one number per layer."""


class ChoiceMeans:
    """Means of the choices over forward passes, for each layer. They stay on the device until read."""

    def __init__(self) -> None:
        self._sums: list[dict[str, Tensor]] = []  # for each layer, choice -> sum over sequences
        self._n_sequences = 0

    @property
    def sums(self) -> list[Tensor]:
        """The sums of all layers, in a flat list."""
        return [value for sums in self._sums for value in sums.values()]

    def set_reduced(self, n_processes: int, sums: Iterable[Tensor]) -> None:
        """Replace the sums by those over all processes, in the order of `sums`."""
        remaining = iter(sums)
        self._sums = [{name: next(remaining) for name in layer} for layer in self._sums]
        self._n_sequences *= n_processes

    def add(self, choices: Sequence[Choices], n_sequences: int) -> None:
        """Add a pass over n_sequences. choices: of each layer."""
        self._n_sequences += n_sequences
        self._sums = self._sums or [{} for _ in choices]
        for sums, chosen in zip(self._sums, choices):
            names = [name for name in REPORTED if name in chosen]  # in the same order on all processes
            for name in names:
                mean = chosen[name].detach()
                if name == "width_fraction":  # of every token, whereas other choices are of the whole pass
                    mean = mean.mean()
                value = n_sequences * mean
                sums[name] = sums[name] + value if name in sums else value

    def means(self) -> list[dict[str, Tensor]]:
        """Return the means of all choices of each layer."""
        return [{name: value / self._n_sequences for name, value in sums.items()} for sums in self._sums]


def choice_record(model: Decoder, choices: ChoiceMeans) -> dict[str, list[float | None]]:
    """Return the entries of a training record on choices: one number per layer, None for layers without the choice.

    score_grad_norm: norm of the gradient of each layer's width score and its bias, after clipping. Called by all
    processes that share the model, between two steps.
    """
    layers = choices.means()
    record: dict[str, list[float | None]] = {
        key: [float(means[name].max()) if name in means else None for means in layers]
        for name, key in REPORTED.items()
        if any(name in means for means in layers)
    }
    if "width_fraction" in record:
        norms: list[float | None] = [None] * model.config.n_layers
        for index, layer in enumerate(model.layers):
            parameters = layer.ffn.choice_parameters() if isinstance(layer.ffn, DynamicWidth) else []
            if parameters:
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                norms[index] = float(whole(torch.nn.utils.get_total_norm(gradients)))
        record["score_grad_norm"] = norms
    return record


class LayerWatch(Recompute):
    """Measures the outputs, gradients and updates of layers within its `with` block.

    It replaces the model's `recompute`, which calls the layers, so that a compiled layer stays compiled, and a layer
    that the backward pass recomputes is measured once. Measuring records no gradients and draws no random numbers.
    """

    def __init__(self, model: Decoder):
        super().__init__(model.recompute.every)
        self._model = model
        # Sums of squares, of the outputs of each layer, and of all gradients of each layer, then of all its weights.
        self._output_squares = torch.zeros(len(model.layers), dtype=torch.float64, device=model.embedding.weight.device)
        self._weight_squares: list[Tensor] = []
        self._n_outputs = [0] * len(model.layers)
        self._weights_before: list[list[Tensor]] = []

    def __enter__(self) -> Self:
        self._replaced = self._model.recompute
        self._model.recompute = self
        return self

    def __exit__(self, *error: object) -> None:
        self._model.recompute = self._replaced

    def run(self, index: int, layer: Callable[..., Any], *inputs: Any, cache: Any = None) -> Any:
        """See `Recompute.run`. MTP heads are not measured."""
        outputs = super().run(index, layer, *inputs, cache=cache)
        if index < len(self._model.layers) and layer is self._model.layers[index]:
            config = self._model.config
            with torch.no_grad():
                stream = config.residual.to_slots(outputs[0], config.widths[index])
                self._output_squares[index] += self._sum_of_squares([stream])
            self._n_outputs[index] += stream.numel()
        return outputs

    @torch.no_grad()
    def before_update(self) -> None:
        """Sum the squares of gradients and weights, and copy the weights. Called between backward pass and update."""
        weights = [list(layer.parameters()) for layer in self._model.layers]
        gradients = [[weight.grad for weight in layer if weight.grad is not None] for layer in weights]
        self._weight_squares = [self._sum_of_squares(layer) for layer in (*gradients, *weights)]
        self._weights_before = [[held(weight).clone() for weight in layer] for layer in weights]

    @torch.no_grad()
    def norms(self, processes: Processes) -> Tensor:
        """Return the norms of each layer, (4, n_layers) float64, in the order of NORM_KEYS.

        Called by all processes after the update, if any. Every process sums over its shard, so no tensor is gathered.
        """
        update_squares = []
        for layer, weights in zip(self._model.layers, self._weights_before, strict=True):
            updates = [held(new) - old for new, old in zip(layer.parameters(), weights)]
            update_squares.append(self._sum_of_squares(updates))
        local = [torch.stack([*self._weight_squares, *update_squares]), self._output_squares]
        weight_squares, output_squares = processes.all_reduce_sum(local)
        n_copies = processes.world_size // processes.n_shards  # each copy of the model adds the same sums of weights
        n_outputs = torch.tensor(self._n_outputs, device=output_squares.device) * processes.world_size
        return torch.stack((*(weight_squares / n_copies).view(3, -1), output_squares / n_outputs)).sqrt()

    def _sum_of_squares(self, tensors: Iterable[Tensor]) -> Tensor:
        """Return the sum of the squares of all entries that this process holds, in float64 without a float64 copy."""
        norms = (torch.linalg.vector_norm(held(tensor), dtype=torch.float64) for tensor in tensors)
        return sum((norm.square() for norm in norms), start=self._output_squares.new_zeros(()))


def norms_record(norms: Tensor) -> dict[str, list[float | None]]:
    """Return `LayerWatch.norms` for a record. Waits for the device."""
    values = [[finite_or_none(value) for value in layers] for layers in norms.tolist()]
    return dict(zip(NORM_KEYS, values))


def finite_or_none(value: float) -> float | None:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
