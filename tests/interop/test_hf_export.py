"""Models of ours as folders that transformers loads."""

import json
from collections.abc import Callable
from functools import reduce
from itertools import cycle
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
from boxes import refusal
from hf_models import (
    CONFIGS,
    SPECIAL,
    TOLERANCE,
    VOCAB_SIZE,
    hf_folder,
    hf_logits,
    hf_model,
    own_logits,
    weights_of,
)
from safetensors.torch import load_file
from widthwise_models import own_model

from widthwise.config_io import parse, to_data
from widthwise.interop import hf_export
from widthwise.interop.hf_export import FolderExtras, export_hf, hf_config
from widthwise.interop.hf_import import GENERATION, TOKEN_IDS, import_hf
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.runs.export import export_run
from widthwise.runs.save import import_run
from widthwise.shape.template import ModelTemplate

PLAIN = FolderExtras(n_positions=64)
NARROW = (torch.bfloat16, torch.float16)


def template(**options: Any) -> ModelConfig:
    sizes = {"vocab_size": VOCAB_SIZE, "d_model": 24, "n_layers": 3, "attention": {"n_heads": 2}}
    return parse(ModelTemplate, {**sizes, **options}).resolve(seq_len=16)


def _set(paths: str, value: Any, first: int = 0, model: str = "llama") -> ModelConfig:
    """One of FAMILIES with another value in the layers from the first one on. paths: separated by spaces."""
    data = to_data(template(**FAMILIES[model]))
    for layer in data["layers"][first:]:
        for path in paths.split():
            *folders, key = path.split(".")
            reduce(getitem, folders, layer)[key] = value
    return parse(ModelConfig, data)


