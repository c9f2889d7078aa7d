"""The optimizers of recipes built with torch: two as one, their rates and states, and Muon on divided matrices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from widthwise.config_io import mistakes_at
from widthwise.model.decoder import Decoder
from widthwise.model.mup import ParameterGroup, grouped_parameters
from widthwise.model.shards import held, held_rows, is_sharded, whole, with_rows
from widthwise.recipe.optimizer import AdamWConfig, MuonConfig, Optimizer

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor  # takes a second to import


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


def adamw(config: AdamWConfig, model: Decoder) -> torch.optim.AdamW:
    """Build AdamW over all parameters. Raises UserError where a key names none of them."""
    with mistakes_at("optimizer"):
        groups = _groups(config, model)
    return _adamw(config, groups, config.lr)


def _groups(config: AdamWConfig, model: Decoder) -> list[ParameterGroup]:
    """Raises ValueError where `scaled` or `lr_factors` names no parameter."""
    return grouped_parameters(
        model,
        config.lr_follows_layer_width,
        config.decays_embedding,
        config.decays_gains,
        config.decays_scales,
        config.scaled,
        config.lr_factors,
    )


def _adamw(config: AdamWConfig, groups: Sequence[ParameterGroup], lr: float) -> torch.optim.AdamW:
    """lr: the rate that `set_lr` gets at the peak."""
    described = [
        _described(group, group.lr_factor * (config.lr / lr), config.weight_decay)
        | {"eps": config.eps / group.multiplied_by}
        for group in groups
    ]
    return torch.optim.AdamW(described, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def muon(config: MuonConfig, model: Decoder) -> MuonAndAdamW:
    """Build both, each with one parameter group per `ParameterGroup` that is its own. Raises as `adamw`."""
    with mistakes_at("optimizer.adamw"):
        groups = _groups(config.adamw, model)
    hidden = [_described(group, 1.0, config.weight_decay) for group in groups if group.are_hidden_matrices]
    kind = ShardedMuon if is_sharded(model.embedding.weight) else torch.optim.Muon
    matrices = kind(
        hidden, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, adjust_lr_fn=config.adjust_lr
    )
    rest = [group for group in groups if not group.are_hidden_matrices]
    return MuonAndAdamW(matrices, _adamw(config.adamw, rest, config.lr))


def hidden_matrices(config: Optimizer, model: Decoder) -> set[nn.Parameter]:
    """Return the parameters that a step needs whole, and keeps the momentum of alone."""
    groups = [] if config.kind == "adamw" else _groups(config.adamw, model)
    return {parameter for group in groups if group.are_hidden_matrices for parameter in group.parameters}


def _described(group: ParameterGroup, lr_factor: float, weight_decay: float) -> dict[str, Any]:
    """Return a group for torch; one that does not decay has weight decay 0. lr_factor: without `own_lr_factor`.

    Entries that were multiplied by c take steps c times as long. The product of rate and weight decay, the part of
    itself that an entry loses in a step, stays.
    """
    c = group.multiplied_by
    return {
        "name": group.name,
        "params": list(group.parameters),
        "lr_factor": lr_factor * group.own_lr_factor * c,
        "weight_decay": weight_decay / c if group.decays else 0.0,
    }


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


class ShardedMuon(torch.optim.Muon):
    """torch's Muon over parameters of which `fully_shard` has left each process some rows. All processes step together.

    A matrix can only be made orthogonal whole. The momentum is kept by rows; of n processes that share a model each
    gathers n matrices, makes one of them orthogonal and sends it to the others, so that the work is divided as well.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        moved = [
            (parameter, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        n_shards = moved[0][0].device_mesh.size(1) if moved else 1
        for first in range(0, len(moved), n_shards):
            self._move(moved[first : first + n_shards])

    def _move(self, turn: "Sequence[tuple[DTensor, dict[str, Any]]]") -> None:
        """Moves at most as many matrices as processes share them, each of which makes one orthogonal at that time."""
        shards = turn[0][0].device_mesh.get_group(1)
        rank, steps = dist.get_rank(shards), []
        for owner, (parameter, group) in enumerate(turn):
            update = whole(with_rows(parameter, self._update(parameter, group)))
            steps.append(_step_along(update, group) if owner == rank else update)
        for owner, ((parameter, group), step) in enumerate(zip(turn, steps)):
            dist.broadcast(step, group=shards, group_src=owner)
            rows = held(parameter)
            rows.mul_(1 - group["lr"] * group["weight_decay"])
            rows.add_(step[held_rows(parameter)])

    def _update(self, parameter: "DTensor", group: dict[str, Any]) -> Tensor:
        """The momentum with the gradient taken in, by rows."""
        assert parameter.grad is not None
        state, gradient = self.state[parameter], held(parameter.grad)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = with_rows(parameter, torch.zeros_like(gradient))
        momentum = held(state["momentum_buffer"])
        momentum.lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


def _step_along(update: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the update of a whole matrix: torch's Muon, without momentum and decay, moves a matrix of zeros by it."""
    moved = nn.Parameter(torch.zeros_like(update))
    moved.grad = update
    options = {key: group[key] for key in ("lr", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")}
    torch.optim.Muon([moved], weight_decay=0.0, momentum=0.0, nesterov=False, **options).step()
    return moved.detach()
