"""Perplexity of texts, per token, byte, character and word of the text as it was written.

word_perplexity, byte_perplexity and bits_per_byte are defined as in the task `wikitext` of lm-evaluation-harness:
normalised by the words that whitespace separates and by the UTF-8 bytes of the text, for any tokenizer.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from widthwise.config_io import UserError
from widthwise.evaluation.estimate import ratio, scores
from widthwise.evaluation.scorer import Scorer
from widthwise.records.evaluation import TextAnswers

BLOCK_BYTES = 4096
"""Size of the blocks of a document that scores are summed over: the units of standard errors, and of pairs if two
models read the same text, with other tokenizers or contexts too."""

COUNTED = ("n_tokens", "n_bytes", "n_characters", "n_words")


@dataclass(frozen=True)
class _ScoredDocument:
    """A document and the nats of each of its tokens."""

    text: str
    n_bytes: int
    """Bytes of the text as it was written, estimated where that is unknown."""
    token_bytes: np.ndarray
    """Bytes of its decoded tokens."""
    nats: np.ndarray

    def blocks(self) -> np.ndarray:
        """Return (5, n_blocks): nats, then COUNTED; tokens, characters and words belong to the block they begin in."""
        n_blocks = max(1, math.ceil(self.n_bytes / BLOCK_BYTES))
        data = np.frombuffer(self.text.encode(), np.uint8)
        character_starts = np.flatnonzero((data & 0xC0) != 0x80)
        breaks = [0] if self.text else []  # as many words as `re.split` finds, which counts the ends
        breaks += [int(character_starts[found.start()]) for found in re.finditer(r"\s+", self.text)]
        token_starts = np.cumsum(self.token_bytes) - self.token_bytes
        token_starts = token_starts * (self.n_bytes / max(1, self.token_bytes.sum()))
        sizes = np.full(n_blocks, BLOCK_BYTES)
        sizes[-1] = self.n_bytes - BLOCK_BYTES * (n_blocks - 1)

        def summed(starts: Sequence[int] | np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
            index = np.minimum(np.asarray(starts, dtype=np.int64) // BLOCK_BYTES, n_blocks - 1)
            return np.bincount(index, weights, minlength=n_blocks)

        counts = summed(token_starts), sizes, summed(character_starts), summed(breaks)
        return np.stack([summed(token_starts, self.nats), *counts]).astype(np.float64)


def score_documents(
    scorer: Scorer, texts: Iterable[str], stride: int | None = None, max_tokens: int | None = None, where: str = "text"
) -> TextAnswers:
    """Score each text separately, after an end-of-text token that is not predicted, as lm-evaluation-harness does.

    stride: as in `Scorer.rolling`; max_tokens: of all texts together, the one that crosses it is cut; where: names the
    texts in errors. Raises UserError if there is nothing to predict.
    """
    lengths = scorer.tokenizer.token_byte_lengths()
    kept: list[tuple[str, int, list[int]]] = []
    room = math.inf if max_tokens is None else max_tokens
    for text in texts:
        ids = scorer.tokenizer.encode(text)
        n_bytes = len(text.encode())
        if len(ids) > room:
            cut_ids = ids[: int(room)]
            n_bytes = round(n_bytes * lengths[cut_ids].sum() / max(1, lengths[ids].sum()))
            text, ids = scorer.tokenizer.decode(cut_ids), cut_ids
        if ids:
            kept.append((text, n_bytes, ids))
        room -= len(ids)
        if room <= 0:
            break
    nats = scorer.rolling([ids for *_, ids in kept], stride)
    scored = (_ScoredDocument(text, n_bytes, lengths[ids], each) for (text, n_bytes, ids), each in zip(kept, nats))
    return _summed(scored, where)


def score_stream(
    scorer: Scorer,
    tokens: np.ndarray,
    stride: int | None = None,
    where: str = "text",
    bytes_per_token_byte: float = 1.0,
) -> TextAnswers:
    """Score documents laid end to end, each with its end-of-text token, as in training: a window may hold several.

    tokens: integers (n,), the first of which is not predicted; stride: default: windows as in a validation; where:
    names the stream in errors; bytes_per_token_byte: of the text, by which the bytes of the decoded tokens are scaled.
    An end-of-text token is predicted and has no bytes. Raises UserError if there is nothing to predict.
    """
    (nats,) = scorer.rolling([tokens[1:].tolist()], stride, prefix=int(tokens[0])) if len(tokens) else [np.zeros(0)]
    return _summed(_documents(scorer, tokens[1:], nats, bytes_per_token_byte), where)


def _documents(
    scorer: Scorer, tokens: np.ndarray, nats: np.ndarray, bytes_per_token_byte: float
) -> Iterator[_ScoredDocument]:
    """Cut a stream after its end-of-text tokens."""
    lengths = scorer.tokenizer.token_byte_lengths()
    ends = np.flatnonzero(tokens == scorer.tokenizer.eos_id) + 1
    n_token_bytes = n_bytes = 0
    for ids, document_nats in zip(np.split(tokens, ends), np.split(nats, ends)):
        if len(ids):
            n_token_bytes += int(lengths[ids].sum())
            n_bytes_before, n_bytes = n_bytes, round(n_token_bytes * bytes_per_token_byte)  # errors do not add up
            text = scorer.tokenizer.decode(ids.tolist())
            yield _ScoredDocument(text, n_bytes - n_bytes_before, lengths[ids], document_nats)


def _summed(documents: Iterable[_ScoredDocument], where: str) -> TextAnswers:
    """Return the metrics of a text, each block being one observation."""
    parts, digest = [], hashlib.sha256()
    for document in documents:
        parts.append(document.blocks())
        digest.update(hashlib.sha256(document.text.encode()).digest())
    if not parts:
        raise UserError(f"{where}: holds no token to predict")
    nats, *counts = np.concatenate(parts, axis=1)
    by_token, by_byte, by_character, by_word = (ratio(nats, each) for each in counts)
    metrics = {
        "nats_per_token": by_token,
        "token_perplexity": by_token.exponential(),
        "bits_per_byte": by_byte.scaled(1 / math.log(2)),
        "byte_perplexity": by_byte.exponential(),
        "nats_per_character": by_character,
        "word_perplexity": by_word.exponential(),
    }
    return TextAnswers(
        n_documents=len(parts),
        n_blocks=len(nats),
        **{name: int(each.sum()) for name, each in zip(COUNTED, counts)},
        metrics=scores(metrics),
        fingerprint=digest.hexdigest(),
        blocks={name: each.tolist() for name, each in zip(("nats", *COUNTED), (nats, *counts))},
    )
