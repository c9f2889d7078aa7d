"""A corpus becomes a prepared folder, whole or not at all: its splits, its tokenizer, its manifest."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import accumulate, chain, count, islice, takewhile

import pytest
from source_folders import check_same_bytes, corpus_of

from widthwise.data.corpus import Corpus, Document, named_corpus
from widthwise.data.json_tokenizer import MAX_TRAINING_BYTES, train_bpe
from widthwise.data.prepare import HeldOutFraction, prepare
from widthwise.data.prepared import PreparedData
from widthwise.mistakes import UserError

SYNTHETIC = named_corpus("synthetic")


def split_texts(data: PreparedData) -> tuple[list[str], ...]:
    """The texts of the documents to train on, and of those held out."""
    splits = (data.train, data.held_out)
    return tuple([data.tokenizer.decode(part.document(i)) for i in range(part.n_documents)] for part in splits)


def test_shards_hold_the_documents_with_their_names_and_bytes(tmp_path):
    seen: dict[str, tuple[int, int | None]] = {}
    options = {"tokenizer": "bpe-301", "held_out": 0.2}
    data = prepare(SYNTHETIC, tmp_path / "out", progress=lambda stage, *n: seen.update({stage: n}), **options)
    data.verify()
    lengths, splits, n_bytes = data.tokenizer.token_byte_lengths(), data.manifest.splits, data.manifest.corpus.n_bytes
    for name, texts in zip(("train", "held_out"), split_texts(data)):
        documents = [each for each in HeldOutFraction(0.2).documents(SYNTHETIC) if each.split == name]
        assert texts == [document.text for document in documents]
        part, record = getattr(data, name), getattr(splits, name)
        own = [part.document(index) for index in range(part.n_documents)]
        everything = part.tokens(0, part.n_tokens)
        assert lengths[everything].sum() == record.n_bytes == record.n_token_bytes
        assert (everything == data.tokenizer.eos_id).sum() == part.n_documents
        assert all(tokens[-1] == data.tokenizer.eos_id for tokens in own)
        assert list(data.documents(name)) == [(each.name, len(tokens)) for each, tokens in zip(documents, own)]
    names = {"train.names.jsonl", "held_out.names.jsonl"}
    assert data.identity.files.keys() == data.manifest.files.keys() - names
    assert list(seen) == ["reading", "training the tokenizer", "tokenizing", "computing checksums"]
    assert (seen["reading"], seen["tokenizing"]) == ((n_bytes, None), (n_bytes, n_bytes))
    assert seen["computing checksums"][0] == seen["computing checksums"][1]
    assert prepare(SYNTHETIC, tmp_path / "all", max_tokens=10**9, **options).manifest == data.manifest


def test_max_tokens_gives_what_the_documents_before_it_give_and_reads_little_behind_them(tmp_path, monkeypatch):
    """Whatever the batches: a document of t bytes has t + 1 tokens."""
    n_read = 0

    def read() -> Iterator[Document]:
        nonlocal n_read
        for n_read, document in enumerate(SYNTHETIC, start=1):  # noqa: B007 (counted outside)
            yield document

    options = {"tokenizer": "bytes", "held_out": 0.2}
    counted = Corpus("synthetic", read)
    with monkeypatch.context() as patch:
        patch.setattr("widthwise.data.prepare.BATCH_BYTES", 500)
        cut = prepare(counted, tmp_path / "cut", max_tokens=20_011, **options).manifest
    documents = HeldOutFraction(0.2).documents(SYNTHETIC)
    n_tokens = accumulate((each.n_bytes + 1) * (each.split == "train") for each in documents)
    n_documents = sum(1 for _ in takewhile(lambda n: n <= 20_011, n_tokens))
    prepare(Corpus("synthetic", lambda: islice(SYNTHETIC, n_documents)), tmp_path / "same", **options)
    check_same_bytes(tmp_path / "cut", tmp_path / "same")
    assert n_documents <= n_read < n_documents + 60
    n_tokens = cut.splits.train.n_tokens  # may be reached exactly, and one less is a document less
    for less in (0, 1):
        data = prepare(SYNTHETIC, tmp_path / str(less), max_tokens=n_tokens - less, **options)
        assert data.train.n_documents == cut.splits.train.n_documents - less


HELD_OUT = Corpus("apart", lambda: (each for index, each in enumerate(SYNTHETIC) if index % 9 == 4))


@pytest.mark.parametrize("max_tokens", [None, 20_011])
def test_sources_of_their_own_are_the_held_out_split_and_leave_their_documents_out_of_training(tmp_path, max_tokens):
    data = prepare(SYNTHETIC, tmp_path / "out", tokenizer="bytes", held_out=[HELD_OUT], max_tokens=max_tokens)
    data.verify()
    train, held_out = split_texts(data)
    assert held_out == [document.text for document in HELD_OUT]
    among = [document.text for document in SYNTHETIC if document.text not in held_out]
    assert train == among[: len(train)]
    record = data.manifest.held_out_from
    assert (record.sources, data.manifest.held_out_fraction) == (("apart",), None)
    if max_tokens is None:
        assert train == among
        assert record.n_left_out == len(held_out)
    else:
        assert data.train.n_tokens <= max_tokens < data.train.n_tokens + len(among[len(train)].encode()) + 1
        last = [document.text for document in SYNTHETIC].index(among[len(train)])
        assert record.n_left_out == sum(document.text in held_out for document in islice(SYNTHETIC, last))


def test_the_tokenizer_is_trained_on_the_training_split_alone(tmp_path):
    for number, held_out in enumerate((0.5, [HELD_OUT])):
        data = prepare(SYNTHETIC, tmp_path / str(number), tokenizer="bpe-300", held_out=held_out)
        assert data.tokenizer.id == train_bpe(iter(split_texts(data)[0]), 300).id
        assert data.manifest.corpus.n_bytes < MAX_TRAINING_BYTES


def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(tmp_path):
    sizes = count(1)
    growing = Corpus("growing", lambda: chain(SYNTHETIC, [Document("growing", "x" * next(sizes))]))
    missing = Corpus("missing", lambda: iter(os.listdir(tmp_path / "none")))
    one, unreadable = corpus_of("test", ["one"]), Corpus("unreadable", lambda: pytest.fail("was read"))
    for corpus, options, message in (
        (one, {"held_out": 1e-9}, r"puts 1 of 1 documents in training and 0 in .*; raise held_out"),
        (one, {"held_out": 1 - 1e-9}, "lower held_out"),
        (corpus_of("test", []), {}, "holds no documents"),
        (growing, {}, "changed while it was being read"),
        (missing, {}, r"^missing: cannot be read \(No such file"),
        (SYNTHETIC, {"max_tokens": 3}, "max_tokens: got 3"),
        (unreadable, {"max_tokens": 0}, "max_tokens: got 0"),
        (unreadable, {"tokenizer": "gpt5"}, "tokenizer 'gpt5'"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(corpus, tmp_path / "out", **{"tokenizer": "bytes", **options})
    assert os.listdir(tmp_path) == []
    for parent in ("/proc/none", "/dev/null"):
        with pytest.raises(UserError, match=rf"^{parent}/out: cannot be written"):
            prepare(SYNTHETIC, f"{parent}/out", tokenizer="bytes")


def test_a_folder_in_use_is_refused_and_kept(tmp_path):
    prepare(corpus_of("test", "abcdefgh"), tmp_path / "out", tokenizer="bytes", held_out=0.5)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    for name, message in (("out", "already holds a prepared corpus"), ("other", "exists already; choose another")):
        with pytest.raises(UserError, match=message):
            prepare(SYNTHETIC, tmp_path / name, tokenizer="bytes")
    PreparedData.open(tmp_path / "out").verify()
    assert (tmp_path / "other" / "thesis.txt").read_text() == "precious"


SLOW_PREPARATION = """
import sys, time
from widthwise.data.corpus import named_corpus
from widthwise.data.corpus import Corpus
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
