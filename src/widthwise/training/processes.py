"""The interface of the processes that train a model, implemented for one; `distributed.py` implements several."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class Processes:
    """A single process, and the interface of several. Every rank must call the methods in the same order."""

    rank = 0
    world_size = 1
    shard = 0
    n_shards = 1

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
        """Mark and return an error that every rank raises, so that only rank 0 reports it."""
        return error

    def same_on_every_rank(self, work: Callable[[], T]) -> T:
        """Do work that has the same outcome on every rank, so that only rank 0 reports an error."""
        return work()

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Do the work on rank 0 and broadcast its value, or its error."""
        return work()

    def all_gather(self, work: Callable[[], T]) -> list[T]:
        """Do the work on every rank and gather the values by rank; all ranks raise the first error."""
        return [work()]

    def check_same(self, work: Callable[[], T], mistake: Callable[[int, T, T], str]) -> None:
        """Do the work on every rank. Raises UserError on all ranks if a value differs from rank 0's.

        mistake: returns the message for a rank, its value and the value of rank 0.
        """
        values = self.all_gather(work)
        for rank, value in enumerate(values):
            if value != values[0]:
                raise self.on_every_rank(UserError(mistake(rank, value, values[0])))

    def all_gather_tensors(self, value: T) -> list[T]:
        """Gather a value that contains tensors by rank; the tensors move to the device of this process."""
        return [value]

    def all_reduce_max(self, *numbers: float) -> list[float]:
        """Return the maximum of each number over the ranks. Waits for all, and names missing ranks in its error."""
        return list(numbers)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum each tensor over the ranks, without waiting for the device."""
        return list(tensors)

    def for_background_thread(self) -> "Processes":
        """Return the same processes with separate messages, for use in another thread."""
        return self


ALONE = Processes()
