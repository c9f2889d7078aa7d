"""Models made by a plan from models, and their optimizer state by name."""

import torch

from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.model.decoder import Decoder, build


def weights_of(model: Decoder) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def applied(plan: GrowthPlan, model: Decoder, seed: int = 3) -> Decoder:
    new = build(plan.new, 0, dtype=model.embedding.weight.dtype)
    new.set_weights(plan.weights(weights_of(model), seed))
    return new


def grown(model: Decoder, *expansions) -> Decoder:
    """expansions: config -> (config, correspondence), applied one after the other."""
    for expand in expansions:
        model = applied(plan_growth(model.config, *expand(model.config)), model)
    return model


def state_of(model: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, torch.Tensor]]:
    return {
        name: {part: value.clone() for part, value in optimizer.state[parameter].items()}
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }


def give_state(model: Decoder, optimizer: torch.optim.Optimizer, state: dict[str, dict[str, torch.Tensor]]) -> None:
    parameters = dict(model.named_parameters())
    for name, parts in state.items():
        optimizer.state[parameters[name]].update({part: value.clone() for part, value in parts.items()})


def step(model: Decoder, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    """One step on the whole of a batch of rows; the objective before it."""
    optimizer.zero_grad()
    objective = model.loss(tokens[:, :-1], tokens[:, 1:]).objective
    objective.backward()
    optimizer.step()
    return objective.item()
