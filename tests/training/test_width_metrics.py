import json

import numpy as np
import pytest
import torch
from tiny_runs import outcome, tiny_recipe, unfinished_copy

from widthwise.data.config import open_data
from widthwise.data.tokenizer import ByteTokenizer
from widthwise.kernels import bucketed_units
from widthwise.model.decoder import build
from widthwise.run_dir import RunDir
from widthwise.training.trainer import resume, train
from widthwise.training.validation import validate
from widthwise.training.width_analysis import analyse_widths, class_means, frequency_deciles, token_class
from widthwise.training.width_correlation import correlations
from widthwise.training.width_metrics import WidthMeter

DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25, ratio: 9.0}"
AS_WRITTEN = "model.ffn={kind: dynamic, score: {kind: const}, mask: {kind: hard}, min_fraction: 0.0, start: 0.5}"
LIMITS = {"seq_len": 17, "batch_size": 2, "max_tokens": 90, "precision": "fp32"}


def model_of(*overrides, dtype=torch.float32, spread=1.0):
    """With scores that differ between tokens."""
    model = build(tiny_recipe(*overrides).explicit_model, seed=1, dtype=dtype)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "v"):
                module.v.weight.normal_(0.0, spread, generator=torch.Generator().manual_seed(3))
    return model


@pytest.fixture(scope="module")
def data():
    return open_data(tiny_recipe().data)


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


def test_a_summary_of_parts_is_that_of_all_tokens_at_once():
    model = model_of(DYNAMIC)
    summary, fractions = metered(model, *BATCHES)
    assert summary["n_tokens"] == 7 * 17
    flops_per_unit = np.array([6 * 24, 6 * 8, 4 * 24 + 2 * 16])
    d_ff = np.array([216, 72, 216])
    means = np.array([each.mean() for each in fractions])
    weights = flops_per_unit * d_ff / (flops_per_unit @ d_ff)
    assert summary["mean_fraction"] == pytest.approx(means @ weights)
    assert summary["token_variance_share"] == pytest.approx(
        np.mean([each.var() for each in fractions]) / np.var(fractions)
    )
    for layer, fraction, units in zip(summary["layers"], fractions, d_ff):
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


@pytest.mark.parametrize(("execution", "computed"), [("masked", "full"), ("sliced", "bucketed")])
def test_flops_are_asked_rounded_up_and_executed(execution, computed):
    model = model_of(f"{DYNAMIC[:-1]}, execution: {execution}}}")
    summary, fractions = metered(model, *BATCHES)
    flops = summary["flops_per_token"]
    sizes = [(6 * 24, 216), (6 * 8, 72), (4 * 24 + 2 * 16, 216)]
    assert flops["full"] == sum(per_unit * d_ff for per_unit, d_ff in sizes)
    asked = sum(per_unit * d_ff * each.mean() for (per_unit, d_ff), each in zip(sizes, fractions))
    assert flops["asked"] == pytest.approx(asked)
    rounded = [bucketed_units(torch.tensor(each * d_ff), 0.0, d_ff) for (_, d_ff), each in zip(sizes, fractions)]
    bucketed = sum(per_unit * float(units.double().mean()) for (per_unit, _), units in zip(sizes, rounded))
    assert flops["bucketed"] == pytest.approx(bucketed)
    assert flops["asked"] < flops["bucketed"] < flops["full"]
    assert flops["executed"] == flops[computed]


def test_a_fixed_half_width_has_half_of_its_units_dead_and_correlates_with_nothing(data):
    model = model_of(AS_WRITTEN)
    summary, _ = metered(model, *BATCHES)
    assert summary["token_variance_share"] is None
    complete = analyse_widths(model, data, summary, **LIMITS)
    for layer in complete["layers"]:
        assert (layer["mean"], layer["dead_share"], layer["sd"]) == (0.5, 0.5, 0.0)
        assert layer["gain"] is None
        assert set(layer["correlations"].values()) == {None}
    json.dumps(complete, allow_nan=False)


