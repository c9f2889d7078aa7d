"""The models that are evaluated, and rows of tokens in forward passes that read a shared beginning once.

The choices of a question have its text in common: it goes through the model once, and its keys and values serve every
choice. So do examples before several questions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from widthwise.model.decoder import Decoder
from widthwise.model.generate import pad_left

LEAST_SAVED = 0.25
"""Share of the tokens of its rows that a separate pass for a beginning must save."""
LEAST_SHARE = 0.75
"""Share of the tokens that each row reads before its first prediction, from which on a beginning is shared."""
CACHE_BYTES = 2**30
"""Most keys and values of a pass over rows with shared beginnings."""
TOLERANCE = 1e-3
"""Difference of the logits, relative to the largest, up to which the head alone makes them."""


class Positions(NamedTuple):
    """Longest text that a model was made for, in tokens."""

    n_positions: int


class HFModel(nn.Module):
    """A causal language model of transformers, called as a Decoder is: hidden states first, then logits of some.

    Logits of a long text at once may not fit into memory. Where the head alone does not make the logits, as in models
    that scale or cap them, they stand for hidden states.
    """

    def __init__(self, model: Any, n_positions: int | None):
        """model: a `PreTrainedModel` for causal language modelling."""
        super().__init__()
        self.model = model
        self.config = model.config.get_text_config()
        self.positions = None if n_positions is None else Positions(n_positions)
        tokens = torch.arange(2, device=self.embedding.weight.device)[None]
        with torch.no_grad():
            expected = model(tokens, use_cache=False).logits
            hidden = model.base_model(tokens, use_cache=False).last_hidden_state
            difference = (model.get_output_embeddings()(hidden) - expected).abs().max()
        self._has_plain_head = bool(difference <= TOLERANCE * expected.abs().max())

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.get_input_embeddings()

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens: integers (B, T) -> (B, T, d_model), or logits (B, T, vocab_size)."""
        if self._has_plain_head:
            return self.model.base_model(tokens, use_cache=False).last_hidden_state
        return self.model(tokens, use_cache=False).logits

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: result of `hidden` -> (..., vocab_size)."""
        return self.model.get_output_embeddings()(hidden) if self._has_plain_head else hidden


class Row(NamedTuple):
    """Tokens of one forward pass, and the number of the last ones that are predicted."""

    tokens: list[int]
    n_predicted: int

    @property
    def n_read(self) -> int:
        return len(self.tokens) - 1

    @property
    def n_before(self) -> int:
        """Tokens that are read and predict nothing that counts."""
        return self.n_read - self.n_predicted


def batches(model: Decoder | HFModel, rows: Sequence[Row], batch_size: int) -> "Iterator[WholeRows | SharedBeginnings]":
    """Yield batches of at most batch_size rows, each row in one; models of transformers share no beginnings.

    The longest come first, so that a lack of memory shows at once and a batch holds texts of about one length.
    """
    most_tokens = CACHE_BYTES // max(1, model.new_cache(1, 1).n_bytes) if isinstance(model, Decoder) else 0
    groups = _alike(rows, batch_size, most_tokens)
    worthy = []
    for group in groups:
        n_saved = (len(group.rows) - 1) * group.n_shared  # tokens that are not read again
        if n_saved >= LEAST_SAVED * sum(rows[i].n_read for i in group.rows):
            worthy.append(group)
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
    """Rows that are each read from the beginning."""

    rows: Sequence[int]
    """Row numbers, in the order of the hidden states."""

    def hidden(self, model: Decoder | HFModel, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Return the states that predict the counted tokens, (n, d_model), row after row. rows: of all batches.

        Padding is on the right, where no counted token attends to it.
        """
        own = [rows[i] for i in self.rows]
        inputs, _ = _pad_right([row.tokens[:-1] for row in own], device)
        hidden = model.hidden(inputs)
        return torch.cat([states[row.n_before : row.n_read] for states, row in zip(hidden, own)])


@dataclass
class _Group:
    """Neighbouring rows that begin with the same tokens."""

    rows: list[int]
    n_shared: int
    """Number of first tokens that all of them share."""


@dataclass(frozen=True)
class SharedBeginnings:
    """Groups of rows whose beginnings are read once per group."""

    groups: Sequence[_Group]

    @property
    def rows(self) -> Sequence[int]:
        return [i for group in self.groups for i in group.rows]

    def hidden(self, model: Decoder | HFModel, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Return the same for a pass over the beginnings, padded on the left, and one over the rests of all rows."""
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
    """Group neighbours that share enough, at most most_rows of them with about most_tokens in all."""
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
    """Return tokens (B, T) padded on the right, and bool (B, T), True on real ones."""
    tokens = pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True)
    is_real = torch.arange(tokens.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    return tokens.to(device), is_real.to(device)


def _unless_equal(rows: Sequence[Sequence[int]], is_real: Tensor) -> Tensor | None:
    """Return None if rows are equally long, so that nothing is padding."""
    return None if len(set(map(len, rows))) == 1 else is_real