@pytest.mark.parametrize(
    ("name", "dtype"),
    list(zip((name for name in CONFIGS if name != "gpt2_scaled_by_layer"), cycle([torch.float32, *NARROW]))),
)
def test_what_was_imported_is_exported_bit_by_bit(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    hf_model(name).to(dtype).save_pretrained(tmp_path / "source")
    imported = import_hf(tmp_path / "source")
    fp32 = {key: weight.float() for key, weight in imported.weights.items()}  # as a checkpoint has them
    extras = FolderExtras(imported.n_positions, imported.token_ids)
    export_hf(imported.config, fp32, tmp_path / "out", extras, dtype, imported.model_type)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("source", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert {weight.dtype for weight in after.values()} == {dtype}
    again = import_hf(tmp_path / "out")
    assert (again.n_positions, again.token_ids) == (imported.n_positions, imported.token_ids)
    if dtype == torch.float32:
        torch.testing.assert_close(hf_logits(tmp_path / "out"), hf_logits(tmp_path / "source"), rtol=0, atol=TOLERANCE)


ROOT_OF_WIDTH = torch.tensor(24.0).sqrt().item()
GEMMA: dict[str, Any] = {
    "norm": {"placement": "both", "gain_offset": 1.0},
    "ffn": {"kind": "mlp", "activation": "gelu_tanh", "gated": True},
    "tie_embeddings": True,
    "embedding_multiplier": ROOT_OF_WIDTH,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "granite": {"residual": {"kind": "plain", "multiplier": 0.22}},
    "mixtral": {"ffn": {"kind": "moe", "n_experts": 3, "top_k": 2}},
    "smollm3": {"attention": {"n_heads": 2, "rope_base": None}},
    "qwen2": {"attention": {"n_heads": 2, "bias": True}},
    "qwen3": {"attention": {"head_dim": 6, "kv_group_size": 2, "qk_norm": {"over": "head"}}},
    "olmo2": {
        "norm": {"placement": "reordered"},
        "attention": {"n_heads": 2, "qk_norm": {"over": "all_heads"}},
        "tie_embeddings": True,
    },
    "gemma3_text": {
        **GEMMA,
        "attention": {"head_dim": 6, "kv_group_size": 2, "qk_norm": {"over": "head", "gain_offset": 1.0}},
    },
    "gemma2": {
        **GEMMA,
        "attention": {"head_dim": 6, "kv_group_size": 2, "score_cap": 0.4, "window": 3},
        "layers": {1: {"attention": {"window": None}}},
        "logit_cap": 0.8,
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
    weights = weights_of(own_model(config))
    assert export_hf(config, weights, tmp_path / "out", PLAIN) == model_type
    torch.testing.assert_close(hf_logits(tmp_path / "out"), own_logits(config, weights), rtol=0, atol=TOLERANCE)


def test_a_scaled_embedding_is_rounded_to_the_type_of_the_weights(tmp_path: Path) -> None:
    """transformers rounds sqrt(d_model) as well, so that the function depends on the type."""
    hf_model("gemma3").to(torch.bfloat16).save_pretrained(tmp_path)
    imported = import_hf(tmp_path)
    assert imported.config.embedding_multiplier == torch.tensor(32.0).sqrt().bfloat16().item()
    weights = {key: weight.float() for key, weight in imported.weights.items()}
    torch.testing.assert_close(own_logits(imported.config, weights), hf_logits(tmp_path), rtol=0, atol=TOLERANCE)
    hf_config(imported.config, 64, "gemma3_text", torch.bfloat16)
    with pytest.raises(UserError, match=r"embedding_multiplier: got 5.65625; gemma3_text has 5.656.* --dtype"):
        hf_config(imported.config, 64, "gemma3_text")


HEADS = "attention.n_heads attention.n_kv_heads"
X = {"kind": "x", "bottleneck_layer": 0.5, "bottleneck_width": 0.5, "quantum": 4}
TOGETHER = {"head_dim": 6, "ratio": 0.5, "qk_norm": {"over": "all_heads"}}
BIASED_WINDOW = {"n_heads": 2, "bias": True, "out_bias": True, "window": 5}
REFUSED: list[tuple[Callable[[], ModelConfig], str]] = [
    (lambda: template(attention=BIASED_WINDOW), "attention.bias: got True; mistral has False there"),
    (lambda: _set("ffn.d_ff", 80, 2), "layers.2.ffn.d_ff: got 80; llama has 96 there, because all layers"),
    (lambda: _set(HEADS, 4, 1), "layers.1.attention.n_heads: got 4; llama has 2 there, because all layers"),
    (lambda: _set("attention.v_head_dim", 6), "0.attention.v_head_dim: got 6; llama has 12 there, because it has one"),
    (lambda: _set("attention.scale", 0.3), "layers.0.attention.scale: got 0.3; llama has 0.288.* there, because its"),
    (lambda: _set("attention_norm.norm_dim", 20), "norm_dim: got 20; llama has 24 there, because its norms divide by"),
    (lambda: _set("ffn_norm.stat_width", 20), "ffn_norm.stat_width: got 20; llama has null there, because its norms"),
    (lambda: _set("ffn_norm.eps", 1e-3), "layers.0.ffn_norm.eps: got 0.001; llama has 1e-05 there, because it has one"),
    (lambda: _set("attention.rope_base", 500.0, 1), "layers.1.attention.rope_frequencies.1: got .* there, because it"),
    (lambda: _set("attention.qk_norm", {"over": "head", "q_norm_dim": 5}), "q_norm_dim: got 5; qwen3 has 12 there"),
    (lambda: _set("attention.score_cap", 9.0), "layers.0.attention.score_cap: got 9.0; llama has null there"),
    (lambda: template(logit_cap=9.0), "^logit_cap: got 9.0; llama has null there"),
    (lambda: _set("attention.score_cap", 9.0, model="gemma3_text"), "attn_logit_softcapping: got 9.0; allowed: null"),
    (lambda: template(shape=X), r"^llama cannot describe layers of different widths \(12, 24, 28\)$"),
    (lambda: template(mtp={"n_depths": 1}), "^mtp: the model has it, llama has none, because it has no MTP heads"),
    (lambda: template(positions={"n_positions": 9}), "layers.0.attention_norm.kind: got rms; gpt2 has layer there"),
    (
        lambda: template(attention=TOGETHER, ffn={"kind": "moe", "n_experts": 3, "top_k": 2}),
        r"n_heads \* head_dim: got 12; must be d_model = 24 for an olmoe of transformers",
    ),
    (lambda: _set(HEADS, 5), "d_model: got 24; must be a multiple of n_heads = 5 for a llama of transformers"),
    (lambda: _set("attention.head_dim", 10, model="gpt2"), r"got 10; gpt2 has 12 there, because .* is the width"),
]


def test_what_no_format_says_is_refused_with_the_reason() -> None:
    for config, message in REFUSED:
        with pytest.raises(UserError, match=message):
            hf_config(config(), n_positions=64)


def test_a_folder_in_use_and_a_full_disk_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    config = template()
    weights = weights_of(build(config, seed=0))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    assert "exists already" in refusal(export_hf, config, weights, tmp_path / "mine", PLAIN)
    monkeypatch.setattr(hf_export, "save_file", full)
    assert "out: cannot be written (No space left" in refusal(export_hf, config, weights, tmp_path / "out", PLAIN)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["mine", "mine/notes.txt"]


def test_a_weight_beyond_fp16_is_refused(tmp_path: Path) -> None:
    config = template()
    weights = weights_of(own_model(config))
    weights["head.weight"][1, 2] = -7e4
    assert "lm_head.weight: has weight 70000, which float16 cannot hold" in refusal(
        export_hf, config, weights, tmp_path / "out", PLAIN, torch.float16
    )
    assert not (tmp_path / "out").exists()


def test_padding_beyond_the_vocabulary_stays_out_of_the_config(tmp_path: Path) -> None:
    """transformers builds the embedding with the config's; the other file's is only what `generate` fills up with."""
    folder = hf_folder(tmp_path / "hf", "llama")
    generation = {"eos_token_id": [5, 7], "pad_token_id": VOCAB_SIZE}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    import_run(folder, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "out")
    torch.testing.assert_close(hf_logits(tmp_path / "out"), hf_logits(folder))
    config, written = (json.loads((tmp_path / "out" / name).read_text()) for name in ("config.json", GENERATION))
    assert {key: config[key] for key in TOKEN_IDS} == SPECIAL
    assert written == {"bos_token_id": 3, **generation}
