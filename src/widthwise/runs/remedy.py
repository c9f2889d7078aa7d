"""What to change in a recipe that does not fit into the memory of a device."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from widthwise.recipe.train_section import TrainConfig
from widthwise.runs.layout import Layout


def remedies(train: TrainConfig, layout: Layout) -> Iterator[tuple[str, TrainConfig]]:
    """Changes that need less memory, as overrides, and what the train section is with them.

    One change before two, two before three; of each the smallest first. More shards cost traffic, smaller passes too,
    and layers that run again computation: in this order.
    """
    options: list[list[dict[str, Any]]] = [
        [{"shards": n} for n in range(layout.n_shards + 1, layout.n_devices + 1) if layout.n_devices % n == 0],
        [{"micro_batch_size": n} for n in range(layout.micro_batch_size - 1, 0, -1) if layout.batch_size % n == 0],
        [{"activation_checkpointing": "selective"}, {"activation_checkpointing": "layer"}],
    ]
    if train.activation_checkpointing != "none":
        options[2] = options[2][1:] if train.activation_checkpointing == "selective" else []
    for n_changes in (1, 2, 3):
        for changed in combinations(options, n_changes):
            for changes in product(*changed):
                change = {key: value for each in changes for key, value in each.items()}
                text = " ".join(f"train.{key}={value}" for key, value in change.items())
                yield text, train.model_copy(update=change)
