"""Batches of tokens: for training as a pure function of the step, for validation from the start of the held-out text.

A row of a batch may contain several documents. A document ends in its end-of-text token, which `prepare` adds. A row
begins anywhere in the text, so its first and last documents may be incomplete.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Self

import numpy as np

from widthwise.computing import Precision
from widthwise.config_io import Config
from widthwise.data.mixture import MixedData, OpenedData, TokenMixture, Windows, windows_of
from widthwise.data.shards import TokenFile, bin_path
from widthwise.data.tokenizer import Tokenizer
from widthwise.mistakes import UserError

if TYPE_CHECKING:
    from torch import Tensor


N_CHECKED_DOCUMENTS = 1000  # of a file, for an end-of-text token


def document_ids(tokens: "Tensor", eos_id: int) -> "Tensor":
    """Return the index of each token's document within its row: the number of end-of-text tokens before it.

    tokens: integers (B, T) -> (B, T).
    """
    ends = (tokens == eos_id).long()
    return ends.cumsum(dim=1) - ends


@dataclass(frozen=True)
class Boundaries:
    """Document masks and positions for rows of tokens.

    masks, resets: the options `mask_documents` and `reset_positions` of `PackingConfig`.
    """

    eos_id: int
    masks: bool
    resets: bool

    def documents(self, tokens: "Tensor") -> "Tensor | None":
        """Return the index of each token's document, integers (B, T); None without masks."""
        return document_ids(tokens, self.eos_id) if self.masks else None

    def positions(self, tokens: "Tensor") -> "Tensor | None":
        """Return the position of each token in its document's part of the row, integers (B, T); None without resets."""
        if not self.resets:
            return None
        documents = document_ids(tokens, self.eos_id)
        positions = documents.new_ones(documents.shape).cumsum(dim=1) - 1  # within the row
        is_first = documents.diff(dim=1, prepend=documents[:, :1] - 1) != 0
        starts = (positions * is_first).cummax(dim=1).values  # position within the row at which the document begins
        return positions - starts


NO_BOUNDARIES = Boundaries(eos_id=-1, masks=False, resets=False)
"""A row is read as one document."""


class PackingConfig(Config):
    """Options for rows that hold several documents, in training and validation."""

    mask_documents: bool = False
    """Restrict attention to a token's document within the row."""
    reset_positions: bool = False
    """Begin positions, rotary and learned, at 0 in each document of a row."""

    def boundaries(self, data: OpenedData) -> Boundaries:
        """Return the boundaries for these options, checked against opened data.

        Raises UserError if an option is on and one of N_CHECKED_DOCUMENTS of a file does not end in the tokenizer's
        end-of-text token.
        """
        options = [key for key in PackingConfig.model_fields if getattr(self, key)]
        if not options:
            return NO_BOUNDARIES
        eos_id = data.tokenizer.eos_id
        files = [tokens for folder in data.folders for tokens in (folder.train, folder.held_out)]
        for tokens in files:
            index = document_without_end(tokens, eos_id)
            if index is not None:
                raise UserError(
                    f"data.{options[0]}: got true, but document {index} of {bin_path(tokens.prefix)} does not end in "
                    f"the end-of-text token {eos_id}, so documents cannot be separated; prepare the text, or adopt "
                    "shards that were made with --append-eod"
                )
        return Boundaries(eos_id, self.mask_documents, self.reset_positions)


def document_without_end(tokens: TokenFile, eos_id: int) -> int | None:
    """Return the index of a non-empty document that does not end in the end-of-text token; None if there is none.

    Checks up to N_CHECKED_DOCUMENTS, spread over the file.
    """
    n_checked = min(tokens.n_documents, N_CHECKED_DOCUMENTS)
    for index in np.linspace(0, tokens.n_documents - 1, n_checked, dtype=np.int64).tolist():
        document = tokens.document(index)
        if len(document) and document[-1] != eos_id:
            return index
    return None


def _tensor(rows: np.ndarray) -> "Tensor":
    import torch  # slow to import, and not needed to read recipes

    return torch.from_numpy(rows)


def with_bos(rows: "Tensor", bos_id: int | None) -> "Tensor":
    """Put `bos_id` before each row and drop its last token, integers (B, T) -> (B, T). None: return the rows."""
    return rows if bos_id is None else rows.roll(1, dims=1).index_fill(1, rows.new_zeros(1), bos_id)


