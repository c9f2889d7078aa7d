import json
from contextlib import nullcontext

import pytest
from tiny_runs import tiny_recipe

from widthwise.config_io import UserError, parse, to_data
from widthwise.data import config as config_module
from widthwise.data.config import DataConfig, MixtureConfig, cache_folder, open_data
from widthwise.data.corpus import named_corpus
from widthwise.data.prepare import prepare
from widthwise.merging import merge

SMOKE = {"corpus": "synthetic", "tokenizer": "bytes"}
ONE_DOCUMENT = {"mask_documents": False, "reset_positions": False}
"""Documents of a row are not told apart."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDTHWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_empty_recipe_part_is_the_standard_library_with_all_defaults_written_out():
    config = parse(DataConfig, {})
    source = {"corpus": "python-stdlib", "path": None, "tokenizer": "bpe-4096", "held_out": 0.05, "verify": "full"}
    assert to_data(config) == source | ONE_DOCUMENT
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
        **ONE_DOCUMENT,
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


def test_a_fraction_is_refused_where_sources_are_held_out(tmp_path):
    (tmp_path / "book.txt").write_text("a held-out book")
    prepare("synthetic", tmp_path / "out", tokenizer="bytes", held_out=[tmp_path / "book.txt"])
    assert open_data(parse(DataConfig, {"path": str(tmp_path / "out")})).manifest.held_out_fraction is None
    with pytest.raises(UserError, match=r"data\.held_out: got 0\.1, but .* was prepared with held_out_from"):
        open_data(parse(DataConfig, {"path": str(tmp_path / "out"), "held_out": 0.1}))


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("WIDTHWISE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "widthwise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "widthwise"
    monkeypatch.setenv("WIDTHWISE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


WEB, CODE = {"path": "web", "weight": 0.7}, {"path": "code", "weight": 0.3}


def test_every_source_of_a_mixture_is_a_data_section_with_a_weight():
    config = parse(MixtureConfig, {"mixture": {"web": WEB, "own": {"corpus": "synthetic", "weight": 2}}})
    web, own = config.mixture["web"], config.mixture["own"]
    for source, data, weight in ((web, {"path": "web"}, 0.7), (own, {"corpus": "synthetic"}, 2.0)):
        alone = to_data(parse(DataConfig, data))
        assert to_data(source) == {key: alone[key] for key in alone if key not in ONE_DOCUMENT} | {"weight": weight}
    assert parse(MixtureConfig, to_data(config)) == config


def test_a_recipe_may_name_one_source_or_a_mixture_and_go_from_one_to_the_other():
    mixed = {"mixture": {"web": WEB, "code": CODE}}
    one = to_data(tiny_recipe().data)
    assert tiny_recipe(f"data={mixed}").data == parse(MixtureConfig, mixed)
    assert tiny_recipe(f"data.mixture={mixed['mixture']}").data == parse(MixtureConfig, mixed)
    back = merge({"data": to_data(parse(MixtureConfig, mixed))}, {"data": one})["data"]
    assert parse(DataConfig, back) == tiny_recipe().data
    with pytest.raises(UserError, match=r"data: got corpus beside a mixture; .* set it to null"):
        tiny_recipe(f"data.mixture={mixed['mixture']}", "data.corpus=synthetic")


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ({"web": WEB}, "data.mixture: got .* at least 2 items"),
        ({"web": WEB, "code": {"path": "code"}}, r"data\.mixture\.code\.weight: is required but missing"),
        ({"web": WEB, "code": {**CODE, "weight": 0}}, r"data\.mixture\.code\.weight: got 0; .*greater than 0"),
        ({"web": WEB, "code": {**CODE, "weigth": 1}}, r"data\.mixture\.code\.weigth: .*did you mean 'weight'"),
        ({"web": WEB, "code": {**CODE, "corpus": "synthetic"}}, r"data\.mixture\.code: got corpus .* give one"),
        ({"web": WEB, "c.ode": CODE}, r"data\.mixture\.c\.ode: got 'c\.ode'; .*match pattern"),
    ],
)
def test_mistakes_in_a_mixture_are_refused_by_their_path(mixture, message):
    with pytest.raises(UserError, match=message):
        tiny_recipe(f"data={json.dumps({'mixture': mixture})}")


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ((0.7, 0.2, 0.1), (7, 2, 1)),
        ((1e-9, 3, 1.5), (1, 3 * 10**9, 15 * 10**8)),
        ((20, 40, 60), (1, 2, 3)),
        ((0.1, 0.2, 0.30000000000000004), (25 * 10**14, 5 * 10**15, 75 * 10**14 + 1)),
    ],
)
def test_weights_are_the_decimals_that_were_written(weights, whole):
    sources = {name: {"path": name, "weight": weight} for name, weight in zip("abc", weights)}
    assert parse(MixtureConfig, {"mixture": sources}).weights == dict(zip("abc", whole))


def test_the_sources_of_a_mixture_are_opened_and_must_agree_with_what_is_said_of_them(cache, tmp_path):
    out = str(tmp_path / "out")
    prepare(named_corpus("synthetic"), out, tokenizer="bytes", held_out=0.2)
    sources = {"made": {"path": out, "weight": 1}, "named": {**SMOKE, "weight": 3}}
    data = open_data(parse(MixtureConfig, {"mixture": sources}))
    assert {name: source.path for name, source in data.sources.items()} == {
        "made": tmp_path / "out",
        "named": open_data(parse(DataConfig, SMOKE)).path,
    }
    assert data.weights == {"made": 1, "named": 3}
    sources["made"]["held_out"] = 0.1
    with pytest.raises(UserError, match=r"data\.mixture\.made\.held_out: got 0\.1, but .* was prepared with 0\.2"):
        open_data(parse(MixtureConfig, {"mixture": sources}))


def test_each_source_of_a_mixture_is_verified_as_it_says(tmp_path):
    for name in ("a", "b"):
        prepare(named_corpus("synthetic"), tmp_path / name, tokenizer="bytes")
    damaged = tmp_path / "b" / "train.bin"
    damaged.write_bytes(b"\1" + damaged.read_bytes()[1:])
    sources = {name: {"path": str(tmp_path / name), "weight": 1} for name in ("a", "b")}
    config = parse(MixtureConfig, {"mixture": sources})
    with pytest.raises(UserError, match=r"b/train\.bin: its checksum differs"):
        config.check(open_data(config))
    sources["b"]["verify"] = "sizes"
    config = parse(MixtureConfig, {"mixture": sources})
    config.check(open_data(config))
