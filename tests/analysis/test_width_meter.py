"""The widths that tokens choose, as a validation sums and records them; widths of groups, losses at forced widths."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from dynamic_models import DYNAMIC, exact_units, model_of
from thinned import in_turn
from tiny_runs import tiny_recipe
from torch.utils.flop_counter import FlopCounterMode

from widthwise.analysis.dynamic_width import WidthMeter, analyse_widths
from widthwise.config_io import parse, to_data
from widthwise.data.config import open_data
from widthwise.data.loader import Boundaries, HeldOut
from widthwise.kernels.sliced_swiglu import bucketed_units
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.model.execution import compile_layers
from widthwise.training.validation import validate


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    """Five windows of the tiny recipe's held-out text."""
    return HeldOut(open_data(tiny_recipe().data), seq_len=17, batch_size=2, max_tokens=90, precision="fp32")


def metered(model, *batches):
    """The summary over parts, and per dynamic layer the fractions of all tokens."""
    meter, parts = WidthMeter(model), []
    with torch.no_grad():
        model.eval()
        for batch in batches:
            choices = model.loss(batch[:, :-1], batch[:, 1:]).choices
            meter.add(choices)
            parts.append([each["width_fraction"].flatten() for each in choices if "width_fraction" in each])
    return meter.summary(), [torch.cat(layer).double().numpy() for layer in zip(*parts)]


BATCHES = torch.randint(0, 256, (7, 18), generator=torch.Generator().manual_seed(5)).split([3, 3, 1])
SIZES = [(6 * 24, 216), (6 * 8, 72), (4 * 24 + 2 * 16, 216)]
"""FLOPs per unit, and units, of every layer."""


def test_a_summary_of_parts_is_that_of_all_tokens_at_once():
    model = model_of(DYNAMIC)
    summary, fractions = metered(model, *BATCHES)
    assert summary["n_tokens"] == 7 * 17
    means = [each.mean() for each in fractions]
    assert summary["mean_fraction"] == pytest.approx(np.average(means, weights=[math.prod(size) for size in SIZES]))
    assert summary["token_variance_share"] == pytest.approx(
        np.mean([each.var() for each in fractions]) / np.var(fractions)
    )
    for layer, fraction, (_, units) in zip(summary["layers"], fractions, SIZES):
        assert layer["d_ff"] == units
        expected = [fraction.mean(), fraction.std(), fraction.min(), fraction.max()]
        assert [layer[key] for key in ("mean", "sd", "min", "max")] == pytest.approx(expected)
        assert sum(layer["histogram"]) == pytest.approx(1)
        assert layer["histogram"] == pytest.approx(np.histogram(fraction, 32, (0, 1))[0] / len(fraction))
        assert layer["floor_share"] == pytest.approx((fraction <= 0.26).mean())
        assert layer["ceiling_share"] == pytest.approx((fraction >= 0.99).mean())
        used = (np.arange(units) + 0.5)[None] < (fraction * units)[:, None]
        assert layer["max_units"] == used.sum(axis=1).max()
        assert layer["dead_share"] == pytest.approx(1 - used.any(axis=0).mean())
        assert layer["bias"] == pytest.approx(np.log(9), rel=1e-6)
        assert (layer["gain"], layer["temperature"]) == (1.0, max(1.0, units / 32))
    assert [layer["layer"] for layer in summary["layers"]] == [1, 2, 3]


def flops_asked(fractions):
    """Per token, by the means over all."""
    return pytest.approx(sum(per_unit * d_ff * each.mean() for (per_unit, d_ff), each in zip(SIZES, fractions)))


def test_flops_are_asked_and_rounded_up():
    summary, fractions = metered(model_of(DYNAMIC), *BATCHES)
    flops = summary["flops_per_token"]
    assert flops["full"] == sum(per_unit * d_ff for per_unit, d_ff in SIZES)
    assert flops["asked"] == flops_asked(fractions)
    rounded = [bucketed_units(torch.tensor(each * d_ff), 0.0, d_ff) for (_, d_ff), each in zip(SIZES, fractions)]
    bucketed = sum(per_unit * float(units.double().mean()) for (per_unit, _), units in zip(SIZES, rounded))
    assert flops["bucketed"] == pytest.approx(bucketed)
    assert flops["asked"] < flops["bucketed"] < flops["full"]


