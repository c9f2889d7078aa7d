"""Joining the processes that were started together."""

from collections.abc import Iterator
from contextlib import contextmanager

from widthwise.recipe.train_section import TrainConfig
from widthwise.training.launch import n_launched
from widthwise.training.processes import ALONE, Processes


@contextmanager
def launched_processes(config: TrainConfig) -> Iterator[Processes]:
    """The processes that were started together, for the length of the block.

    Raises UserError where they cannot share the batch or the model as the recipe says.
    """
    n = n_launched()
    config.rows_of_process(n)
    if n == 1:
        yield ALONE
        return
    from widthwise.training.distributed import group

    with group(config) as processes:
        yield processes
