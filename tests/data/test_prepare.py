"""A corpus becomes a prepared folder, whole or not at all: its splits, its tokenizer, its manifest."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import accumulate, chain, count, islice, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_folders import check_same_bytes, corpus_of

from widthwise.data.corpus import Corpus, Document, named_corpus
from widthwise.data.json_tokenizer import train_bpe
from widthwise.data.prepare import HeldOutFraction, prepare, scan
from widthwise.data.prepared import PreparedData
from widthwise.mistakes import UserError

SYNTHETIC = named_corpus("synthetic")
BOOKS = corpus_of("books", ["one", "two", "three", "two", ""])
HELD_OUT = [corpus_of("a", ["two", "kept"]), corpus_of("b", ["kept", "", "far"])]
few = settings(max_examples=40)
texts = st.lists(st.text(max_size=20), min_size=1, max_size=30, unique=True)


def divided(texts: list[str], held_out: float) -> tuple[list[str], list[str]]:
    """Return the training and the held-out texts."""
    documents = list(HeldOutFraction(held_out).documents(corpus_of("test", texts)))
    train, held = ([each.text for each in documents if each.split == split] for split in ("train", "held_out"))
    return train, held


@few
@given(texts, st.randoms(), st.floats(0.05, 0.5), st.floats(0.5, 0.95))
def test_neither_order_nor_a_larger_fraction_takes_a_document_out_of_the_held_out_split(texts, rng, small, large):
    train, held_out = divided(texts, small)
    assert train == [text for text in texts if text not in held_out]
    assert {*divided(rng.sample(texts, len(texts)), small)[1]} == {*held_out} <= {*divided(texts, large)[1]}


def test_held_out_share_is_the_fraction():
    n_documents = 4000
    found = scan(HeldOutFraction(0.3).documents(corpus_of("numbers", [*map(str, range(n_documents))])))
    standard_error = (n_documents * 0.3 * 0.7) ** 0.5
    assert abs(found.n_held_out - n_documents * 0.3) < 4 * standard_error


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


def split_texts(data: PreparedData) -> tuple[list[str], ...]:
    """Return the texts of the training and of the held-out documents."""
    splits = (data.train, data.held_out)
    return tuple([data.tokenizer.decode(part.document(i)) for i in range(part.n_documents)] for part in splits)


def test_shards_hold_the_documents_with_their_names_and_bytes(tmp_path):
    seen: dict[str, tuple[int, int | None]] = {}
    options = {"tokenizer": "bpe-301", "held_out": 0.2}
    data = prepare(SYNTHETIC, tmp_path / "out", progress=lambda stage, *n: seen.update({stage: n}), **options)
    data.verify()
    lengths, n_bytes = data.tokenizer.token_byte_lengths(), data.manifest.corpus.n_bytes
    for name, texts in zip(("train", "held_out"), split_texts(data)):
        documents = [each for each in HeldOutFraction(0.2).documents(SYNTHETIC) if each.split == name]
        assert texts == [document.text for document in documents]
        part, record = getattr(data, name), getattr(data.manifest.splits, name)
        own = [part.document(index) for index in range(part.n_documents)]
        assert lengths[part.tokens(0, part.n_tokens)].sum() == record.n_bytes == record.n_token_bytes
        assert all((tokens == data.tokenizer.eos_id).nonzero()[0].tolist() == [len(tokens) - 1] for tokens in own)
        assert list(data.documents(name)) == [(each.name, len(tokens)) for each, tokens in zip(documents, own)]
    names = {"train.names.jsonl", "held_out.names.jsonl"}
    assert data.identity.files.keys() == data.manifest.files.keys() - names
    assert list(seen) == ["reading", "training the tokenizer", "tokenizing", "computing checksums"]
    assert (seen["reading"], seen["tokenizing"]) == ((n_bytes, None), (n_bytes, n_bytes))
    assert prepare(SYNTHETIC, tmp_path / "all", max_tokens=10**9, **options).manifest == data.manifest


def test_max_tokens_gives_what_the_documents_before_it_give_and_reads_little_behind_them(tmp_path, monkeypatch):
    """For any size of batches. A document of t bytes has t + 1 tokens."""
    n_read = 0

    def read() -> Iterator[Document]:
        nonlocal n_read
        for n_read, document in enumerate(SYNTHETIC, start=1):  # noqa: B007 (counted outside)
            yield document

    options = {"tokenizer": "bytes", "held_out": 0.2}
    with monkeypatch.context() as patch:
        patch.setattr("widthwise.data.prepare.BATCH_BYTES", 500)
        cut = prepare(Corpus("synthetic", read), tmp_path / "cut", max_tokens=20_011, **options).train
    documents = HeldOutFraction(0.2).documents(SYNTHETIC)
    n_tokens = accumulate((each.n_bytes + 1) * (each.split == "train") for each in documents)
    n_documents = sum(1 for _ in takewhile(lambda n: n <= 20_011, n_tokens))
    prepare(Corpus("synthetic", lambda: islice(SYNTHETIC, n_documents)), tmp_path / "same", **options)
    check_same_bytes(tmp_path / "cut", tmp_path / "same")
    assert n_documents <= n_read < n_documents + 60
    for less in (0, 1):  # the number may be reached exactly, and one less is a document less
        data = prepare(SYNTHETIC, tmp_path / str(less), max_tokens=cut.n_tokens - less, **options)
        assert data.train.n_documents == cut.n_documents - less


@pytest.mark.parametrize(
    ("max_tokens", "train", "n_left_out"), [(None, ["one", "three"], 3), (9, ["one"], 1)], ids=["all", "cut"]
)
def test_held_out_sources_come_first_and_documents_equal_to_theirs_are_left_out(
    tmp_path, max_tokens, train, n_left_out
):
    data = prepare(BOOKS, tmp_path / "out", tokenizer="bytes", held_out=HELD_OUT, max_tokens=max_tokens)
    data.verify()
    assert split_texts(data) == (train, ["two", "kept", "kept", "", "far"])
    assert [name for name, _ in data.documents("train")] == ["books/0", "books/2"][: len(train)]
    assert [name for name, _ in data.documents("held_out")] == ["a/0", "a/1", "b/0", "b/1", "b/2"]
    manifest = data.manifest
    assert manifest.corpus.n_bytes == sum(map(len, chain(*split_texts(data))))
    record = manifest.held_out_from
    assert (record.sources, record.n_left_out, manifest.held_out_fraction) == (("a", "b"), n_left_out, None)


def test_the_tokenizer_is_trained_on_the_training_split_alone(tmp_path):
    apart = Corpus("apart", lambda: islice(SYNTHETIC, 4, None, 9))
    for number, held_out in enumerate((0.5, [apart])):
        data = prepare(SYNTHETIC, tmp_path / str(number), tokenizer="bpe-300", held_out=held_out)
        assert data.tokenizer.id == train_bpe(iter(split_texts(data)[0]), 300).id


def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(tmp_path):
    sizes = count(1)
    growing = Corpus("growing", lambda: chain(SYNTHETIC, [Document("growing", "x" * next(sizes))]))
    missing = Corpus("missing", lambda: iter(os.listdir(tmp_path / "none")))
    one, nothing, unreadable = corpus_of("test", ["one"]), corpus_of("a", []), Corpus("unreadable", pytest.fail)
    for corpus, options, message in (
        (one, {"held_out": 1e-9}, r"puts 1 of 1 documents in training and 0 in .*; raise held_out"),
        (one, {"held_out": 1 - 1e-9}, "lower held_out"),
        (one, {"held_out": 1.0}, "between 0 and 1"),
        (nothing, {}, "holds no documents"),
        (corpus_of("books", ["two"]), {"held_out": HELD_OUT}, "^books: leaves nothing to train on: 1 documents, each"),
        (one, {"held_out": [nothing]}, "^test: held_out_from a holds no documents"),
        (growing, {}, "changed while it was being read"),
        (missing, {}, r"^missing: cannot be read \(No such file"),
        (SYNTHETIC, {"max_tokens": 3}, "max_tokens: got 3"),
        (unreadable, {"max_tokens": 0}, "max_tokens: got 0"),
        (unreadable, {"tokenizer": "gpt5"}, "tokenizer 'gpt5'"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(corpus, tmp_path / "out", **{"tokenizer": "bytes", **options})
    assert os.listdir(tmp_path) == []
    with pytest.raises(UserError, match=r"^/dev/null/out: cannot be written"):
        prepare(SYNTHETIC, "/dev/null/out", tokenizer="bytes")


def test_a_prepared_folder_is_refused_and_kept(tmp_path):
    prepare(corpus_of("test", "abcdefgh"), tmp_path / "out", tokenizer="bytes", held_out=0.5)
    with pytest.raises(UserError, match="already holds a prepared corpus"):
        prepare(SYNTHETIC, tmp_path / "out", tokenizer="bytes")
    PreparedData.open(tmp_path / "out").verify()


SLOW_PREPARATION = """
import sys, time
from widthwise.data.corpus import Corpus, named_corpus
from widthwise.data.prepare import prepare

def read():
    for document in named_corpus("synthetic"):
        time.sleep(float(sys.argv[2]))
        yield document

data = prepare(Corpus("slow", read), sys.argv[1], tokenizer="bytes", reuse=True)
data.verify()
print(data.manifest.corpus.fingerprint)
"""


def start(out, seconds_per_document: float) -> subprocess.Popen:
    command = [sys.executable, "-c", SLOW_PREPARATION, str(out), str(seconds_per_document)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_preparation_leaves_no_folder_and_processes_that_prepare_it_again_at_once_all_get_it(tmp_path):
    out = tmp_path / "out"
    killed = start(out, 0.002)
    while not list(tmp_path.glob(".out.*.*/*")) and killed.poll() is None:
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    assert sorted(path.is_dir() for path in tmp_path.glob(".out.*")) == [False, True]  # its lock, what it wrote
    with pytest.raises(UserError, match="no such folder"):
        PreparedData.open(out)
    running = [start(out, 0.0001) for _ in range(3)]
    fingerprints = [process.communicate(timeout=60)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0] * 3
    assert os.listdir(tmp_path) == ["out"]
    assert {json.loads((out / "manifest.json").read_text())["corpus"]["fingerprint"]} == {*fingerprints}