class Loader:
    """Training batches. `batch(step)` depends only on the step; iteration returns the batches of steps 0, 1, ...

    With several processes, rank r of n gets rows r * B/n to (r + 1) * B/n of the same global batch.
    """

    def __init__(
        self,
        tokens: TokenFile | TokenMixture,
        *,
        seq_len: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ):
        """batch_size: sequences per step, over all processes. Raises UserError for sizes that do not fit the data, a
        batch size that the processes cannot share equally, and an invalid seed."""
        if batch_size < 1 or batch_size % world_size != 0:
            raise UserError(f"batch_size: got {batch_size}; expected a positive multiple of the {world_size} processes")
        if not 0 <= seed < 2**63:
            raise UserError(f"seed: got {seed}; expected 0 to {2**63 - 1}")
        assert 0 <= rank < world_size
        self._windows = windows_of(tokens, seq_len)
        self._rank = rank
        self._n_rows = batch_size // world_size
        self.n_windows = self._windows.n_windows
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self.step = 0

    def batch(self, step: int) -> "Tensor":
        """Return this process's rows of the batch of a step: int64 (batch_size / world_size, seq_len + 1).

        Inputs are `[:, :-1]`, targets `[:, 1:]`. An epoch may end within a batch; the next begins in the next row.
        """
        first = step * self.batch_size + self._rank * self._n_rows
        return _tensor(self._windows.read(np.arange(first, first + self._n_rows, dtype=np.uint64), self.seed))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> "Tensor":
        batch = self.batch(self.step)
        self.step += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        """Return the step, and the settings that determine the batches.

        `data` identifies a file; for a mixture there are `NAME.data`, `NAME.n_windows` and `NAME.weight` of every
        source.
        """
        return {
            "step": self.step,
            "seed": self.seed,
            "seq_len": self.seq_len,
            "batch_size": self.batch_size,
            **self._windows.state(),
        }

    def changed_keys(self, state: Mapping[str, int]) -> list[str]:
        """Return the keys, except the step, whose values differ between a saved state and this loader."""
        current = self.state_dict()
        return [key for key in current | dict(state) if key != "step" and current.get(key) != state.get(key)]

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at the saved step, on any number of processes. Raises UserError for other data, sizes or seed."""
        for key in self.changed_keys(state):
            current = self.state_dict().get(key)
            raise UserError(f"resume: the saved {key} is {state.get(key)}, this run's is {current}; must be equal")
        if state.get("step", -1) < 0:
            raise UserError(f"resume: the saved step is {state.get('step')}; must be a whole number from 0")
        self.step = state["step"]


@dataclass(frozen=True)
class TokenisedText:
    """Tokens of a text outside a prepared folder, and their tokenizer."""

    held_out: TokenFile
    tokenizer: Tokenizer
    bytes_per_token_byte: float = 1.0
    """Bytes of text for each byte of the decoded tokens."""


@dataclass(frozen=True)
class HeldOut:
    """Batches of windows from the start of the held-out text.

    Windows of a mixture come in its proportions, from the start of each source, until one source has too few.
    """

    data: OpenedData | TokenisedText
    seq_len: int
    batch_size: int
    """Windows per forward pass."""
    max_tokens: int | None
    """Largest number of target tokens; None: all."""
    precision: Precision
    boundaries: Boundaries = NO_BOUNDARIES
    """Document masks and positions in a window."""
    skip_tokens: int = 0
    """Number of target tokens skipped at the start."""
    bos_id: int | None = None
    """Token at the beginning of each window, see `with_bos`; None for models that need none."""

    def check(self) -> None:
        """Raise UserError if the text has too few windows. Call before training."""
        assert self.n_windows > 0  # raises the error

    @property
    def n_windows(self) -> int:
        """Number of windows. Raises UserError if there is none, or too few after the skipped tokens."""
        n_windows = self._windows.n_windows - self._n_skipped
        if self.max_tokens is not None and self.max_tokens < self.seq_len:
            raise UserError(
                f"train.validation_tokens: got {self.max_tokens}; must be at least seq_len = {self.seq_len}"
            )
        n_requested = max(1, n_windows) if self.max_tokens is None else self.max_tokens // self.seq_len
        if self._n_skipped and n_windows < n_requested:
            raise UserError(
                f"train.validation_skip: got {self.skip_tokens}, which leaves {max(0, n_windows) * self.seq_len} "
                f"tokens of the held-out text; must leave {n_requested * self.seq_len}: hold out more, or give fewer "
                "train.validation_tokens"
            )
        return min(n_windows, n_requested)

    @property
    def _n_skipped(self) -> int:
        return self.skip_tokens // self.seq_len

    @property
    def sources(self) -> list[str]:
        """The source of each window of a mixture, in order; empty for a single source."""
        return [name for row in self._rows if (name := self._windows.source_of(row)) is not None]

    def means_by_source(self, values: Sequence[float]) -> dict[str, float]:
        """Return the mean over the windows of each source, empty for a single source. values: one for each window."""
        by_source: dict[str, list[float]] = {}
        for name, value in zip(self.sources, values):
            by_source.setdefault(name, []).append(value)
        return {name: fmean(by_source[name]) for name in sorted(by_source)}

    def n_text_bytes(self, token_bytes: Sequence[int]) -> float:
        """Return the bytes of text in all windows. token_bytes: of the decoded targets of each window.

        Scaled by the ratio of each whole source, because the exact text of a window is unknown if the tokenizer
        changes text.
        """
        if isinstance(self.data, MixedData):
            scales = [self.data.sources[name].bytes_per_token_byte for name in self.sources]
        else:
            scales = [self.data.bytes_per_token_byte] * len(token_bytes)
        return float(np.dot(scales, token_bytes))

    def batches(self, max_tokens: int | None = None) -> Iterator["Tensor"]:
        """Yield integers (at most batch_size, seq_len + 1). max_tokens: a limit below `self.max_tokens`."""
        rows = self._rows if max_tokens is None else self._rows[: max_tokens // self.seq_len]
        for first in range(0, len(rows), self.batch_size):
            index = np.array(rows[first : first + self.batch_size], dtype=np.uint64)
            yield with_bos(_tensor(self._windows.read(index)), self.bos_id)

    @property
    def _rows(self) -> range:
        return range(self._n_skipped, self._n_skipped + self.n_windows)

    @cached_property
    def _windows(self) -> Windows:
        return windows_of(self.data.held_out, self.seq_len)
