"""Folders of transformers as models of ours."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from boxes import refusal
from hf_models import CONFIGS, SWITCHED, TOLERANCE, hf_folder, hf_logits, hf_model, own_logits
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from widthwise.interop.architecture import Fields
from widthwise.interop.families import FAMILIES
from widthwise.interop.families import REFUSED as REFUSED_FAMILIES
from widthwise.interop.hf_import import WIDTHWISE, import_hf
from widthwise.runs.save import import_plan


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    expected = hf_logits(hf_model(name))
    imported = import_hf(hf_folder(tmp_path, name))
    assert expected.abs().max() > 0.3
    torch.testing.assert_close(own_logits(imported.config, imported.weights), expected, rtol=0, atol=TOLERANCE)


OLD_BUFFERS = {
    "llama_tied_biased": "model.layers.0.self_attn.rotary_emb.inv_freq",
    "gpt2": "transformer.h.1.attn.masked_bias",
}


@pytest.mark.parametrize("name", OLD_BUFFERS)
def test_shards_no_tied_head_and_old_buffers_make_no_difference(tmp_path: Path, name: str) -> None:
    folder = hf_folder(tmp_path / "whole", name)
    whole = import_hf(folder).weights
    shards = hf_folder(tmp_path / "shards", name, max_shard_size="8KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    hf_model(name).base_model.save_pretrained(tmp_path / "base")
    _change_tensors(folder, lambda tensors: tensors.update({OLD_BUFFERS[name]: torch.ones(5)}))
    for other in (shards, tmp_path / "base", folder):
        weights = import_hf(other).weights
        assert weights.keys() == whole.keys()
        assert all(torch.equal(weights[key], whole[key]) for key in whole)


def test_what_a_config_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path, "qwen3")
    _change_config(folder, lambda data: data.pop("rms_norm_eps"))
    assert import_hf(folder).config.final_norm.eps == AutoConfig.from_pretrained(folder).rms_norm_eps
    for name, family in FAMILIES.items():
        theirs = AutoConfig.for_model(name)
        assert family.n_positions(Fields({}, "config.json")) == theirs.max_position_embeddings
        assert family.default_eps == getattr(theirs, family.keys.eps)
    assert "max_position_embeddings: is required but missing" in refusal(WIDTHWISE.n_positions, Fields({}, "x"))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral_window", {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}),
        ("qwen3_moe", SWITCHED),
        ("qwen3_moe", {**SWITCHED, "use_sliding_window": False}),
        ("smollm3", {"use_sliding_window": True}),
        ("ministral", {"layer_types": None}),
        ("olmo3_plain", {"layer_types": None}),
        ("gemma3_plain", {"layer_types": None}),
        ("gemma3_plain", {"layer_types": None, "sliding_window_pattern": 3}),
        ("gemma2", {"layer_types": None}),
        ("gemma2", {"layer_types": None, "sliding_window": 5}),
        ("qwen2", {"num_key_value_heads": None, "layer_types": None, **SWITCHED, "max_window_layers": 1}),
        ("qwen3", {"layer_types": None, "use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}),
    ],
)
def test_windows_are_where_transformers_has_them(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    folder = hf_folder(tmp_path, name)
    _change_config(folder, lambda data: data.pop("sliding_window"))
    _change_config(folder, lambda data: data.update(changes))
    theirs = AutoConfig.from_pretrained(folder)
    n_layers = theirs.num_hidden_layers
    usual = "full_attention" if theirs.sliding_window is None else "sliding_attention"
    types = getattr(theirs, "layer_types", None) or [usual] * n_layers
    expected = [theirs.sliding_window if kind == "sliding_attention" else None for kind in types]
    assert import_plan(folder)["windows"] == expected


def test_transformers_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hf_folder(tmp_path, "qwen3")
    for module in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.setitem(sys.modules, module, None)
    assert import_hf(folder).model_type == "qwen3"


OLD_KEYS = {"rope_parameters": None, "rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}}
OLD_KEYS["rope_scaling"] |= {"original_max_position_embeddings": 20, "attention_factor": 1.2}

LOCAL = {"layer_types": None, "sliding_window_pattern": 2, "rope_local_base_freq": 300.0}


@pytest.mark.parametrize(
    ("name", "changes"), [("olmo3", OLD_KEYS), ("gemma3", OLD_KEYS | LOCAL), ("gemma2", OLD_KEYS | LOCAL)]
)
def test_the_keys_of_transformers_4_are_read_as_transformers_5_reads_them(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    folder = hf_folder(tmp_path, name)
    _change_config(folder, lambda data: data.update(changes))
    imported = import_hf(folder)
    torch.testing.assert_close(own_logits(imported.config, imported.weights), hf_logits(folder), rtol=0, atol=TOLERANCE)


def _longrope(short: list[float], long: list[float]) -> dict[str, Any]:
    said = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": 1.0}
    return {"rope_parameters": {**said, "original_max_position_embeddings": 64}}


def test_every_family_that_is_read_or_refused_is_in_the_table_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
    for name in FAMILIES:
        assert f"| `{name}` |" in page
    for name, lacks in REFUSED_FAMILIES.items():
        (line,) = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert line.endswith(f"| {lacks} |")
    assert len(FAMILIES) + len(REFUSED_FAMILIES) >= 25


def test_a_plan_names_the_sizes_and_what_is_not_imported_without_weights(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path, "mistral_window")
    (folder / "model.safetensors").unlink()
    _change_config(folder, lambda data: data.update(attention_dropout=0.1, resid_pdrop=0.0))
    plan = import_plan(folder)
    assert plan["not_imported"] == {"attention_dropout": 0.1}
    assert (plan["model_type"], plan["n_positions"], plan["windows"]) == ("mistral", 64, [5, 5])
    assert plan["cost"]["params"]["total"] == hf_model("mistral_window").num_parameters()
    gemma = hf_folder(tmp_path, "gemma2")
    _change_config(gemma, lambda data: data.update(hidden_act="gelu_pytorch_tanh"))  # as released; it has no effect
    assert import_plan(gemma)["not_imported"] == {}


WINDOWS = {"layer_types": ["full_attention", "sliding_attention"]}
PARTLY = {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"model_type": "rwkv"}, "model_type: got 'rwkv'; allowed: gemma2, gemma3_text, gpt2, granite, llama"),
    ("llama", {"model_type": "deepseek_v3"}, "a deepseek_v3 has multi-head latent attention, which is not supported"),
    ("mistral", {"sliding_window": 0}, "sliding_window: got 0; allowed: a whole number from 1 to"),
    ("llama", {"model_type": ["llama"]}, "model_type: got .'llama'.; allowed: gemma2, gemma3_text, gpt2"),
    ("smollm3", {"no_rope_layers": [[1]] * 5}, "no_rope_layers: got .*; allowed: a list of 0 and 1 for each layer"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers: got .1.; allowed: a list of 0 and 1 for each layer"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv: got 8.0; allowed: null"),
    ("mixtral", {"num_local_experts": 6}, r"block_sparse_moe.gate.weight has shape \(5, 32\); must be \(6, 32\)"),
    ("gemma3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping: got 30.0; allowed: null"),
    ("gemma2", {"attn_logit_softcapping": -50.0}, "attn_logit_softcapping: got -50.0; allowed: a number above 0"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: got 0; allowed: a number above 0"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention: got True; allowed: False"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act: got 'gelu'; allowed: 'silu'"),
    ("llama", {"mlp_bias": True}, "mlp_bias: got True; allowed: False"),
    ("qwen2", WINDOWS, "sliding_window: got None; allowed: a whole number, because layer_types.1 is sliding_attention"),
    ("qwen3", WINDOWS | {"sliding_window": 9}, "use_sliding_window: got False; allowed: true, because layer_types.1"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 2}, "layer_types.0: got 'chunked_attention'; allowed: full_att"),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types: got .'full_attention'.; allowed: a list of 2"),
    ("llama", PARTLY, "partial_rotary_factor: got 0.5; allowed: 1.0"),
    ("llama", DYNAMIC, "rope_parameters.rope_type: got 'dynamic'; allowed: default, linear, llama3, longrope, yarn"),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "ntk"}}, "rope_scaling.type: got 'ntk'; allowed"),
    ("olmo3", DYNAMIC, "rope_parameters: got .*; allowed: a mapping with full_attention and sliding_attention"),
    ("llama", _longrope([1.0] * 5, [2.0] * 5), "long_factor: differs from short_factor"),
    ("llama", _longrope([1.0] * 4, [1.0] * 4), "short_factor: has 4 numbers; must be head_dim / 2 = 5"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config: is not supported"),
    ("llama", {"hidden_size": 10**400}, "hidden_size: got inf; allowed: a whole number"),
    ("llama", {"hidden_size": None}, "hidden_size: is required but missing"),
    ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers: got 1000000000; allowed: a whole"),
    ("llama_linear", {"rope_scaling": {"type": "linear", "factor": 9.0}}, "rope_scaling: got .*9.0.*; allowed: null"),
    ("llama", {"rope_scaling": [1]}, "rope_scaling: got .1.; allowed: a mapping"),
    ("llama", {"rope_parameters": {"rope_theta": -1.0}}, "rope_theta: got -1.0; allowed: a number above 0"),
    ("qwen2", {"num_attention_heads": 40, "num_key_value_heads": 40}, "model.head_dim: got 1; rotary positions"),
    ("gpt2", {"n_head": 5}, "n_head: got 5; allowed: a divisor of n_embd = 24"),
    ("llama", {"intermediate_size": 36}, r"mlp.\w+.weight has shape \(.*\); must be \(.*36.*\)"),
    ("llama_tied_biased", {"tie_word_embeddings": False}, "no tensor lm_head.weight.*; set tie_word_embeddings"),
    ("llama", {"tie_word_embeddings": True}, "lm_head.weight differs from the embedding"),
    ("llama", {"num_hidden_layers": 1}, r"has a tensor model.layers.1.\S+, which a llama does not have"),
    ("llama", {"pad_token_id": 61}, "pad_token_id: got 61; allowed: the number of a token, from -1 to 60, or several"),
    ("llama", {"eos_token_id": [5, 61]}, "eos_token_id: got .5, 61.; allowed: the number of a token, from 0 to 60"),
]


@pytest.mark.parametrize("name", sorted({name for name, _, _ in REFUSED}))
def test_what_cannot_be_imported_exactly_is_refused(tmp_path: Path, name: str) -> None:
    folder = hf_folder(tmp_path, name)
    whole = (folder / "config.json").read_text()
    for changes, message in [refused[1:] for refused in REFUSED if refused[0] == name]:
        _change_config(folder, lambda data, changes=changes: data.update(changes))
        said = refusal(import_hf, folder)
        assert str(folder) in said
        assert re.search(message, said)
        (folder / "config.json").write_text(whole)


def test_folders_that_do_not_hold_one_model_are_refused(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", "llama")
    config, path = folder / "config.json", folder / "model.safetensors"
    whole = path.read_bytes()
    integers = {"lm_head.weight": torch.ones(61, 32, dtype=torch.int8)}
    many_experts = {"num_labels": 2, "x": {"n_experts": 10**9}}
    lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    assert f"{tmp_path}/none: no such folder" in refusal(import_hf, tmp_path / "none")
    assert "model.safetensors: is a file; allowed: a folder with config.json" in refusal(import_hf, path)
    for spoil, message in (
        (lambda: _change_tensors(folder, lambda tensors: tensors.update(integers)), "is of type torch.int8; allowed:"),
        (lambda: path.write_bytes(whole[:1000]), str(path)),
        (lambda: path.write_text(lfs), "is a pointer of Git LFS"),
        (path.unlink, "holds no weights"),
        ((folder / "pytorch_model.bin").touch, "only pickled weights (pytorch_model.bin)"),
        (
            lambda: _change_config(folder, lambda data: data.update(num_labels=10**9)),
            "num_labels: got 1000000000",
        ),
        (lambda: _change_config(folder, lambda data: data.update(many_experts)), "n_experts: got 1000000000"),
        (lambda: (folder / "generation_config.json").symlink_to("/dev/zero"), "is not a plain file"),
        (lambda: config.rename(folder / "model-q4.gguf"), "holds a model of GGUF"),
        (lambda: (folder / "adapter_config.json").symlink_to("/dev/zero"), "an adapter"),
    ):
        spoil()
        assert message in refusal(import_hf, folder)


def test_an_index_leads_nowhere_else(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path, "llama", max_shard_size="8KB")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for file_name, message in (("../model.safetensors", "of the same folder"), ("gone.safetensors", "is missing")):
        index["weight_map"]["lm_head.weight"] = file_name
        path.write_text(json.dumps(index))
        assert message in refusal(import_hf, folder)


def test_a_whole_file_is_read_where_the_files_of_the_index_are_gone(tmp_path: Path) -> None:
    """As transformers reads it. With both there, which of two models is meant nobody knows."""
    expected = import_hf(hf_folder(tmp_path / "whole", "llama")).weights
    folder = hf_folder(tmp_path / "shards", "llama", max_shard_size="8KB")
    shutil.copy(tmp_path / "whole" / "model.safetensors", folder)
    said = refusal(import_hf, folder)
    assert "holds weights in model.safetensors and in the files of model.safetensors.index.json; delete either" in said
    min(folder.glob("model-*.safetensors")).unlink()
    with pytest.warns(UserWarning, match=r"names model-.*, which is missing; model.safetensors is read instead"):
        weights = import_hf(folder).weights
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


def _change_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "config.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    (folder / "generation_config.json").unlink(missing_ok=True)  # its tokens would win


def _change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
