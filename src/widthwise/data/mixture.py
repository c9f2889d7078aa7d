"""The windows of token files, and mixtures of several prepared corpora that training reads in given proportions.

A token file is cut into windows of seq_len + 1 tokens, `seq_len` apart, so that every token but the first is a target
exactly once. In training every epoch of a file visits all of its windows in another random order, computed and not
stored.

Each row of a mixture goes to a source by arithmetic on its own number. Rows are divided between two parts, and each
part again, down to single sources: of the first m rows of a division whose first part has the share p, that part gets
round(m p). The parts are paired as Huffman does (1952), lightest first, so that of the first n rows no source has
`MOST_OFF` rows more or less than its share of n, however many rows and sources there are. A division adds an error of
at most 1/2, of which a source bears its share of the part that it lies in, and from the source upwards these parts grow
at least as fast as the Fibonacci numbers: the sum of the errors is less than half the sum of the Fibonacci numbers'
reciprocals. With two sources it is at most 1/2.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from widthwise.config_io import UserError
from widthwise.data.identity import MixtureIdentity, SourceIdentity
from widthwise.data.prepared import PreparedData
from widthwise.data.shards import TokenFile
from widthwise.data.tokenizer import Tokenizer

N_ROUNDS = 8


class FileWindows:
    """The windows of one token file, as a pure function of the row."""

    def __init__(self, tokens: TokenFile, seq_len: int):
        """Raises UserError if there are none."""
        if seq_len < 1 or seq_len > tokens.n_tokens - 1:
            raise UserError(
                f"seq_len: got {seq_len}; {tokens.prefix} has {tokens.n_tokens} tokens, so 1 to {tokens.n_tokens - 1}; "
                "or prepare more text"
            )
        self._tokens, self._seq_len = tokens, seq_len
        self.n_windows = (tokens.n_tokens - 1) // seq_len
        """Rows, from the first, in which no window comes twice."""

    def read(self, rows: np.ndarray, seed: int | None = None) -> np.ndarray:
        """The windows of these rows, uint64 (n,): int64 (n, seq_len + 1).

        seed: of the order of training, which continues from epoch to epoch; None: the order of the file, where a row
        must be less than n_windows.
        """
        if seed is not None:
            epochs, positions = np.divmod(rows, np.uint64(self.n_windows))
            rows = permute(positions, self.n_windows, seed, epochs)
        starts = (rows.astype(np.int64) * self._seq_len).tolist()
        return np.stack([self._tokens.tokens(start, start + self._seq_len + 1) for start in starts]).astype(np.int64)

    def source_of(self, row: int) -> None:
        """Name of the source that a row is from, which is only one."""

    def state(self) -> dict[str, int]:
        """Return the numbers that identify the order of rows."""
        return {"n_windows": self.n_windows, "data": self._tokens.fingerprint}


def permute(positions: np.ndarray, n: int, seed: int, epochs: np.ndarray) -> np.ndarray:
    """Permute positions by the random order of their epoch: uint64, a permutation of 0..n-1 per (seed, epoch).

    A Feistel network over pairs modulo ceil(sqrt(n)), repeated while it leads outside 0..n-1 ("cycle walking", Black
    and Rogaway 2002); the square is hardly larger than n, so few repeat. Needs no memory and no start-up time.
    """
    side = np.uint64(math.isqrt(n - 1) + 1)
    keys = _mix(_mix(np.full_like(positions, seed)) ^ epochs.astype(np.uint64))
    permuted = positions.astype(np.uint64)
    outside = np.ones(len(permuted), dtype=bool)
    while outside.any():
        permuted[outside] = _feistel(permuted[outside], side, keys[outside])
        outside = permuted >= n
    return permuted


def _feistel(values: np.ndarray, side: np.uint64, keys: np.ndarray) -> np.ndarray:
    left, right = np.divmod(values, side)
    for index in range(N_ROUNDS):
        left, right = right, (left + _mix(keys ^ _mix(right * np.uint64(N_ROUNDS) + np.uint64(index))) % side) % side
    return left * side + right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): uint64 -> well-mixed uint64, one to one."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


MOST_OFF = 1.68
"""Half of 3.3598..., the sum of the reciprocals of the Fibonacci numbers."""


@dataclass(frozen=True)
class RowDivision:
    """Rows 0, 1, 2, ... of one source, or of two parts; the first has the share weight / total.

    Everything is exact for any integers.
    """

    name: str
    """The source; of two parts the names of all."""
    weight: int = 1
    total: int = 1
    parts: "tuple[RowDivision, RowDivision] | None" = None

    def place(self, row: int) -> tuple[str, int]:
        """The source of a row, and how many rows that source has before it."""
        if self.parts is None:
            return self.name, row
        before = self._n_first(row)
        is_first = self._n_first(row + 1) > before
        return self.parts[0].place(before) if is_first else self.parts[1].place(row - before)

    def counts(self, n_rows: int) -> dict[str, int]:
        """Count the rows of each source among the first n_rows."""
        if self.parts is None:
            return {self.name: n_rows}
        n_first = self._n_first(n_rows)
        return self.parts[0].counts(n_first) | self.parts[1].counts(n_rows - n_first)

    def _n_first(self, n_rows: int) -> int:
        return (2 * n_rows * self.weight + self.total) // (2 * self.total)

    def n_rows_within(self, limits: Mapping[str, int]) -> int:
        """The largest number of first rows of which no source has more than its limit."""

        def exceeds(n_rows: int) -> bool:
            return any(count > limits[name] for name, count in self.counts(n_rows).items())

        return bisect_left(range(sum(limits.values()) + 1), True, lo=1, key=exceeds) - 1


def divided(weights: Mapping[str, int]) -> RowDivision:
    """Rows in proportion to positive weights. The order in which the sources are named makes no difference."""
    heap = [(weights[name], index, RowDivision(name)) for index, name in enumerate(sorted(weights))]
    heapq.heapify(heap)
    while len(heap) > 1:
        weight, index, first = heapq.heappop(heap)
        other, _, second = heapq.heappop(heap)
        both = RowDivision(f"{first.name}, {second.name}", weight, weight + other, (first, second))
        heapq.heappush(heap, (both.total, index, both))
    return heap[0][2]


@dataclass(frozen=True)
class TokenMixture:
    """Token files that are read in proportion to weights."""

    files: Mapping[str, TokenFile]
    """Sources by name, in the order of the names."""
    weights: Mapping[str, int]
    """Each source's share of the windows over the others' share, without a common divisor."""


class MixedWindows:
    """The windows of several files in given proportions; each file's come in the order in which it has them alone.

    The methods are documented in `FileWindows`.
    """

    def __init__(self, mixture: TokenMixture, seq_len: int):
        """Raises UserError if a file holds none."""
        self.sources = {name: FileWindows(tokens, seq_len) for name, tokens in mixture.files.items()}
        self._weights, self._division = mixture.weights, divided(mixture.weights)
        self.n_windows = self._division.n_rows_within({name: each.n_windows for name, each in self.sources.items()})

    def read(self, rows: np.ndarray, seed: int | None = None) -> np.ndarray:
        indices: dict[str, list[int]] = {}
        own_rows: dict[str, list[int]] = {}
        for index, row in enumerate(rows.tolist()):
            name, own_row = self._division.place(row)
            indices.setdefault(name, []).append(index)
            own_rows.setdefault(name, []).append(own_row)
        parts = [self.sources[name].read(np.array(own, dtype=np.uint64), seed) for name, own in own_rows.items()]
        order = [index for of_source in indices.values() for index in of_source]
        return np.concatenate(parts)[np.argsort(order)]

    def source_of(self, row: int) -> str:
        return self._division.place(row)[0]

    def state(self) -> dict[str, int]:
        return {
            f"{name}.{key}": value
            for name, windows in self.sources.items()
            for key, value in {"weight": self._weights[name], **windows.state()}.items()
        }


Windows = FileWindows | MixedWindows


def windows_of(tokens: TokenFile | TokenMixture, seq_len: int) -> Windows:
    """The windows of a file or of a mixture. Raises UserError where a file holds not even one."""
    return MixedWindows(tokens, seq_len) if isinstance(tokens, TokenMixture) else FileWindows(tokens, seq_len)


class MixedData:
    """The prepared data of several sources. `train` and `held_out` are mixtures of their token files."""

    def __init__(self, sources: Mapping[str, PreparedData], weights: Mapping[str, int]):
        """weights: whole numbers without a common divisor. Raises UserError naming two sources whose tokens differ."""
        self.sources = {name: sources[name] for name in sorted(sources)}
        self.weights = {name: weights[name] for name in self.sources}
        (first, expected), *others = ((name, data.manifest.tokenizer) for name, data in self.sources.items())
        for name, found in others:
            if found.id != expected.id:
                raise UserError(
                    f"data.mixture: {first} was tokenised by {expected.spec} ({expected.id[:12]}) and {name} by "
                    f"{found.spec} ({found.id[:12]}); all sources need one tokenizer, such as the tokenizer.json of one"
                )
        self.train = TokenMixture({name: data.train for name, data in self.sources.items()}, self.weights)
        self.held_out = TokenMixture({name: data.held_out for name, data in self.sources.items()}, self.weights)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises UserError if the tokenizer available now is not the one that made the data."""
        return next(iter(self.sources.values())).tokenizer

    @property
    def identity(self) -> MixtureIdentity:
        """Return the identity of the data, as the manifests of the sources have it."""
        folders = {name: data.identity for name, data in self.sources.items()}
        sources = {
            name: SourceIdentity(weight=self.weights[name], corpus=folder.corpus, files=folder.files)
            for name, folder in folders.items()
        }
        return MixtureIdentity(tokenizer=next(iter(folders.values())).tokenizer, sources=sources)

    @property
    def folders(self) -> list[PreparedData]:
        """Return all prepared folders of the data."""
        return list(self.sources.values())

    def use(self, seq_len: int, n_windows: int) -> dict[str, tuple[float, float]]:
        """Return the use of each source by a training that reads n_windows windows of seq_len tokens.

        Its share of the windows, between 0 and 1, and the average number of times that each of its windows is read.
        """
        windows, counts = MixedWindows(self.train, seq_len), divided(self.weights).counts(n_windows)
        return {name: (counts[name] / n_windows, counts[name] / own.n_windows) for name, own in windows.sources.items()}


OpenedData = PreparedData | MixedData
"""Data of the data section of a recipe."""
