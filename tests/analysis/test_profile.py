"""A profile of a model, beside what the model does when all of it is kept, and what transformers itself returns."""

import itertools
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from boxes import refusal
from hf_models import hf_folder
from profiled_models import (
    MODELS,
    OPTIONS,
    SEQ_LEN,
    Trace,
    assert_compiled_layers_show_the_same,
    close,
    model_of,
    spectrum,
    summary,
    unit_statistics,
    windows_of,
)
from thinned import in_turn
from torch import Tensor
from torch.distributions import Categorical, kl_divergence
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM

from widthwise.analysis import hooks, meters
from widthwise.analysis.hooks import AttentionCalls
from widthwise.analysis.profile import Profile
from widthwise.interop.hf_import import import_hf
from widthwise.kernels.attention_in_blocks import Scoring, attention_in_blocks
from widthwise.model.decoder import Decoder, build


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (meters, hooks):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(meters, "TOKENS_AT_ONCE", 5)
    monkeypatch.setattr(hooks, "SCORES_AT_ONCE", 120)


@pytest.mark.usefixtures("float64", "_small_pieces")
@pytest.mark.parametrize("name", MODELS)
def test_every_value_is_that_of_all_tokens_kept_at_once(name):
    model, windows = model_of(name), windows_of(5)
    found, trace = summary(model, windows), Trace(model, windows[:, :-1])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["n_tokens"], found["widths"], found["d_model"]) == (5 * SEQ_LEN, model.config.widths, 8)
    expected_units = [
        {
            "layer": layer + 1,
            "block": block + 1,
            **unit_statistics(units.detach().numpy(), OPTIONS.thresholds, OPTIONS.utilisation_threshold),
        }
        for (layer, block), units in trace.activations.items()
    ]
    close(found["activations"], expected_units)
    streams = [stream.flatten(0, 1).numpy() for stream in trace.streams]
    close(found["stream"], [{"depth": depth, **spectrum(states)} for depth, states in enumerate(streams)])
    targets = windows[:, 1:].flatten()
    close(found["logit_lens"], lens([predictions(model, hidden) for hidden in trace.lens_inputs], targets))
    exits = {place: predictions(model, hidden) for place, hidden in trace.block_lens_inputs.items()}
    assert [(entry["layer"] - 1, entry["block"] - 1) for entry in found["block_exits"]] == [*exits]
    close(
        [entry["target_log_prob"] for entry in found["block_exits"]],
        [mean(p.log_prob(targets)) for p in exits.values()],
    )
    for sink, norms in zip(found["sinks"], (stream.norm(dim=-1) for stream in trace.streams[1:]), strict=True):
        assert sink["norm_ratio"] == pytest.approx(mean(norms[:, 0]) / mean(norms[:, 1:]), abs=1e-6)
        assert sink["first_token_share"] == pytest.approx(np.mean(sink["heads"]))
    if name == "moe":  # units of experts that a token leaves out are not active
        assert [each["density"][0] for each in found["activations"][::2]] == pytest.approx([2 / 5] * 4)


def mean(values: Tensor) -> float:
    return values.mean().item()


def predictions(model: Decoder, hidden: Tensor) -> Categorical:
    """Of every token. hidden: (B, T, d_model), normalised."""
    return Categorical(logits=model.logits(hidden.flatten(0, 1)))


def lens(depths: list[Categorical], targets: Tensor) -> list[dict[str, Any]]:
    divergences = [mean(kl_divergence(p, q) + kl_divergence(q, p)) / 2 for p, q in itertools.pairwise(depths)]
    entries = zip(depths, [*divergences, None])
    return [
        {"depth": i, "target_log_prob": mean(p.log_prob(targets)), "entropy": mean(p.entropy()), "kl_to_next": kl}
        for i, (p, kl) in enumerate(entries)
    ]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["capped", "moe", "virtual"])
def test_the_lens_ends_with_the_loss_and_entropy_of_the_model_in_any_order_and_size_of_batches(name):
    model, windows = model_of(name), windows_of(7)
    expected = summary(model, windows, batch=7)
    for batch, order in ((1, range(7)), (3, [4, 0, 6, 2, 1, 5, 3])):
        close(summary(model, windows[list(order)], batch), expected, 1e-12)
    with torch.no_grad():
        losses = model.loss(windows[:, :-1], windows[:, 1:]).losses
        entropy = Categorical(logits=model(windows[:, :-1])).entropy()
    last = expected["logit_lens"][-1]
    close([last["target_log_prob"], last["entropy"]], [-mean(losses), mean(entropy)], 1e-12)


@pytest.mark.hard
@pytest.mark.usefixtures("float64")
def test_compiled_layers_show_the_same_and_stay_compiled():
    assert_compiled_layers_show_the_same(model_of("uniform"), windows_of(2), summary)


@pytest.mark.parametrize("name", ["dynamic", "moe"])
def test_the_model_is_left_as_it_was_even_after_an_error(name, monkeypatch):
    model = model_of(name, torch.float32)
    profile = Profile(model, OPTIONS)
    monkeypatch.setattr(meters.SinkMeter, "add_attention", Mock(side_effect=[None, ArithmeticError]))
    with pytest.raises(ArithmeticError):
        profile.add(windows_of(2))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    for ffn in (layer.ffn for layer in model.layers if name == "dynamic"):
        assert ffn.execution == ffn.config.execution != "masked"
    assert not any("read" in vars(layer.ffn_residual) for layer in model.layers)


