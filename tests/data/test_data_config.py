from contextlib import nullcontext

import pytest

from widthwise.config_io import UserError, parse, to_data
from widthwise.data import config as config_module
from widthwise.data.config import DataConfig, cache_folder, open_data
from widthwise.data.corpus import named_corpus
from widthwise.data.prepare import prepare

SMOKE = {"corpus": "synthetic", "tokenizer": "bytes"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDTHWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_empty_recipe_part_is_the_standard_library_with_all_defaults_written_out():
    config = parse(DataConfig, {})
    expected = {"corpus": "python-stdlib", "path": None, "tokenizer": "bpe-4096", "held_out": 0.05, "verify": "full"}
    assert to_data(config) == expected
    assert parse(DataConfig, to_data(config)) == config
    assert DataConfig() == config


def test_a_path_takes_the_place_of_the_corpus():
    config = parse(DataConfig, {"path": "somewhere"})
    assert to_data(config) == {
        "corpus": None,
        "path": "somewhere",
        "tokenizer": None,
        "held_out": None,
        "verify": "full",
    }
    assert parse(DataConfig, to_data(config)) == config


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"corpus": "synthetic", "path": "x"}, "give one"),
        ({"corpus": "syntetic"}, "did you mean 'synthetic'"),
        ({"tokenizer": "gpt"}, "allowed: bytes, bpe-N"),
        ({"held_out": 1.0}, "less than 1"),
        ({"tokeniser": "bytes"}, "did you mean 'tokenizer'"),
    ],
)
def test_mistakes_are_refused(data, message):
    with pytest.raises(UserError, match=message):
        parse(DataConfig, data)


@pytest.mark.parametrize("verify", ["full", "sizes"])
def test_a_start_reads_every_byte_unless_told_to_trust_sizes(tmp_path, verify):
    prepare(named_corpus("synthetic"), tmp_path / "out", tokenizer="bytes")
    content = bytearray((tmp_path / "out/train.bin").read_bytes())
    content[1000] ^= 1
    (tmp_path / "out/train.bin").write_bytes(content)
    config = parse(DataConfig, {"path": str(tmp_path / "out"), "verify": verify})
    data = open_data(config)
    with pytest.raises(UserError, match="its checksum differs") if verify == "full" else nullcontext():
        config.check(data)


def test_sizes_still_needs_the_tokenizer_that_made_the_data(tmp_path):
    prepare(named_corpus("synthetic"), tmp_path / "out", tokenizer="bytes")
    path = tmp_path / "out/tokenizer_spec.json"
    path.write_text(path.read_text().replace("bytes", "bytez"))
    config = parse(DataConfig, {"path": str(tmp_path / "out"), "verify": "sizes"})
    with pytest.raises(UserError, match=r"tokenizer_spec\.json"):
        config.check(open_data(config))


def test_a_corpus_is_prepared_once(cache, monkeypatch):
    first = open_data(parse(DataConfig, SMOKE))
    first.verify()
    assert first.path.parent.parent == cache
    written_at = (first.path / "manifest.json").stat().st_mtime_ns
    again = open_data(parse(DataConfig, SMOKE))
    assert (again.path / "manifest.json").stat().st_mtime_ns == written_at
    other = open_data(parse(DataConfig, {**SMOKE, "held_out": 0.1}))
    assert other.path != first.path


def test_a_changed_corpus_is_prepared_anew(cache, monkeypatch):
    first = open_data(parse(DataConfig, SMOKE))
    backwards = type(named_corpus("synthetic"))("synthetic", lambda: reversed(list(named_corpus("synthetic"))))
    monkeypatch.setattr(config_module, "named_corpus", lambda name: backwards)
    assert open_data(DataConfig(corpus="synthetic", tokenizer="bytes")).path != first.path


def test_a_tokenizer_file_with_other_content_is_another_preparation(cache, tmp_path):
    def open_with_bpe(size: int):
        trained = prepare(named_corpus("synthetic"), tmp_path / str(size), tokenizer=f"bpe-{size}")
        (tmp_path / "tokenizer.json").write_text(trained.tokenizer.definition())
        return open_data(parse(DataConfig, {"corpus": "synthetic", "tokenizer": str(tmp_path / "tokenizer.json")}))

    assert open_with_bpe(300).manifest.tokenizer.vocab_size == 300
    assert open_with_bpe(310).manifest.tokenizer.vocab_size == 310


def test_a_prepared_folder_must_agree_with_what_the_recipe_says(cache, tmp_path):
    out = str(tmp_path / "out")
    prepare(named_corpus("synthetic"), out, tokenizer="bytes")
    assert open_data(parse(DataConfig, {"path": out, "tokenizer": "bytes", "held_out": 0.05})).path.name == "out"
    with pytest.raises(UserError, match=r"data\.tokenizer: got 'bpe-300', but .* was prepared with 'bytes'"):
        open_data(parse(DataConfig, {"path": out, "tokenizer": "bpe-300"}))
    with pytest.raises(UserError, match=r"data\.held_out: got 0\.1"):
        open_data(parse(DataConfig, {"path": out, "held_out": 0.1}))


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("WIDTHWISE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "widthwise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "widthwise"
    monkeypatch.setenv("WIDTHWISE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
