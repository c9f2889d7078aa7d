import math

import pytest
import torch
from tiny_runs import tiny_recipe

from widthwise.config_io import UserError
from widthwise.data.config import open_data
from widthwise.data.loader import HeldOut
from widthwise.model.decoder import build
from widthwise.training.validation import validate


@pytest.fixture(scope="module")
def data():
    return open_data(tiny_recipe().data)


def test_loss_perplexity_and_bits_per_byte_are_those_of_the_logits(data):
    model, seq_len, n_windows = build(tiny_recipe().explicit_model, seed=1), 17, 5
    tokens = torch.from_numpy(data.held_out.tokens(0, seq_len * n_windows + 1).astype("int64"))
    losses = []
    for window in range(n_windows):
        part = tokens[window * seq_len : (window + 1) * seq_len + 1]
        losses.append(torch.nn.functional.cross_entropy(model(part[None, :-1])[0].double(), part[1:]).item())
    found = validate(model, HeldOut(data, seq_len, 2, max_tokens=seq_len * n_windows + 3, precision="fp32"))
    expected = sum(losses) / n_windows
    n_bytes = int((tokens[1:] != 256).sum())
    assert found.window_losses == pytest.approx(losses, rel=1e-5)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(expected), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(expected * seq_len * n_windows / math.log(2) / n_bytes, rel=1e-5)
    with torch.no_grad():
        model.head.weight *= 1e6
    far = validate(model, HeldOut(data, seq_len, 2, max_tokens=seq_len * n_windows, precision="fp32"))
    assert far.loss > 710  # whose exponential is no double
    assert far.perplexity == math.inf


def test_all_held_out_windows_are_used_where_no_number_is_given(data):
    model = build(tiny_recipe().explicit_model, seed=1)
    found = validate(model, HeldOut(data, 501, batch_size=3, max_tokens=None, precision="fp32"))
    assert len(found.window_losses) == (data.held_out.n_tokens - 1) // 501


def test_validation_that_could_not_work_is_refused_beforehand(data):
    with pytest.raises(UserError, match="validation_tokens: got 16; must be at least seq_len = 17"):
        HeldOut(data, 17, 2, 16, "fp32").check()
    with pytest.raises(UserError, match="seq_len"):
        HeldOut(data, data.held_out.n_tokens, 2, None, "fp32").check()
