"""Further heads from the step to the result."""

from functools import partial

import pytest
import torch
from boxes import refusal
from one_step import INPUTS, TARGETS, step
from tiny_runs import tiny_recipe
from torch.nn.functional import cross_entropy

from widthwise.data.config import open_data
from widthwise.data.loader import HeldOut
from widthwise.model.decoder import build
from widthwise.recipe.inspection import inspect_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training.validation import validate

MTP = "model.mtp={n_depths: 2, coefficient: 0.5}"


def test_step_reports_the_mean_of_each_depth_over_all_positions_that_it_was_asked(float64):
    model = build(tiny_recipe(MTP).explicit_model, seed=1, dtype=torch.float64)
    expected = torch.stack([losses.mean() for losses in model.loss(INPUTS, TARGETS).mtp_losses])
    torch.testing.assert_close(step(model, 4).mtp_losses, expected, rtol=1e-12, atol=0)


def test_validation_reports_each_depth_over_what_it_was_asked(float64):
    data, seq_len, n_windows = open_data(tiny_recipe().data), 17, 5
    model = build(tiny_recipe(MTP).explicit_model, seed=1, dtype=torch.float64)
    tokens = torch.from_numpy(data.held_out.tokens(0, seq_len * n_windows + 1).astype("int64"))
    hidden: list[list[torch.Tensor]] = [[], []]
    for found, depth in zip(hidden, model.depths, strict=True):
        depth.exit.register_forward_hook(lambda module, inputs, output, found=found: found.append(output))
    validation = validate(model, HeldOut(data, seq_len, 2, max_tokens=seq_len * n_windows, precision="fp32"))
    for k, found in enumerate(hidden, start=1):
        logits = model.logits(torch.cat(found))
        assert logits.shape[:2] == (n_windows, seq_len - k)
        targets = [tokens[w * seq_len + k + 1 : (w + 1) * seq_len + 1] for w in range(n_windows)]
        expected = cross_entropy(logits.flatten(0, 1), torch.cat(targets)).item()
        assert validation.mtp_losses[k - 1] == pytest.approx(expected, rel=1e-9)
        by_window = [cross_entropy(own, target).item() for own, target in zip(logits, targets, strict=True)]
        assert validation.mtp_window_losses[k - 1] == pytest.approx(by_window, rel=1e-9)


def test_records_and_result_have_the_losses_of_the_heads(tmp_path):
    recipe = tiny_recipe("model.mtp={n_depths: 2}", "train.checkpoint_every=null")
    result, records = train(recipe, tmp_path / "run"), RunDir(tmp_path / "run").metrics()
    assert all(len(record["mtp_losses"]) == 2 for record in records)
    assert result["val_mtp_losses"] == records[-1]["mtp_losses"]
    assert [len(windows) for windows in result["val_mtp_window_losses"]] == [len(result["val_window_losses"])] * 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.mtp={n_depths: 5}", "seq_len=5"], "model.mtp.n_depths: got 5; must be less than seq_len = 5"),
        (["model.positions={n_positions: 16}"], "seq_len: got 17; must be at most model.positions.n_positions = 16"),
    ],
)
def test_rows_too_short_for_the_heads_or_too_long_for_the_positions_are_refused(overrides, message):
    for recipe in (tiny_recipe(*overrides), tiny_recipe(*overrides).resolved()):
        for checked in (recipe.check, partial(inspect_recipe, recipe)):
            assert message in refusal(checked)
    tiny_recipe("model.positions={n_positions: 17}").check()
    tiny_recipe("model.mtp={n_depths: 4}", "seq_len=5").check()
