import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.config_io import UserError
from widthwise.data.division import ByFraction
from widthwise.data.documents import Corpus, Document, scan, train_texts

texts = st.lists(st.text(max_size=20), min_size=1, max_size=30, unique=True)


def corpus_of(texts: list[str]) -> Corpus:
    return Corpus("test", lambda: (Document(str(index), text) for index, text in enumerate(texts)))


def held_out_texts(texts: list[str], held_out: float) -> set[str]:
    division = ByFraction(held_out)
    return {text for text in texts if division.entry(Document("name", text)).split == "held_out"}


@given(texts, st.randoms(), st.floats(0.05, 0.95))
def test_held_out_split_does_not_depend_on_order(texts, rng, held_out):
    shuffled = rng.sample(texts, len(texts))
    assert held_out_texts(texts, held_out) == held_out_texts(shuffled, held_out)


@given(texts, st.floats(0.05, 0.5), st.floats(0.5, 0.95))
def test_a_larger_fraction_only_adds_held_out_documents(texts, small, large):
    assert held_out_texts(texts, small) <= held_out_texts(texts, large)


def test_held_out_share_is_the_fraction():
    n_documents = 4000
    n_held_out = scan(ByFraction(0.3).entries(corpus_of([str(index) for index in range(n_documents)]))).n_held_out
    standard_error = (n_documents * 0.3 * 0.7) ** 0.5
    assert abs(n_held_out - n_documents * 0.3) < 4 * standard_error


def test_fingerprint_is_sha256_of_framed_names_and_content_digests():
    expected = hashlib.sha256()
    for name, text in (("0", "é"), ("1", "")):
        expected.update(len(name).to_bytes(8, "little") + name.encode() + hashlib.sha256(text.encode()).digest())
    assert scan(ByFraction(0.5).entries(corpus_of(["é", ""]))).fingerprint == expected.hexdigest()


@given(texts, texts)
def test_fingerprints_are_equal_only_for_equal_documents(first, second):
    same = (
        scan(ByFraction(0.5).entries(corpus_of(first))).fingerprint
        == scan(ByFraction(0.5).entries(corpus_of(second))).fingerprint
    )
    assert same == (first == second)


@given(texts)
def test_training_texts_are_those_not_held_out_in_order(texts):
    held_out = held_out_texts(texts, 0.4)
    assert list(train_texts(ByFraction(0.4).entries(corpus_of(texts)))) == [
        text for text in texts if text not in held_out
    ]


@pytest.mark.parametrize("held_out", [0, 1, -0.1, 1.5])
def test_fraction_outside_zero_to_one_is_refused(held_out):
    with pytest.raises(UserError, match="between 0 and 1"):
        ByFraction(held_out)
