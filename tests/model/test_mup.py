"""Parameter groups with their learning rates and weight decay, and coordinate sizes that do not depend on the width."""

import itertools
import math
import re

import pytest
import torch
from model_cases import SLOTS, VARIANTS, config, random_tokens

from widthwise.config_io import parse, to_data
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder, build
from widthwise.model.mup import coordinate_check, grouped_parameters
from widthwise.shape.template import ModelTemplate

RECIPE = {"init": {"width_multiplier": 8}}
MODELS = {
    "plain": {"residual": {"kind": "plain", "resize": "projection"}},
    "tied": {"tie_embeddings": True, "attention": {"qk_norm": {"over": "head"}}},
    "gpt2": VARIANTS["gpt2"] | {"tie_embeddings": False},
    "gemma3": VARIANTS["gemma3"] | {"tie_embeddings": False},
    "moe": VARIANTS["moe"],
    "dynamic": {"ffn": {"kind": "dynamic", "d_ff": 11, "score": {"kind": "linear"}}},
    "static": {"residual": {**SLOTS, "n_slots": 11, "dynamic": False}},
    "expand": {"residual": {**SLOTS, "n_slots": 10, "embedding": "expand", "group_norm": "layer"}},
    "slots": {"residual": {**SLOTS, "n_slots": 9, "embedding": "slot", "reduce": "slot"}, "mtp": {"n_depths": 2}},
    "manifold": {"residual": {"kind": "manifold", "n_slots": 3}, "mtp": {}},
}
ROLES = [
    (r"(embedding|positions)\.weight", "embedding"),
    (r"head\.weight", "head"),
    (r"(.*\.)?(\w+_)?norm(\.post)?\.weight", "gain"),
    (r".*\.(attention_residual|ffn_residual|mixing|reduce)\.scale\.weight", "scale"),
    (r".*\.(static|bias|log_gain)\.weight", "vector"),
    (r".*\.(dynamic|w_router|score\.\w+)\.weight", "control"),
    (r"(entry\.w_expand|(.*\.)?exit\.reduce\.w_reduce)\.weight", "ends"),
    (r".*\.w_(q|k|v|o|gate|up|down|widen|join)\.weight", "matrix"),
]
"""Patterns of parameter names, and the role of the parameter. The first match counts."""


def role(name: str, model_name: str) -> str:
    if model_name == "moe" and re.fullmatch(r"layers\.\d+\.ffn\.w_(gate|up|down)\.weight", name):
        return "experts"
    first_match = next(role for pattern, role in ROLES if re.fullmatch(pattern, name))
    if first_match == "ends":  # the entry and exit of slots: matrices, or coefficients of mixtures of slots
        return "control" if model_name == "slots" else "matrix"
    return first_match


@pytest.mark.parametrize("model_name", MODELS)
def test_the_role_of_a_parameter_decides_its_group(model_name):
    shape = "uniform" if model_name == "manifold" else "x"
    model = build(config(shape, **MODELS[model_name], **RECIPE), 0)
    roles = {name: role(name, model_name) for name, _ in model.named_parameters()}
    widths, d_model = model.config.widths, model.config.d_model
    for by_layer, embedding, gains, scales in itertools.product((False, True), repeat=4):
        decays = dict.fromkeys(("head", "matrix", "control", "experts"), True)
        decays |= {"embedding": embedding, "gain": gains, "scale": scales, "vector": False}
        grouped = grouped_parameters(model, by_layer, embedding, gains, scales)
        groups = {name: group for group in grouped for name in group.names}
        assert groups.keys() == roles.keys()
        for name, parameter_role in roles.items():
            group = groups[name]
            width = widths[int(name.split(".")[1])] if name.startswith("layers.") else d_model
            is_matrix = parameter_role in ("matrix", "control", "experts")
            matrices = f"matrices of width {width}" if by_layer else "matrices"
            tables = "tables" if parameter_role in ("embedding", "head") else "gains"
            assert group.name == (matrices if is_matrix else tables), name
            factor = (d_model / width if by_layer else 1) / 8 if is_matrix else 1
            assert group.lr_factor == pytest.approx(factor, rel=1e-12), name
            assert group.decays == decays[parameter_role], name
            assert group.are_hidden_matrices == (parameter_role == "matrix"), name


def test_projections_of_the_release_learn_at_the_full_rate_and_decay():
    changes = {"residual": {"kind": "plain", "resize": "projection", "projections": "as_released"}}
    groups = grouped_parameters(build(config("zigzag", "full", **changes, **RECIPE), 0))
    (group,) = (group for group in groups if any("w_widen" in name for name in group.names))
    assert (group.name, group.lr_factor, group.decays, group.are_hidden_matrices) == ("tables", 1, True, False)


def of_width(width: int, width_multiplier: float) -> Decoder:
    data = {
        "vocab_size": 61,
        "d_model": width,
        "n_layers": 2,
        "shape": {"kind": "explicit", "widths": [width, width * 3 // 4]},
        "attention": {"n_heads": 4, "scale": "1/head_dim"},
        "init": {"std": 0.1, "width_multiplier": width_multiplier},
        "logit_multiplier": 32 / width,
    }
    return build(parse(ModelTemplate, data).resolve(8), 0)


def test_mup_sets_the_options_of_muP_and_refuses_other_values():
    sizes = {"vocab_size": 61, "d_model": 96, "n_layers": 2}
    mup = {**sizes, "attention": {"head_dim": 8}, "init": {"std": 0.1, "mup": 32}}
    written = {
        **sizes,
        "attention": {"head_dim": 8, "scale": "1/head_dim"},
        "init": {"std": 0.1, "width_multiplier": 3.0},
        "logit_multiplier": 1 / 3,
    }
    template = parse(ModelTemplate, mup)
    assert template.resolve(8) == parse(ModelTemplate, written).resolve(8)
    assert parse(ModelTemplate, to_data(template)) == template
    for other in ({"logit_multiplier": 0.5}, {"attention": {"scale": "1/sqrt(head_dim)"}}):
        with pytest.raises(UserError, match=r"init.mup: sets (logit_multiplier|attention.scale) to .*; remove one"):
            parse(ModelTemplate, mup | other)


def test_coordinates_keep_their_size_when_the_multiplier_follows_the_width():
    """The check also gives the same result twice, and does not use the global generator."""
    tokens, widths, before = random_tokens(4, 17), (32, 64, 128), torch.get_rng_state()
    mup, again = (coordinate_check(lambda width: of_width(width, width / 32), widths, tokens, 0.01) for _ in range(2))
    standard = coordinate_check(lambda width: of_width(width, 1.0), widths, tokens, 0.01)
    assert mup == again
    assert torch.equal(before, torch.get_rng_state())

    def exponent(sizes, name: str) -> float:
        """Return the exponent of the growth with width, by least squares over three widths a factor of 2 apart."""
        low, _, high = (math.log2(sizes[width][name]) for width in widths)
        return (high - low) / 2

    assert all(abs(exponent(mup, name)) < 0.3 for name in mup[32])
    assert max(exponent(standard, name) for name in standard[32]) > 0.6
