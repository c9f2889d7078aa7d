"""The windows of token files, and mixtures of several prepared corpora in given proportions.

A token file is cut into windows of seq_len + 1 tokens, `seq_len` apart, so that every token of a window except its
first is a target exactly once; up to seq_len - 1 tokens at the end of the file are not read. In training every epoch of
a file visits all windows in a different random order, which is computed and not stored.

A row is the position of a window in the order of reading. The source of a row of a mixture depends only on its number.
Rows are divided between two parts, and each part again, down to single sources: a first part with the share p gets
round(m p) of the first m rows of its division. The parts are paired by Huffman's algorithm (1952), lightest first, so
that the number of rows of a source among the first n differs from its share of n by less than 1.68, for any
number of rows and sources. Proof: each division on the path to a source adds an error of at most 1/2, multiplied by the
source's share of the part. The weights of these parts grow at least as fast as the Fibonacci numbers, so the sum of the
errors is less than half the sum of their reciprocals, 3.3598... With two sources it is at most 1/2.
"""

import heapq
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from widthwise.data.identity import MixtureIdentity, SourceIdentity
from widthwise.data.prepared import PreparedData
from widthwise.data.shards import TokenFile
from widthwise.data.tokenizer import Tokenizer
from widthwise.mistakes import UserError

N_ROUNDS = 8  # of the Feistel network of `permute`


class FileWindows:
    """The windows of one token file, by row."""

    def __init__(self, tokens: TokenFile, seq_len: int):
        """Raises UserError if there are none."""
        if seq_len < 1 or seq_len > tokens.n_tokens - 1:
            raise UserError(
                f"seq_len: got {seq_len}; {tokens.prefix} has {tokens.n_tokens} tokens, so 1 to {tokens.n_tokens - 1}; "
                "or prepare more text"
            )
        self._tokens = tokens
        self._seq_len = seq_len
        self.n_windows = (tokens.n_tokens - 1) // seq_len
        """Number of rows before a window repeats."""

    def read(self, rows: np.ndarray, seed: int | None = None) -> np.ndarray:
        """Return the windows of rows, uint64 (n,) -> int64 (n, seq_len + 1).

        seed: of the training order, which is new in every epoch; None: read in the order of the file, only for rows
        below n_windows.
        """
        if seed is not None:
            epochs, positions = np.divmod(rows, np.uint64(self.n_windows))
            rows = permute(positions, self.n_windows, seed, epochs)
        starts = (rows.astype(np.int64) * self._seq_len).tolist()
        return np.stack([self._tokens.tokens(start, start + self._seq_len + 1) for start in starts]).astype(np.int64)

    def source_of(self, row: int) -> None:
        """Return None: there is only one source."""

    def state(self) -> dict[str, int]:
        """Return the numbers that identify the windows; see `Loader.state_dict`."""
        return {"n_windows": self.n_windows, "data": self._tokens.fingerprint}


def permute(positions: np.ndarray, n: int, seed: int, epochs: np.ndarray) -> np.ndarray:
    """Permute positions from 0 to n - 1 by the random order of their epoch. positions, epochs, result: uint64.

    A Feistel network over pairs of numbers modulo side = ceil(sqrt(n)), repeated while the result is not below n
    ("cycle walking", Black and Rogaway 2002). side^2 is hardly larger than n, so few repeat. The order needs no memory
    and no start-up time.
    """
    side = np.uint64(math.isqrt(n - 1) + 1)
    keys = _mix(_mix(np.full_like(positions, seed)) ^ epochs.astype(np.uint64))
    permuted = positions.astype(np.uint64)
    outside = np.ones(len(permuted), dtype=bool)
    while outside.any():
        high, low = np.divmod(permuted[outside], side)
        for index in range(N_ROUNDS):
            noise = _mix(keys[outside] ^ _mix(low * np.uint64(N_ROUNDS) + np.uint64(index)))
            high, low = low, (high + noise % side) % side
        permuted[outside] = high * side + low
        outside = permuted >= n
    return permuted


