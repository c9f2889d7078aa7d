"""The excerpt that every model of an analysis reads."""

from pathlib import Path

import pytest

from widthwise.data.config import DataConfig, open_data
from widthwise.data.documents import Corpus, Document
from widthwise.data.json_tokenizer import train_bpe
from widthwise.data.shards import TokenFile
from widthwise.data.tokenizer import ByteTokenizer, Tokenizer
from widthwise.runs.analysed_text import SPARE_TOKENS, excerpt, held_out_text

TEXTS = ("naïve façade " * 7, "", "eight wide layers, one narrow\n" * 9, "never reached")


def corpus(*texts: str) -> Corpus:
    return Corpus("mine", lambda: (Document(str(i), text) for i, text in enumerate(texts)))


def documents(tokens: TokenFile, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(tokens.document(i).tolist()) for i in range(tokens.n_documents)]


@pytest.mark.parametrize("n_tokens", [1, 97, 98, 10_000])
def test_two_tokenizers_read_the_same_front_of_the_text(tmp_path: Path, n_tokens: int) -> None:
    coarse, fine = train_bpe(iter(TEXTS), 270), ByteTokenizer()
    found = excerpt(corpus(*TEXTS), coarse, n_tokens, tmp_path / "text.jsonl")
    own, other = found.tokens(coarse, tmp_path / "own"), found.tokens(fine, tmp_path / "other")
    shown = documents(other, fine)
    assert documents(own, coarse) == shown
    assert "".join(TEXTS).startswith("".join(shown))
    n_all = sum(len(coarse.encode(text)) + 1 for text in TEXTS)
    assert min(n_tokens, n_all) <= own.n_tokens <= min(n_tokens + SPARE_TOKENS, n_all)
    # Every document but the one that is cut ends with the end of text, which stands nowhere else.
    *ended, last = [other.document(i).tolist() for i in range(other.n_documents)]
    assert all(ids.index(fine.eos_id) == len(ids) - 1 for ids in ended)
    assert (fine.eos_id in last) == (shown[-1] == TEXTS[len(ended)])
    assert own.n_tokens < n_all or shown == list(TEXTS)


def test_held_out_documents_become_the_tokens_they_were(tmp_path: Path) -> None:
    data = open_data(DataConfig(corpus="synthetic", tokenizer="bpe-280"))
    n_tokens = int(data.held_out.document_starts[3]) - SPARE_TOKENS
    found = excerpt(held_out_text(data), data.tokenizer, n_tokens, tmp_path / "text.jsonl")
    tokens = found.tokens(data.tokenizer, tmp_path / "own")
    assert tokens.n_tokens >= n_tokens
    assert tokens.tokens(0, n_tokens).tolist() == data.held_out.tokens(0, n_tokens).tolist()
