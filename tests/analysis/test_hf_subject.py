"""Models of transformers are seen as they are, and as ours are."""

from typing import Any

import pytest
import torch
from profiled_models import close, spectrum, summary, windows_of

from widthwise.analysis.model_subjects import HFSubject
from widthwise.config_io import UserError, parse
from widthwise.interop.hf_export import Surroundings, export_hf
from widthwise.model.decoder import build
from widthwise.shape.template import ModelTemplate

transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES = {
    "vocab_size": 47,
    "hidden_size": 16,
    "intermediate_size": 21,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
GPT2_SIZES = {"vocab_size": 47, "n_embd": 12, "n_layer": 3, "n_head": 3, "n_positions": 32, "n_inner": 19}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "mistral_with_a_window": ("MistralConfig", {**SIZES, "sliding_window": 4}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", {**SIZES, "head_dim": 6}),
    "olmo2": ("Olmo2Config", SIZES),
    "gpt2": ("GPT2Config", {**GPT2_SIZES, "bos_token_id": 0, "eos_token_id": 0}),
    "gpt_neox": ("GPTNeoXConfig", {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}),
}


def hf_model(kind: str, options: dict[str, Any], attention: str = "sdpa") -> Any:
    config = getattr(transformers, kind)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 else 0.3 * noise)
    return model.double().eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_values_are_those_of_what_transformers_itself_returns(name):
    model, texts = hf_model(*CONFIGS[name]), windows_of(4, 11)
    found = summary(model, texts)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(
            texts[:, :-1], labels=texts[:, :-1], output_hidden_states=True, output_attentions=True, use_cache=False
        )
        losses = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), texts[:, 1:].flatten())
    assert (found["n_tokens"], len(found["widths"]), len(found["stream"])) == (44, 3, 4)
    for depth in range(3):  # the last hidden states that transformers returns are normalised
        states = out.hidden_states[depth].flatten(0, 1).numpy()
        assert found["stream"][depth] == pytest.approx({"depth": depth, **spectrum(states)}, abs=1e-5)
    for entry, weights in zip(found["sinks"], out.attentions, strict=True):
        assert entry["heads"] == pytest.approx(weights[..., 0].mean(dim=(0, 2)).tolist(), abs=1e-5)
    for entry, states in zip(found["sinks"], out.hidden_states[1:3]):
        norms = states.norm(dim=-1)
        assert entry["norm_ratio"] == pytest.approx((norms[:, 0].mean() / norms[:, 1:].mean()).item(), abs=1e-5)
    assert found["logit_lens"][-1]["target_log_prob"] == pytest.approx(-losses.item(), abs=1e-5)


def test_an_exported_model_has_the_values_that_it_had_here(tmp_path):
    data = {
        "vocab_size": 47,
        "d_model": 16,
        "n_layers": 3,
        "attention": {"n_heads": 4, "kv_group_size": 2},
        "ffn": {"kind": "swiglu", "d_ff": 21},
        "init": {"std": 0.4, "depth_scaled": False},
    }
    config = parse(ModelTemplate, data, "model").resolve(11)
    model = build(config, seed=0)
    export_hf(config, dict(model.named_parameters()), tmp_path / "hf", Surroundings(32))
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ours, theirs = (summary(each.double().eval(), windows_of(4, 11)) for each in (model, other))
    close(theirs, ours, 1e-5)


def test_what_cannot_be_seen_is_refused():
    experts, scaled = {**SIZES, "num_local_experts": 2}, {**SIZES, "logits_scaling": 8.0}
    for kind, options, attention, message in (
        ("MixtralConfig", experts, "sdpa", r"mixtral: its layers, .* are not found; known are Llama, .*GPT-2"),
        ("LlamaConfig", SIZES, "eager", r"llama: 0 of its 3 layers call .* attn_implementation sdpa"),
        ("GraniteConfig", scaled, "sdpa", r"granite: head and last norm do not give its logits"),
    ):
        with pytest.raises(UserError, match=message):
            HFSubject(hf_model(kind, options, attention))
