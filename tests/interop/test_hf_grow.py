"""A model of transformers, grown here, computes there what it computed before."""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from expansions import (
    Expansion,
    add_heads,
    add_layers,
    changed,
    same_layers,
    widen_ffn,
    widen_keys,
    widen_stream,
    widen_values,
)
from hf_models import TOLERANCE, hf_folder, hf_logits, hf_model, own_logits

from widthwise.config_io import parse, to_data
from widthwise.growth.bake import bake_plan
from widthwise.growth.plan import plan_growth
from widthwise.growth.tensor_plan import Constant
from widthwise.interop.hf_export import Surroundings, export_hf
from widthwise.interop.hf_import import import_hf
from widthwise.model.config import ModelConfig

Grow = Callable[[ModelConfig], Expansion]


def everywhere(model: ModelConfig) -> range:
    return range(model.n_layers)


def hidden(model: ModelConfig) -> Expansion:
    return widen_stream(model, 8)


def feed_forward(model: ModelConfig) -> Expansion:
    return widen_ffn(model, everywhere(model), model.layers[0].ffn.hidden_widths[0] + 21)


def kv_groups(model: ModelConfig) -> Expansion:
    """As many key-value heads again with their queries, so that all heads divide the width."""
    attention = model.layers[0].attention
    group = attention.n_heads // attention.n_kv_heads
    n_kv_heads = 2 * attention.n_kv_heads
    return add_heads(model, everywhere(model), group * n_kv_heads, n_kv_heads)


def copied_kv_heads(model: ModelConfig) -> Expansion:
    """Every query head gets a key-value head of its own."""
    n_heads = model.layers[0].attention.n_heads
    return add_heads(model, everywhere(model), n_heads, n_heads)


def layers(model: ModelConfig) -> Expansion:
    return add_layers(model, (0, 2, model.n_layers + 2))


def with_heads(model: ModelConfig, head_dim: int, rope_base: float | None) -> Expansion:
    """Heads of another size, queries, keys and values alike, as these formats have it."""
    data = {"head_dim": head_dim, "v_head_dim": head_dim, "rope_frequencies": None}
    grown = [
        layer.model_copy(update={"attention": layer.attention.model_copy(update={**data, "rope_base": rope_base})})
        for layer in model.layers
    ]
    return changed(model, layers=tuple(grown)), same_layers(model)


def twice_the_head(model: ModelConfig) -> Expansion:
    """Old pairs lie at every other place of the new ladder, whose base is the same."""
    attention = model.layers[0].attention
    return with_heads(model, 2 * attention.head_dim, attention.rope_base)


