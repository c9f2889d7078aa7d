"""Log-likelihoods of continuations, and of every token of a document.

Requests, truncation and windows follow lm-evaluation-harness (`lm_eval.models.huggingface.HFLM` and
`lm_eval.utils.get_rolling_token_windows`, Gao et al. 2024), so that numbers are comparable with published ones.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.batches import Batch, Row, batches
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder
from widthwise.model.execution import evaluating

LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**28}
"""Device type -> largest number of logits computed at once; 2**24 on other devices."""
BATCHES_AT_ONCE = 64
"""Number of batches for which windows are cut at a time: with a short stride a long text has many windows."""

Request = tuple[Sequence[int], Sequence[int]]
"""The token ids of a context and of its continuation."""


class Continuation(NamedTuple):
    """The likelihood of a continuation."""

    nats: np.ndarray
    """Negative log-likelihood of each token in nats, float64 (n_tokens,)."""
    is_greedy: bool
    """True if greedy decoding would produce all its tokens."""

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood of the whole continuation given its context, in nats."""
        return -float(self.nats.sum())


class Scorer:
    """Scorer of texts: a model, its tokenizer and the settings of its forward passes."""

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        max_length: int,
        batch_size: int = 16,
        autocast_dtype: torch.dtype | None = None,
    ):
        """Raise UserError if the model has fewer learned positions than max_length.

        max_length: most tokens that the model reads before a prediction; batch_size: sequences per forward pass;
        autocast_dtype: dtype of matrix products, None for the dtype of the weights.
        """
        positions = model.config.positions
        if positions is not None and max_length > positions.n_positions:
            raise UserError(
                f"max_length: got {max_length}; the model reads no more than {positions.n_positions} tokens"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.batch_size = batch_size
        self.autocast_dtype = autocast_dtype
        self.on_progress: Callable[[int, int], object] = lambda n_done, n_total: None
        """Called after each forward pass with the numbers of predicted tokens and of all tokens to predict."""

    def rolling(
        self, documents: Sequence[Sequence[int]], stride: int | None = None, prefix: int | None = None
    ) -> list[np.ndarray]:
        """Return the negative log-likelihood of every token of each document, in nats, float64 (n_tokens,).

        stride: tokens predicted by a window, from 1 (longest contexts, highest cost) to max_length (default, as in
        lm-eval: windows do not overlap); lm-eval's `context_len` is max_length - stride + 1. prefix: the token before
        each document, by default `bos_id` or else the end-of-text token.
        """
        prefix = self.tokenizer.encode_prompt("")[0] if prefix is None else prefix
        stride = self.max_length if stride is None else stride
        n_total = sum(map(len, documents))
        requests = (
            (index, request)
            for index, document in enumerate(documents)
            for request in windows(document, prefix, self.max_length, stride)
        )
        nats_of = [[np.zeros(0)] for _ in documents]  # an empty document has no requests
        n_done = 0
        while part := list(islice(requests, BATCHES_AT_ONCE * self.batch_size)):
            continuations = self.continuations([request for _, request in part], n_done, n_total)
            for (index, _), continuation in zip(part, continuations):
                nats_of[index].append(continuation.nats)
                n_done += len(continuation.nats)
        return [np.concatenate(pieces) for pieces in nats_of]

    def continuations(
        self, requests: Sequence[Request], n_before: int = 0, n_total: int | None = None
    ) -> list[Continuation]:
        """Return the likelihood of each continuation, in the order of the requests.

        An empty context means the beginning of a document: `bos_id`, or else the end-of-text token. A long request is
        cut at the left to max_length + 1 tokens; if the tokenizer has a `bos_id`, it is always the first of them. A
        prefix shared by adjacent requests, such as the choices of a question, is read once. n_before, n_total: numbers
        of tokens predicted by earlier calls and by all calls, for `on_progress`.

        Raises UserError for an empty continuation and for one that is longer than max_length.
        """
        bos_id = self.tokenizer.bos_id
        rows = []
        for context, continuation in requests:
            if not 1 <= len(continuation) <= self.max_length:
                raise UserError(
                    f"continuation: has {len(continuation)} tokens; allowed: 1 to max_length = {self.max_length}"
                )
            context = context or self.tokenizer.encode_prompt("")
            tokens = [*context, *continuation][-(self.max_length + 1) :]
            if bos_id is not None and tokens[0] != bos_id:
                tokens = [bos_id, *tokens[-self.max_length :]]
            rows.append(Row(tokens, len(continuation)))
        n_total = sum(row.n_predicted for row in rows) if n_total is None else n_total
        n_done = n_before
        continuations: dict[int, Continuation] = {}
        with evaluating(self.model) as device:
            for batch in batches(self.model, rows, self.batch_size):
                continuations.update(zip(batch.rows, self._score(batch, rows, device)))
                n_done += sum(rows[index].n_predicted for index in batch.rows)
                self.on_progress(n_done, n_total)
        return [continuations[index] for index in range(len(rows))]

    def _score(self, batch: Batch, rows: Sequence[Row], device: torch.device) -> list[Continuation]:
        """Return the likelihoods of the rows of the batch. rows: of all batches."""
        scored = [rows[index] for index in batch.rows]
        targets = torch.tensor([token for row in scored for token in row.tokens[-row.n_predicted :]], device=device)
        chunk_size = max(1, LOGITS_AT_ONCE.get(device.type, 2**24) // self.model.config.vocab_size)
        nats = []
        is_greedy = []
        with torch.autocast(device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None):
            hidden = batch.hidden(self.model, rows, device)
            for states, target in zip(hidden.split(chunk_size), targets.split(chunk_size)):
                logits = self.model.logits(states)
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
                nats.append(-logits.log_softmax(dim=-1).gather(1, target[:, None])[:, 0])
                is_greedy.append(logits.argmax(dim=-1) == target)
        ends = np.cumsum([row.n_predicted for row in scored])[:-1]
        nats_by_row = np.split(torch.cat(nats).double().cpu().numpy(), ends)
        greedy_by_row = np.split(torch.cat(is_greedy).cpu().numpy(), ends)
        return [Continuation(nats, bool(greedy.all())) for nats, greedy in zip(nats_by_row, greedy_by_row)]


def windows(tokens: Sequence[int], prefix: int, max_length: int, stride: int) -> Iterator[Request]:
    """Cut a document into requests that predict every token once, with as much context as fits.

    The first window predicts max_length tokens. Later windows read max_length tokens and predict `stride` tokens; the
    last window may predict fewer. Raises UserError for a stride that is not from 1 to max_length.
    """
    if not 1 <= stride <= max_length:
        raise UserError(f"stride: got {stride}; must be from 1 to max_length = {max_length}")
    document = [prefix, *tokens]
    n_done = 0
    while n_done < len(tokens):
        end = min(n_done + (stride if n_done else max_length), len(tokens))
        yield document[max(0, end - max_length) : n_done + 1], document[n_done + 1 : end + 1]
        n_done = end


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Request]:
    """Encode contexts and continuations as `lm_eval.api.model.TemplateLM._encode_pair` does.

    Spaces at the end of a context move to the continuation, because tokens begin with their space. If the context has n
    tokens, the continuation has the tokens of the whole text after the first n.
    """
    wholes = tokenizer.encode_batch([context + continuation for context, continuation in pairs])
    contexts = tokenizer.encode_batch([context.rstrip() for context, _ in pairs])
    return [(context, whole[len(context) :]) for whole, context in zip(wholes, contexts)]
