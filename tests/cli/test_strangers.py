"""What a stranger's file names or holds costs one line and exit code 2, and opens no connection."""

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import tokenizers
import yaml
from boxes import refusal
from file_operations import forge
from tokenizers import decoders, models, normalizers, pre_tokenizers

from widthwise.data.json_tokenizer import JsonTokenizer, read_definition
from widthwise.data.readers import read_documents

URL = "http://127.0.0.1:9/evil.json"
"""A file of references, whose templates could send what they read anywhere."""


@pytest.fixture
def connections(monkeypatch):
    """The addresses to which a connection is opened."""
    addresses = []

    def connect(connection, address):
        addresses.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)
    return addresses


def test_a_path_that_chains_protocols_is_refused_by_every_verb(connections, refused, small, recipe):
    config = yaml.safe_load(Path(small, "config.yaml").read_text())
    allowed = "allowed: file, http, https, s3, gs, gcs, az, hf"
    for chain in ("reference://::", "reference::", "simplecache::", "zip://a::", "filecache::"):
        path = f"{chain}{URL}"
        assert allowed in refused("data", "verify", path)
        said = refused("train", recipe, f"data={{path: '{path}'}}", "--out", "run")
        assert all(part in said for part in ("data.path", "got protocol", allowed))
    assert allowed in refused("eval", small, "--data", path)
    Path(small, "config.yaml").write_text(yaml.safe_dump({**config, "data": {"path": path}}))
    for verb in ("resume", "eval", "analyze"):
        refused(verb, small)
    assert connections == []


