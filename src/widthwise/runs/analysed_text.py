"""The text of an analysis: the same for every model, each with its own tokenizer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError
from widthwise.data.documents import Corpus, Document
from widthwise.data.prepared import PreparedData
from widthwise.data.shards import ShardWriter, TokenFile, token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import reading, writing

SPARE_TOKENS = 16
TORN = "\N{REPLACEMENT CHARACTER}"
"""The replacement character, to which a tokenizer decodes half a character."""


def held_out_text(data: PreparedData, name: str) -> Corpus:
    """The held-out documents of prepared data, decoded from their tokens."""

    def read() -> Iterator[Document]:
        tokens, tokenizer = data.held_out, data.tokenizer
        for index in range(tokens.n_documents):
            ids = tokens.document(index).tolist()
            yield Document(str(index), tokenizer.decode(ids[:-1] if ids[-1:] == [tokenizer.eos_id] else ids))

    return Corpus(name, read)


@dataclass(frozen=True)
class Excerpt:
    """The front of a text, in a file of its own, so that it is cut once and not held in memory."""

    source: str
    path: Path

    def tokens(self, tokenizer: Tokenizer, prefix: Path) -> TokenFile:
        """Tokenises the excerpt into `prefix.bin` and `prefix.idx`; the end of a document is a token, a cut is not."""
        dtype = token_dtype(tokenizer.vocab_size)
        with ShardWriter(prefix, dtype) as writer, reading(self.path), open(self.path, encoding="utf-8") as file:
            for line in file:
                document = json.loads(line)
                ids = tokenizer.encode(document["text"]) + [tokenizer.eos_id] * document["is_whole"]
                writer.add(np.array(ids, dtype=dtype), np.array([len(ids)]))
        return TokenFile(prefix)


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
