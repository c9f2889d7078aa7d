"""AdamW over the groups that the names of the axes give."""

import torch

from widthwise.model.decoder import Decoder
from widthwise.model.mup import parameter_groups
from widthwise.training.config import AdamWConfig


def build_optimizer(model: Decoder, config: AdamWConfig) -> torch.optim.AdamW:
    """AdamW with one parameter group per `ParameterGroup`; a group that does not decay has weight decay 0."""
    groups = [
        {
            "name": group.name,
            "params": list(group.parameters),
            "lr_factor": group.lr_factor,
            "weight_decay": config.weight_decay if group.decays else 0.0,
        }
        for group in parameter_groups(
            model, config.lr_follows_layer_width, config.decays_embedding, config.decays_gains
        )
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Gives every group lr times its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
