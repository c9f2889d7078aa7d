"""Whole sweeps and comparisons, tiny: their numbers, what fails, what goes on."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_operations import forge
from tiny_runs import TINY
from tiny_sweeps import every_run_raises, recipe_file

from widthwise.config_io import checked_copy
from widthwise.evaluation.estimate import paired_mean, verdict
from widthwise.experiments import jobs
from widthwise.experiments.compare import read_plan
from widthwise.experiments.plan import Sweep, run_path
from widthwise.experiments.results import SweepResults
from widthwise.experiments.running import run_experiment
from widthwise.experiments.scheduler import HeldElsewhere
from widthwise.experiments.sweep import read_sweep
from widthwise.mistakes import RunFailed, UserError
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.outcome import Outcome
from widthwise.reports.writing import answer
from widthwise.run_dir import RunDir, RunInUse
from widthwise.runs.train import train_or_resume
from widthwise.training.launch import Interrupted
from widthwise.training.observer import SilentObserver

SEEDS = [4, 7, 9]
DIVERGES = 1e6
RATES = {"optimizer.lr": [0.002, 0.03, DIVERGES]}
SWEEP: dict[str, Any] = {"baseline": {}, "baseline_name": "plain", "over": RATES, "seeds": SEEDS}
Done = tuple[Sweep, Path, Outcome]
COMMAND = "widthwise sweep tiny.yaml"


def plan_of(folder: Path, sweep: dict[str, Any], **changes: Any) -> Sweep:
    return read_sweep(recipe_file(folder, sweep, **changes))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("sweep")
    plan = plan_of(folder, SWEEP)
    return plan, folder / "out", run_experiment(plan, folder / "out", COMMAND)


def points(outcome: Outcome) -> dict[str, Any]:
    return {point.name: point for point in outcome.points}


def window_losses(folder: Path, name: str) -> np.ndarray:
    """(n_seeds, n_windows)"""
    runs = [RunDir(folder / run_path(name, seed)) for seed in SEEDS]
    return np.array([run.result().val_window_losses for run in runs])


def test_numbers_are_those_of_the_runs_paired_with_the_baseline(done: Done) -> None:
    _, folder, outcome = done
    baseline, point = (points(outcome)[name] for name in ("plain", "0.03"))
    losses, base_losses = (window_losses(folder, name).mean(axis=1) for name in ("0.03", "plain"))
    assert point.val_loss.per_seed == pytest.approx(losses)
    assert point.difference.per_seed == pytest.approx(losses - base_losses, abs=1e-6)
    assert (point.values, point.differs_in) == (
        {"optimizer.lr": 0.03},
        {"optimizer.lr": [0.03, TINY["optimizer"]["lr"]]},
    )
    assert " differ from plain in optimizer.lr." in " ".join(answer(outcome))  # one sentence for both values
    assert point.runs == [f"runs/0.03-seed{seed}" for seed in SEEDS]
    assert point.ratio["params"] == point.ratio["training_flops"] == 1.0
    assert (baseline.verdict, baseline.difference, outcome.baseline) == ("baseline", None, "plain")


def test_a_point_that_diverges_is_kept_with_its_reason_and_the_others_finish(done: Done) -> None:
    _, _, outcome = done
    failed = points(outcome)["1000000.0"]
    assert (failed.state, failed.values) == ("failed", {"optimizer.lr": DIVERGES})
    assert failed.reason.startswith("runs/1000000.0-seed4: stopped at step")
    assert "try a lower optimizer.lr" in failed.reason
    assert (outcome.study.n_points, outcome.study.n_finished, outcome.study.n_failed) == (4, 3, 1)
    assert "1 point failed." in answer(outcome)


def test_the_best_is_said_with_an_interval_widened_for_all_that_were_looked_at(done: Done) -> None:
    _, folder, outcome = done
    losses = {name: window_losses(folder, name) for name in ("0.002", "0.03")}
    best = min(losses, key=lambda name: losses[name].mean())
    assert answer(outcome)[0].startswith(f"{best} has the lowest held-out loss of 2 points, ")
    (judged,) = outcome.judged
    assert (judged.name, judged.beside, judged.n_points, judged.confidence) == (best, "plain", 2, 1 - 0.05 / 2)
    for name in losses:
        wide = paired_mean(losses[name] - window_losses(folder, "plain"), 1 - 0.05 / 2)
        assert points(outcome)[name].verdict == verdict(wide)
        if name == best:
            assert judged.difference == wide
    in_order = [point.val_loss.mean for point in outcome.points if point.state == "finished"]
    assert [point.val_loss.mean for point in outcome.variants] == sorted(in_order) != in_order


def test_the_file_is_what_was_returned_and_a_changed_one_is_made_again_without_training(done: Done) -> None:
    """And what diverged is not tried again."""
    plan, folder, outcome = done
    text = (folder / "outcome.json").read_text()
    (folder / "outcome.json").write_text(text.replace('"confidence": 0.95', '"confidence": 0.5'))
    stored = json.loads(text, parse_constant=pytest.fail)
    assert stored.pop("checksums").keys() == stored.keys()
    assert stored == outcome.to_data()
    assert (outcome.axes, outcome.seeds, outcome.matched) == ({"": RATES}, SEEDS, "params")
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.jsonl")}
    assert len(stamps) == 3 * len(SEEDS) + 1
    run_experiment(plan, folder, COMMAND)
    assert Outcome.read(folder).with_changes(created=outcome.created) == outcome
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_points_are_compared_with_a_baseline_that_finishes_after_them(done: Done, tmp_path: Path) -> None:
    plan, folder, outcome = done
    early = Path(shutil.copytree(folder, tmp_path / "early"))
    result = Path("runs/plain-seed9/result.json")
    (early / result).unlink()
    results = SweepResults(plan, early, COMMAND, SilentObserver())
    assert points(results.write())["0.03"].difference is None
    shutil.copy(folder / result, early / result)
    assert points(results.write())["0.03"] == points(outcome)["0.03"]
    results.failures["0.03"] = "the disk was full"
    assert points(results.write())["0.03"].state == "finished"  # by another worker


def test_finished_and_diverged_runs_of_another_recipe_are_refused_not_reported(done: Done, tmp_path: Path) -> None:
    copy, changed = Path(shutil.copytree(done[1], tmp_path / "copy")), plan_of(tmp_path, SWEEP, seq_len=16)
    with pytest.raises(UserError, match=r"plain-seed\d: holds a run of another recipe \(seq_len"):
        run_experiment(changed, copy, COMMAND)
    for path in copy.glob("runs/*/result.json"):
        shutil.rmtree(path.parent)
    with pytest.raises(UserError, match=r"1000000\.0-seed4: holds a run of another recipe \(seq_len"):
        run_experiment(changed, copy, COMMAND)


def small(folder: Path, **section: Any) -> Sweep:
    """Two points of one seed."""
    return plan_of(folder, {"over": {"optimizer.lr": [0.002, 0.03]}, "seeds": [4], **section})


def test_an_interruption_leaves_the_point_and_the_same_command_goes_on(tmp_path: Path) -> None:
    plan, message = small(tmp_path), r"0\.002-seed4: stopped; the same command resumes"
    with every_run_raises(Interrupted, "stopped", 15), pytest.raises(Interrupted, match=message) as stopped:
        run_experiment(plan, tmp_path, COMMAND)
    assert stopped.value.exit_code == 143
    outcome = run_experiment(plan, tmp_path, COMMAND)
    assert [point.state for point in outcome.points] == ["finished", "finished"]
    assert answer(outcome)[0].startswith("0.03 has the lowest held-out loss of 2 points")
    judged = [(best.name, best.beside, best.confidence) for best in outcome.judged]
    assert judged == [("0.03", "0.002", 0.95), ("0.03", "0.002", 1 - 0.05 / 2)]
    assert points(outcome)["0.03"].verdict is None


def test_a_run_that_another_process_took_first_is_left_to_it_and_waited_for(tmp_path: Path, monkeypatch) -> None:
    plan, calls = small(tmp_path), []

    def lost_at_first(recipe, path, observer, data_cache):
        calls.append(path.name)
        if len(calls) < 3:
            raise RunInUse(f"{path}: is in use by process 1")
        return train_or_resume(recipe, path, observer, data_cache)

    monkeypatch.setattr(jobs, "train_or_resume", lost_at_first)
    assert run_experiment(plan, tmp_path, COMMAND).study.n_finished == 2
    assert sorted(set(calls)) == ["0.002-seed4", "0.03-seed4"]


def test_a_run_that_another_process_holds_is_shown_as_running_and_taken_over(tmp_path: Path) -> None:
    plan, held = small(tmp_path), RunDir(tmp_path / "runs" / "0.002-seed4")
    with held.locked(), pytest.raises(HeldElsewhere, match=r"^other workers hold 1 run of the sweep"):
        run_experiment(plan, tmp_path, COMMAND, waits=False)
    states = {point.name: point.state for point in Outcome.read(tmp_path).points}
    assert states == {"0.002": "running", "0.03": "finished"}
    assert run_experiment(plan, tmp_path, COMMAND).study.n_finished == 2


def test_a_mistake_that_can_be_mended_is_tried_again_by_the_next_start(tmp_path: Path) -> None:
    plan = small(tmp_path)
    with every_run_raises(UserError, "no space left on device"):
        failed = run_experiment(plan, tmp_path, COMMAND).points
    assert [point.reason for point in failed] == [f"runs/{p.name}-seed4: no space left on device" for p in failed]
    assert run_experiment(plan, tmp_path, COMMAND).study.n_finished == 2


SEARCH: dict[str, Any] = {
    "baseline": {},
    "match": "none",
    "seeds": [4],
    "groups": {
        "slow": {"over": {"optimizer.lr": {"low": 1e-3, "high": 5e-2, "log": True}, "train.z_loss": [0.0, 0.1]}},
        "wide": {"over": {"model.d_model": {"low": 16, "high": 32, "step": 4}}},
    },
    "search": {"sampler": "random", "n_trials": 6},
}


def test_a_search_trains_so_many_points_within_its_ranges_and_keeps_what_is_impossible(tmp_path: Path) -> None:
    """Widths of 20 and 28 are not whole heads of 8."""
    plan = plan_of(tmp_path, SEARCH, train={"steps": 2})
    outcome = run_experiment(plan, tmp_path / "a", COMMAND)
    names = [point.name for point in outcome.points]
    assert outcome.study.n_points == plan.n_points == 7
    for point in outcome.points[1:]:
        width = point.values.get("model.d_model", 16)
        if point.group == "slow":
            rate, z_loss = point.values["optimizer.lr"], point.values["train.z_loss"]
            assert 1e-3 <= rate <= 5e-2
            assert z_loss in (0.0, 0.1)
            assert point.name == f"slow-{rate:.6g}-{z_loss}"
        assert width in range(16, 33, 4)
        assert point.state == ("failed" if width % 8 else "finished")
        assert point.state == "finished" or "head_dim" in point.reason
    assert {point.group for point in outcome.points} == {"", "slow", "wide"}
    longer = read_sweep(recipe_file(tmp_path, SEARCH, train={"steps": 2}), options={"search": {"n_trials": 8}})
    again = run_experiment(longer, tmp_path / "a", COMMAND)
    assert [point.name for point in again.points][: len(names)] == names
    assert again.study.n_points == 9
    assert len(list(tmp_path.glob("a/runs/*/result.json"))) == again.study.n_finished


def test_what_a_search_chooses_again_counts_once_and_what_has_no_name_is_listed_by_its_number(tmp_path: Path) -> None:
    """Where there is one choice every trial is the same; one of 200 letters has no name that a folder could have."""
    section = {"over": {"optimizer.lr": [0.002]}, "seeds": [4], "search": {"sampler": "random", "n_trials": 3}}
    outcome = run_experiment(plan_of(tmp_path, section), tmp_path / "again", COMMAND)
    assert ([point.name for point in outcome.points], outcome.study.n_repeated) == (["0.002"], 2)
    assert not any("No result yet" in line for line in answer(outcome))
    section["over"] = {"data.corpus": ["x" * 200]}
    outcome = run_experiment(plan_of(tmp_path, section), tmp_path / "long", COMMAND)
    assert [(point.name, point.state) for point in outcome.points] == [(f"#{i}", "failed") for i in range(3)]
    assert "has a name of 200 letters" in outcome.points[0].reason


def test_runs_of_one_seed_see_the_same_data_in_the_same_order(tmp_path: Path) -> None:
    """A twin of the baseline, described otherwise, trains to exactly the same numbers."""
    n_tokens = 3 * 17  # of a step
    variants = {"uniform": {}, "twin": {"model": {"shape": {"kind": "explicit", "widths": [16, 16]}}}}
    train = {"steps": 5, "validate_every": 1, "checkpoint_every": None}
    plan = read_plan([recipe_file(tmp_path, train=train, compare={"seeds": [3, 5, 8], "variants": variants})])
    comparison = run_experiment(plan, tmp_path, COMMAND)
    baseline, twin = comparison.points
    assert len(set(baseline.val_loss.per_seed)) == 3
    assert twin.difference.per_seed == [0.0, 0.0, 0.0]
    assert (twin.verdict, twin.difference.low, twin.difference.high) == ("tie", 0.0, 0.0)
    assert set(twin.ratio) >= {"params", "flops", "average_width", "kv_bytes"}
    assert all(ratio == 1.0 for name, ratio in twin.ratio.items() if name != "tokens_per_second")
    equal, gap = twin.at_equal_loss["val_loss"], twin.gap["val_loss"]
    assert (equal.n_reached, equal.tokens.per_seed) == (3, [5 * n_tokens] * 3)
    assert equal.training_flops.mean == plan.recipes["twin"].training_flops
    assert (equal.tokens_ratio.low, equal.training_flops_ratio.high) == (1, 1)
    assert (gap.tokens, gap.mean) == ([step * n_tokens for step in range(1, 6)], [0] * 5)
    assert comparison.validations.n_fewest == 5
    trained = saved_recipe(RunDir(tmp_path / run_path("twin", 5)))
    assert trained.train.seed == 5
    assert checked_copy(trained, "", train=plan.recipes["twin"].train) == plan.recipes["twin"].resolved()


def test_a_run_that_fails_stops_a_comparison_until_the_next_start_and_one_on_other_data_is_refused(tmp_path) -> None:
    variants = {"plain": {}, "slow": {"optimizer": {"lr": 0.002}}}
    plan = read_plan([recipe_file(tmp_path, train={"steps": 2}, compare={"seeds": [3], "variants": variants})])
    message = "plain-seed3: loss is nan"
    with every_run_raises(RunFailed, "loss is nan"), pytest.raises(RunFailed, match=message):
        run_experiment(plan, tmp_path, COMMAND)
    assert len(run_experiment(plan, tmp_path, COMMAND).variants) == 2
    environment = tmp_path / run_path("slow", 3) / "environment.json"  # as if it had been trained on other data
    forge(environment, lambda record: record["data"]["corpus"].update(fingerprint="of another Python"))
    message = r"slow-seed3: was trained on other data .*plain-seed3.*compare in a new folder"
    with pytest.raises(UserError, match=message):
        run_experiment(plan, tmp_path, COMMAND)
    shutil.rmtree(environment.parent)
    assert len(run_experiment(plan, tmp_path, COMMAND).variants) == 2


def test_a_comparison_is_written_when_all_its_runs_have_finished(tmp_path: Path) -> None:
    """And not by a worker that ends while others hold what is left."""
    variants = {"plain": {}, "slow": {"optimizer": {"lr": 0.002}}}
    plan = read_plan([recipe_file(tmp_path, train={"steps": 2}, compare={"seeds": [3], "variants": variants})])
    held = RunDir(tmp_path / run_path("plain", 3))
    with held.locked(), pytest.raises(HeldElsewhere, match=r"^other workers hold 1 run of the comparison"):
        run_experiment(plan, tmp_path, COMMAND, waits=False)
    assert RunDir(tmp_path / run_path("slow", 3)).has_result
    assert not (tmp_path / Outcome.file_name).exists()
    assert len(run_experiment(plan, tmp_path, COMMAND).variants) == 2


def test_variants_of_a_seed_see_the_same_data_whether_they_grow_or_not_and_flops_are_of_all_phases(tmp_path) -> None:
    """The first loss after an exact growth is that of the model that did not grow, on the same batch."""
    variants: dict[str, Any] = {"small": {}}
    for name, is_exact in (("exact", True), ("naive", False)):
        variants[name] = {"growth": [{"at_step": 3, "model": {"d_model": 32}, "preserve": is_exact}]}
    model, train = {"attention": {"n_heads": 2, "head_dim": None}}, {"steps": 6}
    compare = {"seeds": [3], "match": "none", "variants": variants}
    outcome = run_experiment(read_plan([recipe_file(tmp_path, model=model, train=train, compare=compare)]), tmp_path)
    records = (RunDir(tmp_path / run_path(name, 3)).metrics() for name in variants)
    small, exact, naive = ([each["loss"] for each in run if each["event"] == "train"] for run in records)
    assert exact[:3] == naive[:3] == small[:3]
    assert exact[3] == pytest.approx(small[3], abs=1e-6)
    assert abs(naive[3] - small[3]) > 1e-4
    assert exact[4] != small[4]
    before, after = (point.cost.flops_per_token["training"] for point in outcome.variants[:2])
    ratio = outcome.variants[1].ratio
    assert (ratio["flops"], ratio["training_flops"]) == pytest.approx((after / before, (before + after) / (2 * before)))
