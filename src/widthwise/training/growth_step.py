"""Growth of a model that is being trained, with the state of its optimizer.

Tensors are carried over one at a time: of processes that share a model, none ever holds more than one of them whole.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from widthwise.growth.plan import State, grown_states
from widthwise.model.decoder import Decoder
from widthwise.model.shards import held_rows, is_shared, set_whole, whole, with_rows
from widthwise.recipe.growth_events import Growth

Trained = tuple[Decoder, torch.optim.Optimizer]


def grow(old: Trained, new: Trained, growth: Growth, run_seed: int) -> None:
    """Fills a larger model that has no weights yet, and an optimizer that has made no step.

    What is drawn follows from the run's seed and the number of the event. All is made on the CPU, so that a seed names
    one set of weights.
    """
    model, optimizer = new
    weights = _Weights(old[0])
    parameters = dict(model.named_parameters())
    set_whole((parameters[name], tensor) for name, tensor in growth.plan.weights(weights, growth.seed(run_seed)))
    adopt(optimizer, model, grown_states(growth.plan, _States(*old), growth.event.reset))


class _Weights(Mapping[str, Tensor]):
    """The parameters of a model by name, each gathered whole onto the CPU when it is asked for."""

    def __init__(self, model: Decoder):
        self._parameters = dict(model.named_parameters())

    def __getitem__(self, name: str) -> Tensor:
        return whole(self._parameters[name].detach()).cpu()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


class _States(Mapping[str, dict[str, Tensor]]):
    """The optimizer's state of every parameter that has one, likewise."""

    def __init__(self, model: Decoder, optimizer: torch.optim.Optimizer):
        named = dict(model.named_parameters())
        self._states = {name: optimizer.state[each] for name, each in named.items() if each in optimizer.state}

    def __getitem__(self, name: str) -> dict[str, Tensor]:
        # Sorted, because processes gather together: after a checkpoint was read, each may have another order.
        return {part: whole(value).cpu() for part, value in sorted(self._states[name].items())}

    def __contains__(self, name: object) -> bool:
        return name in self._states  # without gathering it

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


def state_by_name(model: Decoder, optimizer: torch.optim.Optimizer) -> State:
    """The optimizer's state of every parameter that has one, on the CPU."""
    return dict(_States(model, optimizer))


def adopt(optimizer: torch.optim.Optimizer, model: Decoder, states: Iterable[tuple[str, Mapping[str, Tensor]]]) -> None:
    """Gives an optimizer that has made no step the state of its parameters, whole tensors by name and part."""
    parameters = dict(model.named_parameters())
    for name, parts in states:
        parameter = parameters[name]
        optimizer.state[parameter] = {part: _like(parameter, value) for part, value in parts.items()}


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """A part of a parameter's state, where the parameter is, of which a process keeps the rows that it has of it.

    Copied, because kernels may round differently by alignment, and a part may be the old optimizer's own.
    """
    if not value.shape or not is_shared(parameter):
        return value.to(parameter.device, copy=True)
    return with_rows(parameter, value[held_rows(parameter)].to(parameter.device, copy=True))
