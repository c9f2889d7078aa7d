"""One step of the optimizer, on the same rows for every model."""

from typing import Any

import torch
from tiny_runs import step_config

from widthwise.model.decoder import Decoder
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.train_section import TrainConfig
from widthwise.training.objective import Objective
from widthwise.training.train_state import StepOutcome, optimizer_step

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
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> StepOutcome:
    """options: of `optimizer_step`; changes: of the train section."""
    config = step_config(micro_batch_size, **changes)
    optimizer = optimizer or AdamWConfig(lr=0.01).build(model)
    objective = objective or objective_of(model, config)
    return optimizer_step(model, optimizer, BATCH, objective, config, **(options or {}))
