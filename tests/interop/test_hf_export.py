"""Models of ours as folders that transformers loads."""

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import CONFIGS, TOLERANCE, VOCAB_SIZE, hf_folder, hf_logits, hf_model, own_logits
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from widthwise_models import left_padded, prompts

from widthwise.config_io import UserError, options_of, parse, to_data
from widthwise.interop import hf_export
from widthwise.interop.hf_export import Surroundings, export_hf, hf_config
from widthwise.interop.hf_import import import_hf
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.model.generate import SamplingConfig, generate
from widthwise.shape.template import ModelTemplate

PLAIN = Surroundings(n_positions=64)


def template(**options: Any) -> ModelConfig:
    sizes = {"vocab_size": VOCAB_SIZE, "d_model": 24, "n_layers": 3, "attention": {"n_heads": 2}}
    return parse(ModelTemplate, {**sizes, **options}).resolve(seq_len=16)


def uniform(**options: Any) -> ModelConfig:
    """A model that a format can say, with changes."""
    return ModelConfig.model_validate({**options_of(ModelConfig, template()), **options})


def of_layers(change: Callable[[int, dict[str, Any]], Any], config: ModelConfig | None = None) -> ModelConfig:
    """change: takes the number of a layer and its data, which it changes."""
    data = to_data(config or template())
    for i, layer in enumerate(data["layers"]):
        change(i, layer)
    return parse(ModelConfig, data)


@pytest.mark.parametrize(
    ("name", "dtype"),
    list(zip((name for name in CONFIGS if name != "gpt2_scaled_by_layer"), cycle([torch.float32, torch.bfloat16]))),
)
def test_what_was_imported_is_exported_bit_by_bit(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    hf_model(name).to(dtype).save_pretrained(tmp_path / "source")
    imported = import_hf(tmp_path / "source")
    fp32 = {key: weight.float() for key, weight in imported.weights.items()}  # as a checkpoint has them
    surroundings = Surroundings(imported.n_positions, imported.token_ids)
    assert export_hf(imported.config, fp32, tmp_path / "out", surroundings, dtype) == imported.model_type
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("source", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert {weight.dtype for weight in after.values()} == {dtype}


def test_greedy_text_is_that_of_transformers(tmp_path: Path) -> None:
    """The prompts have different lengths, and heads share keys and values."""
    attention = {"n_heads": 6, "kv_group_size": 3}
    model = build(template(attention=attention), seed=3, dtype=torch.float64)
    assert export_hf(model.config, model.state_dict(), tmp_path / "out", PLAIN, torch.float64) == "llama"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float64).eval()
    batch = left_padded(prompts())
    found = theirs.generate(**batch, max_new_tokens=9, do_sample=False, pad_token_id=0)
    expected = generate(model, prompts(), 9, SamplingConfig(temperature=0))
    assert found[:, batch["input_ids"].shape[1] :].tolist() == expected


@pytest.mark.parametrize("name", ["llama_llama3", "qwen3_tied_biased", "olmo2", "gpt2"])
def test_what_was_imported_is_exported_as_the_same_config(tmp_path: Path, name: str) -> None:
    imported = import_hf(hf_folder(tmp_path / "source", name))
    export_hf(
        imported.config, imported.weights, tmp_path / "out", Surroundings(imported.n_positions, imported.token_ids)
    )
    again = import_hf(tmp_path / "out")
    hf_config(again.config, 64)
    assert (again.model_type, again.n_positions, again.token_ids) == (
        imported.model_type,
        imported.n_positions,
        imported.token_ids,
    )
    torch.testing.assert_close(hf_logits(tmp_path / "out"), hf_logits(tmp_path / "source"), rtol=0, atol=TOLERANCE)


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"attention": {"n_heads": 2, "bias": True}},
    "qwen3": {"attention": {"head_dim": 6, "kv_group_size": 2, "qk_norm": {"over": "head"}}},
    "olmo2": {
        "norm": {"placement": "reordered"},
        "attention": {"n_heads": 2, "qk_norm": {"over": "all_heads"}},
        "tie_embeddings": True,
    },
    "gpt2": {
        "norm": {"kind": "layer"},
        "attention": {"n_heads": 2, "bias": True, "out_bias": True, "rope_base": None},
        "ffn": {"kind": "mlp", "activation": "relu2", "bias": True},
        "positions": {"n_positions": 16},
    },
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_model_of_a_recipe_is_written_as_what_it_is(tmp_path: Path, model_type: str) -> None:
    config = template(**FAMILIES[model_type])
    weights = dict(build(config, seed=3, dtype=torch.float32).named_parameters())
    generator = torch.Generator().manual_seed(4)
    weights = {
        key: (weight.detach() + 0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float32))
        for key, weight in weights.items()
    }
    assert export_hf(config, weights, tmp_path / "out", PLAIN) == model_type
    torch.testing.assert_close(hf_logits(tmp_path / "out"), own_logits(config, weights), rtol=0, atol=TOLERANCE)


def _set(path: str, value: Any, first: int = 0) -> Callable[[int, dict[str, Any]], None]:
    def change(i: int, layer: dict[str, Any]) -> None:
        *folders, key = path.split(".")
        node = layer
        for folder in folders:
            node = node[folder]
        if i >= first:
            node[key] = value

    return change


