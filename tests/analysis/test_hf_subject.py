"""Models of transformers are seen as they are, and as ours are."""

from typing import Any

import pytest
import torch
from hf_models import CONFIGS as OF_FAMILIES
from hf_models import SIZES, WINDOWS, built
from profiled_models import spectrum, summary, windows_of

from widthwise.analysis.model_subjects import HFSubject
from widthwise.mistakes import UserError

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: OF_FAMILIES[name] for name in ("llama", "qwen2", "qwen3", "olmo2", "gpt2")},
    "mistral_with_a_window": ("MistralConfig", {**SIZES, "sliding_window": 4}),
    "gemma3": ("Gemma3TextConfig", {**SIZES, **WINDOWS, "rope_parameters": None}),
    "gpt_neox": ("GPTNeoXConfig", {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_values_are_those_of_what_transformers_itself_returns(name):
    model, texts = built(*CONFIGS[name], spread=0.3).double(), windows_of(4, 11)
    found = summary(model, texts)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(
            texts[:, :-1], labels=texts[:, :-1], output_hidden_states=True, output_attentions=True, use_cache=False
        )
        losses = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), texts[:, 1:].flatten())
    assert (found["n_tokens"], len(found["widths"]), len(found["stream"])) == (44, 2, 3)
    for depth in range(2):  # the last hidden states that transformers returns are normalised
        states = out.hidden_states[depth].flatten(0, 1).numpy()
        assert found["stream"][depth] == pytest.approx({"depth": depth, **spectrum(states)}, abs=1e-5)
    for entry, weights in zip(found["sinks"], out.attentions, strict=True):
        assert entry["heads"] == pytest.approx(weights[..., 0].mean(dim=(0, 2)).tolist(), abs=1e-5)
    for entry, states in zip(found["sinks"], out.hidden_states[1:2]):
        norms = states.norm(dim=-1)
        assert entry["norm_ratio"] == pytest.approx((norms[:, 0].mean() / norms[:, 1:].mean()).item(), abs=1e-5)
    assert found["logit_lens"][-1]["target_log_prob"] == pytest.approx(-losses.item(), abs=1e-5)


def test_what_cannot_be_seen_is_refused():
    experts, scaled = {**SIZES, "num_local_experts": 2}, {**SIZES, "logits_scaling": 8.0}
    for kind, options, attention, message in (
        ("MixtralConfig", experts, "sdpa", r"mixtral: its layers, .* are not found; known are Llama, .*GPT-2"),
        ("LlamaConfig", SIZES, "eager", r"llama: 0 of its 2 layers call .* attn_implementation sdpa"),
        ("GraniteConfig", scaled, "sdpa", r"granite: head and last norm do not give its logits"),
    ):
        with pytest.raises(UserError, match=message):
            HFSubject(built(kind, options, attention=attention))
