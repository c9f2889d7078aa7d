"""What other ways of giving widths to tokens would lose, at the mean that tokens choose."""

import json

import numpy as np
import pytest
import torch
from dynamic_models import DYNAMIC, model_of

from widthwise.analysis.dynamic_width.oracle import Gains, width_oracle
from widthwise.analysis.dynamic_width.sample import Sample, windows_of
from widthwise.data.held_out import HeldOut
from widthwise.model.dynamic_modules import dynamic_modules
from widthwise.records.dynamic_width import WidthOracle

BLOCKS = "model.ffn={kind: dynamic_hourglass, n_blocks: 4, d_hidden: 6, min_fraction: 0.25, start: 0.6}"
FRACTIONS = np.array([0.25, 0.5, 1.0])


def sample_of(model, held_out):
    return Sample(model, held_out, windows_of(held_out, 90))


def test_widths_can_be_given_to_every_token_of_every_layer(held_out):
    """Given what it chooses, the model does what it does; given one width, what it does at that forced width."""
    model = model_of(DYNAMIC)
    sample = sample_of(model, held_out)
    losses, *chosen = sample.losses_and_widths(None)
    np.testing.assert_allclose(sample.losses_at(np.stack(chosen)), losses, rtol=1e-5)
    forced, *widths = sample.losses_and_widths(0.5)
    np.testing.assert_allclose(sample.losses_at(np.full_like(np.stack(chosen), 0.5)), forced, rtol=1e-6)
    assert np.ptp(chosen) > 0.01
    assert (np.stack(widths) == 0.5).all()


def test_gains_are_the_derivative_of_the_loss_along_what_the_layer_would_write(float64, held_out):
    model = model_of(DYNAMIC).double()
    sample = sample_of(model, held_out)
    gains = Gains.measured(sample, FRACTIONS, 0.6)
    layer, window, token, level = 1, 1, 4, 0
    module, batch = list(dynamic_modules(model).values())[layer], sample.windows[:2]

    def loss_moved_by(size):
        def move(module, inputs, output):
            narrow = module.forward(inputs[0], context_at(inputs[1], FRACTIONS[level]))[0]
            moved = output[0].clone()
            moved[window, token] += size * (narrow - output[0])[window, token]
            return moved, output[1]

        hook = module.register_forward_hook(move)
        with torch.no_grad():
            loss = model.loss(batch[:, :-1], batch[:, 1:], width_fraction=0.6).losses.sum().item()
        hook.remove()
        return loss

    def context_at(context, fraction):
        return type(context)(**{**vars(context), "width_fraction": torch.tensor(fraction)})

    slope = (loss_moved_by(1e-4) - loss_moved_by(-1e-4)) / 2e-4
    assert gains.losses[level, layer, window, token] == pytest.approx(slope, rel=1e-5, abs=1e-9)
    assert gains.losses.shape == (3, 3, 5, 17)
    assert [each.shape for each in gains.inputs] == [(5, 17, width) for width in (24, 8, 24)]


@pytest.mark.parametrize("ffn", [DYNAMIC, BLOCKS])
def test_all_ways_of_giving_width_are_measured_at_the_mean_that_tokens_choose(held_out, ffn):
    model = model_of(ffn)
    found = WidthOracle.model_validate(width_oracle(model, held_out))
    ways = ["chosen", "uniform", "oracle_of_tokens", "oracle", "by_layer", "shuffled", "fitted"]
    assert list(found.losses) == ways
    assert (found.n_tokens, found.n_fitted_tokens) == (3 * 17, 2 * 17)
    judged = Sample(model, held_out, windows_of(held_out, 90)[2:])
    losses, *chosen = judged.losses_and_widths(None)
    assert found.losses["chosen"] == pytest.approx(losses.mean())
    assert found.losses["uniform"] == pytest.approx(judged.losses_and_widths(found.mean_fraction)[0].mean(), rel=1e-6)
    assert found.losses["oracle"] < found.losses["uniform"]
    matrices = ("w_gate.weight", "w_up.weight", "w_down.weight")
    by_cost = [
        sum(weight.numel() for name, weight in module.named_parameters() if name.endswith(matrices))
        for module in dynamic_modules(model).values()
    ]
    assert found.mean_fraction == pytest.approx(np.average([each.mean() for each in chosen], weights=by_cost))
    for layer, own in zip(found.layers, chosen):
        assert layer.chosen == pytest.approx(own.mean())
        assert 0.25 <= layer.oracle <= 1
        assert layer.correlation is not None


def test_a_model_that_does_not_choose_is_measured_at_the_middle(held_out):
    model = model_of("model.ffn={kind: dynamic, min_fraction: 0.25, ratio: 9.0, mask: {kind: none}}")
    found = width_oracle(model, held_out)
    assert found["mean_fraction"] == 0.625
    assert list(found["losses"]) == ["uniform", "oracle_of_tokens", "oracle", "fitted"]
    assert {(layer["chosen"], layer["correlation"]) for layer in found["layers"]} == {(None, None)}
    json.dumps(found, allow_nan=False)


def test_one_window_is_enough_but_for_fitting(held_out):
    one = HeldOut(held_out.data, seq_len=17, batch_size=2, max_tokens=17, precision="fp32")
    found = width_oracle(model_of(BLOCKS), one)
    assert (found["n_tokens"], found["n_fitted_tokens"]) == (17, 0)
    assert "fitted" not in found["losses"]
