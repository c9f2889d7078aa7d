"""The data section of a recipe: one source or a mixture, by name or by path, opened, prepared once, checked."""

import json
import shutil

import pytest
from boxes import refusal
from source_folders import corpus_of
from tiny_runs import tiny_recipe

from widthwise.config_io import parse, to_data
from widthwise.data import config as config_module
from widthwise.data.config import DataConfig, MixtureConfig, open_data
from widthwise.data.corpus import Corpus, named_corpus
from widthwise.data.json_tokenizer import train_bpe
from widthwise.data.loader import NO_BOUNDARIES
from widthwise.data.mixture import MixedData
from widthwise.data.prepare import prepare
from widthwise.data.prepared import adopt
from widthwise.data.remote import cache_folder
from widthwise.data.shards import write_tokens
from widthwise.mistakes import UserError
from widthwise.yaml_io import merge

SMOKE = {"corpus": "synthetic", "tokenizer": "bytes"}
SYNTHETIC = named_corpus("synthetic")
EOS = 256
WEB, CODE = {"path": "web", "weight": 0.7}, {"path": "code", "weight": 0.3}


def test_all_defaults_are_written_out_and_a_path_takes_the_place_of_the_corpus():
    rest = {"verify": "full", "mask_documents": False, "reset_positions": False}
    source = {"corpus": "python-stdlib", "path": None, "tokenizer": "bpe-4096", "held_out": 0.05}
    at_path = {"corpus": None, "path": "somewhere", "tokenizer": None, "held_out": None}
    for said, expected in (({}, source), ({"path": "somewhere"}, at_path)):
        config = parse(DataConfig, said)
        assert to_data(config) == expected | rest
        assert parse(DataConfig, to_data(config)) == config
    assert DataConfig() == parse(DataConfig, {})


def test_mistakes_are_refused_by_their_path():
    for data, message in (
        ({"corpus": "synthetic", "path": "x"}, "give one"),
        ({"path": ""}, r"path: got ''.* at least 1 character"),
        ({"corpus": "syntetic"}, "did you mean 'synthetic'"),
        ({"tokenizer": "gpt"}, "allowed: bytes, bpe-N"),
        ({"held_out": 1.0}, "less than 1"),
        ({"mixture": {"web": WEB}}, "data.mixture: got .* at least 2 items"),
        ({"mixture": {"web": WEB, "code": {**CODE, "weight": 0}}}, r"mixture\.code\.weight: got 0; .*greater than 0"),
        ({"mixture": {"web": WEB, "code": {**CODE, "corpus": "synthetic"}}}, r"mixture\.code: got corpus .* give one"),
        ({"mixture": {"web": WEB, "c.ode": CODE}}, r"data\.mixture\.c\.ode: got 'c\.ode'; .*match pattern"),
        ({"mixture": {"web": WEB, "code": CODE}, "corpus": "synthetic"}, "got corpus; conflicts with mixture"),
    ):
        with pytest.raises(UserError, match=message):
            tiny_recipe(f"data={json.dumps(data)}") if "mixture" in data else parse(DataConfig, data)


def test_a_start_reads_every_byte_unless_told_to_trust_sizes(original, tmp_path):
    """Alone and as a source of a mixture; the tokenizer that made the data is always needed."""
    damaged = shutil.copytree(original, tmp_path / "damaged")
    content = bytearray((damaged / "train.bin").read_bytes())
    content[1000] ^= 1
    (damaged / "train.bin").write_bytes(content)

    def configs(verify: str) -> list[DataConfig | MixtureConfig]:
        last = {"path": str(damaged), "verify": verify}
        sources = {"a": {"path": str(original), "weight": 1}, "b": {**last, "weight": 1}}
        return [parse(DataConfig, last), parse(MixtureConfig, {"mixture": sources})]

    for config in configs("sizes"):
        config.check(open_data(config))
    for config in configs("full"):
        assert refusal(config.check, open_data(config)).startswith(f"{damaged}/train.bin: its checksum differs")
    path = damaged / "tokenizer_spec.json"
    path.write_text(path.read_text().replace("bytes", "bytez"))
    for config in configs("sizes"):
        assert refusal(lambda config: config.check(open_data(config)), config).startswith(f"{path}: ")


def test_a_corpus_is_prepared_once_and_anew_for_other_options_text_or_tokenizer_files(cache, tmp_path, monkeypatch):
    first = open_data(DataConfig(**SMOKE))
    assert first.path.parent.parent == cache
    written_at = (first.path / "manifest.json").stat().st_mtime_ns
    assert open_data(DataConfig(**SMOKE)).path == first.path
    assert (first.path / "manifest.json").stat().st_mtime_ns == written_at
    paths = {first.path, open_data(DataConfig(**SMOKE, held_out=0.1)).path}
    for size in (300, 310):
        (tmp_path / "tokenizer.json").write_text(train_bpe((each.text for each in SYNTHETIC), size).definition())
        paths.add(open_data(DataConfig(corpus="synthetic", tokenizer=str(tmp_path / "tokenizer.json"))).path)
    backwards = Corpus("synthetic", lambda: reversed(list(SYNTHETIC)))
    monkeypatch.setattr(config_module, "named_corpus", lambda name: backwards)
    paths.add(open_data(DataConfig(**SMOKE)).path)
    assert len(paths) == 5


