"""Rates of single entries of a tensor, while what growth has added learns at another pace than the rest."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from widthwise.growth.plan.model_plan import GrowthPlan
from widthwise.model.decoder import Decoder
from widthwise.model.shards import held, held_rows
from widthwise.recipe.growth_events import Pace


@dataclass(frozen=True)
class EntryRates:
    """Gives the new and the old entries of a model rates of their own, whatever its optimizer is.

    The update of AdamW and of Muon is the rate times what follows from gradients and moments, which know no rate, and
    times the weight for decay. So a part of the update is exactly the update at that part of the rate, entry by entry,
    and all of it and none of it are exact bit by bit. Moments of entries that stay still go on as if they moved. All
    follows from the step, so that a run can be resumed anywhere; each process does it to the rows that it holds.
    """

    model: Decoder
    pace: Pace
    plan: GrowthPlan

    @contextmanager
    def applied(self, step: int) -> Iterator[None]:
        """Whatever moves the weights in the block moves them by as much as their rates at this step say."""
        new, old = self.pace.of_new(step), self.pace.of_old(step)
        if new == old == 1.0:
            yield
            return
        parameters = dict(self.model.named_parameters())
        before = {name: held(each.detach()).clone() for name, each in parameters.items()}
        yield
        for name, each in parameters.items():
            moved = held(each.detach())
            share = torch.where(self._is_new[name], new, old).to(moved.dtype)
            moved.copy_(torch.lerp(before[name], moved, share))

    @cached_property
    def _is_new(self) -> Mapping[str, Tensor]:
        """bool, by parameter: the new ones among the entries that this process holds."""
        new, parameters = self.plan.is_new(), dict(self.model.named_parameters())
        return {name: new[name][held_rows(each)].to(held(each).device) for name, each in parameters.items()}