def half_more_head(model: ModelConfig) -> Expansion:
    """The ladder goes on: base^1.5."""
    attention = model.layers[0].attention
    return with_heads(model, attention.head_dim * 3 // 2, attention.rope_base**1.5)


def any_head(model: ModelConfig) -> Expansion:
    """Without a base for it, the frequencies stay in a table, which goes on."""
    wider = widen_keys(model, everywhere(model), model.layers[0].attention.head_dim + 2)[0]
    return widen_values(wider, everywhere(wider), wider.layers[0].attention.head_dim)


def hidden_with_heads(model: ModelConfig) -> Expansion:
    """GPT-2's width is n_heads * head_dim."""
    attention = model.layers[0].attention
    wider, same = widen_stream(model, attention.head_dim)
    return add_heads(wider, everywhere(wider), attention.n_heads + 1, attention.n_heads + 1)[0], same


def hidden_with_larger_heads(model: ModelConfig) -> Expansion:
    attention = model.layers[0].attention
    wider, same = widen_stream(model, 2 * attention.n_heads)
    return with_heads(wider, attention.head_dim + 2, None)[0], same


def at_once(adding: Grow, *growths: Grow) -> Grow:
    """One growth, to the sizes of all with the constants that a recipe derives from them. adding: of layers."""

    def grow(model: ModelConfig) -> Expansion:
        wanted, correspondence = adding(model)
        for each in growths:
            wanted = each(wanted)[0]
        return bake_plan(wanted, one_eps=True).new, correspondence

    return grow


GROWTHS: list[tuple[str, tuple[Grow, ...]]] = [
    ("llama", (copied_kv_heads,)),
    ("llama", (any_head,)),
    ("llama_llama3", (any_head,)),
    ("llama_llama3", (hidden, feed_forward)),
    ("llama_tied_biased", (feed_forward, half_more_head, kv_groups, layers, hidden)),
    ("qwen2", (layers, twice_the_head, kv_groups, feed_forward, hidden)),
    ("qwen2_tied", (layers, half_more_head, kv_groups, feed_forward, hidden)),
    ("qwen3", (layers, twice_the_head, kv_groups, feed_forward, hidden)),
    ("qwen3_tied_biased", (twice_the_head, kv_groups, feed_forward, layers, hidden)),
    ("olmo2", (twice_the_head,)),
    ("olmo2_tied", (layers, kv_groups, feed_forward, hidden)),
    ("gpt2", (hidden_with_larger_heads,)),
    ("gpt2_scaled_by_layer", (feed_forward, hidden_with_heads)),
    ("gpt2_untied", (layers, feed_forward, hidden_with_heads, hidden_with_larger_heads)),
    ("llama_tied_biased", (at_once(layers, half_more_head, kv_groups, hidden),)),
    ("llama_llama3", (at_once(layers, any_head, hidden),)),
    ("qwen3", (at_once(layers, twice_the_head, kv_groups, feed_forward, hidden),)),
    ("olmo2", (at_once(layers, kv_groups, feed_forward, hidden),)),
    ("gpt2", (at_once(layers, feed_forward, hidden_with_heads),)),
]


@pytest.mark.parametrize(
    ("name", "growths", "fresh"),
    [(*growth, fresh) for growth, fresh in zip(GROWTHS, cycle([None, Constant(0.4)]))],
    ids=[f"{name}-{'-'.join(grow.__name__ for grow in growths)}" for name, growths in GROWTHS],
)
def test_logits_stay_as_imported(tmp_path: Path, name: str, growths: tuple[Grow, ...], fresh: Constant | None) -> None:
    expected = hf_logits(hf_model(name))
    imported = import_hf(hf_folder(tmp_path / "small", name))
    config, weights = imported.config, {key: weight.double() for key, weight in imported.weights.items()}
    for seed, grow in enumerate(growths):
        plan = plan_growth(config, *grow(config))
        config, weights = plan.new, dict(plan.weights(weights, seed, fresh))
    assert config.cost().params > imported.config.cost().params
    baked = bake_plan(config, one_eps=True)
    weights = dict(baked.weights(weights))
    assert export_hf(baked.new, weights, tmp_path / "large", Surroundings(imported.n_positions)) == imported.model_type
    torch.testing.assert_close(hf_logits(tmp_path / "large"), expected, rtol=0, atol=TOLERANCE)


Data = dict[str, Any]


def of_layers(change: Callable[[Data], Data]) -> Callable[[Data], Data]:
    """change: data of a layer -> the sections that it has instead."""
    return lambda model: {"layers": [layer | change(layer) for layer in model["layers"]]}


def with_further_heads(model: Data) -> Data:
    norm = model["final_norm"]
    mtp = {"layer": model["layers"][0], "slot_norm": norm, "final_norm": norm}
    return {"positions": {"n_positions": 17}, "mtp": mtp}


HOURGLASS = {"kind": "hourglass", "n_blocks": 2, "d_hidden": 37}
DYNAMIC = {"kind": "dynamic", "d_ff": 37, "mask": {"kind": "ste", "temperature": 1.5}}
CONVERSIONS: dict[str, Callable[[Data], Data]] = {
    "hourglass": of_layers(lambda layer: {"ffn": HOURGLASS}),
    "dynamic": of_layers(lambda layer: {"ffn": DYNAMIC}),
    "biases": of_layers(lambda layer: {"attention": layer["attention"] | {"bias": True, "out_bias": True}}),
    "further heads and learned positions": with_further_heads,
}
"""Data of a model -> what it has instead."""


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_an_imported_model_becomes_another_kind_and_computes_the_same(tmp_path: Path, kind: str) -> None:
    imported = import_hf(hf_folder(tmp_path / "llama", "llama"))
    data, weights = to_data(imported.config), imported.weights
    plan = plan_growth(imported.config, parse(ModelConfig, data | CONVERSIONS[kind](data)))
    found = own_logits(plan.new, dict(plan.weights(weights)))
    torch.testing.assert_close(found, own_logits(imported.config, weights), rtol=0, atol=1e-13)
    torch.testing.assert_close(found, hf_logits(hf_model("llama")), rtol=0, atol=TOLERANCE)
    if kind == "biases":  # zero biases go back to the format
        exported = export_hf(plan.new, dict(plan.weights(weights)), tmp_path / "biased", Surroundings(64))
        assert exported == "llama"
        torch.testing.assert_close(hf_logits(tmp_path / "biased"), hf_logits(hf_model("llama")), rtol=0, atol=TOLERANCE)
