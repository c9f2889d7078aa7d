"""A model of transformers, grown here, computes there what it computed before."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from expansions import (
    Expansion,
    add_heads,
    add_layers,
    duplicate_experts,
    widen_ffn,
    widen_keys,
    widen_stream,
    widen_values,
)
from hf_models import TOLERANCE, hf_folder, hf_logits, hf_model

from widthwise.growth.bake import bake_plan
from widthwise.growth.plan import plan_growth
from widthwise.interop.hf_export import FolderExtras, export_hf
from widthwise.interop.hf_import import import_hf
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.moe import MoEConfig

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
    return add_heads(model, everywhere(model), 2 * attention.n_heads, 2 * attention.n_kv_heads)


def twice_the_experts(model: ModelConfig) -> Expansion:
    mixtures = [i for i, layer in enumerate(model.layers) if isinstance(layer.ffn, MoEConfig)]
    return duplicate_experts(model, mixtures, 2)


def layers(model: ModelConfig) -> Expansion:
    return add_layers(model, (0, 2, model.n_layers + 2))


def with_heads(model: ModelConfig, head_dim: int) -> Expansion:
    """Heads of another size, queries, keys and values alike, as these formats have it."""
    wider, _ = widen_keys(model, everywhere(model), head_dim)
    return widen_values(wider, everywhere(wider), head_dim)


def twice_the_head(model: ModelConfig) -> Expansion:
    """Old pairs lie at every other place of the new ladder, whose base is the same."""
    return with_heads(model, 2 * model.layers[0].attention.head_dim)


def larger_head(model: ModelConfig) -> Expansion:
    """Without a base for it, the frequencies stay in a table, which goes on."""
    return with_heads(model, model.layers[0].attention.head_dim + 2)


def hidden_with_heads(model: ModelConfig) -> Expansion:
    """GPT-2's width is n_heads * head_dim."""
    attention = model.layers[0].attention
    wider, same = widen_stream(model, attention.head_dim)
    return add_heads(wider, everywhere(wider), attention.n_heads + 1, attention.n_heads + 1)[0], same


def hidden_with_larger_heads(model: ModelConfig) -> Expansion:
    wider, same = widen_stream(model, 2 * model.layers[0].attention.n_heads)
    return larger_head(wider)[0], same


def at_once(adding: Grow, *growths: Grow) -> Grow:
    """One growth, to the sizes of all with the constants that a recipe derives from them. adding: of layers."""

    def grow(model: ModelConfig) -> Expansion:
        wanted, correspondence = adding(model)
        for each in growths:
            wanted = each(wanted)[0]
        return bake_plan(wanted, one_eps=True).new, correspondence

    return grow


GROWTHS: dict[str, tuple[Grow, ...]] = {
    "llama_tied_biased": (feed_forward, twice_the_head, kv_groups, layers, hidden),
    "qwen2": (twice_the_head, kv_groups, hidden),
    "olmo2_tied": (layers, kv_groups, feed_forward, hidden),
    "gemma3": (layers, kv_groups, feed_forward),
    "gemma2": (twice_the_head, layers, kv_groups, feed_forward),
    "olmo3": (layers, kv_groups, feed_forward, hidden),
    "llama_yarn": (feed_forward, twice_the_head, layers, hidden),
    "gpt2_scaled_by_layer": (feed_forward, hidden_with_heads),
    "gpt2_untied": (layers, hidden_with_heads, hidden_with_larger_heads),
    "llama_llama3": (at_once(layers, larger_head, hidden),),
    "qwen3": (at_once(layers, twice_the_head, kv_groups, feed_forward, hidden),),
    "mistral": (kv_groups, layers, feed_forward, hidden),
    "phi3": (twice_the_head, feed_forward, layers, hidden),
    "granite": (layers, feed_forward, kv_groups, hidden),
    "smollm3": (feed_forward, kv_groups, hidden),
    "mixtral": (twice_the_experts, feed_forward, layers, hidden),
    "qwen3_moe": (twice_the_experts, kv_groups, hidden),
    "qwen2_moe": (twice_the_experts, kv_groups, hidden),
    "olmoe": (twice_the_experts, feed_forward, layers),
}


@pytest.mark.parametrize("name", GROWTHS)
def test_logits_stay_as_imported(tmp_path: Path, name: str) -> None:
    expected = hf_logits(hf_model(name))
    imported = import_hf(hf_folder(tmp_path / "small", name))
    config, weights = imported.config, {key: weight.double() for key, weight in imported.weights.items()}
    for seed, grow in enumerate(GROWTHS[name]):
        plan = plan_growth(config, *grow(config))
        config, weights = plan.new, dict(plan.weights(weights, seed))
    assert config.cost().params > imported.config.cost().params
    baked = bake_plan(config, one_eps=True)
    weights = dict(baked.weights(weights))
    extras = FolderExtras(imported.n_positions)
    export_hf(baked.new, weights, tmp_path / "large", extras, model_type=imported.model_type)
    torch.testing.assert_close(hf_logits(tmp_path / "large"), expected, rtol=0, atol=TOLERANCE)
