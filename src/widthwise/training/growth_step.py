"""Growth of a model that is being trained, with the state of its optimizer."""

import torch

from widthwise.growth.optimizer_state import State, grown_state
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.growth_events import Growth
from widthwise.recipe.optimizer import Optimizer


def grow(
    model: Decoder, optimizer: torch.optim.Optimizer, growth: Growth, config: Optimizer, run_seed: int
) -> tuple[Decoder, torch.optim.Optimizer]:
    """The larger model and its optimizer. What is drawn follows from the run's seed and the number of the event.

    All is made on the CPU, so that a seed names one set of weights.
    """
    weights = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    state = grown_state(growth.plan, state_by_name(model, optimizer), growth.event.reset)
    grown = build(growth.plan.new, seed=0, device=model.embedding.weight.device)
    grown.set_weights(growth.plan.weights(weights, growth.seed(run_seed)))
    grown_optimizer = config.build(grown)
    adopt(grown_optimizer, grown, state)
    return grown, grown_optimizer


def state_by_name(model: Decoder, optimizer: torch.optim.Optimizer) -> State:
    """The optimizer's state of every parameter that has one, on the CPU."""
    return {
        name: {part: value.cpu() for part, value in optimizer.state[parameter].items()}
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }


def adopt(optimizer: torch.optim.Optimizer, model: Decoder, state: State) -> None:
    """Gives an optimizer that has made no step the state of its parameters."""
    parameters = dict(model.named_parameters())
    for name, parts in state.items():
        parameter = parameters[name]
        # Copied, because kernels may round differently by alignment, and a part may be the old optimizer's own.
        optimizer.state[parameter] = {key: value.to(parameter.device, copy=True) for key, value in parts.items()}