def test_a_grown_layer_counts_the_units_that_it_has():
    resolved = to_data(model_of(DYNAMIC).config)
    resolved["layers"][0]["ffn"]["grown_from"] = [100, 150]  # of 216
    summary, fractions = metered(build(parse(ModelConfig, resolved), seed=1), *BATCHES)
    widest = [float(rank) for rank, _ in exact_units((100, 150, 216))]
    n_used = sum(rank < fractions[0].max() for rank in widest)
    layer = summary["layers"][0]
    assert (layer["max_units"], layer["dead_share"]) == (n_used, pytest.approx(1 - n_used / 216))
    assert summary["flops_per_token"]["asked"] == flops_asked(fractions)


WITHOUT_PRODUCTS = "score: {kind: raw_mean}, start: 0.3, min_fraction: 0.1, ratio: 9.0"
"""A score that adds no matrix product to those of the units."""


@in_turn(
    (
        ("execution", "n_sequences", "precision"),
        [
            *itertools.product(["auto", "masked", "sliced"], [1, 3], ["fp32"]),
            *itertools.product(["auto", "masked"], [1, 3], ["bf16"]),  # sliced adds rows there, which are not counted
        ],
    ),
    ("mask", ["ste", "soft", "hard", "none"]),
)
def test_executed_flops_are_those_that_torch_counts(execution, mask, n_sequences, precision):
    model = model_of(f"model.ffn={{kind: dynamic, {WITHOUT_PRODUCTS}, execution: {execution}, mask: {{kind: {mask}}}}}")
    batch, meter, counter = BATCHES[0][:n_sequences], WidthMeter(model.eval()), FlopCounterMode(display=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        with counter:
            choices = model.loss(batch[:, :-1], batch[:, 1:]).choices
        meter.add(choices)
    counted = sum(sum(flops.values()) for name, flops in counter.get_flop_counts().items() if name.endswith(".ffn"))
    flops = meter.summary()["flops_per_token"]
    assert flops["executed"] == pytest.approx(counted / batch[:, 1:].numel())
    is_full = mask in ("soft", "none") or execution == "masked"
    assert flops["executed"] == flops["full"] if is_full else flops["executed"] < flops["full"]


@pytest.mark.hard
def test_compiled_layers_execute_every_unit():
    torch.compiler.reset()  # graphs of other tests count towards the limit
    model = model_of(DYNAMIC)
    compile_layers(model, backend="eager")
    summary, _ = metered(model, *BATCHES)
    flops = summary["flops_per_token"]
    assert flops["executed"] == flops["full"] > flops["bucketed"]


def test_a_model_without_dynamic_layers_has_no_widths_and_a_mask_without_width_uses_every_unit(held_out):
    found = validate(model_of(), held_out)
    assert found.token_widths is None
    assert found.record().keys() == {"loss", "perplexity", "bits_per_byte"}
    summary, _ = metered(model_of("model.ffn={kind: dynamic, mask: {kind: none}}"), *BATCHES)
    assert set(summary["flops_per_token"].values()) == {summary["flops_per_token"]["full"]}
    assert {layer["bias"] for layer in summary["layers"]} == {None}
    assert {(layer["floor_share"], layer["ceiling_share"]) for layer in summary["layers"]} == {(1.0, 1.0)}


def test_random_widths_are_drawn_alike_in_every_validation_and_training_does_not_notice(held_out):
    model = model_of("model.ffn={kind: dynamic, score: {kind: random}}").train()
    state = torch.get_rng_state()
    first, again = (validate(model, held_out) for _ in range(2))
    assert first == again
    assert first.token_widths["layers"][0]["sd"] > 0.01
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    validate(model.eval(), held_out)
    assert not model.training


def test_losses_are_those_at_forced_widths_and_groups_make_up_the_mean(held_out):
    model = model_of(DYNAMIC)
    summary = validate(model, held_out).token_widths
    found = analyse_widths(model, held_out, summary)
    windows = torch.cat(list(held_out.batches()))
    inputs, targets = windows[:, :-1], windows[:, 1:]
    with torch.no_grad():
        loss = model.loss(inputs, targets, width_fraction=0.5).losses.double().mean().item()
    forced = {entry["fraction"]: entry["loss"] for entry in found["forced"]}
    assert list(forced) == [0.25, 0.5, 0.75, 1.0]
    assert forced[0.5] == pytest.approx(loss, rel=1e-5)
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
            for first, last in itertools.pairwise(sorted({0, *ends, 17})):
                word = row[None, first : last + 1]
                losses.append(model.loss(word[:, :-1], word[:, 1:], width_fraction=1.0).losses.flatten())
    assert len(losses) > 10
    assert found["forced"][-1]["fraction"] == 1.0
    assert found["forced"][-1]["loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
