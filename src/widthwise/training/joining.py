"""Joining the processes that were started together."""

from collections.abc import Iterator
from contextlib import contextmanager

from widthwise.config_io import UserError
from widthwise.recipe.recipe import TrainConfig
from widthwise.training.launch import n_launched
from widthwise.training.processes import ALONE, Processes


@contextmanager
def joined(config: TrainConfig) -> Iterator[Processes]:
    """The processes that were started together, for the length of the block.

    Raises UserError where they cannot share the batch or the model as the recipe says.
    """
    n = n_launched()
    _check(config, n)
    if n == 1:
        yield ALONE
        return
    from widthwise.training.distributed import group

    with group(config) as processes:
        yield processes


def _check(config: TrainConfig, n: int) -> None:
    if n % config.shards:
        raise UserError(f"train.shards: got {config.shards}; must divide the number of processes, which is {n}")
    if config.batch_size % n:
        raise UserError(
            f"train.batch_size: got {config.batch_size}; must be a multiple of the number of processes, which is {n}"
        )
    n_rows = config.batch_size // n
    if n_rows % min(config.sequences_per_pass, n_rows):
        raise UserError(
            f"train.micro_batch_size: got {config.sequences_per_pass}; must divide the {n_rows} sequences that each of "
            f"{n} processes has of a step"
        )
