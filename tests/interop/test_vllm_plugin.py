"""What of the vLLM plugin needs no vLLM: its declaration, what it refuses, and the names of the tensors.

`test_vllm_model.py` runs the model in vLLM, where that is installed.
"""

import importlib
import tomllib
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from boxes import refusal
from safetensors import safe_open
from widthwise_models import N_POSITIONS, config_of, own_model, written

from widthwise.interop.configuration_widthwise import WidthwiseConfig
from widthwise.interop.hf_export import hf_config
from widthwise.interop.vllm_plugin import ARCHITECTURE, SKIPPED, STACKED, check_supported, register
from widthwise.interop.widthwise_format import Widthwise
from widthwise.mistakes import UserError

REFUSED = {
    "layer_norm": "layer 1: feed_forward mlp",
    "moe": "layer 1: feed_forward moe",
    "dynamic": "layer 1: feed_forward dynamic",
    "slots": "residual hyper_connections",
    "frozen": "layer 1: head sizes 6, 10",
    "windows": "layer 1: attention_window 4",
    "capped": "logit_cap 0.9",
}
SERVED = ("slim_grouped", "reordered", "hourglass_reordered", "mtp")


def _exported(name: str) -> WidthwiseConfig:
    """The config of the folder that a model is exported to."""
    _, data = hf_config(config_of(name), N_POSITIONS, model_type="widthwise")
    return WidthwiseConfig(**data)


def test_the_entry_point_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["widthwise"].partition(":")
    assert getattr(importlib.import_module(module), name) is register
    assert "vllm" in project["optional-dependencies"]
    assert Widthwise.class_name == ARCHITECTURE


def test_another_model_is_refused_in_one_line_that_says_what_is_supported() -> None:
    for name, reason in REFUSED.items():
        message = f"models/x: vLLM cannot run this model: {reason}; supported: "
        assert refusal(check_supported, _exported(name), "models/x").startswith(message)
    config = _exported("slim_grouped")
    config.attention_score_cap = 9.0
    assert "layer 1: attention_score_cap 9.0; supported: " in refusal(check_supported, config, "models/x")


SHARED: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "feed_forward": {"kind": "swiglu", "d_ff": 44},
    "qk_norm": {"over": "head"},
}
"""A config whose layers four devices can share."""


def test_what_devices_cannot_share_is_refused() -> None:
    config = _exported("dynamic_soft")  # with equal layers

    for changes, n_devices, reason in (
        ({}, 4, None),
        ({"num_attention_heads": 6}, 4, "num_attention_heads: got 6; allowed: multiples of tensor_parallel_size = 4"),
        ({"num_attention_heads": 12, "num_key_value_heads": 3}, 2, "num_key_value_heads: got 3; allowed"),
        ({"feed_forward": {"kind": "swiglu", "d_ff": 46}}, 4, "feed_forward: got .*46.*; allowed"),
        ({"feed_forward": {"kind": "hourglass", "d_hidden": [8, 7]}}, 2, "feed_forward: got .*7.*; allowed"),
        ({"feed_forward": {"kind": "hourglass", "d_hidden": 9}}, 2, "feed_forward: got .*9.*; allowed"),
        ({"qk_norm": {"over": "all_heads"}}, 2, "qk_norm: got over all_heads; allowed .*: over head"),
    ):
        for key, value in (SHARED | changes).items():
            setattr(config, key, value)
        check_supported(config, "models/x", n_devices=1)
        with nullcontext() if reason is None else pytest.raises(UserError, match=f"models/x: layer 1: {reason}"):
            check_supported(config, "models/x", n_devices)


@pytest.mark.parametrize("name", SERVED)
def test_a_plain_stream_is_served_and_stacked_tensors_fill_their_parameters(name: str, tmp_path: Path) -> None:
    """Queries, keys and values have every head of the layer once, gate and up every hidden unit twice."""
    config = config_of(name)
    folder = written(own_model(config), tmp_path / "model")
    check_supported(WidthwiseConfig.from_pretrained(folder), "models/x")
    found: dict[str, dict[str | int, list[int]]] = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for tensor, (theirs, (stacked, place)) in product(file.keys(), STACKED.items()):
            if theirs in tensor and not tensor.startswith(tuple(SKIPPED)):  # vLLM replaces that part of the name
                parts = found.setdefault(tensor.replace(theirs, stacked), {})
                parts[place] = file.get_slice(tensor).get_shape()
    for index, layer in enumerate(config.layers):
        heads = layer.attention
        queries, keys = ([n * heads.head_dim, layer.d_in] for n in (heads.n_heads, heads.n_kv_heads))
        assert found.pop(f"model.layers.{index}.self_attn.qkv_proj.weight") == {"q": queries, "k": keys, "v": keys}
    assert found
    for parameter, parts in found.items():
        assert parameter.endswith(".gate_up_proj.weight")
        assert parts.keys() == {0, 1}
        assert parts[0] == parts[1]