def test_layers_that_differ_with_tokens_that_do_not_have_no_token_variance():
    model = model_of(AS_WRITTEN)
    with torch.no_grad():
        model.layers[1].ffn.bias.weight.fill_(2.0)
    summary, _ = metered(model, *BATCHES)
    assert summary["token_variance_share"] == pytest.approx(0, abs=1e-9)


def test_a_model_without_dynamic_layers_has_no_widths(data):
    assert validate(model_of(), data, **LIMITS).widths is None


def test_a_mask_without_width_uses_every_unit():
    summary, _ = metered(model_of("model.ffn={kind: dynamic, mask: {kind: none}}"), *BATCHES)
    assert set(summary["flops_per_token"].values()) == {summary["flops_per_token"]["full"]}
    assert {layer["bias"] for layer in summary["layers"]} == {None}


def planted(slope, n_windows=60, seq_len=50, seed=0):
    """Two series with correlation slope / sqrt(1 + slope^2), most of the noise shared within a window."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n_windows, seq_len)) + random.normal(size=(n_windows, 1))
    noise = random.normal(size=(n_windows, seq_len)) + random.normal(size=(n_windows, 1))
    return x, slope * x + noise


def test_a_planted_correlation_is_found_and_its_interval_holds_it():
    for seed in range(5):
        found = correlations(*planted(0.75, seed=seed))
        assert found["low"] < found["spearman"] < found["high"]
        truth = 0.6  # Pearson; a normal's Spearman is 6 / pi * arcsin(r / 2)
        assert found["pearson"] == pytest.approx(truth, abs=0.1)
        assert found["low"] - 0.02 < 6 / np.pi * np.arcsin(truth / 2) < found["high"] + 0.02


def test_ranks_make_spearman_blind_to_a_monotone_map_and_ties_count_half():
    x, _ = planted(0.0)
    found = correlations(x, np.exp(5 * x))
    assert found["spearman"] == pytest.approx(1)
    assert found["pearson"] < 0.5
    assert correlations(np.array([[1.0, 1.0, 2.0, 3.0]]), np.array([[1.0, 2.0, 3.0, 4.0]]))[
        "spearman"
    ] == pytest.approx(np.corrcoef([1.5, 1.5, 3, 4], [1, 2, 3, 4])[0, 1])


def test_shared_noise_within_windows_widens_the_interval():
    x, y = planted(0.0)
    shuffled = np.random.default_rng(1).permutation(x.size)
    alone = correlations(x.ravel()[shuffled].reshape(x.shape), y.ravel()[shuffled].reshape(x.shape))
    together = correlations(x, y)
    assert together["high"] - together["low"] > 2 * (alone["high"] - alone["low"])


def test_no_variance_is_no_correlation_and_one_window_no_interval():
    x, y = planted(1.0, n_windows=1)
    assert correlations(x, np.ones_like(y)) is None
    assert correlations(0.5 + 1e-9 * x, y, smallest_sd=1e-6) is None
    assert (correlations(x, y)["low"], correlations(x, y)["high"]) == (None, None)


def test_frequency_deciles_go_from_common_to_rare_types():
    tokens = np.array([[7] * 50 + [2] * 25 + [4] * 15 + [9] * 10])
    widths = np.select([tokens == 7, tokens == 2, tokens == 4], [0.1, 0.2, 0.3], 0.9)
    counts = np.bincount(tokens.ravel(), minlength=12)
    expected = [0.1] * 5 + [0.2] * 2 + [(0.2 + 0.3) / 2] + [0.3, 0.9]
    assert frequency_deciles(tokens, widths, counts) == pytest.approx(expected)


def test_token_classes():
    class Words(ByteTokenizer):
        def decode(self, ids):
            return {1: " the", 2: "42", 3: "\n ", 4: "(){", 5: "x1", 6: "\ufffd", 7: ""}[ids[0]]

    names = [token_class(token, Words()) for token in (1, 2, 3, 4, 5, 6, 7, 256)]
    assert names == ["letters", "digits", "whitespace", "punctuation", "other", "other", "other", "end of text"]
    tokens, widths = np.array([[1, 2, 1], [3, 1, 2]]), np.array([[0.1, 0.4, 0.2], [0.9, 0.3, 0.6]])
    assert class_means(tokens, widths, Words()) == pytest.approx({"digits": 0.5, "letters": 0.2, "whitespace": 0.9})


def test_the_analysis_relates_width_to_what_the_model_says(data):
    model = model_of(DYNAMIC, dtype=torch.float32)
    summary = validate(model, data, **LIMITS).widths
    found = analyse_widths(model, data, summary, **LIMITS)
    tokens = torch.from_numpy(data.held_out.tokens(0, 5 * 17 + 1).astype(np.int64))
    windows = torch.stack([tokens[start : start + 18] for start in range(0, 5 * 17, 17)])
    inputs, targets = windows[:, :-1], windows[:, 1:]
    with torch.no_grad():
        log_probabilities = model(inputs).double().log_softmax(dim=-1)
        free = model.loss(inputs, targets)
        losses = {each: model.loss(inputs, targets, width_fraction=each).losses.double() for each in (0.25, 0.5, 1.0)}
    counts = torch.bincount(inputs.flatten(), minlength=257)
    related = {
        "loss": -log_probabilities.gather(-1, targets[..., None])[..., 0],
        "surprisal": -(counts[inputs] / inputs.numel()).log(),
        "position": torch.arange(17.0).expand(5, 17),
        "entropy": -(log_probabilities.exp() * log_probabilities).sum(-1),
        "benefit": losses[0.25] - losses[1.0],
    }
    for layer, chosen in zip(found["layers"], free.choices):
        assert set(layer["correlations"]) == set(related)
        for name, values in related.items():
            pair = torch.stack([chosen["width_fraction"].double().flatten(), values.double().flatten()])
            assert layer["correlations"][name]["pearson"] == pytest.approx(float(torch.corrcoef(pair)[0, 1]), abs=1e-3)
    forced = {entry["fraction"]: entry["loss"] for entry in found["forced"]}
    assert list(forced) == [0.25, 0.5, 0.75, 1.0]
    assert forced[0.5] == pytest.approx(losses[0.5].mean().item(), rel=1e-5)
    overall = sum(found["by_frequency_decile"]) / 10
    assert overall == pytest.approx(found["mean_fraction"])
    assert found["token_variance_share"] == summary["token_variance_share"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    train(tiny_recipe(DYNAMIC), path)
    return path


def test_every_validation_has_a_widths_record_and_the_result_has_the_complete_one(finished):
    records = [(record["step"], record["event"]) for record in RunDir(finished).metrics()]
    assert [each for each in records if each[1] != "train"] == [
        (step, event) for step in (5, 9) for event in ("validation", "widths")
    ]
    *_, last = RunDir(finished).metrics()
    widths = RunDir(finished).result()["widths"]
    assert {key: widths[key] for key in last.keys() - {"step", "event", "layers"}} == {
        key: last[key] for key in last.keys() - {"step", "event", "layers"}
    }
    complete = {"by_frequency_decile", "by_token_class", "forced"}
    assert widths.keys() - last.keys() == complete
    assert all(
        layer.keys() - short.keys() == {"correlations"} for layer, short in zip(widths["layers"], last["layers"])
    )


@pytest.mark.parametrize("step", [5, 9])
def test_a_kill_between_the_two_records_of_a_validation_loses_neither(finished, tmp_path, step):
    run = unfinished_copy(finished, tmp_path / "run", step)
    records = [json.dumps(record) for record in RunDir(run).metrics() if record["step"] <= step]
    assert '"widths"' in records[-1]
    (run / "metrics.jsonl").write_text("\n".join(records[:-1]) + "\n")
    resume(run)
    assert outcome(run) == outcome(finished)


def test_random_widths_are_drawn_alike_in_every_validation_and_training_does_not_notice(data):
    model = model_of("model.ffn={kind: dynamic, score: {kind: random}}").train()
    state = torch.get_rng_state()
    first, again = (validate(model, data, **LIMITS) for _ in range(2))
    assert first == again
    assert first.widths["layers"][0]["sd"] > 0.01
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    validate(model.eval(), data, **LIMITS)
    assert not model.training
