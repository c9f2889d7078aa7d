import itertools
import math
import re
from itertools import cycle

import pytest
import torch
from model_cases import VARIANTS, config, decoder, random_tokens

from widthwise.config_io import parse
from widthwise.model.axes import RMSNorm
from widthwise.model.decoder import Decoder, build
from widthwise.model.mup import coordinate_check, coordinate_sizes, grouped_parameters
from widthwise.shape.template import ModelTemplate

RECIPE = {"init": {"width_multiplier": 8}}


@pytest.mark.parametrize(("variant", "by_layer"), list(zip(VARIANTS, cycle([False, True]))))
def test_every_parameter_is_in_exactly_one_group(variant, by_layer):
    changes = {"residual": {"kind": "plain", "resize": "projection"}} | VARIANTS[variant]
    model = build(config("zigzag", **changes), 0)
    groups = grouped_parameters(model, lr_follows_layer_width=by_layer)
    names = [name for group in groups for name in group.names]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    identities = [id(p) for group in groups for p in group.parameters]
    assert len(set(identities)) == len(identities) == len(list(model.parameters()))
    by_name = dict(model.named_parameters())
    assert all(by_name[n] is p for group in groups for n, p in zip(group.names, group.parameters, strict=True))


RESIDUAL = {"kind": "hyper_connections", "slot_width": 4}
MODELS = {
    "plain": ({"residual": {"kind": "plain", "resize": "projection"}}, set()),
    "tied": ({"tie_embeddings": True, "attention": {"qk_norm": {"over": "head"}}}, set()),
    "gpt2": (VARIANTS["gpt2"] | {"tie_embeddings": False}, {"vector", "embedding"}),
    "hourglass": ({"ffn": {"kind": "hourglass", "n_blocks": 3, "ratio": 0.4}}, set()),
    "moe": (
        {"ffn": {"kind": "moe", "n_experts": 5, "top_k": 2, "ratio": 0.5, "n_shared_experts": 1}},
        {"control", "experts"},
    ),
    "dynamic_linear": ({"ffn": {"kind": "dynamic", "d_ff": 11, "score": {"kind": "linear"}}}, {"control", "vector"}),
    "dynamic_mlp": ({"ffn": {"kind": "dynamic", "d_ff": 11, "score": {"kind": "mlp"}}}, {"control", "vector"}),
    "static": ({"residual": {**RESIDUAL, "n_slots": 11, "dynamic": False}}, {"vector"}),
    "direct": ({"residual": {**RESIDUAL, "n_slots": 15, "group_norm": "rms"}}, {"vector", "control", "scale"}),
    "expand": (
        {"residual": {**RESIDUAL, "n_slots": 10, "embedding": "expand", "group_norm": "layer"}},
        {"vector", "control", "scale"},
    ),
    "slots": (
        {"residual": {**RESIDUAL, "n_slots": 9, "embedding": "slot", "reduce": "slot"}, "mtp": {}},
        {"vector", "control", "scale"},
    ),
    "mtp": (
        {"residual": {**RESIDUAL, "n_slots": 9}, "mtp": {"n_depths": 2, "share_reduce": False}},
        {"vector", "control", "scale"},
    ),
}
"""Models, and what they hold beside an embedding, gains and hidden matrices."""
ROLES = [
    (r"(embedding|positions)\.weight", "embedding"),
    (r"head\.weight", "head"),
    (r"(.*\.)?(\w+_)?norm\.weight", "gain"),
    (r".*\.(attention|ffn)_residual\.scale\.weight", "scale"),
    (r".*\.(static|bias|log_gain|theta)\.weight", "vector"),
    (r".*\.(dynamic|w_router|score\.\w+)\.weight", "control"),
    (r"(entry\.w_expand|(.*\.)?exit\.reduce\.w_reduce)\.weight", "ends"),
    (r".*\.w_(q|k|v|o|gate|up|down|widen|join)\.weight", "matrix"),
]
"""Names of parameters, and what they are; the first that fits."""


