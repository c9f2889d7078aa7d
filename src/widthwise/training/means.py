"""Means over the passes of a step or a validation, for its record: what layers chose, losses of further heads."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widthwise.model.context import Choices
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_modules import dynamic_modules
from widthwise.model.shards import whole


class _Reported(NamedTuple):
    key: str
    """Its name in a record."""
    of_pass: Callable[[Tensor], Tensor]
    """Maps a choice to what is averaged over forward passes."""
    of_mean: Callable[[Tensor], Tensor]
    """Maps the average to the number of the record."""


def _same(value: Tensor) -> Tensor:
    return value


REPORTED = {
    "width_fraction": _Reported("width_fraction", Tensor.mean, _same),
    "expert_load": _Reported("expert_load_max", _same, Tensor.max),
    "balance_loss": _Reported("balance_loss", _same, _same),
    "router_z_loss": _Reported("router_z_loss", _same, _same),
}
"""Choice -> how it is reported."""


class ChoiceMeans:
    """Means of the choices over forward passes, for each layer. They stay on the device until they are read."""

    def __init__(self) -> None:
        self._sums: list[dict[str, Tensor]] = []
        self._n_sequences = 0

    @property
    def sums(self) -> list[Tensor]:
        """The sums of all layers, one after the other."""
        return [value for sums in self._sums for value in sums.values()]

    def over(self, n_processes: int, sums: Sequence[Tensor]) -> "ChoiceMeans":
        """The means over so many processes. sums: `sums`, each summed over the processes."""
        means, values = ChoiceMeans(), iter(sums)
        means._sums = [{name: next(values) for name in own} for own in self._sums]
        means._n_sequences = self._n_sequences * n_processes
        return means

    def add(self, choices: Sequence[Choices], n_sequences: int) -> None:
        """Takes in a pass over so many sequences."""
        self._n_sequences += n_sequences
        self._sums = self._sums or [{} for _ in choices]
        for sums, chosen in zip(self._sums, choices):
            for name in (name for name in REPORTED if name in chosen):  # in one order in all processes
                value = n_sequences * REPORTED[name].of_pass(chosen[name].detach())
                sums[name] = sums[name] + value if name in sums else value

    def means(self) -> list[dict[str, Tensor]]:
        """The means of all choices of each layer."""
        return [{name: value / self._n_sequences for name, value in sums.items()} for sums in self._sums]

    def by_layer(self, name: str) -> list[Tensor | None]:
        """The mean of a choice in each layer; None in a layer that does not make it."""
        return [means.get(name) for means in self.means()]

    def record(self) -> dict[str, list[float | None]]:
        """Key -> one number a layer, null where the layer makes no such choice; only keys that some layer has."""
        layers = self.means()
        return {
            reported.key: [float(reported.of_mean(means[name])) if name in means else None for means in layers]
            for name, reported in REPORTED.items()
            if any(name in means for means in layers)
        }


def score_gradient_norms(model: Decoder) -> list[float | None]:
    """Norm of the gradient of each layer's width score and its bias, after clipping; null where a layer has none.

    Called by all processes that share the model.
    """
    norms: list[float | None] = [None] * model.config.n_layers
    for index, ffn in dynamic_modules(model).items():
        if parameters := ffn.choice_parameters():
            gradients = [each.grad for each in parameters if each.grad is not None]
            norms[index] = float(whole(torch.nn.utils.get_total_norm(gradients)))
    return norms


def choice_record(model: Decoder, choices: ChoiceMeans) -> dict[str, Any]:
    """The entries of a training record on choices; empty if no layer chooses. Call between a step and the next."""
    record: dict[str, Any] = dict(choices.record())
    if "width_fraction" in record:
        record["score_grad_norm"] = score_gradient_norms(model)
    return record


def dead_scores(record: dict[str, Any]) -> list[str]:
    """A warning for each layer whose width score has no gradient in a training record."""
    norms = record.get("score_grad_norm", [])
    return [
        f"layer {number}: the gradient of its width score is 0, so training does not move its widths"
        for number, norm in enumerate(norms, start=1)
        if norm == 0
    ]


class MTPLosses:
    """Mean losses of the depths over forward passes. They stay on the device until they are read."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._counts: list[int] = []

    def add(self, losses: Sequence[Tensor]) -> None:
        """Takes in a pass; see `model.decoder.Loss.mtp_losses`."""
        if not self._sums:
            self._sums = [torch.zeros((), dtype=torch.float64, device=found.device) for found in losses]
            self._counts = [0] * len(losses)
        for k, found in enumerate(losses):
            self._sums[k] = self._sums[k] + found.sum(dtype=torch.float64)
            self._counts[k] += found.numel()

    @property
    def sums(self) -> list[Tensor]:
        """The sum of each depth."""
        return self._sums

    def over(self, n_processes: int, sums: Sequence[Tensor]) -> "MTPLosses":
        """The losses over so many processes. sums: `sums`, each summed over the processes."""
        losses = MTPLosses()
        losses._sums, losses._counts = list(sums), [n * n_processes for n in self._counts]
        return losses

    def means(self) -> list[float]:
        """Nats per token of each depth, over the positions it was asked at; empty without such heads."""
        return [float(total) / count for total, count in zip(self._sums, self._counts)]

    def record(self) -> dict[str, list[float]]:
        """Key -> means, for a record; empty without such heads."""
        return {"mtp_losses": self.means()} if self._sums else {}
