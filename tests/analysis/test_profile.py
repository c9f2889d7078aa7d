"""A profile of a model, beside what the model does when all of it is kept."""

import itertools
import json
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
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
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from widthwise.analysis import hooks, meters
from widthwise.analysis.profile import Profile
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder


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
    assert profile._hidden == []
    assert profile._hidden_in_layers == {}
    assert not any("read" in vars(layer.ffn_residual) for layer in model.layers)


def test_a_window_of_one_token_is_refused() -> None:
    with pytest.raises(UserError, match=r"^seq_len: got 1; must be at least 2"):
        Profile(model_of("x"), OPTIONS).add(windows_of(3, length=1))
