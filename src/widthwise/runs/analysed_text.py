"""The text of an analysis: the same for every model, each with its own tokenizer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.documents import Corpus, Document
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.prepared import PreparedData
from widthwise.data.shards import TokenFile, write_tokens
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import reading, writing

SPARE_TOKENS = 16
TORN = "\N{REPLACEMENT CHARACTER}"
"""The replacement character, to which a tokenizer decodes half a character."""


def held_out_text(data: OpenedData) -> Corpus:
    """The held-out documents of prepared data, decoded from their tokens.

    Those of a mixture come in the proportions of its tokens, as nearly as whole documents can, and end where a source
    has none left.
    """
    if isinstance(data, MixedData):
        names = ", ".join(source.manifest.corpus.name for source in data.sources.values())
        return Corpus(f"held-out documents of {names}", partial(_mixed_documents, data))
    return Corpus(f"held-out documents of {data.manifest.corpus.name}", partial(_held_out_documents, data))


def _held_out_documents(data: PreparedData) -> Iterator[Document]:
    tokens, tokenizer = data.held_out, data.tokenizer
    for index in range(tokens.n_documents):
        ids = tokens.document(index).tolist()
        yield Document(str(index), tokenizer.decode(ids[:-1] if ids[-1:] == [tokenizer.eos_id] else ids))


def _mixed_documents(data: MixedData) -> Iterator[Document]:
    """The next document is always of the source that lacks most of its share."""
    documents = {name: _held_out_documents(source) for name, source in data.sources.items()}
    n_read = dict.fromkeys(data.sources, 0)

    def tokens_over_weight(name: str) -> Fraction:
        n_tokens = data.sources[name].held_out.document_starts[n_read[name]]
        return Fraction(int(n_tokens), data.weights[name])

    while True:
        name = min(n_read, key=tokens_over_weight)
        document = next(documents[name], None)
        if document is None:
            return
        n_read[name] += 1
        yield document


@dataclass(frozen=True)
class Excerpt:
    """The front of a text, in a file, so that it is cut once and not held in memory."""

    source: str
    path: Path

    def tokens(self, tokenizer: Tokenizer, prefix: Path) -> TokenFile:
        """Tokenises the excerpt into `prefix.bin` and `prefix.idx`; the end of a document is a token, a cut is not."""
        with reading(self.path), open(self.path, encoding="utf-8") as file:
            documents = map(json.loads, file)
            tokens = (tokenizer.encode(each["text"]) + [tokenizer.eos_id] * each["is_whole"] for each in documents)
            return write_tokens(prefix, tokenizer.vocab_size, tokens)


def excerpt(text: Corpus, tokenizer: Tokenizer, n_tokens: int, path: Path) -> Excerpt:
    """Writes the front of a text that holds n_tokens tokens and some more, or all of it.

    The last document is cut, in the middle of a word perhaps, which is why there are some more. UserError where there
    is no text.
    """
    left = n_tokens = n_tokens + SPARE_TOKENS
    with writing(path), open(path, "x", encoding="utf-8") as file:
        for document in text:
            ids = tokenizer.encode(document.text)
            is_whole = len(ids) < left
            shown = document.text if is_whole else tokenizer.decode(ids[:left]).rstrip(TORN)
            file.write(json.dumps({"text": shown, "is_whole": is_whole}) + "\n")
            left -= len(ids) + 1
            if left <= 0:
                break
    if left == n_tokens:
        raise UserError(f"{text.name}: holds no text")
    return Excerpt(text.name, path)