def _mix(values: np.ndarray) -> np.ndarray:
    """Apply the finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection of uint64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True)
class RowDivision:
    """A division of rows 0, 1, 2, ... between two parts, the first with the share weight / total.

    Exact for any integers. A single source has no parts and gets all rows.
    """

    name: str
    """Name of the source, or names of all sources."""
    weight: int = 1
    total: int = 1
    parts: "tuple[RowDivision, RowDivision] | None" = None

    def place(self, row: int) -> tuple[str, int]:
        """Return the source of a row, and the number of earlier rows of that source."""
        if self.parts is None:
            return self.name, row
        before = self._n_first(row)
        if self._n_first(row + 1) > before:
            return self.parts[0].place(before)
        return self.parts[1].place(row - before)

    def counts(self, n_rows: int) -> dict[str, int]:
        """Count the rows of each source among the first n_rows."""
        if self.parts is None:
            return {self.name: n_rows}
        n_first = self._n_first(n_rows)
        return self.parts[0].counts(n_first) | self.parts[1].counts(n_rows - n_first)

    def _n_first(self, n_rows: int) -> int:
        """Return the number of the first n_rows rows that the first part gets: their share, rounded half up."""
        return (2 * n_rows * self.weight + self.total) // (2 * self.total)

    def n_rows_within(self, limits: Mapping[str, int]) -> int:
        """Return the largest n for which no source has more of the first n rows than its limit."""

        def exceeds(n_rows: int) -> bool:
            return any(count > limits[name] for name, count in self.counts(n_rows).items())

        return bisect_left(range(sum(limits.values()) + 1), True, lo=1, key=exceeds) - 1


def divide_rows(weights: Mapping[str, int]) -> RowDivision:
    """Return the division of rows in proportion to positive weights. The order of the sources does not matter."""
    heap = [(weights[name], index, RowDivision(name)) for index, name in enumerate(sorted(weights))]
    heapq.heapify(heap)
    while len(heap) > 1:
        weight, index, first = heapq.heappop(heap)
        second_weight, _, second = heapq.heappop(heap)
        pair = RowDivision(f"{first.name}, {second.name}", weight, weight + second_weight, (first, second))
        heapq.heappush(heap, (pair.total, index, pair))  # the index decides between equal weights
    return heap[0][2]


@dataclass(frozen=True)
class TokenMixture:
    """Token files that are read in proportion to weights."""

    files: Mapping[str, TokenFile]
    """Sources by name, in the order of the names."""
    weights: Mapping[str, int]
    """Relative shares of the windows, whole numbers without a common divisor."""


class MixedWindows:
    """The windows of several files in given proportions; the windows of each file keep their order.

    The methods are documented in `FileWindows`.
    """

    def __init__(self, mixture: TokenMixture, seq_len: int):
        """Raises UserError for a file without windows."""
        self.sources = {name: FileWindows(tokens, seq_len) for name, tokens in mixture.files.items()}
        self._seq_len = seq_len
        self._weights = mixture.weights
        self._division = divide_rows(mixture.weights)
        self.n_windows = self._division.n_rows_within({name: file.n_windows for name, file in self.sources.items()})

    def read(self, rows: np.ndarray, seed: int | None = None) -> np.ndarray:
        indices: dict[str, list[int]] = defaultdict(list)
        source_rows: dict[str, list[int]] = defaultdict(list)
        for index, row in enumerate(rows.tolist()):
            name, source_row = self._division.place(row)
            indices[name].append(index)
            source_rows[name].append(source_row)
        windows = np.empty((len(rows), self._seq_len + 1), dtype=np.int64)
        for name in indices:
            windows[indices[name]] = self.sources[name].read(np.array(source_rows[name], dtype=np.uint64), seed)
        return windows

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
    """Return the windows of a file or of a mixture. Raises UserError for a file without windows."""
    return MixedWindows(tokens, seq_len) if isinstance(tokens, TokenMixture) else FileWindows(tokens, seq_len)


class MixedData:
    """The prepared data of several sources. `train` and `held_out` are mixtures of their token files."""

    def __init__(self, sources: Mapping[str, PreparedData], weights: Mapping[str, int]):
        """weights: whole numbers without a common divisor. Raises UserError if sources have different tokenizers."""
        self.sources = {name: sources[name] for name in sorted(sources)}
        self.weights = {name: weights[name] for name in self.sources}
        tokenizers = {name: data.manifest.tokenizer for name, data in self.sources.items()}
        first, expected = next(iter(tokenizers.items()))
        for name, record in tokenizers.items():
            if record.id != expected.id:
                raise UserError(
                    f"data.mixture: {first} was tokenised by {expected.spec} ({expected.id[:12]}) and {name} by "
                    f"{record.spec} ({record.id[:12]}); all sources need the same tokenizer, such as the "
                    "tokenizer.json of one of them"
                )
        self.train = TokenMixture({name: data.train for name, data in self.sources.items()}, self.weights)
        self.held_out = TokenMixture({name: data.held_out for name, data in self.sources.items()}, self.weights)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all sources. Raises UserError if its file has changed since the data was prepared."""
        return self.folders[0].tokenizer

    @property
    def identity(self) -> MixtureIdentity:
        """Identity of the data, from the manifests of the sources."""
        sources = {
            name: SourceIdentity(weight=self.weights[name], corpus=data.identity.corpus, files=data.identity.files)
            for name, data in self.sources.items()
        }
        return MixtureIdentity(tokenizer=self.folders[0].identity.tokenizer, sources=sources)

    @property
    def folders(self) -> list[PreparedData]:
        """All prepared folders of the data."""
        return list(self.sources.values())

    def shares_and_epochs(self, seq_len: int, n_windows: int) -> dict[str, tuple[float, float]]:
        """Return the share of windows, from 0 to 1, and the number of epochs of each source in training.

        n_windows: windows of seq_len tokens that the training reads.
        """
        files = MixedWindows(self.train, seq_len).sources
        counts = divide_rows(self.weights).counts(n_windows)
        return {name: (counts[name] / n_windows, counts[name] / files[name].n_windows) for name in files}


OpenedData = PreparedData | MixedData
"""Data of the data section of a recipe."""
