"""The optimizers as torch has them: which Muon, two as one, their rates, and what they keep."""

from typing import Any

import torch

from widthwise.model.decoder import Decoder
from widthwise.model.shards import is_sharded


def muon_for(model: Decoder) -> type[torch.optim.Muon]:
    """Muon for parameters as they are: whole, or divided among processes."""
    if not is_sharded(model.embedding.weight):
        return torch.optim.Muon
    from widthwise.recipe.sharded_muon import ShardedMuon

    return ShardedMuon


class MuonAndAdamW(torch.optim.Optimizer):
    """Two optimizers as one, with the groups of both, and the state of both in one place."""

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW):
        super().__init__([*muon.param_groups, *adamw.param_groups], defaults={})
        self.parts = (muon, adamw)
        for part in self.parts:
            part.state = self.state

    def step(self, closure: Any = None) -> Any:
        assert closure is None
        for part in self.parts:
            part.step()


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Gives every group lr times its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]


def state_shapes(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, dict[str, torch.Size]]:
    """Return the states that an optimizer built here keeps of each parameter after its first step, by name."""
    parts = optimizer.parts if isinstance(optimizer, MuonAndAdamW) else (optimizer,)
    return {
        parameter: {"momentum_buffer": parameter.shape}
        if isinstance(part, torch.optim.Muon)
        else {"exp_avg": parameter.shape, "exp_avg_sq": parameter.shape, "step": torch.Size()}
        for part in parts
        for group in part.param_groups
        for parameter in group["params"]
    }
