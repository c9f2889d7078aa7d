import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice

import pytest

from widthwise.config_io import UserError
from widthwise.data.corpus import named_corpus
from widthwise.data.division import ByFraction
from widthwise.data.documents import Corpus, Document
from widthwise.data.json_tokenizer import MAX_TRAINING_BYTES, train_bpe
from widthwise.data.prepare import prepare
from widthwise.data.prepared import PreparedData

SYNTHETIC = named_corpus("synthetic")


def corpus_of(*texts: str) -> Corpus:
    return Corpus("test", lambda: (Document(str(index), text) for index, text in enumerate(texts)))


def split_texts(data: PreparedData) -> tuple[list[str], list[str]]:
    splits = (data.train, data.held_out)
    return tuple([data.tokenizer.decode(part.document(i)) for i in range(part.n_documents)] for part in splits)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-301"])
def test_shards_hold_the_documents_and_their_bytes(tmp_path, tokenizer):
    data = prepare(SYNTHETIC, tmp_path / "out", tokenizer=tokenizer, held_out=0.2)
    data.verify()
    held_out = [each.text for each, entry in ByFraction(0.2).entries(SYNTHETIC) if entry.split == "held_out"]
    train_texts, held_out_texts = split_texts(data)
    assert held_out_texts == held_out
    assert sorted(train_texts + held_out_texts) == sorted(document.text for document in SYNTHETIC)
    lengths = data.tokenizer.token_byte_lengths()
    splits = data.manifest.splits
    for part, record in ((data.train, splits.train), (data.held_out, splits.held_out)):
        everything = part.tokens(0, part.n_tokens)
        assert lengths[everything].sum() == record.n_bytes == record.n_token_bytes
        assert (everything == data.tokenizer.eos_id).sum() == part.n_documents
        assert all(part.document(index)[-1] == data.tokenizer.eos_id for index in range(part.n_documents))


def test_result_does_not_depend_on_the_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("widthwise.data.encode.BATCH_BYTES", 30_000)
    one = prepare(SYNTHETIC, tmp_path / "one", tokenizer="bpe-300", n_processes=1)
    two = prepare(SYNTHETIC, tmp_path / "two", tokenizer="bpe-300", n_processes=2)
    assert one.manifest == two.manifest


def n_documents_below(max_tokens: int, held_out: float) -> int:
    """How many documents come before the first whose bytes, and end of text, would be too many training tokens."""
    n_tokens = 0
    for index, (_, entry) in enumerate(ByFraction(held_out).entries(SYNTHETIC)):
        if entry.split == "train":
            n_tokens += entry.n_bytes + 1
        if n_tokens > max_tokens:
            return index
    raise AssertionError("the corpus is too small")


def first_documents(n: int, name: str = "synthetic") -> Corpus:
    return Corpus(name, lambda: islice(SYNTHETIC, n))


@pytest.mark.parametrize("n_processes", [1, 2])
def test_max_tokens_gives_what_the_documents_before_it_give(tmp_path, monkeypatch, n_processes):
    monkeypatch.setattr("widthwise.data.encode.BATCH_BYTES", 3_000)
    options = {"tokenizer": "bytes", "held_out": 0.2}
    cut = prepare(SYNTHETIC, tmp_path / "cut", max_tokens=20_011, n_processes=n_processes, **options)
    same = prepare(first_documents(n_documents_below(20_011, 0.2)), tmp_path / "same", **options)
    assert cut.manifest == same.manifest
    assert 20_011 - 5_000 < cut.train.n_tokens <= 20_011


def test_max_tokens_may_be_reached_exactly_and_one_less_is_a_document_less(tmp_path):
    n_tokens = prepare(SYNTHETIC, tmp_path / "a", tokenizer="bytes", max_tokens=20_011, held_out=0.2).train.n_tokens
    exact = prepare(SYNTHETIC, tmp_path / "b", tokenizer="bytes", max_tokens=n_tokens, held_out=0.2)
    less = prepare(SYNTHETIC, tmp_path / "c", tokenizer="bytes", max_tokens=n_tokens - 1, held_out=0.2)
    assert exact.train.n_tokens == n_tokens
    assert less.train.n_documents == exact.train.n_documents - 1


def test_more_tokens_than_there_are_is_the_whole_corpus(tmp_path):
    options = {"tokenizer": "bpe-300"}
    cut = prepare(SYNTHETIC, tmp_path / "cut", max_tokens=10**9, **options)
    assert cut.manifest == prepare(SYNTHETIC, tmp_path / "all", **options).manifest