def role(name: str, model_name: str) -> str:
    if model_name == "moe" and re.fullmatch(r"layers\.\d+\.ffn\.w_(gate|up|down)\.weight", name):
        return "experts"
    found = next(role for pattern, role in ROLES if re.fullmatch(pattern, name))
    if found == "ends":  # of a stream of slots: matrices between states, or coefficients of mixtures of slots
        return "control" if model_name == "slots" else "matrix"
    return found


@pytest.mark.parametrize("model_name", MODELS)
def test_what_a_parameter_is_decides_its_group_whatever_its_number_of_axes(model_name):
    changes, further = MODELS[model_name]
    model = build(config("x", **changes, **RECIPE), 0)
    roles = {name: role(name, model_name) for name, _ in model.named_parameters()}
    usual = {"embedding", "gain", "matrix"} | (set() if model_name == "tied" else {"head"})
    assert set(roles.values()) == usual | further
    widths, d_model = model.config.widths, model.config.d_model
    for by_layer, embedding, gains, scales in itertools.product((False, True), repeat=4):
        decays = dict.fromkeys(("head", "matrix", "control", "experts"), True)
        decays |= {"embedding": embedding, "gain": gains, "scale": scales, "vector": False}
        groups = {
            name: group
            for group in grouped_parameters(model, by_layer, embedding, gains, scales)
            for name in group.names
        }
        assert groups.keys() == roles.keys()
        for name, what in roles.items():
            group = groups[name]
            width = widths[int(name.split(".")[1])] if name.startswith("layers.") else d_model
            is_matrix = what in ("matrix", "control", "experts")
            matrices = f"matrices of width {width}" if by_layer else "matrices"
            tables = "tables" if what in ("embedding", "head") else "gains"
            assert group.name == (matrices if is_matrix else tables), name
            factor = (d_model / width if by_layer else 1) / 8 if is_matrix else 1
            assert group.lr_factor == pytest.approx(factor, rel=1e-12), name
            assert group.decays == decays[what], name
            assert group.are_hidden_matrices == (what == "matrix"), name


def test_groups_are_the_papers():
    model = build(config("x", **VARIANTS["qk_norm_all_heads"], **RECIPE), 0)
    groups = {group.name: group for group in grouped_parameters(model)}
    assert set(groups) == {"tables", "matrices", "gains"}
    assert set(groups["tables"].names) == {"embedding.weight", "head.weight"}
    assert (groups["tables"].lr_factor, groups["tables"].decays) == (1, True)
    assert (groups["matrices"].lr_factor, groups["matrices"].decays) == (1 / 8, True)
    assert (groups["gains"].lr_factor, groups["gains"].decays) == (1, False)
    gains = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, RMSNorm)}
    assert set(groups["gains"].names) == gains
    assert all(name.startswith("layers.") for name in groups["matrices"].names)


def test_projections_of_the_release_learn_at_the_full_rate_and_decay():
    changes = {"residual": {"kind": "plain", "resize": "projection", "projections": "as_released"}}
    groups = grouped_parameters(build(config("zigzag", "full", **changes, **RECIPE), 0))
    (widening,) = (group for group in groups if any("w_widen" in name for name in group.names))
    assert (widening.name, widening.lr_factor, widening.decays, widening.are_hidden_matrices) == (
        "tables",
        1,
        True,
        False,
    )


def test_a_tied_head_is_in_the_group_of_the_embedding():
    groups = {group.name: group for group in grouped_parameters(build(config("x", tie_embeddings=True), 0))}
    assert groups["tables"].names == ("embedding.weight",)


def test_rate_follows_the_layer_width_when_asked():
    model = build(config("x", **RECIPE), 0)
    widths, d_model = model.config.widths, model.config.d_model
    for group in grouped_parameters(model, lr_follows_layer_width=True):
        for name in group.names:
            is_matrix = name.startswith("layers.") and not name.endswith("norm.weight")
            expected = d_model / widths[int(name.split(".")[1])] / 8 if is_matrix else 1
            assert group.lr_factor == pytest.approx(expected, rel=1e-12), name


