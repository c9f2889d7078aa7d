"""Growth of a model in training with its optimizer state, and the steps in which its old entries are frozen.

Tensors are gathered one at a time, so that no process of a sharded model holds more than one whole tensor.
"""

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from widthwise.growth.correspondence import align
from widthwise.growth.plan import GrowthPlan, grown_states, plan_growth
from widthwise.model.decoder import Decoder
from widthwise.model.shards import held, held_rows, whole, with_rows
from widthwise.recipe.growth_events import Growth, Phase, Rewarmup
from widthwise.recipe.recipe import Recipe

ModelAndOptimizer = tuple[Decoder, torch.optim.Optimizer]


def grow(old: ModelAndOptimizer, new: ModelAndOptimizer, growth: Growth, run_seed: int) -> None:
    """Fill a larger model without weights and its new optimizer from a smaller model and its optimizer.

    New weights are drawn on the CPU from the run's seed and the index of the growth event, on any number of processes.
    """
    old_model, old_optimizer = old
    model, optimizer = new
    weights = _LazyDict(dict(old_model.named_parameters()), lambda parameter: whole(parameter.detach()).cpu())
    model.set_weights(growth.plan.weights(weights, growth.seed(run_seed)))
    set_optimizer_state(optimizer, model, grown_states(growth.plan, state_by_name(old_model, old_optimizer)))


class _LazyDict(UserDict[str, Any]):
    """A dict that gathers the tensors of an entry onto the CPU each time that the entry is read."""

    def __init__(self, entries: Mapping[str, Any], gather: Callable[[Any], Any]):
        super().__init__(entries)
        self._gather = gather

    def __getitem__(self, name: str) -> Any:
        return self._gather(self.data[name])


def state_by_name(model: Decoder, optimizer: torch.optim.Optimizer) -> Mapping[str, dict[str, Tensor]]:
    """Return the optimizer state by parameter name, gathered onto the CPU when it is read."""
    states = {name: optimizer.state[weight] for name, weight in model.named_parameters() if weight in optimizer.state}
    # Sorted, because all processes must gather in one order, and their orders may differ after a checkpoint was read.
    return _LazyDict(states, lambda state: {part: whole(value).cpu() for part, value in sorted(state.items())})


def set_optimizer_state(
    optimizer: torch.optim.Optimizer, model: Decoder, states: Iterable[tuple[str, Mapping[str, Tensor]]]
) -> None:
    """Set the state of an optimizer that has made no step.

    states: parameter name, and its whole tensors by part. Each process takes the rows that it holds. All tensors are
    copied, because alignment may change how kernels round, and a tensor may belong to the old optimizer.
    """
    parameters = dict(model.named_parameters())
    for name, parts in states:
        parameter = parameters[name]
        for part, value in parts.items():
            rows = value[held_rows(parameter)] if value.shape else value
            rows = rows.to(parameter.device, copy=True)
            optimizer.state[parameter][part] = with_rows(parameter, rows) if value.shape else rows


@dataclass(frozen=True)
class FrozenEntries:
    """The old entries of a grown model, which the optimizer does not change in some steps.

    Their moments are updated as if they were not frozen. Whether they are frozen depends on the step alone, so a run
    can be resumed at any step. Every process restores the rows that it holds.
    """

    model: Decoder
    rewarmup: Rewarmup
    plan: GrowthPlan

    @classmethod
    def of(cls, recipe: Recipe, phase: Phase, model: Decoder) -> "FrozenEntries | None":
        """Return the old entries of the growth at the start of a phase.

        None in the first phase, unless `widthwise grow` made its model with frozen entries.
        """
        if phase.growth is not None:
            return cls(model, phase.growth.rewarmup, phase.growth.plan)
        if recipe.rewarmup is None or recipe.rewarmup.grown_from is None:
            return None
        old = recipe.rewarmup.grown_from
        plan = plan_growth(old, phase.model, align(old, phase.model, recipe.rewarmup.layers))
        return cls(model, recipe.rewarmup, plan)

    @contextmanager
    def applied(self, step: int) -> Iterator[None]:
        """Restore the old entries after the block, if they are frozen at this step."""
        if not self.rewarmup.after_step < step <= self.rewarmup.frozen_until:
            yield
            return
        parameters = dict(self.model.named_parameters())
        before = {name: held(parameter.detach()).clone() for name, parameter in parameters.items()}
        yield
        for name, parameter in parameters.items():
            rows = held(parameter.detach())
            rows.copy_(torch.lerp(before[name], rows, self._is_new[name].to(rows.dtype)))  # weight 1 keeps the update

    @cached_property
    def _is_new(self) -> Mapping[str, Tensor]:
        """Parameter -> bool mask of new entries among the rows of this process."""
        is_new = self.plan.is_new()
        parameters = self.model.named_parameters()
        return {name: is_new[name][held_rows(weight)].to(held(weight).device) for name, weight in parameters}
