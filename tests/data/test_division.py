import hashlib

import pytest

from widthwise.config_io import UserError
from widthwise.data.division import Apart, ByFraction
from widthwise.data.documents import Corpus, Document, scan, train_texts


def corpus_of(name: str, texts: list[str]) -> Corpus:
    return Corpus(name, lambda: (Document(f"{name}/{index}", text) for index, text in enumerate(texts)))


BOOKS = corpus_of("books", ["one", "two", "three", "two", ""])
HELD_OUT = [corpus_of("a", ["two", "kept"]), corpus_of("b", ["kept", "", "far"])]


def test_held_out_documents_come_first_and_equal_ones_are_left_out():
    found = [(document.name, entry.split) for document, entry in Apart.of(HELD_OUT).entries(BOOKS)]
    assert found == [
        *((f"{name}", "held_out") for name in ("a/0", "a/1", "b/0", "b/1", "b/2")),
        *(("books/0", "train"), ("books/1", None), ("books/2", "train"), ("books/3", None), ("books/4", None)),
    ]
    assert list(train_texts(Apart.of(HELD_OUT).entries(BOOKS))) == ["one", "three"]


def test_what_is_left_out_is_counted_apart_from_all_else():
    division = Apart.of(HELD_OUT)
    found = scan(division.entries(BOOKS))
    assert (found.n_documents, found.n_held_out, found.n_left_out) == (7, 5, 3)
    assert found.n_bytes == sum(map(len, ("two", "kept", "kept", "", "far", "one", "three")))
    without = corpus_of("books", ["one"])
    digests = [hashlib.sha256(text.encode()).digest() for text in ("two", "kept", "", "far")]
    assert scan(Apart(digests, ["a", "b"]).entries(without)).n_documents == 1
    record = division.record(found)
    assert (record.sources, record.n_left_out) == (("a", "b"), 3)
    assert division.fraction is None


@pytest.mark.parametrize(
    ("corpus", "held_out", "message"),
    [
        (["two", "far"], HELD_OUT, "books: leaves nothing to train on: 2 documents, each equal to one held out"),
        (["one"], [corpus_of("a", [])], "books: held_out_from a holds no documents"),
        ([], [corpus_of("a", [])], "books: holds no documents"),
    ],
)
def test_an_empty_split_is_refused(corpus, held_out, message):
    division, corpus = Apart.of(held_out), corpus_of("books", corpus)
    with pytest.raises(UserError, match=message):
        division.refuse_empty_split(scan(division.entries(corpus)), corpus.name)


def test_a_fraction_has_no_sources():
    assert ByFraction(0.3).record(scan(ByFraction(0.3).entries(BOOKS))) is None
    assert ByFraction(0.3).fraction == 0.3
