"""Costs of a config compared with torch's counts for the built model."""

import itertools

import pytest
import torch
from measured import check_against_torch, counted_flops, kept_in_training, on_meta
from model_cases import CASES, KINDS, OVER_WIDTH, SEQ_LEN, VARIANTS, config, decoder, variant
from recipes import RECIPES, one_of_each_kind, recipe_data
from thinned import in_turn

from widthwise.config_io import checked_copy, parse, to_data
from widthwise.model.config import ModelConfig
from widthwise.model.cost import Cost
from widthwise.model.decoder import Decoder
from widthwise.shape.template import ModelTemplate


@pytest.mark.hard
def test_cost_of_every_kind_of_recipe_equals_the_built_model_at_full_size():
    recipes = [(parse(ModelTemplate, data["model"]), data["seq_len"]) for path in RECIPES for data in recipe_data(path)]
    recipes.sort(key=lambda recipe: recipe[0].d_model * recipe[0].n_layers)  # the smallest of a kind
    for template, seq_len in one_of_each_kind(recipes, lambda recipe: to_data(recipe[0])):
        check_against_torch(template.resolve(seq_len), seq_len)


BLOCKS = {"kind": "hourglass", "n_blocks": 2, "d_hidden": [5, 3]}
CHANGES = [
    *({"residual": {"kind": "plain", "resize": resize}} for resize in ("zero", "projection", "full_projection")),
    {"layers": {0: {"ffn": BLOCKS, "d_model": 12}, 2: {"attention": {"n_heads": 3, "n_kv_heads": 1, "head_dim": 4}}}},
]
"""Changes that no variant has: other values of `resize`, and sizes given for single layers."""
WITH_WINDOWS = {name for name, changes in VARIANTS.items() if "window" in changes.get("attention", {})}
CONFIGS = [
    *((shape, {**VARIANTS, **OVER_WIDTH}[name]) for shape, name in CASES if name not in WITH_WINDOWS),
    *(("zigzag", changes) for changes in CHANGES),
]
"""All variants without windows; with a window, torch also counts the products outside it."""


@in_turn((("shape", "changes"), CONFIGS), ("endpoints", ["slim", "full"]))
def test_cost_equals_the_built_model_its_exits_and_its_caches(shape, changes, endpoints):
    resolved = config(shape, endpoints, **changes)
    check_against_torch(resolved, SEQ_LEN)
    exits = resolved.exit_flops(SEQ_LEN)
    assert exits[-1] == resolved.inference_cost().forward_flops(SEQ_LEN)
    layers = [sum(costs.values(), Cost()).forward_flops(SEQ_LEN) for costs in resolved.layer_costs()]
    assert [after - before for before, after in itertools.pairwise(exits)] == pytest.approx(layers)
    model = on_meta(lambda: Decoder(resolved))
    cache_bytes, mtp_cache_bytes = model.new_cache(3, 7).n_bytes, model.new_cache(3, 7, of_mtp=True).n_bytes
    assert cache_bytes == 3 * 7 * resolved.inference_cost().kv_bytes(7, bytes_per_element=4)
    assert cache_bytes + mtp_cache_bytes == 3 * 7 * resolved.cost().kv_bytes(7, bytes_per_element=4)


@pytest.mark.parametrize("causal", [False, True])
def test_only_tokens_in_the_window_are_counted(causal):
    windowed = config("x", attention={"n_heads": 2, "window": 4}).inference_cost()
    full = config("x", attention={"n_heads": 2}).inference_cost()
    assert windowed.forward_flops(4, causal) == full.forward_flops(4, causal)
    pairs = sum(min(i + 0.5, 4) for i in range(SEQ_LEN)) if causal else 4 * SEQ_LEN
    # Both counts are means over the tokens; a token attends to half of itself, as in the count without a window.
    per_pair = (full.forward_flops(2) - full.forward_flops(1)) / SEQ_LEN
    assert windowed.forward_flops(SEQ_LEN, causal) == pytest.approx(full.flops + per_pair * pairs)


@pytest.mark.parametrize("capacity", [2, 4, 23])
def test_a_cache_holds_only_the_tokens_of_the_window(capacity):
    resolved = variant("zigzag", "windows")
    model = on_meta(lambda: Decoder(resolved))
    expected = 3 * capacity * resolved.inference_cost().kv_bytes(capacity, bytes_per_element=4)
    assert model.new_cache(3, capacity).n_bytes == pytest.approx(expected)


@pytest.mark.parametrize(("n_layers", "n_blocks"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_an_exit_after_a_block_costs_what_torch_counts_in_a_model_that_ends_there(n_layers, n_blocks):
    deep = config("uniform", ffn={"kind": "hourglass", "n_blocks": 3, "d_hidden": 7})
    *before, last = deep.layers[:n_layers]
    last = last.model_copy(update={"ffn": checked_copy(last.ffn, "ffn", n_blocks=n_blocks)})
    shallow = on_meta(lambda: Decoder(checked_copy(deep, "model", layers=(*before, last))))
    tokens = torch.zeros(1, SEQ_LEN, dtype=torch.long, device="meta")
    expected = counted_flops(lambda: shallow(tokens))
    assert SEQ_LEN * deep.block_exit_flops(SEQ_LEN)[n_layers - 1][n_blocks - 1] == expected


def n_uncounted(resolved: ModelConfig) -> int:
    """Return the activations that are kept but not counted, if norms follow the sublayers. It can be negative.

    A sublayer that keeps a prefix of a wider stream keeps all of it, unless it casts it to another dtype. A site that
    keeps the update shares it with the norm, which keeps its output.
    """
    placement = resolved.layers[0].norm_placement
    if placement != "pre" and resolved.residual.kind == "hyper_connections":
        return -sum(layer.d_model + layer.d_out for layer in resolved.layers)
    if placement != "reordered":
        return 0
    before = zip(resolved.widths_before, resolved.layers, strict=True)
    return sum(max(0, width - layer.d_in) for width, layer in before)


def fp32_updates(resolved: ModelConfig) -> int:
    """Return the activations of updates that sites keep in fp32, because they are sums over several blocks."""
    if resolved.residual.kind == "plain":
        return 0
    return sum(layer.d_out for layer in resolved.layers if len(layer.ffn.hidden_widths) > 1)


@pytest.mark.parametrize(("shape", "name"), [case for case in KINDS if "further_heads" not in case[1]])
def test_activation_bytes_are_the_bytes_that_autograd_keeps(shape, name):
    """test_residual_contract.py compares them for every residual."""
    resolved = variant(shape, name)
    model, cost, n_more = decoder(resolved, dtype=torch.float32), resolved.cost(), n_uncounted(resolved)
    assert kept_in_training(model) == cost.activation_bytes(bytes_per_element=4) + 4 * n_more
    with torch.autocast("cpu", torch.bfloat16):
        assert kept_in_training(model) == cost.activation_bytes() + 2 * fp32_updates(resolved) + min(0, 2 * n_more)
