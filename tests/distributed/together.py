"""What the processes of one launch do together: train runs, and look at models that they share.

torchrun --standalone --nproc-per-node N tests/distributed/together.py ORDERS.json FOUND.json
"""

import json
import sys
from pathlib import Path
from typing import TypedDict

import torch
from cases import KINDS, case
from train_many import carry_out

from widthwise.model.decoder import build
from widthwise.model.shards import held, set_whole, whole
from widthwise.recipe.recipe import Recipe
from widthwise.training.assembly import assembled
from widthwise.training.joining import joined
from widthwise.training.processes import Processes


class Division(TypedDict):
    """What one process finds of a model that several begin with."""

    unequal: list[str]
    """Parameters that, put together, do not begin with the weights of a model that one process builds."""
    n_without_rows: int
    """Parameters of which this process holds nothing."""


def division(recipe: Recipe, processes: Processes) -> Division:
    model = assembled(recipe.explicit_model, recipe.train, processes)
    set_whole(model.initial_weights(recipe.train.seed))
    expected = build(recipe.explicit_model, recipe.train.seed)
    pairs = zip(model.named_parameters(), expected.named_parameters(), strict=True)
    return Division(
        unequal=[name for (name, ours), (of, theirs) in pairs if name != of or not torch.equal(whole(ours), theirs)],
        n_without_rows=sum(held(parameter).numel() == 0 for parameter in model.parameters()),
    )


def main() -> None:
    orders, found = (Path(argument) for argument in sys.argv[1:])
    with joined(case("x, carried").train) as everybody:
        carry_out(json.loads(orders.read_text()))
        divisions = {}
        for name in KINDS:
            recipe = case(name, f"train.shards={everybody.world_size}")
            with joined(recipe.train) as processes:
                divisions[name] = processes.gather(division(recipe, processes))
        if everybody.is_first:
            found.write_text(json.dumps({"divisions": divisions}))


if __name__ == "__main__":
    main()