def test_a_hugging_face_dataset_that_names_references_is_refused(connections, tmp_path):
    pytest.importorskip("datasets")
    configs = [{"config_name": "default", "data_files": f"reference://a.jsonl::{URL}"}]
    (tmp_path / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    assert "reference" in refusal(list, read_documents(f"hf:{tmp_path}"))
    assert connections == []


def test_a_recipe_is_a_plain_file_of_at_most_a_megabyte(refused, small):
    path = Path("evil.yaml")
    Path("child.yaml").write_text("extends: evil.yaml")
    kinds = [
        ("evil.yaml: is not a plain file", lambda: path.symlink_to("/dev/zero")),
        ("evil.yaml: is not a plain file", lambda: path.symlink_to("/proc/self/status")),
        ("evil.yaml: is not a plain file", lambda: os.mkfifo(path)),
        ("evil.yaml: is a folder", path.mkdir),
        ("evil.yaml: has 2,000,000 bytes; allowed: up to 1,048,576", lambda: path.write_text("#" * 2_000_000)),
    ]
    ways = [("inspect", "child.yaml"), ("eval", small, "--task-file", path), ("train", path)]
    ways.append(("inspect", "base.yaml", "--against", path))
    ways.append(("grow", small, "--to", path, "--out", "grown"))
    for (said, prepare), arguments in zip(kinds, ways, strict=True):
        prepare()
        assert said in refused(*arguments)
        assert said in refused("inspect", path)
        path.rmdir() if path.is_dir() else path.unlink()


def test_forged_entries_of_a_run_are_refused_by_every_verb(refused, succeeds, small):
    Path(small, "samples.jsonl").write_text('{"step": 1, "event": "sample"}\n')
    succeeds("report", small)
    Path(small, "samples.jsonl").write_text('{"step": 1, "event": "sample", "prompt": 5}\n')
    assert "samples.jsonl: line 1: prompt: got 5" in refused("report", small)
    Path(small, "samples.jsonl").unlink()
    environment = Path(small, "environment.json")
    for imported, said in (
        (5, "imported: got 5; expected keys with values"),
        ({}, "imported: model_type: is required"),
        ({"model_type": "llama", "token_ids": 5}, "imported: token_ids: got 5"),
    ):
        forge(environment, lambda entries, imported=imported: entries.update(imported=imported))
        for command in (("generate", small), ("export", small, "out")):
            assert f"environment.json: {said}" in refused(*command)
    forge(environment, lambda entries: entries.update(imported=None, gpu=json.loads("[" * 600 + "]" * 600)))
    assert "environment: is nested too deeply" in refused("report", small)
    with open(Path(small, "metrics.jsonl"), "a") as file:
        file.write('{"step": 3, "event": "grown", "tokens": 5}\n')
    assert "grown: training_flops: is required" in refused("eval", small)
    Path(small, "config.yaml").write_text("null\n")
    forge(environment, lambda entries: entries.update(recipe="null\n"))
    assert "config.yaml: has no section train" in refused("fit", small)
    for command in (("resume", small), ("export", small, "out")):
        assert "config.yaml: got None; expected keys with values" in refused(*command)


def definition(**parts) -> str:
    """A byte-level tokenizer.json with other parts."""
    tokenizer = tokenizers.Tokenizer(models.BPE({"</s>": 0, "a": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return json.dumps({**json.loads(tokenizer.to_str()), **parts})


def replacing(n: int, content: str) -> dict:
    part = {"type": "Replace", "pattern": {"String": "e"}, "content": content}
    return {"type": "Sequence", "normalizers": [part] * n}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
NORMALIZED = {**dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False), "normalized": True}
STRANGE = {
    "normalizer: SentencePiece's precompiled_charsmap is not supported": [
        definition(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
        definition(normalizer={"normalizers": [{"precompiled_charsmap": "AAAAAA=="}]}),
    ],
    "times as long; allowed: up to 1,000 times": [
        definition(normalizer=replacing(4, "e" * 1000)),
        definition(normalizer=replacing(4, "e" * 1000), added_tokens=[{"id": 2, "content": "eee", **NORMALIZED}]),
        definition(normalizer={"pattern": {"Regex": ""}, "content": "x" * 1000}),  # without a type
        definition(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 9}),
        definition(decoder={"type": "Sequence", "decoders": replacing(2, "e" * 40)["normalizers"]}),
    ],
    "Unk token `<unk>` not found": [
        definition(model={"type": "BPE", "vocab": {"</s>": 0, "a": 1}, "merges": [], "unk_token": "<unk>"}),
    ],
    "is not a tokenizer": [definition(normalizer=[[[]]])],
}


@pytest.mark.parametrize("said", STRANGE)
def test_a_strangers_tokenizer_is_refused_in_one_line(refused, tmp_path, said):
    path, text = tmp_path / "tokenizer.json", tmp_path / "a.txt"
    text.write_text("".join(f"{number}\n" for number in range(100, 140)))
    options = ("--out", tmp_path / "out", "--document-bytes", 4, "--held-out", 0.5, "--tokenizer", path)
    for content in STRANGE[said]:
        path.write_text(content)
        error = refused("data", "prepare", text, *options)
        assert str(path) in error
        assert said in error


def test_a_text_that_a_tokenizer_cannot_encode_is_a_mistake_of_the_user_and_ctrl_c_is_not(monkeypatch):
    tokenizer = JsonTokenizer("x.json", definition(), "x.json")

    class PanicException(BaseException):
        pass

    def raising(error):
        return SimpleNamespace(encode_batch_fast=Mock(side_effect=error), decode=Mock(side_effect=error))

    for error in (Exception("Missing"), PanicException("index")):
        monkeypatch.setattr(tokenizer, "_tokenizer", raising(error))
        for message in (refusal(tokenizer.encode, "a"), refusal(tokenizer.decode, [1])):
            assert message.startswith("x.json: ")
            assert str(error) in message
    monkeypatch.setattr(tokenizer, "_tokenizer", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("a")


SPLIT = pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{1,3}|\s+"), "isolated")
IN_USE = {
    "Llama 2": (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
    "GPT-2": (None, pre_tokenizers.ByteLevel()),
    "Qwen and Llama 3": (
        normalizers.NFC(),
        pre_tokenizers.Sequence([SPLIT, pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    ),
}


@pytest.mark.parametrize("name", IN_USE)
def test_tokenizers_in_use_are_read(name):
    tokenizer = tokenizers.Tokenizer.from_str(definition())
    tokenizer.normalizer, tokenizer.pre_tokenizer = IN_USE[name]
    assert read_definition(tokenizer.to_str(), "x.json")[0].to_str() == tokenizer.to_str()
