"""A cut of a model of each family."""

from pathlib import Path
from typing import Any

import pytest
from hf_models import CONFIGS, assert_close, built, hf_logits, own_logits, transformers, weights_of

from widthwise.growth.choices import ShrinkOptions
from widthwise.runs.export import export_run
from widthwise.runs.open import open_model
from widthwise.runs.shrink import shrink_run
from widthwise.runs.train import resume

HEALING = (
    *("data.corpus=synthetic", "data.tokenizer=bpe-300", "seq_len=17", "optimizer.lr=0.003", "schedule.warmup_steps=1"),
    *("train.batch_size=4", "train.micro_batch_size=2", "train.steps=12", "train.validation_tokens=90"),
    "train.precision=fp32",
)
OPTIONS = ShrinkOptions(flops=0.7, calibration_batches=1, multiple=1)
CUT = ("llama_yarn", "mistral_window", "ministral", "qwen2", "qwen3", "smollm3_window", "phi3", "granite", "gpt2")
CUT += ("gemma2", "gemma3", "mixtral_window", "qwen2_moe", "qwen3_moe")


@pytest.mark.hard
@pytest.mark.parametrize("name", CUT)
def test_a_cut_heals_and_leaves_as_what_transformers_computes(tmp_path: Path, name: str) -> None:
    import widthwise.hf  # noqa: F401

    kind, options = CONFIGS[name]
    built(kind, {**options, "vocab_size": 300}).save_pretrained(tmp_path / "whole")
    found = shrink_run(tmp_path / "whole", tmp_path / "cut", OPTIONS, HEALING)
    assert resume(tmp_path / "cut")["val_loss"] < found.loss_after - 0.5
    export_run(tmp_path / "cut", tmp_path / "exported")
    model = open_model(tmp_path / "cut", "cpu").model
    assert_close(own_logits(model.config, weights_of(model)), hf_logits(tmp_path / "exported"), what=name)


def test_no_llama_of_transformers_has_layers_of_different_sizes() -> None:
    """If this fails, a cut of a Llama can be exported as one."""
    options: dict[str, Any] = {**CONFIGS["llama"][1], "per_layer_config": {0: {"intermediate_size": 20}}}
    with pytest.raises(RuntimeError, match="'intermediate_size' is a per-layer attribute"):
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
