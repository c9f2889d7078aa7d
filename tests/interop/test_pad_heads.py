"""Heads of all layers padded to one size on export: the same logits, and what takes the room."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from boxes import refusal
from hf_models import VOCAB_SIZE, assert_close, tokens
from thinned import in_turn
from widthwise_models import MODELS, X, check_padded, config_of, loaded, own_model, written

from widthwise.config_io import parse
from widthwise.growth.bake import pad_heads_plan
from widthwise.interop.configuration_widthwise import WidthwiseConfig
from widthwise.interop.hf_import import import_hf
from widthwise.interop.vllm_plugin import check_supported
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.shape.template import ModelTemplate

PAPER: dict[str, Any] = {"shape": X, "attention": {"n_heads": 3, "rope_base": 500.0}}
EXACT: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "paper_normed": {**PAPER, "attention": {**PAPER["attention"], "qk_norm": {"over": "head"}}},
    "paper_normed_together": {
        **PAPER,
        "norm": {"placement": "reordered"},
        "attention": {**PAPER["attention"], "qk_norm": {"over": "all_heads"}, "bias": True, "out_bias": True},
    },
    "paper_mtp": {**PAPER, "mtp": {"n_depths": 1}},
    "no_rope": {**MODELS["layer_norm"], "shape": {**X, "quantum": 3}},
}
"""As the paper has it, as many heads in every layer: head sizes from 6 to 12, and odd ones without rotation."""


def _config(name: str) -> ModelConfig:
    if name not in EXACT:
        return config_of(name)
    data = {"vocab_size": VOCAB_SIZE, "d_model": 36, "n_layers": 5, "ffn": {"kind": "swiglu", "ratio": 1.5}}
    return parse(ModelTemplate, {**data, **EXACT[name]}).resolve(seq_len=16)


@cache
def _models(name: str, multiple: int) -> tuple[Decoder, Decoder]:
    """In fp64."""
    model = own_model(_config(name), torch.float64)
    plan = pad_heads_plan(model.config, multiple)
    padded = build(plan.new, seed=9, dtype=torch.float64)
    padded.set_weights(plan.weights(dict(model.named_parameters())))
    return model, padded.eval()


OTHERS = ("slim_grouped", "reordered", "slots", "dynamic", "hourglass", "frozen", "frozen_slots")


@torch.no_grad()
@in_turn(("name", [*EXACT, *OTHERS]), ("multiple", (8, 24)))
def test_logits_stay_and_every_head_has_one_size_in_transformers_too(tmp_path: Path, name: str, multiple: int) -> None:
    model, padded = _models(name, multiple)
    expected = model(tokens())
    assert_close(padded(tokens()), expected, 1e-12)
    largest = max(max(layer.attention.head_dim, layer.attention.value_dim) for _, layer in model.config.named_layers())
    size = next(n for n in range(multiple, 99, multiple) if n >= largest)
    attentions = [layer.attention for _, layer in padded.config.named_layers()]
    assert {(attention.head_dim, attention.value_dim) for attention in attentions} == {(size, size)}
    folder = written(padded, tmp_path / "hf")
    found = check_padded(model, loaded(folder, dtype=torch.float64))
    n_heads = sum(layer.attention.n_kv_heads for layer in model.config.layers)
    n_elements = sum(layer.keys.numel() + layer.values.numel() for layer in found.past_key_values.layers)
    assert n_elements == 2 * n_heads * size * found.logits[..., 0].numel()
    imported, weights = import_hf(folder), dict(padded.named_parameters())
    assert imported.config == padded.config
    assert all(torch.equal(imported.weights[key], weights[key]) for key in weights)


def test_padded_it_is_a_model_that_vllm_takes(tmp_path: Path) -> None:
    model, padded = _models("paper_normed", 8)
    as_it_is = WidthwiseConfig.from_pretrained(written(model, tmp_path / "as it is"))
    assert "head sizes" in refusal(check_supported, as_it_is, "hf")
    check_supported(WidthwiseConfig.from_pretrained(written(padded, tmp_path / "padded")), "hf")


def test_what_is_no_padding_is_refused() -> None:
    _, padded = _models("paper", 16)
    for multiple, message in (
        (12, "pad_heads: got 12; allowed: multiples of 8"),
        (16, "pad_heads: got 16; all heads have 16 coordinates already, so omit it"),
    ):
        assert refusal(pad_heads_plan, padded.config, multiple) == message
