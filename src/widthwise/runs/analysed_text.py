"""The text of an analysis: the same for every model, which reads it with its tokenizer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

from widthwise.data.documents import Corpus, Document
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.prepared import PreparedData
from widthwise.data.shards import TokenFile, write_tokens
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import reading, writing
from widthwise.mistakes import UserError

SPARE_TOKENS = 16
TORN = "\N{REPLACEMENT CHARACTER}"
"""The replacement character, to which a tokenizer decodes part of a character."""


def held_out_text(data: OpenedData) -> Corpus:
    """Return the held-out documents of prepared data, decoded from their tokens.

    Documents of a mixture come in the proportions of its tokens, as closely as whole documents can, and end when the
    next source has no document left.
    """
    if isinstance(data, MixedData):
        names = ", ".join(source.manifest.corpus.name for source in data.sources.values())
        return Corpus(f"held-out documents of {names}", partial(_mixed_documents, data))
    return Corpus(f"held-out documents of {data.manifest.corpus.name}", partial(_held_out_documents, data))


def _held_out_documents(data: PreparedData) -> Iterator[Document]:
    tokenizer = data.tokenizer
    for index in range(data.held_out.n_documents):
        ids = data.held_out.document(index).tolist()
        yield Document(str(index), tokenizer.decode(ids[:-1] if ids[-1:] == [tokenizer.eos_id] else ids))


def _mixed_documents(data: MixedData) -> Iterator[Document]:
    """Yield the next document of the source with the fewest tokens over its weight."""
    documents = {name: _held_out_documents(source) for name, source in data.sources.items()}
    n_read = dict.fromkeys(data.sources, 0)
    tokens_over_weight = dict.fromkeys(data.sources, Fraction(0))
    while True:
        name = min(n_read, key=tokens_over_weight.__getitem__)
        document = next(documents[name], None)
        if document is None:
            return
        n_read[name] += 1
        n_tokens = int(data.sources[name].held_out.document_starts[n_read[name]])
        tokens_over_weight[name] = Fraction(n_tokens, data.weights[name])
        yield document


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a text, stored in a file, so that it is cut once and not held in memory."""

    source: str
    path: Path

    def tokens(self, tokenizer: Tokenizer, prefix: Path) -> TokenFile:
        """Tokenise the excerpt into `prefix.bin` and `prefix.idx`, with an end-of-text token after whole documents."""
        with reading(self.path), open(self.path, encoding="utf-8") as file:
            tokens = (
                tokenizer.encode(document["text"]) + ([tokenizer.eos_id] if document["is_whole"] else [])
                for document in map(json.loads, file)
            )
            return write_tokens(prefix, tokenizer.vocab_size, tokens)


def excerpt(text: Corpus, tokenizer: Tokenizer, n_tokens: int, path: Path) -> Excerpt:
    """Write the beginning of a text, of n_tokens tokens and SPARE_TOKENS, or all of it.

    The spare tokens allow for a last document that is cut within a word. Raises UserError for an empty text.
    """
    n_left = n_tokens = n_tokens + SPARE_TOKENS
    with writing(path), open(path, "x", encoding="utf-8") as file:
        for document in text:
            ids = tokenizer.encode(document.text)
            is_whole = len(ids) < n_left
            shown = document.text if is_whole else tokenizer.decode(ids[:n_left]).rstrip(TORN)
            file.write(json.dumps({"text": shown, "is_whole": is_whole}) + "\n")
            n_left -= len(ids) + 1
            if n_left <= 0:
                break
    if n_left == n_tokens:
        raise UserError(f"{text.name}: holds no text")
    return Excerpt(text.name, path)