def test_a_window_of_one_token_and_capped_scores_in_their_plain_form_are_refused(monkeypatch):
    said = refusal(Profile(model_of("x")).add, windows_of(3, length=1))
    assert said.startswith("seq_len: got 1; must be at least 2")
    monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
    said = refusal(Profile(model_of("capped")).add, windows_of(3))
    assert said == "WIDTHWISE_KERNELS: got reference; the analysis of capped scores needs fused"


@pytest.mark.parametrize("name", ["llama", "qwen3", "olmo2", "gpt2", "mistral_window"])
def test_values_of_an_imported_model_are_those_of_what_transformers_itself_returns(name, tmp_path):
    imported = import_hf(hf_folder(tmp_path, name))
    model, texts = build(imported.config, seed=0, dtype=torch.float64).eval(), windows_of(4, 11)
    model.set_weights(imported.take_weights())
    found = summary(model, texts)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").double()
    with torch.no_grad():
        out = theirs(texts[:, :-1], output_hidden_states=True, output_attentions=True, use_cache=False)
        losses = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), texts[:, 1:].flatten())
    n_layers = theirs.config.num_hidden_layers
    assert (found["n_tokens"], len(found["widths"]), len(found["stream"])) == (44, n_layers, n_layers + 1)
    for depth in range(n_layers):  # the last hidden states that transformers returns are normalised
        states = out.hidden_states[depth].flatten(0, 1).numpy()
        assert found["stream"][depth] == pytest.approx({"depth": depth, **spectrum(states)}, abs=1e-5)
    for entry, weights in zip(found["sinks"], out.attentions, strict=True):
        assert entry["heads"] == pytest.approx(weights[..., 0].mean(dim=(0, 2)).tolist(), abs=1e-5)
    for entry, states in zip(found["sinks"], out.hidden_states[1:-1]):
        norms = states.norm(dim=-1)
        assert entry["norm_ratio"] == pytest.approx((norms[:, 0].mean() / norms[:, 1:].mean()).item(), abs=1e-5)
    assert found["logit_lens"][-1]["target_log_prob"] == pytest.approx(-losses.item(), abs=1e-5)


N_TEXTS, N_HEADS, N_TOKENS, HEAD_DIM = 2, 4, 7, 3


def heads(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N_TEXTS, n, N_TOKENS, HEAD_DIM, generator=generator, dtype=torch.float64)


def weights_of(n_kv_heads: int, attention: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """The weights of key 0 as they are seen, and as they come out where values are 1 at key 0 and 0 elsewhere."""
    seen = []
    values = torch.zeros(N_TEXTS, n_kv_heads, N_TOKENS, HEAD_DIM, dtype=torch.float64)
    values[:, :, 0] = 1.0
    with AttentionCalls(lambda number, call: seen.append((number, call))) as calls:
        out = attention(heads(N_HEADS, 0), heads(n_kv_heads, 1), values)
    ((number, call),) = seen
    assert (number, calls.n_calls) == (0, 1)
    return call.first_key_weights(), out[..., 0]


def window() -> Tensor:
    """Keys at most 3 places back."""
    distance = torch.arange(N_TOKENS)[:, None] - torch.arange(N_TOKENS)
    return (distance >= 0) & (distance < 4)


NUMBERS = torch.linspace(-2, 1, N_TOKENS * N_TOKENS, dtype=torch.float64).view(N_TOKENS, N_TOKENS)


@in_turn(
    (("n_kv_heads", "at_once"), [(4, 10**6), (2, 1), (2, 3 * N_TEXTS * N_HEADS * N_TOKENS), (1, 10**6)]),
    (
        "options",
        [
            {},
            {"is_causal": True},
            {"is_causal": True, "scale": 1.3},
            {"attn_mask": window()},
            {"attn_mask": window().expand(N_TEXTS, 1, -1, -1), "scale": 0.2},
            {"attn_mask": NUMBERS.masked_fill(~window(), -math.inf)},
            {"attn_mask": NUMBERS[:1]},
        ],
    ),
)
def test_weights_are_those_of_the_fused_function(monkeypatch, options, n_kv_heads, at_once):
    monkeypatch.setattr(hooks, "SCORES_AT_ONCE", at_once)
    fused = partial(scaled_dot_product_attention, enable_gqa=n_kv_heads != N_HEADS, **options)
    found, expected = weights_of(n_kv_heads, fused)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_weights_are_in_single_precision_even_under_autocast():
    queries, seen = heads(2, 0).float(), []
    with torch.autocast("cpu", torch.bfloat16), AttentionCalls(lambda number, call: seen.append(call)):
        scaled_dot_product_attention(queries, queries, queries)
        found = seen[0].first_key_weights()
    scores = HEAD_DIM**-0.5 * (queries.double() @ queries.double().mT)
    torch.testing.assert_close(found, scores.softmax(dim=-1)[..., 0].float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("score_cap", [None, 0.3])
@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 0, 1, 1, 1, 1], [-1, -2, 0, 0, 0, 0, 0]])])
def test_attention_in_blocks_is_seen_too(documents, score_cap):
    in_blocks = partial(attention_in_blocks, scoring=Scoring(0.7, cap=score_cap), documents=documents)
    found, expected = weights_of(2, in_blocks)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
