"""What the processes of one launch do together: train runs, and compile models that they share.

together.py TASK.json FOUND.json
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from cases import COMPILED, case
from torch.utils.checkpoint import set_checkpoint_early_stop
from train_many import carry_out

from widthwise.model.execution import compile_layers
from widthwise.recipe.recipe import Recipe
from widthwise.runs.train import launched_processes
from widthwise.training import train_state as train_state_module
from widthwise.training.processes import Processes
from widthwise.training.train_state import TrainState


def n_graphs(recipe: Recipe, processes: Processes) -> int:
    """How many graphs two steps compile, whatever they are compiled to."""
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    # Left early, a graph that runs as it is would leave autocast entered.
    whole_graphs = set_checkpoint_early_stop(False)
    with whole_graphs, patch.object(train_state_module, "compile_layers", partial(compile_layers, backend=kept)):
        train_state = TrainState.untrained(recipe, recipe.phases[0], processes)
        for step in (1, 2):
            n_rows = recipe.train.batch_size // processes.world_size
            train_state.train_step(step, torch.arange(n_rows * (recipe.seq_len + 1)).view(n_rows, -1))
    return len(graphs)


def main() -> None:
    task_path, found = (Path(argument) for argument in sys.argv[1:])
    task = json.loads(task_path.read_text())
    with launched_processes(case("x, carried").train) as everybody:
        carry_out(task["orders"])
        graphs = {}
        for name in task["compiled"]:
            recipe = case(name, *COMPILED[name], f"train.shards={everybody.world_size}")
            with launched_processes(recipe.train) as processes:
                graphs[name] = processes.all_gather_tensors(n_graphs(recipe, processes))
        if everybody.is_rank_zero:
            found.write_text(json.dumps(graphs))


if __name__ == "__main__":
    main()