def test_a_prepared_folder_must_agree_with_what_the_recipe_says(original, tmp_path):
    at = {"path": str(original)}
    assert open_data(parse(DataConfig, {**at, "tokenizer": "bytes", "held_out": 0.05})).path == original
    (tmp_path / "book.txt").write_text("a held-out book")
    apart = prepare("synthetic", tmp_path / "apart", tokenizer="bytes", held_out=tmp_path / "book.txt")
    assert list(apart.documents("held_out")) == [("book.txt", len("a held-out book") + 1)]
    mixture = {"made": {**at, "held_out": 0.1, "weight": 1}, "other": {**at, "weight": 3}}
    for config, message in (
        (DataConfig(**at, tokenizer="bpe-300"), r"data\.tokenizer: got 'bpe-300', but .* was prepared with 'bytes'"),
        (DataConfig(**at, held_out=0.1), r"data\.held_out: got 0\.1, but .* was prepared with 0\.05"),
        (DataConfig(path=str(apart.path), held_out=0.1), r"got 0\.1, but .* was made without one"),
        (parse(MixtureConfig, {"mixture": mixture}), r"data\.mixture\.made\.held_out: got 0\.1, but .* with 0\.05"),
    ):
        with pytest.raises(UserError, match=message):
            open_data(config)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("WIDTHWISE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "widthwise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "widthwise"
    monkeypatch.setenv("WIDTHWISE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_a_recipe_may_name_one_source_or_a_mixture_and_go_from_one_to_the_other():
    mixed = {"mixture": {"web": WEB, "code": CODE}}
    one, mixture = tiny_recipe().data, parse(MixtureConfig, mixed)
    assert tiny_recipe(f"data={mixed}").data == tiny_recipe(f"data.mixture={mixed['mixture']}").data == mixture
    back = merge({"data": to_data(mixture)}, {"data": to_data(one)})["data"]
    assert parse(DataConfig, back) == one


def test_weights_are_the_decimals_that_were_written():
    for weights, whole in (
        ((0.7, 0.2, 0.1), (7, 2, 1)),
        ((1e-9, 3, 1.5), (1, 3 * 10**9, 15 * 10**8)),
        ((0.1, 0.2, 0.30000000000000004), (25 * 10**14, 5 * 10**15, 75 * 10**14 + 1)),
    ):
        sources = {name: {"path": name, "weight": weight} for name, weight in zip("abc", weights)}
        assert parse(MixtureConfig, {"mixture": sources}).weights == dict(zip("abc", whole))


def test_mixed_data_hold_every_source_with_its_share_and_its_epochs(original, tmp_path):
    corpus = corpus_of("code", [f"line {index}\n" * 20 for index in range(30)])
    prepare(corpus, tmp_path / "code", tokenizer="bytes", held_out=0.2)
    sources = {"web": {"path": str(original), "weight": 1}, "code": {"path": str(tmp_path / "code"), "weight": 3}}
    data = open_data(parse(MixtureConfig, {"mixture": sources}))
    assert {name: source.path for name, source in data.sources.items()} == {"code": tmp_path / "code", "web": original}
    for split in ("train", "held_out"):
        mixture = getattr(data, split)
        assert list(mixture.weights.items()) == [("code", 3), ("web", 1)]  # in the order of their names
        assert [file.prefix for file in mixture.files.values()] == [tmp_path / "code" / split, original / split]
    usage = data.shares_and_epochs(30, 4000)
    for name, share in (("code", 0.75), ("web", 0.25)):
        n_windows = (data.sources[name].train.n_tokens - 1) // 30
        assert usage[name] == (share, share * 4000 / n_windows)
    other = prepare(corpus, tmp_path / "other", tokenizer="bpe-270", held_out=0.2)
    with pytest.raises(UserError, match=r"code was tokenised by bytes \(.* and math by bpe-270 \("):
        MixedData({**data.sources, "math": other}, {"web": 1, "code": 1, "math": 1})


def test_documents_that_do_not_end_are_refused_where_they_must_be_told_apart(tmp_path):
    write_tokens(tmp_path / "a", EOS + 1, [[1, 2, EOS], [], [EOS]])
    write_tokens(tmp_path / "b", EOS + 1, [[5, EOS], [6, 7]])
    data = adopt(tmp_path / "a", tmp_path / "b", tmp_path / "unended", tokenizer="bytes")
    for key in ("mask_documents", "reset_positions"):
        message = rf"data\.{key}: got true, but document 1 of .*held_out\.bin does not end in the end-of-text token 256"
        with pytest.raises(UserError, match=message):
            DataConfig(**{key: True}).boundaries(data)
    assert DataConfig().boundaries(data) is NO_BOUNDARIES
