"""Rows dealt out to several sources in given proportions, each row by arithmetic on its own number.

Rows are divided between two parts, and each part again, down to single sources: of the first m rows of a division whose
first part has the share p, that part gets round(m p). The parts are paired as Huffman does (1952), lightest first, so
that of the first n rows no source has `MOST_OFF` rows more or less than its share of n, however many rows and sources
there are. A division adds an error of at most 1/2, of which a source bears its share of the part that it lies in, and
from the source upwards these parts grow at least as fast as the Fibonacci numbers: the sum of the errors is less than
half the sum of the Fibonacci numbers' reciprocals. With two sources it is at most 1/2.
"""

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

MOST_OFF = 1.68
"""Half of 3.3598..., the sum of the reciprocals of the Fibonacci numbers."""


class RowDivision(ABC):
    """Rows 0, 1, 2, ... of one or several sources, told apart by their names. Everything is exact for any integers."""

    @abstractmethod
    def place(self, row: int) -> tuple[str, int]:
        """The source of a row, and how many rows that source has before it."""

    @abstractmethod
    def counts(self, n_rows: int) -> dict[str, int]:
        """How many of the first n_rows rows each source has."""

    def n_rows_within(self, limits: Mapping[str, int]) -> int:
        """The largest number of first rows of which no source has more than its limit."""

        def exceeds(n_rows: int) -> bool:
            return any(count > limits[name] for name, count in self.counts(n_rows).items())

        return bisect_left(range(sum(limits.values()) + 1), True, lo=1, key=exceeds) - 1


@dataclass(frozen=True)
class _Whole(RowDivision):
    """All rows come from a single source."""

    name: str

    def place(self, row: int) -> tuple[str, int]:
        return self.name, row

    def counts(self, n_rows: int) -> dict[str, int]:
        return {self.name: n_rows}


@dataclass(frozen=True)
class _Divided(RowDivision):
    """The share weight / total of the rows is the first part's, the rest the second's."""

    first: RowDivision
    second: RowDivision
    weight: int
    total: int

    def place(self, row: int) -> tuple[str, int]:
        before = self._n_first(row)
        if self._n_first(row + 1) > before:
            return self.first.place(before)
        return self.second.place(row - before)

    def counts(self, n_rows: int) -> dict[str, int]:
        n_first = self._n_first(n_rows)
        return {**self.first.counts(n_first), **self.second.counts(n_rows - n_first)}

    def _n_first(self, n_rows: int) -> int:
        return (2 * n_rows * self.weight + self.total) // (2 * self.total)


def divided(weights: Mapping[str, int]) -> RowDivision:
    """Rows in proportion to positive weights. The order in which the sources are named makes no difference."""
    heap: list[tuple[int, int, RowDivision]] = [
        (weights[name], index, _Whole(name)) for index, name in enumerate(sorted(weights))
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        weight, index, first = heapq.heappop(heap)
        other, _, second = heapq.heappop(heap)
        heapq.heappush(heap, (weight + other, index, _Divided(first, second, weight, weight + other)))
    return heap[0][2]
