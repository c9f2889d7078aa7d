"""Torch optimizers of recipes: AdamW, Muon together with AdamW, and Muon on sharded matrices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from widthwise.config_io import mistakes_at
from widthwise.model.decoder import Decoder
from widthwise.model.mup import ParameterGroup, grouped_parameters
from widthwise.model.shards import held, held_rows, is_sharded, whole, with_rows
from widthwise.recipe.optimizer import AdamWConfig, MuonConfig

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor  # takes a second to import


class MuonAndAdamW(torch.optim.Optimizer):
    """Two optimizers as one, with a common list of groups and a common state."""

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
    """Build AdamW for all parameters. Raise UserError if a key matches no parameter."""
    return _adamw(config, _groups(config, model, "optimizer"), config.lr)


def _groups(config: AdamWConfig, model: Decoder, where: str = "optimizer.adamw") -> list[ParameterGroup]:
    """Return the parameter groups. Raise UserError `where...` if a key of `scaled` or `lr_factors` matches none."""
    decays = config.decays_embedding, config.decays_gains, config.decays_scales
    with mistakes_at(where):
        return grouped_parameters(model, config.lr_follows_layer_width, *decays, config.scaled, config.lr_factors)


def _adamw(config: AdamWConfig, groups: Sequence[ParameterGroup], lr: float) -> torch.optim.AdamW:
    """Build AdamW for some groups. lr: the peak of the rates that `set_lr` gets, of which each group has a factor."""
    torch_groups = [
        _torch_group(group, group.lr_factor * (config.lr / lr), config.weight_decay)
        | {"eps": config.eps / group.multiplied_by}
        for group in groups
    ]
    return torch.optim.AdamW(torch_groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def muon(config: MuonConfig, model: Decoder) -> MuonAndAdamW:
    """Build both optimizers, each with one parameter group per `ParameterGroup`. Raises as `adamw`."""
    groups = _groups(config.adamw, model)
    hidden = [_torch_group(group, 1.0, config.weight_decay) for group in groups if group.are_hidden_matrices]
    muon_class = ShardedMuon if is_sharded(model.embedding.weight) else torch.optim.Muon
    matrix_optimizer = muon_class(
        hidden, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, adjust_lr_fn=config.adjust_lr
    )
    remaining = [group for group in groups if not group.are_hidden_matrices]
    return MuonAndAdamW(matrix_optimizer, _adamw(config.adamw, remaining, config.lr))


def hidden_matrices(config: MuonConfig, model: Decoder) -> set[nn.Parameter]:
    """Return the parameters that Muon trains."""
    groups = _groups(config.adamw, model)
    return {parameter for group in groups if group.are_hidden_matrices for parameter in group.parameters}


def _torch_group(group: ParameterGroup, lr_factor: float, weight_decay: float) -> dict[str, Any]:
    """Return a parameter group for torch. lr_factor: without `part_lr_factor`.

    Entries that were multiplied by c take steps c times as long. The product of rate and weight decay does not change.
    """
    c = group.multiplied_by
    return {
        "name": group.name,
        "params": list(group.parameters),
        "lr_factor": lr_factor * group.part_lr_factor * c,
        "weight_decay": weight_decay / c if group.decays else 0.0,
    }


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of every group to lr times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]


def state_shapes(optimizer: torch.optim.Optimizer) -> dict[Tensor, dict[str, torch.Size]]:
    """Return, for each parameter, the names and shapes of the states that its first step creates."""
    shapes: dict[Tensor, dict[str, torch.Size]] = {}
    for part in optimizer.parts if isinstance(optimizer, MuonAndAdamW) else (optimizer,):
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
        for parameter in parameters:
            if isinstance(part, torch.optim.Muon):
                shapes[parameter] = {"momentum_buffer": parameter.shape}
            else:
                shapes[parameter] = {"exp_avg": parameter.shape, "exp_avg_sq": parameter.shape, "step": torch.Size()}
    return shapes


class ShardedMuon(torch.optim.Muon):
    """torch's Muon on parameters that `fully_shard` has sharded by rows. All processes must step together.

    Only an unsharded matrix can be made orthogonal. The momentum is sharded by rows. Each of n processes gathers n
    matrices, makes one of them orthogonal and broadcasts it, so that the work is divided.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        matrices = [
            (parameter, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        n_shards = matrices[0][0].device_mesh.size(1) if matrices else 1
        for first in range(0, len(matrices), n_shards):
            self._move(matrices[first : first + n_shards])

    def _move(self, matrices: "Sequence[tuple[DTensor, dict[str, Any]]]") -> None:
        """Update at most one matrix per process. The process with the matrix's index makes it orthogonal."""
        shards = matrices[0][0].device_mesh.get_group(1)
        rank = dist.get_rank(shards)
        steps = []
        for owner, (parameter, group) in enumerate(matrices):
            update = whole(with_rows(parameter, self._update(parameter, group)))
            # The broadcast overwrites the update of a matrix that another process owns.
            steps.append(_step_along(update, group) if owner == rank else update)
        for owner, ((parameter, group), step) in enumerate(zip(matrices, steps)):
            dist.broadcast(step, group=shards, group_src=owner)
            rows = held(parameter)
            rows.mul_(1 - group["lr"] * group["weight_decay"])
            rows.add_(step[held_rows(parameter)])

    def _update(self, parameter: "DTensor", group: dict[str, Any]) -> Tensor:
        """Update the momentum with the gradient, and return the update, by rows."""
        assert parameter.grad is not None
        state = self.state[parameter]
        gradient = held(parameter.grad)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = with_rows(parameter, torch.zeros_like(gradient))
        momentum = held(state["momentum_buffer"])
        momentum.lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


def _step_along(update: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the step of a whole matrix: the result of torch's Muon without momentum and decay on a matrix of zeros."""
    matrix = nn.Parameter(torch.zeros_like(update))
    matrix.grad = update
    options = {key: group[key] for key in ("lr", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")}
    torch.optim.Muon([matrix], weight_decay=0.0, momentum=0.0, nesterov=False, **options).step()
    return matrix.detach()
