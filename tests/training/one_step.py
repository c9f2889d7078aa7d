"""One step of the optimizer, on the same rows for every model."""

from typing import Any

import torch
from tiny_runs import step_config, tiny_recipe

from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.model.decoder import Decoder
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.train_section import TrainConfig
from widthwise.training.objective import Objective
from widthwise.training.train_state import StepOutcome, TrainState

BATCH = torch.randint(0, 257, (6, 14), generator=torch.Generator().manual_seed(5))
INPUTS, TARGETS = BATCH[:, :-1], BATCH[:, 1:]
DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25}"
CPU = torch.device("cpu")
UNCLIPPED = 1e9


def objective_of(model: Decoder, config: TrainConfig) -> Objective:
    return Objective(config, model.config, CPU)


def step(
    model: Decoder,
    micro_batch_size: int = 6,
    optimizer: torch.optim.Optimizer | None = None,
    objective: Objective | None = None,
    boundaries: Boundaries = NO_BOUNDARIES,
    **changes: Any,
) -> StepOutcome:
    """changes: of the train section."""
    config = step_config(micro_batch_size, **changes)
    recipe = tiny_recipe("schedule={kind: constant, warmup_steps: 1}").model_copy(update={"train": config})
    optimizer = optimizer or AdamWConfig(lr=0.01).build(model)
    train_state = TrainState(recipe, recipe.phases[0], model, optimizer)
    train_state.objective = objective or objective_of(model, config)
    return train_state.train_step(1, BATCH, boundaries)
