"""Initial weights: their standard deviations, which the config gives, and their values, which the seed gives."""

import math

import torch
from model_cases import SLOTS, config
from thinned import in_turn

from widthwise.config_io import parse
from widthwise.model.decoder import build
from widthwise.shape.template import ModelTemplate

PAPER = {
    "vocab_size": 997,
    "d_model": 64,
    "n_layers": 5,
    "shape": {"kind": "explicit", "widths": [112, 80, 32, 48, 112]},
    "attention": {"n_heads": 8, "scale": "1/head_dim"},
    "positions": {"n_positions": 500},
    "residual": {"kind": "plain", "resize": "projection"},
}
FFNS = [
    {"kind": "swiglu", "ratio": 4},
    {"kind": "hourglass", "ratio": 0.5, "n_blocks": 8},
    {"kind": "moe", "ratio": 1, "n_experts": 5, "top_k": 2},
    {"kind": "mlp", "bias": True},
]


@in_turn(
    ("ffn", FFNS),
    ("truncate_at", [None, 1.5, 3.0]),
    ("depth_scaled", [True, True, True, False]),
)
def test_standard_deviations_are_the_papers_and_a_truncated_normal_has_no_tails(ffn, truncate_at, depth_scaled):
    """This holds for every expert, and a truncated normal has a smaller std. Gains start at 1, biases at 0."""
    init = {"std": 0.1, "width_multiplier": 8, "truncate_at": truncate_at, "depth_scaled": depth_scaled}
    resolved = parse(ModelTemplate, {**PAPER, "ffn": ffn, "init": init}).resolve(8)
    truncated_std = 1.0  # of a normal(1) after truncation
    if truncate_at is not None:
        density = math.exp(-(truncate_at**2) / 2) / math.sqrt(2 * math.pi)
        truncated_std = math.sqrt(1 - 2 * truncate_at * density / math.erf(truncate_at / math.sqrt(2)))
    for name, parameter in build(resolved, seed=1).named_parameters():
        if name.endswith(("norm.weight", "bias.weight")):
            assert (parameter == name.endswith("norm.weight")).all(), name
            continue
        std = 0.1
        if name.startswith("layers"):
            std *= math.sqrt(64 / resolved.widths[int(name.split(".")[1])] / 8)
            if depth_scaled and name.endswith(("w_o.weight", "w_down.weight")):
                std /= math.sqrt(5 * (1 + ffn.get("n_blocks", 1)))
        for matrix in parameter.chunk(ffn.get("n_experts", 1)) if ".ffn." in name else (parameter,):
            n = matrix.numel()
            assert abs(matrix.std().item() / (truncated_std * std) - 1) < 5 / math.sqrt(2 * n), name
            assert abs(matrix.mean().item()) < 5 * std / math.sqrt(n), name
            if truncate_at is None:
                kurtosis = ((matrix / std) ** 4).mean().item()
                assert abs(kurtosis - 3) < 0.25 + 30 / math.sqrt(n), name
            else:
                assert matrix.abs().max().item() <= truncate_at * std * (1 + 1e-6), name


def test_a_seed_gives_the_same_weights_in_every_dtype():
    resolved = config("x")
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        for a, b in zip(build(resolved, 3).parameters(), build(resolved, 3, dtype=dtype).parameters(), strict=True):
            assert b.dtype == dtype
            assert torch.equal(a.to(dtype), b)


def test_weights_that_a_variant_adds_do_not_change_the_other_weights():
    plain = build(config("x"), seed=3).state_dict()
    more = {"residual": {**SLOTS, "embedding": "expand"}, "mtp": {"n_depths": 2}}
    slots = build(config("x", **more), seed=3).state_dict()
    assert all(torch.equal(weight, slots[name]) for name, weight in plain.items())
