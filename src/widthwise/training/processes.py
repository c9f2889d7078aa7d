"""The interface of the processes that train a model together, for a single one; several are in `distributed.py`."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.model.decoder import Decoder

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class Processes:
    """A single process, and the interface of several. Every rank calls the methods, in the same order."""

    rank, world_size, shard, n_shards = 0, 1, 0, 1

    @property
    def device(self) -> torch.device:
        """Device that this process computes on."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def is_rank_zero(self) -> bool:
        """True in the process that prints, locks and writes for all."""
        return self.rank == 0

    def shard_model(self, model: Decoder) -> None:
        """Shard the parameters of a model on the meta device."""

    def set_gradient_sync(self, model: Decoder, is_last: bool) -> None:
        """Call before a forward pass. is_last: its backward pass averages the gradients over ranks."""

    def on_every_rank(self, error: E) -> E:
        """Mark an error that every rank raises, so that one of them reports it."""
        return error

    def same_on_every_rank(self, work: Callable[[], T]) -> T:
        """Do the same work on every rank, with the same outcome on each; an error is reported once."""
        return work()

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Do the work on rank 0 and broadcast its value, or its error."""
        return work()

    def all_gather(self, work: Callable[[], T]) -> list[T]:
        """Do the work on every rank and gather the values by rank; all raise the first error of any."""
        return [work()]

    def check_same(self, work: Callable[[], T], mistake: Callable[[int, T, T], str]) -> None:
        """Do the work on every rank. Raises UserError on all where the value of one differs from rank 0's.

        mistake: the message for a rank, its value and rank 0's.
        """
        first, *others = self.all_gather(work)
        for rank, other in enumerate(others, start=1):
            if other != first:
                raise self.on_every_rank(UserError(mistake(rank, other, first)))

    def all_gather_tensors(self, value: T) -> list[T]:
        """Gather a value with tensors by rank; the tensors move to the device of this process."""
        return [value]

    def all_reduce_max(self, *numbers: float) -> list[float]:
        """Return the largest of each number over the ranks. Waits for all, and names the missing ones."""
        return list(numbers)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum each tensor over the ranks, without waiting for the device."""
        return list(tensors)

    def for_background_thread(self) -> "Processes":
        """Return the same processes with separate messages, for use in another thread."""
        return self


ALONE = Processes()
