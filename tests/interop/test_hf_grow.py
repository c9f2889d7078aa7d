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

from widthwise.config_io import UserError, parse, to_data
from widthwise.growth.bake.baked import bake_plan
from widthwise.growth.plan.fresh import Constant
from widthwise.growth.plan.model_plan import plan_growth
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
    assert attention.rope_base is not None
    return with_heads(model, attention.head_dim * 3 // 2, attention.rope_base**1.5)


def any_head(model: ModelConfig) -> Expansion:
    """Without a base for it, the frequencies stay in a table, which goes on."""
    return widen_values(*_config(widen_keys(model, everywhere(model), model.layers[0].attention.head_dim + 2)))


def _config(expansion: Expansion) -> tuple[ModelConfig, range, int]:
    model = expansion[0]
    return model, everywhere(model), model.layers[0].attention.head_dim


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


GROWTHS: dict[str, tuple[str, tuple[Grow, ...]]] = {
    "llama hidden": ("llama", (hidden,)),
    "llama hidden, tied and biased": ("llama_tied_biased", (hidden,)),
    "llama feed-forward": ("llama", (feed_forward,)),
    "llama kv groups": ("llama", (kv_groups,)),
    "llama copied kv heads": ("llama", (copied_kv_heads,)),
    "llama layers": ("llama", (layers,)),
    "llama head_dim x 2": ("llama", (twice_the_head,)),
    "llama head_dim x 2, tied and biased": ("llama_tied_biased", (twice_the_head,)),
    "llama head_dim x 1.5": ("llama_tied_biased", (half_more_head,)),
    "llama head_dim + 2": ("llama", (any_head,)),
    "llama3 rule, head_dim + 2": ("llama_llama3", (any_head,)),
    "llama3 rule, hidden and feed-forward": ("llama_llama3", (hidden, feed_forward)),
    "llama everything": ("llama", (layers, twice_the_head, kv_groups, feed_forward, hidden)),
    "llama everything, tied": (
        "llama_tied_biased",
        (feed_forward, half_more_head, kv_groups, layers, hidden),
    ),
    "qwen2 everything": ("qwen2", (layers, twice_the_head, kv_groups, feed_forward, hidden)),
    "qwen2 everything, tied": ("qwen2_tied", (layers, half_more_head, kv_groups, feed_forward, hidden)),
    "qwen3 head_dim x 2": ("qwen3", (twice_the_head,)),
    "qwen3 everything": ("qwen3", (layers, twice_the_head, kv_groups, feed_forward, hidden)),
    "qwen3 everything, tied": (
        "qwen3_tied_biased",
        (twice_the_head, kv_groups, feed_forward, layers, hidden),
    ),
    "olmo2 layers": ("olmo2", (layers,)),
    "olmo2 kv groups": ("olmo2", (kv_groups,)),
    "olmo2 hidden": ("olmo2", (hidden,)),
    "olmo2 head_dim x 2": ("olmo2", (twice_the_head,)),
    "olmo2 everything, tied": ("olmo2_tied", (layers, kv_groups, feed_forward, hidden)),
    "gpt2 hidden and heads": ("gpt2", (hidden_with_heads,)),
    "gpt2 hidden and heads, untied": ("gpt2_untied", (hidden_with_heads,)),
    "gpt2 hidden and larger heads": ("gpt2", (hidden_with_larger_heads,)),
    "gpt2 feed-forward": ("gpt2", (feed_forward,)),
    "gpt2 layers": ("gpt2", (layers,)),
    "gpt2 scaled by layer": ("gpt2_scaled_by_layer", (feed_forward, hidden_with_heads)),
    "llama at once": ("llama", (at_once(layers, kv_groups, feed_forward, hidden),)),
    "llama at once, head_dim x 1.5": ("llama_tied_biased", (at_once(layers, half_more_head, kv_groups, hidden),)),
    "llama3 rule at once, head_dim + 2": ("llama_llama3", (at_once(layers, any_head, hidden),)),
    "qwen3 at once, head_dim x 2": ("qwen3", (at_once(layers, twice_the_head, kv_groups, feed_forward, hidden),)),
    "olmo2 at once": ("olmo2", (at_once(layers, kv_groups, feed_forward, hidden),)),
    "gpt2 at once": ("gpt2", (at_once(layers, feed_forward, hidden_with_heads),)),
    "gpt2 everything": ("gpt2_untied", (layers, feed_forward, hidden_with_heads, hidden_with_larger_heads)),
}


@pytest.mark.parametrize(
    ("name", "growths", "fresh"),
    [(*growth, fresh) for growth, fresh in zip(GROWTHS.values(), cycle([None, Constant(0.4)]))],
    ids=GROWTHS,
)
def test_logits_stay_those_of_the_model_that_was_imported(
    tmp_path: Path, name: str, growths: tuple[Grow, ...], fresh: Constant | None
) -> None:
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


def values_alone(model: ModelConfig) -> Expansion:
    return widen_values(model, everywhere(model), model.layers[0].attention.head_dim + 3)


def one_layer_wider(model: ModelConfig) -> Expansion:
    return widen_ffn(model, [1], 59)


def three_kv_groups(model: ModelConfig) -> Expansion:
    """10 heads in a width of 32."""
    return add_heads(model, everywhere(model), 10, 5)


REFUSED: dict[str, tuple[str, Grow, str]] = {
    "values alone": ("llama", values_alone, "v_head_dim: got 13; llama has 10 there, because it has one head size"),
    "one layer": ("llama", one_layer_wider, "layers.1.ffn.d_ff: got 59; llama has 37 there, because one number"),
    "heads that do not divide the width": (
        "llama",
        three_kv_groups,
        "d_model: got 32, which is no multiple",
    ),
    "hidden alone in gpt2": ("gpt2", hidden, "gpt2: n_head: got 3; allowed: a divisor of n_embd = 32"),
    "feed-forward of one layer in gpt2": ("gpt2", one_layer_wider, "layers.1.ffn.d_ff: got 59; gpt2 has 50 there"),
}


@pytest.mark.parametrize(("name", "grow", "message"), REFUSED.values(), ids=REFUSED)
def test_growth_beyond_the_format_is_refused_with_the_reason(
    tmp_path: Path, name: str, grow: Grow, message: str
) -> None:
    imported = import_hf(hf_folder(tmp_path / "small", name))
    plan = plan_growth(imported.config, *grow(imported.config))
    baked = bake_plan(plan.new, one_eps=True)
    weights = dict(baked.weights(dict(plan.weights(imported.weights))))
    with pytest.raises(UserError, match=message):
        export_hf(baked.new, weights, tmp_path / "large", Surroundings(imported.n_positions))
    assert not (tmp_path / "large").exists()


def with_ffn(**ffn: Any) -> Grow:
    def grow(model: ModelConfig) -> Expansion:
        data = to_data(model)
        for layer in data["layers"]:
            layer["ffn"] = ffn
        return parse(ModelConfig, data), same_layers(model)

    return grow


def biased(model: ModelConfig) -> Expansion:
    data = to_data(model)
    for layer in data["layers"]:
        layer["attention"] |= {"bias": True, "out_bias": True}
    return parse(ModelConfig, data), same_layers(model)


def with_further_heads(model: ModelConfig) -> Expansion:
    mtp = {"layer": to_data(model)["layers"][0], "slot_norm": to_data(model.final_norm)}
    data = {**to_data(model), "positions": {"n_positions": 17}, "mtp": {**mtp, "final_norm": mtp["slot_norm"]}}
    return parse(ModelConfig, data), same_layers(model)


CONVERSIONS: dict[str, Grow] = {
    "hourglass": with_ffn(kind="hourglass", n_blocks=2, d_hidden=37),
    "dynamic": with_ffn(kind="dynamic", d_ff=37, mask={"kind": "ste", "temperature": 1.5}),
    "biases": biased,
    "further heads and learned positions": with_further_heads,
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_an_imported_model_becomes_another_kind_and_computes_the_same(tmp_path: Path, convert: Grow) -> None:
    imported = import_hf(hf_folder(tmp_path / "llama", "llama"))
    plan, weights = plan_growth(imported.config, *convert(imported.config)), imported.weights
    found = own_logits(plan.new, dict(plan.weights(weights)))
    torch.testing.assert_close(found, own_logits(imported.config, weights), rtol=0, atol=1e-13)
    torch.testing.assert_close(found, hf_logits(hf_model("llama")), rtol=0, atol=TOLERANCE)


def test_a_llama_with_zero_biases_goes_back_to_its_format(tmp_path: Path) -> None:
    imported = import_hf(hf_folder(tmp_path / "llama", "llama"))
    plan = plan_growth(imported.config, *biased(imported.config))
    weights = dict(plan.weights(imported.weights))
    assert export_hf(plan.new, weights, tmp_path / "biased", Surroundings(imported.n_positions)) == "llama"
    torch.testing.assert_close(hf_logits(tmp_path / "biased"), hf_logits(hf_model("llama")), rtol=0, atol=TOLERANCE)