REFUSED: dict[str, tuple[Callable[[], ModelConfig], str]] = {
    "feed-forwards of several widths": (
        lambda: of_layers(_set("ffn.d_ff", 80, first=2)),
        "layers.2.ffn.d_ff: got 80; llama has 96 there, because one number stands for all layers",
    ),
    "heads of several numbers": (
        lambda: of_layers(lambda i, layer: layer["attention"].update(n_heads=4, n_kv_heads=4) if i else None),
        "layers.1.attention.n_heads: got 4; llama has 2 there, because one number",
    ),
    "values of their own size": (
        lambda: of_layers(_set("attention.v_head_dim", 6)),
        "layers.0.attention.v_head_dim: got 6; llama has 12 there, because it has one head size",
    ),
    "a scale of its own": (
        lambda: of_layers(_set("attention.scale", 0.3)),
        "layers.0.attention.scale: got 0.3; llama has 0.288.* there, because its scores have one factor",
    ),
    "a scale that is nearly the usual one": (
        lambda: of_layers(_set("attention.scale", 12**-0.5 * (1 + 1e-9))),
        "layers.0.attention.scale: got 0.288.* there, because its scores have one factor",
    ),
    "a frozen divisor": (
        lambda: of_layers(_set("attention_norm.norm_dim", 20)),
        "layers.0.attention_norm.norm_dim: got 20; llama has 24 there, because its norms divide by the width",
    ),
    "a part that is measured": (
        lambda: of_layers(_set("ffn_norm.stat_width", 20)),
        "layers.0.ffn_norm.stat_width: got 20; llama has null there, because its norms measure all",
    ),
    "two eps": (
        lambda: of_layers(_set("ffn_norm.eps", 1e-3)),
        "layers.0.ffn_norm.eps: got 0.001; llama has 1e-05 there, because it has one eps",
    ),
    "layers that turn otherwise": (
        lambda: of_layers(_set("attention.rope_base", 500.0, first=1)),
        "layers.1.attention.rope_frequencies.1: got .* there, because it turns queries and keys, those of all",
    ),
    "biases at the way out alone": (
        lambda: of_layers(_set("attention.out_bias", True)),
        "layers.0.attention.out_bias: got True; llama has False there",
    ),
    "a divisor of queries": (
        lambda: of_layers(
            _set("attention.qk_norm", {"eps": 1e-5, "over": "head", "q_norm_dim": 5}),
        ),
        "layers.0.attention.qk_norm.q_norm_dim: got 5; qwen3 has 12 there",
    ),
    "heads under one norm in front": (
        lambda: of_layers(_set("attention.qk_norm", {"eps": 1e-5, "over": "all_heads"})),
        "layers.0.attention.qk_norm.over: got all_heads; qwen3 has head there",
    ),
    "widths that vary": (
        lambda: template(shape={"kind": "x", "bottleneck_layer": 0.5, "bottleneck_width": 0.5, "quantum": 4}),
        "layers.*d_.*there, because every layer is as wide as the embedding",
    ),
    "an hourglass": (
        lambda: template(ffn={"kind": "hourglass", "n_blocks": 2, "d_hidden": 12}),
        "layers.0.ffn.kind: got hourglass; llama has swiglu there",
    ),
    "hidden widths that tokens choose": (
        lambda: template(ffn={"kind": "dynamic"}),
        "layers.0.ffn.kind: got dynamic; llama has swiglu there",
    ),
    "a mixture of experts": (
        lambda: template(ffn={"kind": "moe", "n_experts": 4, "top_k": 2}),
        "layers.0.ffn.kind: got moe; llama has swiglu there",
    ),
    "a stream of slots": (
        lambda: template(residual={"kind": "hyper_connections", "n_slots": 3, "slot_width": 12}),
        "residual.kind: got hyper_connections; llama has plain there, because it has one stream",
    ),
    "further heads": (
        lambda: template(mtp={"n_depths": 1}),
        "^mtp: the model has it, llama has none, because it has no place for further heads$",
    ),
    "a multiplier": (lambda: uniform(embedding_multiplier=2.0), "embedding_multiplier: got 2.0; llama has 1.0 there"),
    "a multiple of the update": (
        lambda: template(residual={"kind": "plain", "multiplier": 0.5}),
        "residual.multiplier: got 0.5; llama has 1.0 there",
    ),
    "learned positions under rotation": (
        lambda: template(positions={"n_positions": 9}),
        "layers.0.attention_norm.kind: got rms; gpt2 has layer there",
    ),
    "no positions at all": (
        lambda: of_layers(_set("attention.rope_base", None)),
        "layers.0.attention.rope_frequencies: got null; llama has .* there, because it turns",
    ),
    "a width that heads do not divide": (
        lambda: of_layers(lambda i, layer: layer["attention"].update(n_heads=5, n_kv_heads=5)),
        "d_model: got 24, which is no multiple of n_heads = 5; transformers refuses such a llama",
    ),
    "a gpt2 whose heads do not make its width": (
        lambda: of_layers(_set("attention.head_dim", 10), template(**FAMILIES["gpt2"])),
        "layers.0.attention.head_dim: got 10; gpt2 has 12 there, because .* n_heads \\* head_dim is the width",
    ),
}


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_format_says_is_refused_with_the_reason(config: Callable[[], ModelConfig], message: str) -> None:
    with pytest.raises(UserError, match=message):
        hf_config(config(), n_positions=64)


def test_a_width_that_heads_do_not_divide_is_refused_by_transformers_too(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path, "llama")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_attention_heads": 5, "num_key_value_heads": 5}))
    with pytest.raises(Exception, match="not a multiple"):
        hf_logits(folder)


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    config = template()
    weights = dict(build(config, seed=0).named_parameters())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        export_hf(config, weights, tmp_path, PLAIN)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_export, "save_file", full)
    config = template()
    weights = {key: weight.detach() for key, weight in build(config, seed=0).named_parameters()}
    with pytest.raises(UserError, match=r"out: cannot be written \(No space left"):
        export_hf(config, weights, tmp_path / "out", PLAIN)
    assert not list(tmp_path.iterdir())