def test_max_tokens_reads_little_behind_the_last_document(tmp_path, monkeypatch):
    monkeypatch.setattr("widthwise.data.encode.BATCH_BYTES", 3_000)
    n_read = 0

    def read() -> Iterator[Document]:
        nonlocal n_read
        for n_read, document in enumerate(SYNTHETIC, start=1):  # noqa: B007 (counted outside)
            yield document

    cut = prepare(Corpus("counted", read), tmp_path / "out", tokenizer="bytes", max_tokens=20_011, held_out=0.2)
    assert cut.manifest.corpus.n_documents <= n_read < cut.manifest.corpus.n_documents + 30


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_too_few_max_tokens_are_refused(tmp_path, max_tokens):
    with pytest.raises(UserError, match=f"max_tokens: got {max_tokens}"):
        prepare(SYNTHETIC, tmp_path / "out", tokenizer="bytes", max_tokens=max_tokens)
    assert os.listdir(tmp_path) == []


def test_the_tokenizer_is_trained_on_the_training_split_alone(tmp_path):
    data = prepare(SYNTHETIC, tmp_path / "out", tokenizer="bpe-300", held_out=0.5)
    train_texts, _ = split_texts(data)
    assert data.tokenizer.id == train_bpe(iter(train_texts), 300).id
    assert data.manifest.corpus.n_bytes < MAX_TRAINING_BYTES


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


def test_the_tokenizer_sees_nothing_of_a_held_out_source(tmp_path):
    data = prepare(SYNTHETIC, tmp_path / "out", tokenizer="bpe-300", held_out=[HELD_OUT])
    assert data.tokenizer.id == train_bpe(iter(split_texts(data)[0]), 300).id


def test_held_out_sources_may_be_given_as_paths(tmp_path):
    (tmp_path / "book.txt").write_text("a held-out book")
    for number, held_out in enumerate((str(tmp_path / "book.txt"), [tmp_path / "book.txt"])):
        data = prepare(SYNTHETIC, tmp_path / str(number), tokenizer="bytes", held_out=held_out)
        assert split_texts(data)[1] == ["a held-out book"]
        assert list(data.documents("held_out")) == [("book.txt", len("a held-out book") + 1)]


def test_the_names_and_tokens_of_the_documents_of_each_split_are_kept(tmp_path):
    data = prepare(SYNTHETIC, tmp_path / "out", tokenizer="bytes", held_out=0.2)
    for split in ("train", "held_out"):
        entries = [entry for _, entry in ByFraction(0.2).entries(SYNTHETIC) if entry.split == split]
        assert list(data.documents(split)) == [(entry.name, entry.n_bytes + 1) for entry in entries]


def test_a_folder_without_names_is_opened_and_says_so_when_asked(tmp_path):
    data = prepare(SYNTHETIC, tmp_path / "out", tokenizer="bytes")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    for name in ("train.names.jsonl", "held_out.names.jsonl"):
        del manifest["files"][name]
        (tmp_path / "out" / name).unlink()
    del manifest["held_out_from"]
    (tmp_path / "out/manifest.json").write_text(json.dumps(manifest))
    old = PreparedData.open(tmp_path / "out")
    old.verify()
    assert old.manifest.trained_on == data.manifest.trained_on == old.manifest.files
    with pytest.raises(UserError, match="has no names of documents; it was adopted, or prepared before"):
        old.documents("train")


def test_split_is_the_same_for_documents_in_another_order(tmp_path):
    backwards = Corpus("backwards", lambda: reversed(list(SYNTHETIC)))
    forth = split_texts(prepare(SYNTHETIC, tmp_path / "a", tokenizer="bytes"))
    back = split_texts(prepare(backwards, tmp_path / "b", tokenizer="bytes"))
    assert [sorted(texts) for texts in forth] == [sorted(texts) for texts in back]


def test_empty_documents_are_an_end_of_text_token(tmp_path):
    data = prepare(corpus_of("", "b", "c", "d", "e"), tmp_path / "out", tokenizer="bytes", held_out=0.5)
    train_texts, held_out_texts = split_texts(data)
    assert sorted(train_texts + held_out_texts) == ["", "b", "c", "d", "e"]


