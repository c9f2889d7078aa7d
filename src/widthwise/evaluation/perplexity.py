"""Perplexity of texts, per token, byte, character and word of the original text.

word_perplexity, byte_perplexity and bits_per_byte are defined as in the task `wikitext` of lm-evaluation-harness:
normalised by the words that whitespace separates and by the UTF-8 bytes of the text, for any tokenizer.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from widthwise.evaluation.estimate import ratio, scores
from widthwise.evaluation.scorer import Scorer
from widthwise.mistakes import UserError
from widthwise.records.evaluation import TextScores

BLOCK_BYTES = 4096
"""Size of the blocks of a document over which scores are summed. Blocks are the observations of standard errors, and
are paired if two models read the same text, also with different tokenizers or contexts."""

COUNTED = ("n_tokens", "n_bytes", "n_characters", "n_words")

Document = tuple[str, np.ndarray]
"""The text of a document, and the sums over its blocks; see `_block_sums`."""


def _block_sums(text: str, n_bytes: int, token_bytes: np.ndarray, nats: np.ndarray) -> np.ndarray:
    """Return the sums over each block, (5, n_blocks): nats, then COUNTED.

    Tokens, characters and words count in the block in which they start, words with the whitespace before them.
    n_bytes: size of the original text, estimated if unknown; token_bytes, nats: of each token, (n_tokens,).
    """
    n_blocks = max(1, math.ceil(n_bytes / BLOCK_BYTES))
    data = np.frombuffer(text.encode(), np.uint8)
    character_starts = np.flatnonzero((data & 0xC0) != 0x80)
    # As many words as `re.split` returns parts, including empty ones at the ends: one at 0, and one at each whitespace.
    word_starts = [0] if text else []
    word_starts += [int(character_starts[match.start()]) for match in re.finditer(r"\s+", text)]
    token_starts = np.cumsum(token_bytes) - token_bytes
    token_starts = token_starts * (n_bytes / max(1, token_bytes.sum()))
    sizes = np.full(n_blocks, BLOCK_BYTES)
    sizes[-1] = n_bytes - BLOCK_BYTES * (n_blocks - 1)

    def per_block(starts: Sequence[int] | np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        index = np.minimum(np.asarray(starts, dtype=np.int64) // BLOCK_BYTES, n_blocks - 1)
        return np.bincount(index, weights, minlength=n_blocks)

    counts = per_block(token_starts), sizes, per_block(character_starts), per_block(word_starts)
    return np.stack([per_block(token_starts, nats), *counts]).astype(np.float64)


def score_documents(
    scorer: Scorer, texts: Iterable[str], stride: int | None = None, max_tokens: int | None = None, where: str = "text"
) -> TextScores:
    """Score each text separately, after an end-of-text token that is not predicted, as in lm-evaluation-harness.

    stride: as in `Scorer.rolling`; max_tokens: limit for all texts together, at which the last one is cut; where: name
    of the texts in errors. Raises UserError if there is nothing to predict.
    """
    lengths = scorer.tokenizer.token_byte_lengths()
    inputs: list[tuple[str, int, list[int]]] = []
    n_left = math.inf if max_tokens is None else max_tokens
    for text in texts:
        ids = scorer.tokenizer.encode(text)
        n_bytes = len(text.encode())
        if len(ids) > n_left:
            cut_ids = ids[: int(n_left)]
            n_bytes = round(n_bytes * lengths[cut_ids].sum() / max(1, lengths[ids].sum()))
            text = scorer.tokenizer.decode(cut_ids)
            ids = cut_ids
        if ids:
            inputs.append((text, n_bytes, ids))
        n_left -= len(ids)
        if n_left <= 0:
            break
    losses = scorer.rolling([ids for _, _, ids in inputs], stride)
    documents = ((text, _block_sums(text, n, lengths[ids], nats)) for (text, n, ids), nats in zip(inputs, losses))
    return _text_scores(documents, where)


def score_stream(
    scorer: Scorer,
    tokens: np.ndarray,
    stride: int | None = None,
    where: str = "text",
    bytes_per_token_byte: float = 1.0,
) -> TextScores:
    """Score concatenated documents, each with its end-of-text token, as in training: a window may hold several.

    tokens: integers (n,), the first of which is not predicted; stride: as in `Scorer.rolling`, whose default gives the
    windows of a validation; where: name of the stream in errors; bytes_per_token_byte: bytes of the original text per
    byte of its decoded tokens. An end-of-text token is predicted and has no bytes. Raises UserError if there is nothing
    to predict.
    """
    nats = np.zeros(0)
    if len(tokens):
        (nats,) = scorer.rolling([tokens[1:].tolist()], stride, prefix=int(tokens[0]))
    return _text_scores(_documents(scorer, tokens[1:], nats, bytes_per_token_byte), where)


def _documents(scorer: Scorer, tokens: np.ndarray, nats: np.ndarray, bytes_per_token_byte: float) -> Iterator[Document]:
    """Split a stream after each end-of-text token, and yield its documents."""
    lengths = scorer.tokenizer.token_byte_lengths()
    ends = np.flatnonzero(tokens == scorer.tokenizer.eos_id) + 1
    n_token_bytes = n_bytes = 0
    for ids, document_nats in zip(np.split(tokens, ends), np.split(nats, ends)):
        if len(ids):
            n_token_bytes += int(lengths[ids].sum())
            n_bytes_before = n_bytes
            n_bytes = round(n_token_bytes * bytes_per_token_byte)  # of all documents, so that errors do not add up
            text = scorer.tokenizer.decode(ids.tolist())
            yield text, _block_sums(text, n_bytes - n_bytes_before, lengths[ids], document_nats)


def _text_scores(documents: Iterable[Document], where: str) -> TextScores:
    """Return the metrics of all documents together; each block is one observation."""
    parts = []
    digest = hashlib.sha256()
    for text, blocks in documents:
        parts.append(blocks)
        digest.update(hashlib.sha256(text.encode()).digest())
    if not parts:
        raise UserError(f"{where}: holds no token to predict")
    nats, *counts = np.concatenate(parts, axis=1)
    by_token, by_byte, by_character, by_word = (ratio(nats, count) for count in counts)
    metrics = {
        "nats_per_token": by_token,
        "token_perplexity": by_token.exponential(),
        "bits_per_byte": by_byte.scaled(1 / math.log(2)),
        "byte_perplexity": by_byte.exponential(),
        "nats_per_character": by_character,
        "word_perplexity": by_word.exponential(),
    }
    return TextScores(
        n_documents=len(parts),
        n_blocks=len(nats),
        **{name: int(count.sum()) for name, count in zip(COUNTED, counts)},
        metrics=scores(metrics),
        fingerprint=digest.hexdigest(),
        blocks={name: values.tolist() for name, values in zip(("nats", *COUNTED), (nats, *counts))},
    )