def test_parameters_of_one_factor_are_a_group_of_their_own():
    model = build(config("x"), 0)
    keys = {f"layers.{i}.attention.w_k.weight": 2.0 for i in (0, 1)} | {"layers.2.attention.w_k.weight": 3.0}
    groups = grouped_parameters(model, scaled=keys)
    factors = {name: group.multiplied_by for group in groups for name in group.names}
    assert factors == dict.fromkeys(dict(model.named_parameters()), 1.0) | keys
    assert {group.names for group in groups if group.multiplied_by != 1} == {tuple(keys)[:2], tuple(keys)[2:]}
    plain = {name: group for group in grouped_parameters(model) for name in group.names}
    for group in groups:
        for name in group.names:
            expected = plain[name]
            assert (group.name, group.lr_factor, group.decays) == (expected.name, expected.lr_factor, expected.decays)


def test_a_factor_of_no_parameter_is_refused():
    with pytest.raises(ValueError, match=r"^scaled: got 'w_k'; must be parameters of the model"):
        grouped_parameters(build(config("x"), 0), scaled={"w_k": 2.0})


def test_groups_are_in_the_order_of_their_first_parameter():
    model = build(config("x"), 0)
    order = [name for name, _ in model.named_parameters()]
    firsts = [order.index(group.names[0]) for group in grouped_parameters(model, lr_follows_layer_width=True)]
    assert firsts == sorted(firsts)


def test_coordinate_sizes_measure_updates_and_logits():
    model, tokens = decoder(config("x")), random_tokens(2, 5)
    sizes = coordinate_sizes(model, tokens)
    assert set(sizes) == {f"layers.{i}.{part}" for i in range(5) for part in ("attention", "ffn")} | {"logits"}
    assert sizes["logits"] == pytest.approx(model(tokens).square().mean().sqrt().item(), rel=1e-5)
    assert not any(module._forward_hooks for module in model.modules())


def of_width(width_multiplier):
    """Builds models of one form whose width multiplier is a function of the width."""

    def build_at(width: int) -> Decoder:
        data = {
            "vocab_size": 61,
            "d_model": width,
            "n_layers": 2,
            "shape": {"kind": "explicit", "widths": [width, width * 3 // 4]},
            "attention": {"n_heads": 4, "scale": "1/head_dim"},
            "init": {"std": 0.1, "width_multiplier": width_multiplier(width)},
            "logit_multiplier": 32 / width,
        }
        return build(parse(ModelTemplate, data).resolve(8), 0)

    return build_at


def slope(sizes: dict[int, dict[str, float]], name: str) -> float:
    """Exponent of the growth with width."""
    widths = sorted(sizes)
    x = torch.tensor([math.log(width) for width in widths])
    y = torch.tensor([math.log(sizes[width][name]) for width in widths])
    x = x - x.mean()
    return ((x * y).sum() / (x * x).sum()).item()


def test_coordinates_keep_their_size_when_the_multiplier_follows_the_width():
    tokens = random_tokens(4, 17)
    widths = (32, 64, 128, 256)
    mup, standard = (
        coordinate_check(of_width(multiplier), widths, tokens, lr=0.01, n_steps=4)
        for multiplier in (lambda width: width / 32, lambda width: 1.0)
    )
    for name in mup[32]:
        assert abs(slope(mup, name)) < 0.3, name
    assert max(slope(standard, name) for name in standard[32]) > 0.6


def test_coordinate_check_is_reproducible_and_leaves_the_global_generator_alone():
    tokens = random_tokens(2, 5)
    before = torch.get_rng_state()
    first, again = (
        coordinate_check(of_width(lambda w: w / 32), (32, 64), tokens, lr=0.01, n_steps=2) for _ in range(2)
    )
    assert first == again
    assert torch.equal(before, torch.get_rng_state())
