"""The processes that train a model together. Here the one that is alone; several are in `distributed.py`."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from widthwise.model.decoder import Decoder

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class Processes:
    """A process that is alone: it has nobody to agree with. What it offers is what several processes must do together.

    Every method but the properties is called by all processes, in the same order.
    """

    rank, world_size, shard, n_shards = 0, 1, 0, 1

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def is_first(self) -> bool:
        """Whether this process speaks, locks and writes for all."""
        return self.rank == 0

    @property
    def writes_shards(self) -> bool:
        """Whether this process is of the first copy of the model, whose shards a checkpoint holds."""
        return self.rank < self.n_shards

    def divide(self, model: Decoder) -> None:
        """Divides the parameters of a model without memory among the processes."""

    def accumulate(self, model: Decoder, is_last: bool) -> None:
        """Before a forward pass: whether the gradients are complete with it, and are to be averaged over processes."""

    def said(self, error: E) -> E:
        """Marks an error that all processes have, so that one of them says it."""
        return error

    def alike(self, work: Callable[[], T]) -> T:
        """What every process does for itself with the same outcome. An error is then said once."""
        return work()

    def first(self, work: Callable[[], T]) -> T:
        """What the first process does; all get its value, or its error."""
        return work()

    def together(self, work: Callable[[], T]) -> list[T]:
        """What every process does; all get the values of all by rank, or the error of the first that has one."""
        return [work()]

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank; tensors in them are on the device of the process that asks."""
        return [value]

    def largest(self, *numbers: float) -> list[float]:
        """The largest of each number over the processes. Waits for all, and names who does not come."""
        return list(numbers)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the processes, without waiting for the device."""
        return list(tensors)

    def apart(self) -> "Processes":
        """The same processes for another thread, whose messages do not get between those of this one."""
        return self


ALONE = Processes()
