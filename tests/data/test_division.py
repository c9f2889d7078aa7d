"""What is trained on and what is held out: by a fraction of all documents, or by sources of their own."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_folders import corpus_of

from widthwise.data.corpus import Corpus
from widthwise.data.prepare import Division, HeldOutFraction, HeldOutSources, prepare, scan
from widthwise.mistakes import UserError

few = settings(max_examples=40)
texts = st.lists(st.text(max_size=20), min_size=1, max_size=30, unique=True)


def texts_of(split: str, division: Division, corpus: Corpus) -> list[str]:
    return [document.text for document in division.documents(corpus) if document.split == split]


def held_out_texts(texts: list[str], held_out: float) -> list[str]:
    return texts_of("held_out", HeldOutFraction(held_out), corpus_of("test", texts))


@few
@given(texts, st.randoms(), st.floats(0.05, 0.5), st.floats(0.5, 0.95))
def test_neither_order_nor_a_larger_fraction_takes_a_document_out_of_the_held_out_split(texts, rng, small, large):
    found = held_out_texts(texts, small)
    assert {*held_out_texts(rng.sample(texts, len(texts)), small)} == {*found} <= {*held_out_texts(texts, large)}
    training = texts_of("train", HeldOutFraction(small), corpus_of("test", texts))
    assert training == [text for text in texts if text not in found]


def test_held_out_share_is_the_fraction():
    n_documents = 4000
    division = HeldOutFraction(0.3)
    found = scan(division.documents(corpus_of("numbers", [str(index) for index in range(n_documents)])))
    standard_error = (n_documents * 0.3 * 0.7) ** 0.5
    assert abs(found.n_held_out - n_documents * 0.3) < 4 * standard_error
    assert (division.fraction, division.record(found)) == (0.3, None)
    for fraction in (0, 1, -0.1, 1.5):
        with pytest.raises(UserError, match="between 0 and 1"):
            HeldOutFraction(fraction)


def fingerprint(texts: list[str]) -> str:
    return scan(HeldOutFraction(0.5).documents(corpus_of("a", texts))).fingerprint


@few
@given(texts, texts)
def test_fingerprint_is_sha256_of_framed_names_and_content_digests(first, second):
    expected = hashlib.sha256()
    for index, text in enumerate(first):
        name = f"a/{index}".encode()
        expected.update(len(name).to_bytes(8, "little") + name + hashlib.sha256(text.encode()).digest())
    assert fingerprint(first) == expected.hexdigest()
    assert (fingerprint(first) == fingerprint(second)) == (first == second)


BOOKS = corpus_of("books", ["one", "two", "three", "two", ""])
HELD_OUT = [corpus_of("a", ["two", "kept"]), corpus_of("b", ["kept", "", "far"])]


def test_held_out_sources_come_first_and_documents_equal_to_theirs_are_left_out_and_counted_apart():
    division = HeldOutSources(HELD_OUT)
    assert [(document.name, document.split) for document in division.documents(BOOKS)] == [
        *((name, "held_out") for name in ("a/0", "a/1", "b/0", "b/1", "b/2")),
        *(("books/0", "train"), ("books/1", None), ("books/2", "train"), ("books/3", None), ("books/4", None)),
    ]
    assert texts_of("train", division, BOOKS) == ["one", "three"]
    found = scan(division.documents(BOOKS))
    assert (found.n_documents, found.n_held_out, found.n_left_out) == (7, 5, 3)
    assert found.n_bytes == sum(map(len, ("two", "kept", "kept", "", "far", "one", "three")))
    record = division.record(found)
    assert (record.sources, record.n_left_out, division.fraction) == (("a", "b"), 3, None)


def test_an_empty_split_is_refused(tmp_path):
    for texts, held_out, message in (
        (["two", "far"], HELD_OUT, "books: leaves nothing to train on: 2 documents, each equal to one held out"),
        (["one"], [corpus_of("a", [])], "books: held_out_from a holds no documents"),
        ([], [corpus_of("a", [])], "books: holds no documents"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(corpus_of("books", texts), tmp_path / "out", tokenizer="bytes", held_out=held_out)
