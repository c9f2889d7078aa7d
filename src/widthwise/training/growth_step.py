"""Growth of a model that is being trained, with the state of its optimizer, and the learning rates that follow.

Tensors are carried over one at a time: of processes that share a model, none ever holds more than one of them whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from widthwise.growth.plan import GrowthPlan, grown_states
from widthwise.model.decoder import Decoder
from widthwise.model.shards import held, held_rows, is_shared, whole, with_rows
from widthwise.recipe.growth_events import Growth, Pace, Phase
from widthwise.recipe.recipe import Recipe

Value = TypeVar("Value")
ModelAndOptimizer = tuple[Decoder, torch.optim.Optimizer]


def grow(old: ModelAndOptimizer, new: ModelAndOptimizer, growth: Growth, run_seed: int) -> None:
    """Fills a larger model that has no weights yet, and an optimizer that has made no step.

    What is drawn follows from the run's seed and the number of the event. All is made on the CPU, so that a seed names
    one set of weights.
    """
    model, optimizer = new
    weights = _Gathered(dict(old[0].named_parameters()), lambda parameter: whole(parameter.detach()).cpu())
    model.set_weights(growth.plan.weights(weights, growth.seed(run_seed)))
    adopt(optimizer, model, grown_states(growth.plan, state_by_name(*old), growth.event.reset))


class _Gathered(Mapping[str, Value]):
    """Entries by name, each gathered whole onto the CPU when it is asked for, and not to know that it is there."""

    def __init__(self, entries: Mapping[str, Any], gather: Callable[[Any], Value]):
        self._entries, self._gather = entries, gather

    def __getitem__(self, name: str) -> Value:
        return self._gather(self._entries[name])

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def state_by_name(model: Decoder, optimizer: torch.optim.Optimizer) -> Mapping[str, dict[str, Tensor]]:
    """Return the optimizer's state of every parameter that has one, gathered onto the CPU when it is asked for."""
    named = dict(model.named_parameters())
    states = {name: optimizer.state[each] for name, each in named.items() if each in optimizer.state}
    # Sorted, because processes gather together: after a checkpoint was read, each may have another order.
    return _Gathered(states, lambda state: {part: whole(value).cpu() for part, value in sorted(state.items())})


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


@dataclass(frozen=True)
class EntryRates:
    """Old entries of a model that stay as they are while the new ones learn, whatever its optimizer.

    Moments of entries that stay still go on as if they moved. All follows from the step, so that a run can be resumed
    anywhere; each process does it to the rows that it holds.
    """

    model: Decoder
    pace: Pace
    plan: GrowthPlan

    @classmethod
    def of(cls, recipe: Recipe, phase: Phase, model: Decoder) -> "EntryRates | None":
        """The rates after the growth that a phase began with, in this run or by `widthwise grow`; None without one."""
        if phase.growth is not None:
            return cls(model, phase.growth.pace, phase.growth.plan)
        plan = None if recipe.rewarmup is None else recipe.rewarmup.plan(phase.model)
        return None if recipe.rewarmup is None or plan is None else cls(model, recipe.rewarmup, plan)

    @contextmanager
    def applied(self, step: int) -> Iterator[None]:
        """Undo what the block moves the old entries by, where they are frozen at this step."""
        if not self.pace.is_frozen(step):
            yield
            return
        parameters = dict(self.model.named_parameters())
        before = {name: held(each.detach()).clone() for name, each in parameters.items()}
        yield
        for name, each in parameters.items():
            moved = held(each.detach())
            moved.copy_(torch.lerp(before[name], moved, self._is_new[name].to(moved.dtype)))

    @cached_property
    def _is_new(self) -> Mapping[str, Tensor]:
        """bool, by parameter: the new ones among the entries that this process holds."""
        new, parameters = self.plan.is_new(), dict(self.model.named_parameters())
        return {name: new[name][held_rows(each)].to(held(each).device) for name, each in parameters.items()}
