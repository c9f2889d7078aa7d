"""A model put together for training, without weights."""

import torch

from widthwise.model.compiling import compile_layers
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, allocate, blueprint
from widthwise.model.recompute import RECOMPUTE
from widthwise.recipe.train_section import TrainConfig
from widthwise.training.processes import Processes


def assembled(config: ModelConfig, train: TrainConfig, processes: Processes) -> Decoder:
    """A model compiled and divided as a recipe says, whose weights are still to be set. Called by all processes.

    The order matters: a compiled layer is divided as one, and nothing has memory before it is divided. Raises UserError
    where a process has no room for its part.
    """
    model = blueprint(config)
    model.recompute = RECOMPUTE[train.activation_checkpointing]
    if train.compile:
        torch.compiler.reset()  # what was compiled for a smaller model counts towards the limit of graphs
        compile_layers(model)
    processes.divide(model)
    allocate(model, processes.device, processes.n_shards)
    return model
