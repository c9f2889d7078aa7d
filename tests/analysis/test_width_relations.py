"""Widths of groups of tokens, and losses at forced widths."""

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from dynamic_models import AS_WRITTEN, DYNAMIC, model_of

from widthwise.analysis.dynamic_width import analyse_widths
from widthwise.data.loader import Boundaries
from widthwise.training.validation import validate


def test_a_fixed_half_width_has_half_of_its_units_dead(held_out):
    model = model_of(AS_WRITTEN)
    summary = validate(model, held_out).token_widths
    assert summary["token_variance_share"] is None
    complete = analyse_widths(model, held_out, summary)
    for layer in complete["layers"]:
        assert (layer["mean"], layer["dead_share"], layer["sd"]) == (0.5, 0.5, 0.0)
        assert layer["gain"] is None
    json.dumps(complete.to_data(), allow_nan=False)


def test_losses_are_those_at_forced_widths_and_groups_make_up_the_mean(held_out):
    model = model_of(DYNAMIC)
    summary = validate(model, held_out).token_widths
    found = analyse_widths(model, held_out, summary)
    tokens = torch.from_numpy(held_out.data.held_out.tokens(0, 5 * 17 + 1).astype(np.int64))
    windows = torch.stack([tokens[start : start + 18] for start in range(0, 5 * 17, 17)])
    inputs, targets = windows[:, :-1], windows[:, 1:]
    with torch.no_grad():
        losses = {each: model.loss(inputs, targets, width_fraction=each).losses.double() for each in (0.25, 0.5, 1.0)}
    forced = {entry["fraction"]: entry["loss"] for entry in found["forced"]}
    assert list(forced) == [0.25, 0.5, 0.75, 1.0]
    assert forced[0.5] == pytest.approx(losses[0.5].mean().item(), rel=1e-5)
    overall = sum(found["by_frequency_decile"]) / 10
    assert overall == pytest.approx(found["mean_fraction"])
    assert found["token_variance_share"] == summary["token_variance_share"]


def test_rows_are_read_as_validation_reads_them(held_out):
    """With what stands between words as the end of a document, losses are those of words alone."""
    model, told = model_of(DYNAMIC), Boundaries(ord(" "), masks=True, resets=True)
    held_out = dataclasses.replace(held_out, boundaries=told)
    validation = validate(model, held_out)
    found = analyse_widths(model, held_out, validation.token_widths)
    losses = []
    with torch.no_grad():
        for row in torch.cat(list(held_out.batches())):
            ends = ((row[:-1] == ord(" ")).nonzero()[:, 0] + 1).tolist()
            for first, last in pairwise(sorted({0, *ends, 17})):
                word = row[None, first : last + 1]
                losses.append(model.loss(word[:, :-1], word[:, 1:], width_fraction=1.0).losses.flatten())
    assert len(losses) > 10
    assert found["forced"][-1]["fraction"] == 1.0
    assert found["forced"][-1]["loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
