"""Spikes of the gradient: runs stop or skip the step. The tests choose the batches that cause spikes."""

import json
import math
import re
from pathlib import Path

import pytest
from ranks import said_by_script
from spikes_on_two import CASES, spoil, trained
from tiny_runs import outcome, records, resumed_alike, tiny_recipe, without_measurements

from widthwise.recipe.train_section import SkipSpike
from widthwise.run_dir import RunDir
from widthwise.runs.result import loss_curve_warnings
from widthwise.runs.train import train

SKIP = "train.on_spike={kind: skip, factor: 4, window_steps: 3, max_skipped: 2}"


def test_a_spike_makes_no_update_and_leaves_all_else_as_it_was(tmp_path: Path, monkeypatch) -> None:
    """A skipped step changes no state, so the next step starts from the same weights."""
    spoil(monkeypatch, {4: 100.0, 5: math.nan})
    train(tiny_recipe(SKIP), tmp_path / "run")
    files = [tmp_path / f"run/checkpoints/step_{step:08d}/model.safetensors" for step in range(3, 8)]
    weights = [file.read_bytes() for file in files]
    assert weights[0] != weights[1] == weights[2] == weights[3] != weights[4]
    skipped = records(tmp_path / "run", "skipped")
    assert [record["step"] for record in skipped] == [5, 6]
    assert skipped[0]["grad_norm"] > 40
    assert skipped[1]["grad_norm"] is None
    assert [record["step"] for record in records(tmp_path / "run", "train")] == [4, 8, 9]


def test_skipped_steps_are_in_no_loss_and_in_no_record(tmp_path: Path, monkeypatch) -> None:
    """Step 4 is skipped and writes no record; the record of step 8 has the mean of all other steps."""
    spoil(monkeypatch, {3: math.nan, 8: math.nan})
    train(tiny_recipe(SKIP, "train.loss_window_steps=100"), tmp_path / "run")
    result, logged = RunDir(tmp_path / "run").result(), records(tmp_path / "run", "train")
    assert result is not None
    assert [record["step"] for record in logged] == [8]
    assert result.train_loss == pytest.approx(logged[0]["loss"], rel=1e-12)
    assert result.loss_window_steps == 7
    assert result.notes == ["2 steps without an update, because of the gradient: 4, 9"]


def test_a_run_that_skips_is_resumed_bitwise(tmp_path: Path, monkeypatch) -> None:
    spoil(monkeypatch, {3: math.nan, 6: 50.0, 7: math.inf})
    priced = ("model.ffn={kind: dynamic, ratio: 4}", "train.width_budget={kind: lagrangian, target: 0.6}")
    train(tiny_recipe(SKIP, *priced), tmp_path / "whole")
    assert [record["step"] for record in records(tmp_path / "whole", "skipped")] == [4, 7, 8]
    resumed_alike(tmp_path / "whole", tmp_path, 3, 7)


def test_the_first_step_or_too_many_in_a_row_stop_the_run(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        spoil(patch, {0: math.nan})
        first = trained(tiny_recipe(SKIP), tmp_path / "first") or ""
    assert re.search(r"stopped at step 1 of 9: loss \S+, gradient norm nan; ", first)
    spoil(monkeypatch, dict.fromkeys((2, 4, 5, 6, 7), math.nan))
    reason = trained(tiny_recipe(SKIP, "train.checkpoint_every=null"), tmp_path / "run") or ""
    assert "stopped at step 7 of 9: 3 steps in a row without an update (train.on_spike" in reason


def test_norms_are_compared_with_the_median_of_a_full_window() -> None:
    policy = SkipSpike(factor=2, window_steps=3)
    assert policy.admits(100, [1, 5])  # two updates say too little
    assert policy.admits(10, [1, 5, 90])
    assert not policy.admits(10.1, [1, 5, 90])
    assert not any(policy.admits(norm, [1]) for norm in (math.inf, math.nan))


def test_a_grown_model_starts_a_window_of_its_own(tmp_path: Path, monkeypatch) -> None:
    """Step 6 is a spike for the unchanged model, but not for a grown model, whose window is not full."""
    spoil(monkeypatch, {5: 9.0})
    growth = "growth=[{at_step: 4, model: {n_layers: 5}}]"
    train(tiny_recipe(SKIP, "model.shape={kind: uniform}"), tmp_path / "same")
    train(tiny_recipe(SKIP, "model.shape={kind: uniform}", growth), tmp_path / "grown")
    assert [record["step"] for record in records(tmp_path / "same", "skipped")] == [6]
    assert not records(tmp_path / "grown", "skipped")


def test_a_spike_and_a_better_validation_before_cast_doubt_on_the_last_loss(tmp_path: Path) -> None:
    worse = "the last validation, 4.1250, is worse than the validation of step 1, 4.0000"
    for train_losses, validations, doubts in (
        ([5.0, 4.0, 4.375], [4.0, 4.0], []),
        ([5.0, 4.0, 4.625, 4.25], [4.5, 4.0], ["the training loss rose by 0.62 nats, at step 30"]),
        ([5.0, None, 4.0], [4.0, 4.25, 4.125], [worse]),
        ([], [], []),
    ):
        found = [
            {"event": event, "step": spacing * place, "loss": loss}
            for event, spacing, losses in (("train", 10, train_losses), ("validation", 1, validations))
            for place, loss in enumerate(losses, start=1)
        ]
        assert loss_curve_warnings(found) == doubts
    wild = ("optimizer.lr=3", "train.log_every=1", "train.validate_every=1", "train.max_loss_rise=1000")
    result = train(tiny_recipe(*wild), tmp_path / "run")
    assert result.doubts
    assert list(result.doubts) == loss_curve_warnings(RunDir(tmp_path / "run").metrics())


SCRIPT = Path(__file__).with_name("spikes_on_two.py")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """Return the folder of the runs, and the output of each process."""
    work = tmp_path_factory.mktemp("two")
    return work, [json.loads(said.splitlines()[-1]) for said in said_by_script(2, SCRIPT, work, folder=work)]


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_of_one_process_that_is_not_finite_is_decided_on_by_all(two, tmp_path, monkeypatch, name) -> None:
    """Two processes split the rows in the same passes as one, so without shards the results are bitwise equal."""
    work, said = two
    assert said[0][name] == said[1][name]
    recipe, batches = CASES[name]
    spoil(monkeypatch, dict.fromkeys(batches, math.nan))
    alone = trained(recipe.model_copy(update={"train": recipe.train.model_copy(update={"shards": 1})}), tmp_path / name)
    assert said[0][name] == (alone and alone.replace(str(tmp_path), str(work)))
    if alone is None and recipe.train.shards == 1:
        assert outcome(work / name) == outcome(tmp_path / name)
    of_two, of_one = ([without_measurements(each) for each in RunDir(at / name).metrics()] for at in (work, tmp_path))
    for found, expected in zip(of_two, of_one, strict=True):
        inexact = {key for key, value in expected.items() if isinstance(value, (float, list))}
        assert {key: found[key] for key in found.keys() - inexact} == {
            key: expected[key] for key in expected.keys() - inexact
        }
        for key in inexact:  # sums in another order, where processes share the weights
            assert found[key] == pytest.approx(expected[key], rel=1e-4)


def test_time_and_memory_are_those_of_the_worst_process_and_mfu_that_of_all_devices(two) -> None:
    """60 tokens in the 2 seconds of the slower process are 15 a second for each of two devices."""
    expected = {"tokens_per_second": 30.0, "step_seconds": 2.0, "mfu": 15.0 * 5, "memory_bytes": 1000}
    assert [said["speed"] for said in two[1]] == [expected, expected]