def test_an_empty_split_is_refused_with_what_to_change(tmp_path):
    with pytest.raises(UserError, match=r"puts 1 of 1 documents in training and 0 in held-out; raise held_out"):
        prepare(corpus_of("one"), tmp_path / "out", held_out=1e-9)
    with pytest.raises(UserError, match="lower held_out"):
        prepare(corpus_of("one"), tmp_path / "out", held_out=1 - 1e-9)
    with pytest.raises(UserError, match="holds no documents"):
        prepare(corpus_of(), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_corpus_that_changes_while_it_is_read_is_refused(tmp_path):
    n_reads = 0

    def read() -> Iterator[Document]:
        nonlocal n_reads
        n_reads += 1
        yield from SYNTHETIC
        yield Document("growing", "x" * n_reads)

    with pytest.raises(UserError, match="changed while it was being read"):
        prepare(Corpus("growing", read), tmp_path / "out", tokenizer="bytes")
    assert os.listdir(tmp_path) == []


def test_a_folder_in_use_is_refused_and_kept(tmp_path):
    out = tmp_path / "out"
    prepare(SYNTHETIC, out, tokenizer="bytes")
    with pytest.raises(UserError, match="already holds a prepared corpus"):
        prepare(SYNTHETIC, out, tokenizer="bytes")
    PreparedData.open(out).verify()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="in use by other files"):
        prepare(SYNTHETIC, tmp_path / "other", tokenizer="bytes")
    assert (tmp_path / "other" / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("parent", ["/proc/none", "/dev/null"])
def test_a_folder_that_cannot_be_made_is_refused(parent):
    with pytest.raises(UserError, match=rf"{parent}/\.out\.partial: cannot be written"):
        prepare(SYNTHETIC, f"{parent}/out", tokenizer="bytes")


def test_progress_reports_each_stage_up_to_all_bytes(tmp_path):
    seen: dict[str, tuple[int, int | None]] = {}
    data = prepare(
        SYNTHETIC,
        tmp_path / "out",
        tokenizer="bpe-300",
        progress=lambda stage, n_bytes, total: seen.update({stage: (n_bytes, total)}),
    )
    n_bytes = data.manifest.corpus.n_bytes
    assert seen["reading"] == (n_bytes, None)
    assert seen["tokenizing"] == (n_bytes, n_bytes)
    assert seen["computing checksums"][0] == seen["computing checksums"][1]
    assert list(seen) == ["reading", "training the tokenizer", "tokenizing", "computing checksums"]


def test_bad_options_are_refused_before_any_reading(tmp_path):
    unreadable = Corpus("unreadable", lambda: pytest.fail("was read"))
    with pytest.raises(UserError, match="processes: got 0"):
        prepare(unreadable, tmp_path / "out", n_processes=0)
    with pytest.raises(UserError, match="tokenizer 'gpt5'"):
        prepare(unreadable, tmp_path / "out", tokenizer="gpt5")


SLOW_PREPARATION = """
import sys, time
from widthwise.data.corpus import named_corpus
from widthwise.data.documents import Corpus
from widthwise.data.prepare import prepare

def read():
    for document in named_corpus("synthetic"):
        time.sleep(float(sys.argv[2]))
        yield document

print("started", flush=True)
data = prepare(Corpus("slow", read), sys.argv[1], tokenizer="bytes", reuse=True)
data.verify()
print(data.manifest.corpus.fingerprint)
"""


def start(out, seconds_per_document: float) -> subprocess.Popen:
    command = [sys.executable, "-c", SLOW_PREPARATION, str(out), str(seconds_per_document)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_preparation_leaves_no_folder_and_can_be_repeated(tmp_path):
    out = tmp_path / "out"
    killed = start(out, 0.002)
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob(".out.partial/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    assert os.listdir(tmp_path) == [".out.partial"]
    with pytest.raises(UserError, match="no such folder"):
        PreparedData.open(out)
    prepare(SYNTHETIC, out, tokenizer="bytes").verify()
    assert os.listdir(tmp_path) == ["out"]


def test_processes_that_prepare_the_same_folder_at_once_all_get_it(tmp_path):
    out = tmp_path / "out"
    running = [start(out, 0.0005) for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0].split() for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert len({fingerprint for _, fingerprint in outputs}) == 1
    assert os.listdir(tmp_path) == ["out"]
    assert json.loads((out / "manifest.json").read_text())["corpus"]["fingerprint"] == outputs[0][1]
