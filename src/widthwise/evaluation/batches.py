"""Batches of token rows in which a shared beginning is read once.

The choices of a question share its text: the model reads it once, and its keys and values serve every choice. The same
holds for examples before several questions.
"""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from widthwise.model.decoder import Decoder
from widthwise.model.generate import pad_left

LEAST_SAVED = 0.25
"""Smallest share of the tokens of its rows that a separate pass for a beginning must save."""
LEAST_SHARE = 0.75
"""Smallest length of a shared beginning, as a share of the tokens that each row reads before its first prediction."""
CACHE_BYTES = 2**30
"""Largest size of the keys and values of a pass over rows with shared beginnings."""


class Row(NamedTuple):
    """Tokens of one forward pass, and the number of last tokens to predict."""

    tokens: list[int]
    n_predicted: int

    @property
    def n_read(self) -> int:
        return len(self.tokens) - 1

    @property
    def n_before(self) -> int:
        """Number of tokens that are read before the first prediction."""
        return self.n_read - self.n_predicted


def batches(model: Decoder, rows: Sequence[Row], batch_size: int) -> "Iterator[Batch]":
    """Yield batches of at most batch_size rows, each row in one batch.

    The longest come first, so that a lack of memory shows at once and a batch holds texts of similar lengths.
    """
    most_tokens = CACHE_BYTES // max(1, model.new_cache(1, 1).n_bytes)
    shared = []
    for group in _groups(rows, batch_size, most_tokens):
        n_saved = (len(group.rows) - 1) * group.n_shared  # tokens that are not read again
        if n_saved >= LEAST_SAVED * sum(rows[i].n_read for i in group.rows):
            shared.append(group)
    alone = sorted(set(range(len(rows))).difference(*(group.rows for group in shared)), key=lambda i: -rows[i].n_read)
    yield from (Batch([Group(alone[start : start + batch_size], 0)]) for start in range(0, len(alone), batch_size))
    part: list[Group] = []
    for group in sorted(shared, key=lambda group: -group.n_shared):
        n_rows = sum(len(member.rows) for member in (*part, group))
        longest = max(rows[i].n_read for member in (*part, group) for i in member.rows)
        if part and (n_rows > batch_size or n_rows * longest > most_tokens):
            yield Batch(part)
            part = []
        part.append(group)
    if part:
        yield Batch(part)


@dataclass
class Group:
    """Rows that begin with the same tokens; in a batch of whole rows, all of them."""

    rows: list[int]
    n_shared: int
    """Number of first tokens that all rows share and that are read once; 0 for whole rows."""


@dataclass(frozen=True)
class Batch:
    """Whole rows in one group, or groups of rows whose beginnings are read once per group."""

    groups: Sequence[Group]

    @property
    def rows(self) -> Sequence[int]:
        """Row numbers, in the order of the hidden states."""
        return [i for group in self.groups for i in group.rows]

    def hidden(self, model: Decoder, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Return the states that predict the last tokens, (n, d_model), row after row. rows: of all batches.

        Beginnings are padded on the left, rests and whole rows on the right, where no prediction attends to it.
        """
        rests = [torch.tensor(rows[i].tokens[group.n_shared : -1]) for group in self.groups for i in group.rows]
        following = pad_sequence(rests, batch_first=True).to(device)
        if self.groups[0].n_shared:
            beginnings = [rows[group.rows[0]].tokens[: group.n_shared] for group in self.groups]
            tokens, is_real_beginning = pad_left(beginnings, device)
            cache = model.new_cache(len(beginnings), tokens.shape[1])
            model.stream(tokens, cache, _unless_equal(beginnings, is_real_beginning))
            counts = torch.tensor([len(group.rows) for group in self.groups], device=device)
            repeated = cache.repeated(counts, cache.length + following.shape[1])
            lengths = torch.tensor(list(map(len, rests)), device=device)
            is_real = torch.arange(following.shape[1], device=device) < lengths[:, None]
            hidden = model.hidden(following, repeated, _unless_equal(rests, is_real))
        else:
            hidden = model.hidden(following)
        counted = [states[: len(rest)][-rows[i].n_predicted :] for states, rest, i in zip(hidden, rests, self.rows)]
        return torch.cat(counted)


def _groups(rows: Sequence[Row], most_rows: int, most_tokens: int) -> list[Group]:
    """Group adjacent rows that share enough tokens, at most most_rows with about most_tokens in all."""
    groups: list[Group] = []
    for i, row in enumerate(rows):
        n_rows = min(most_rows, most_tokens // row.n_read)
        last = groups[-1] if groups and len(groups[-1].rows) < n_rows else None
        n_shared = 0
        if last is not None:
            first = rows[last.rows[0]].tokens
            n_shared = min(last.n_shared, row.n_before)
            if first[:n_shared] != row.tokens[:n_shared]:
                n_shared = next(i for i in range(n_shared) if first[i] != row.tokens[i])
        if last is not None and n_shared >= LEAST_SHARE * max(last.n_shared, row.n_before):
            last.rows.append(i)
            last.n_shared = n_shared
        else:
            groups.append(Group([i], row.n_before))
    return groups


def _unless_equal(rows: Sequence[Sized], is_real: Tensor) -> Tensor | None:
    """Return None if all rows are equally long and need no padding."""
    return None if len(set(map(len, rows))) == 1 else is_real
