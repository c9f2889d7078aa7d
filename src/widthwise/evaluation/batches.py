"""Rows of tokens put into forward passes, where rows that begin alike read their beginning once.

The choices of a question have its text in common: it goes through the model once, and its keys and values serve every
choice. So do examples before several questions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from widthwise.evaluation.hf_model import HFModel
from widthwise.model.decoder import Decoder
from widthwise.model.generate import pad_left

LEAST_SAVED = 0.25
"""A beginning is worth a pass of its own if that leaves out so much of what its rows read."""
LEAST_SHARE = 0.75
"""Rows share a beginning if it is at least so much of what each of them reads before its first prediction."""
CACHE_BYTES = 2**30
"""Most keys and values of a pass over rows with shared beginnings."""


class Row(NamedTuple):
    """Tokens, each of which but the first could be predicted, and how many of the last are."""

    tokens: list[int]
    n_predicted: int

    @property
    def n_read(self) -> int:
        return len(self.tokens) - 1

    @property
    def n_before(self) -> int:
        """Tokens that are read and predict nothing that counts."""
        return self.n_read - self.n_predicted


class Batch(Protocol):
    """Rows of one forward pass."""

    @property
    def rows(self) -> Sequence[int]:
        """Their numbers, in the order of the hidden states."""
        ...

    def hidden(self, model: Decoder | HFModel, rows: Sequence[Row], device: torch.device) -> Tensor:
        """(n, d_model): the states that predict what counts, row after row. rows: all that there are."""
        ...


def batches(model: Decoder | HFModel, rows: Sequence[Row], batch_size: int) -> Iterator[Batch]:
    """Every row in one batch; models of transformers share nothing. batch_size: most rows of a batch.

    The longest come first: what does not fit into memory fails at once, and a batch holds texts of about one length.
    """
    most_tokens = CACHE_BYTES // max(1, model.new_cache(1, 1).n_bytes) if isinstance(model, Decoder) else 0
    groups = _alike(rows, batch_size, most_tokens)
    worthy = [group for group in groups if group.n_saved >= LEAST_SAVED * sum(rows[i].n_read for i in group.rows)]
    shared = sorted(worthy, key=lambda group: -group.n_shared)
    alone = sorted(set(range(len(rows))).difference(*(group.rows for group in worthy)), key=lambda i: -rows[i].n_read)
    yield from (WholeRows(alone[start : start + batch_size]) for start in range(0, len(alone), batch_size))
    part: list[_Group] = []
    for group in shared:
        n_rows = sum(len(each.rows) for each in (*part, group))
        longest = max(rows[i].n_read for each in (*part, group) for i in each.rows)
        if part and (n_rows > batch_size or n_rows * longest > most_tokens):
            yield SharedBeginnings(part)
            part = []
        part.append(group)
    if part:
        yield SharedBeginnings(part)


@dataclass(frozen=True)
class WholeRows:
    """Rows of which each is read from its beginning."""

    rows: Sequence[int]

    def hidden(self, model: Decoder | HFModel, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Padded on the right, where nothing that counts can see the padding."""
        own = [rows[i] for i in self.rows]
        inputs, _ = _pad_right([row.tokens[:-1] for row in own], device)
        hidden = model.hidden(inputs)
        return torch.cat([states[row.n_before : row.n_read] for states, row in zip(hidden, own)])


@dataclass
class _Group:
    """Neighbouring rows that begin with the same tokens."""

    rows: list[int]
    n_shared: int
    """How many tokens all of them begin with."""

    @property
    def n_saved(self) -> int:
        """Tokens that are not read again."""
        return (len(self.rows) - 1) * self.n_shared


@dataclass(frozen=True)
class SharedBeginnings:
    """Groups of rows whose beginnings are read once a group."""

    groups: Sequence[_Group]

    @property
    def rows(self) -> Sequence[int]:
        return [i for group in self.groups for i in group.rows]

    def hidden(self, model: Decoder | HFModel, rows: Sequence[Row], device: torch.device) -> Tensor:
        """The beginnings with padding on the left, then each row's rest behind its own."""
        assert isinstance(model, Decoder)
        beginnings = [rows[group.rows[0]].tokens[: group.n_shared] for group in self.groups]
        rests = [rows[i].tokens[group.n_shared : -1] for group in self.groups for i in group.rows]
        tokens, is_real = pad_left(beginnings, device)
        cache = model.new_cache(len(beginnings), tokens.shape[1])
        model.stream(tokens, cache, _unless_equal(beginnings, is_real))
        following, is_real = _pad_right(rests, device)
        counts = torch.tensor([len(group.rows) for group in self.groups], device=device)
        repeated = cache.repeated(counts, cache.length + following.shape[1])
        hidden = model.hidden(following, repeated, _unless_equal(rests, is_real))
        own = [rows[i] for i in self.rows]
        return torch.cat(
            [states[len(rest) - row.n_predicted : len(rest)] for states, rest, row in zip(hidden, rests, own)]
        )


def _alike(rows: Sequence[Row], most_rows: int, most_tokens: int) -> list[_Group]:
    """Neighbours that share enough, at most most_rows of them with about most_tokens in all."""
    groups: list[_Group] = []
    for i, row in enumerate(rows):
        n_rows = min(most_rows, most_tokens // row.n_read)
        last = groups[-1] if groups and len(groups[-1].rows) < n_rows else None
        n_shared = 0 if last is None else _n_common(rows[last.rows[0]].tokens[: last.n_shared], row)
        if last is not None and n_shared >= LEAST_SHARE * max(last.n_shared, row.n_before):
            last.rows.append(i)
            last.n_shared = n_shared
        else:
            groups.append(_Group([i], row.n_before))
    return groups


def _n_common(tokens: list[int], row: Row) -> int:
    n = min(len(tokens), row.n_before)
    if tokens[:n] == row.tokens[:n]:
        return n
    return next(i for i in range(n) if tokens[i] != row.tokens[i])


def _pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) with padding behind, and bool (B, T), True on real ones."""
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    is_real = torch.zeros_like(tokens, dtype=torch.bool)
    for row, own in enumerate(rows):
        tokens[row, : len(own)] = torch.tensor(own, dtype=torch.long)
        is_real[row, : len(own)] = True
    return tokens.to(device), is_real.to(device)


def _unless_equal(rows: Sequence[Sequence[int]], is_real: Tensor) -> Tensor | None:
    """None where rows are equally long and nothing is padding."""
    return None if len(set(map(len, rows))) == 1 else is_real
