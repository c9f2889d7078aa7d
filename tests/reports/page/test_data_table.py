from dataclasses import replace
from typing import Any

from fake_comparison import cost

from widthwise.records.run import Run, RunResult
from widthwise.reports.page.data import data_table, loss_words, text_key, text_words

COUNTS = {"n_train_tokens": 385_542, "n_train_bytes": 1_300_311, "n_held_out_tokens": 137_669, "n_held_out_bytes": 7}
CORPUS = {"corpus": {"name": "books", "fingerprint": "f"}, "tokenizer": {"spec": "bpe-2048", "id": "i"}}


def result(**changes: Any) -> RunResult:
    found = {"tokens": 96_386, "val_window_losses": [7.0] * 13, "data": COUNTS, "cost": cost([64]) | {"seq_len": 129}}
    return RunResult.model_validate(found | changes)


def run(found: RunResult | None, data: Any = CORPUS) -> Run:
    return Run("run", "", {"data": data}, [], found)


def test_it_says_how_much_there_was_and_how_much_was_read() -> None:
    table = data_table({"a": run(result()), "b": run(result())})
    assert table is not None
    assert table.header == ["Item", "Value"]
    rows: dict[str, str] = dict(table.rows)
    assert rows["corpus"] == "books"
    assert rows["training text"] == "385,542 tokens, 1,300,311 bytes"
    assert rows["read in training"] == "96,386 tokens, 0.25 times the training text"
    assert rows["held-out text"] == "137,669 tokens, 7 bytes"
    assert rows["read for the held-out loss"] == f"{13 * 129:,} tokens: 13 windows of 129, from the start"


def test_runs_that_read_otherwise_have_columns_of_their_own() -> None:
    sources = {"web": {"weight": 3}, "code": {"weight": 1}}
    table = data_table({"a": run(result()), "b": run(None, {"sources": sources})})
    assert table is not None
    assert table.header == ["Item", "a", "b"]
    assert ["corpora and their weights", "–", "web: 3, code: 1"] in table.rows  # noqa: RUF001


def test_files_of_older_versions_say_what_they_have() -> None:
    old = RunResult.model_validate({key: value for key, value in result().to_data().items() if key != "data"})
    assert loss_words(old) == f" over {13 * 129:,} held-out tokens"
    assert loss_words(result()) == f" over {13 * 129:,} of 137,669 held-out tokens"
    assert loss_words(result(val_window_losses=[])) == ""
    assert data_table({"a": replace(run(None), environment={})}) is None


def test_a_text_is_named_by_its_corpus_and_tokenizer() -> None:
    assert text_words({"data": CORPUS}) == "books, bpe-2048"
    assert text_words({"data": {"sources": {"web": {"weight": 3}}, "tokenizer": {"spec": "gpt2"}}}) == "web: 3, gpt2"
    assert text_words({}) == ""


def test_a_text_is_the_same_under_other_names_of_its_files_and_another_with_another_tokenizer() -> None:
    def key(name: str, spec: str, fingerprint: str = "a", tokenizer: str = "t") -> str:
        source = {"weight": 1, "corpus": {"name": name, "fingerprint": fingerprint}}
        return text_key({"data": {"tokenizer": {"spec": spec, "id": tokenizer}, "sources": {"s": source}}})

    assert key("books", "data/tokenizer.json") == key("novels", "../tokenizer.json")
    assert key("books", "tokenizer.json") != key("books", "tokenizer.json", tokenizer="u")
    assert key("books", "tokenizer.json") != key("books", "tokenizer.json", fingerprint="b")
    named = [text_key({"data": {"corpus": {"name": name}}}) for name in ("books", "novels", "books")]
    assert named[0] == named[2] != named[1]
