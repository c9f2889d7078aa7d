"""Muon for matrices of which each process holds some rows.

A matrix can only be made orthogonal whole. The momentum is kept by rows; its matrices are gathered one by one, each is
made orthogonal by one process, in turn, and sent to the others, so that the work is divided as well.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from widthwise.model.shards import held, held_rows, whole, with_rows


class ShardedMuon(torch.optim.Muon):
    """torch's Muon over parameters that `fully_shard` has divided. All processes step together."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        turn = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group, turn)
                    turn += 1

    def _move(self, parameter: DTensor, group: dict[str, Any], turn: int) -> None:
        """Moves one matrix. turn: which of the processes that share it makes it orthogonal, counted round and round."""
        shards = parameter.device_mesh.get_group(1)
        owner = turn % dist.get_world_size(shards)
        update = whole(with_rows(parameter, self._update(parameter, group)))
        step = _step_along(update, group) if dist.get_rank(shards) == owner else torch.empty_like(update)
        dist.broadcast(step, group=shards, group_src=owner)
        own = held(parameter)
        own.mul_(1 - group["lr"] * group["weight_decay"])
        own.add_(step[held_rows(parameter)])

    def _update(self, parameter: DTensor, group: dict[str, Any]) -> Tensor:
        """The momentum with the gradient taken in, by rows."""
        assert parameter.grad is not None
        state, gradient = self.state[parameter], held(parameter.grad)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = with_rows(parameter, torch.zeros_like(gradient))
        momentum = held(state["momentum_buffer"])
        momentum.lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


def _step_along(update: Tensor, group: dict[str, Any]) -> Tensor:
    """What is added to a whole matrix: torch's own Muon, without momentum and decay, moves a matrix of zeros by it."""
    moved = nn.Parameter(torch.zeros_like(update))
    moved.grad = update
    options = {key: group[key] for key in ("lr", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")}
    torch.optim.Muon([moved], weight_decay=0.0, momentum=0.0, nesterov=False, **options).step()
    return moved.detach()
