"""Values that every variant is given before a comparison: chosen by made-up losses, and by those of tiny runs."""

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import outcome
from tiny_sweeps import RECIPE, every_run_raises, recipe_file, spoil

from widthwise.config_io import UserError
from widthwise.experiments import jobs, running
from widthwise.experiments.compare import read_plan
from widthwise.experiments.experiment import Experiment, run_path
from widthwise.experiments.recipes import read_all
from widthwise.experiments.running import expected_seconds, run_experiment
from widthwise.experiments.scheduler import HeldElsewhere
from widthwise.experiments.sweep import read_sweep
from widthwise.experiments.tuning import MOST_BEYOND, Tuner
from widthwise.records.outcome import Outcome
from widthwise.reports.answers import answer
from widthwise.run_dir import RunDir, RunFailed
from widthwise.training.launch import Interrupted
from widthwise.yaml_io import merge

DIVERGES = 1e8
COMMAND = "widthwise compare tiny.yaml"
BASE = merge(
    {**RECIPE, "schedule": {"kind": "wsd", "warmup_steps": 2, "decay_steps": 4}, "validation": {"texts": {}}},
    {
        "model": {"n_layers": 3},
        "seq_len": 24,
        "train": {"steps": 8, "batch_size": 4, "validation_tokens": 240, "validate_every": 4},
    },
)
VARIANTS: dict[str, Any] = {
    "plain": {},
    "slow": {"model": {"shape": {"kind": "explicit", "widths": [16, 16, 16]}}, "optimizer": {"lr": 0.0003}},
}
TUNE: dict[str, Any] = {"over": {"optimizer.lr": [0.5, 1, 4, DIVERGES]}, "steps": 0.5, "seeds": [11, 13]}


def plan_of(folder: Path, tune: dict[str, Any] | None = None, *overrides: str, **compare: Any) -> Experiment:
    section = {"seeds": [3, 5], "variants": VARIANTS, **compare} | ({} if tune is None else {"tune": tune})
    return read_plan(recipe_file(folder, base=BASE, compare=section), overrides)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path, Outcome]:
    folder = tmp_path_factory.mktemp("tuned")
    plan = plan_of(folder, TUNE)
    return plan, folder / "out", run_experiment(plan, folder / "out", COMMAND)


def searched(plan: Experiment, loss: Callable[[str, Mapping[str, float]], float]) -> tuple[Experiment, int]:
    """The comparison that comes of made-up losses, and the number of runs. An infinite loss: the run diverged."""
    tuner = Tuner(plan, plan.tune)
    while True:
        losses = {name: loss(point.group, point.values) for name, point in tuner.sweep().points.items()}
        estimates = [
            SimpleNamespace(name=name, has_loss=True, val_loss=SimpleNamespace(mean=each))
            for name, each in losses.items()
            if each < math.inf
        ]
        found = SimpleNamespace(variants=estimates)
        if not tuner.extend(found):
            return tuner.tuned(found, n_runs=0, tokens=0, seconds=0.0), len(losses)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """A comparison whose rate and weight decay are tuned."""
    over = {"optimizer.lr": [0.5, 1, 2], "optimizer.weight_decay": [1, 3]}
    return plan_of(tmp_path_factory.mktemp("grid"), {**TUNE, "over": over})


@settings(max_examples=30, deadline=None)
@given(st.integers(-12, 12), st.integers(-8, 8))
def test_each_variant_gets_the_lowest_of_a_valley_however_far_beyond_the_grid(grid, lr, decay) -> None:
    """The loss is a bowl over the logarithms of both, lowest a little above a value that may be tried, or far off."""
    own = {"plain": 0.01, "slow": 0.0003}

    def loss(variant: str, values: Mapping[str, float]) -> float:
        x = math.log2(values["optimizer.lr"] / own[variant]) - lr
        return (x - 0.3) ** 2 + (math.log(values["optimizer.weight_decay"] / 0.1, 3) - decay - 0.3) ** 2

    def nearest(step: int, low: int, high: int) -> tuple[int, bool]:
        ends = low - MOST_BEYOND, high + MOST_BEYOND
        found = min(max(step, ends[0]), ends[1])
        return found, found in ends

    tuned, _ = searched(grid, loss)
    (lr_step, lr_ends), (decay_step, decay_ends) = nearest(lr, -1, 1), nearest(decay, 0, 1)
    for each in tuned.tuning.variants:
        optimizer = tuned.recipes[each.name].optimizer
        assert optimizer.lr == pytest.approx(own[each.name] * 2.0**lr_step, rel=1e-5)
        assert optimizer.weight_decay == pytest.approx(0.1 * 3.0**decay_step, rel=1e-5)
        assert each.chosen == {"optimizer.lr": optimizer.lr, "optimizer.weight_decay": optimizer.weight_decay}
        assert each.is_at_limit == (lr_ends or decay_ends)


def test_a_grid_whose_best_lies_inside_is_not_extended_and_what_diverges_is_the_worst(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {**TUNE, "over": {"optimizer.lr": [2, 0.5, 1]}})

    def factor(variant: str, values: Mapping[str, float]) -> float:
        return values["optimizer.lr"] / plan.recipes[variant].optimizer.lr

    inside, n_runs = searched(plan, lambda *point: abs(math.log(factor(*point))))
    assert n_runs == 6
    assert inside.recipes == plan.recipes
    # The lower the better, but everything below the third value beyond the grid diverges.
    cliff, _ = searched(plan, lambda *point: found if (found := factor(*point)) > 0.05 else math.inf)
    assert cliff.recipes["plain"].optimizer.lr == pytest.approx(0.01 * 0.5**4)
    with pytest.raises(RunFailed, match=r"all runs of plain diverged"):
        searched(plan, lambda *_: math.inf)


def test_an_end_beyond_which_recipes_refuse_values_is_the_best_value_and_no_limit(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {**TUNE, "over": {"schedule.final_factor": [0.5, 1]}}, "schedule={kind: cosine}")
    found, n_runs = searched(plan, lambda _, values: 1 - values["schedule.final_factor"])
    # 0.1 is the variant's own; 0.2, 0.4 and 0.8 lie beyond the end, and 1.6 is more than all of the rate.
    for each in found.tuning.variants:
        assert (each.chosen, each.is_at_limit) == ({"schedule.final_factor": 0.8}, False)
    assert n_runs == 2 * 5


def test_one_step_of_each_variant_is_measured_for_all_its_factors(tmp_path: Path, monkeypatch) -> None:
    measured = iter((2.0, 3.0))
    monkeypatch.setattr(running, "step_seconds", lambda recipe: next(measured))
    n_steps = 4 + 240 / (4 * 24) / 3  # a validation of 240 tokens, whose forward pass takes a third
    found = expected_seconds(plan_of(tmp_path, TUNE).tuner.sweep(), tmp_path / "new", jobs.Jobs(1, 1))
    assert found == pytest.approx(4 * 2 * n_steps * (2.0 + 3.0))


def test_the_choice_is_the_lowest_loss_of_runs_on_other_seeds_text_and_steps(done) -> None:
    plan, folder, found = done
    tuning = found.tuning
    reported = {run for each in found.variants for run in each.runs}
    n_tokens, n_runs = 0, 0
    for each in tuning.variants:
        own = plan.recipes[each.name].optimizer.lr
        means = {}
        for tried in each.tried:
            lr = tried.values["optimizer.lr"]
            assert lr == pytest.approx(own * tried.factors["optimizer.lr"], rel=1e-5)
            runs = [RunDir(folder / "tune" / run_path(f"{each.name}-{lr}", seed)) for seed in TUNE["seeds"]]
            results = [run.result() for run in runs if run.exists]
            n_runs += len(results)
            if None in results:
                assert (tried.factors["optimizer.lr"], tried.val_loss) == (DIVERGES, None)
                n_tokens += sum(run.metrics()[-1]["step"] * 4 * 24 for run in runs if run.exists)
                continue
            assert [result["steps"] for result in results] == [4, 4]
            n_tokens += sum(result["tokens"] for result in results)
            means[lr] = sum(result["val_loss"] for result in results) / 2
            assert tried.val_loss == pytest.approx(means[lr])
            assert not reported & {str(run.path.relative_to(folder)) for run in runs}
        assert each.chosen["optimizer.lr"] == min(means, key=means.__getitem__)
    assert (tuning.n_runs, tuning.tokens, tuning.seeds, tuning.steps) == (n_runs, n_tokens, [11, 13], 0.5)
    assert tuning.seconds > 0
    assert answer(found)[-2].startswith("Each variant was given its best optimizer.lr, which took ")


def test_a_tuned_comparison_is_the_one_with_the_chosen_values_written_by_hand(done, tmp_path: Path) -> None:
    _, folder, found = done
    chosen = {each.name: {"optimizer": {"lr": each.chosen["optimizer.lr"]}} for each in found.tuning.variants}
    assert chosen["slow"]["optimizer"]["lr"] not in (0.0003, chosen["plain"]["optimizer"]["lr"])
    by_hand = plan_of(tmp_path, variants={name: VARIANTS[name] | chosen[name] for name in VARIANTS})
    same = run_experiment(by_hand, tmp_path / "out", COMMAND)
    assert same.tuning is None
    for one, other in zip(found.variants, same.variants, strict=True):
        assert (one.val_loss, one.train_loss, one.difference) == (other.val_loss, other.train_loss, other.difference)
        for run in one.runs:
            assert outcome(folder / run) == outcome(tmp_path / "out" / run)


def test_the_same_command_goes_on_with_the_tuning_and_repeats_no_run(done, tmp_path: Path) -> None:
    plan, folder, found = done
    copy = Path(shutil.copytree(folder, tmp_path / "out"))
    shutil.rmtree(copy / "runs")
    (copy / "outcome.json").unlink()
    again = copy / "tune" / run_path("slow-0.00015", 13)
    shutil.rmtree(again)
    stamps = {path: path.stat().st_mtime_ns for path in copy.glob("tune/runs/*/metrics.jsonl")}

    message = "stopped; the same command resumes the comparison"
    with every_run_raises(Interrupted, "stopped", 2), pytest.raises(Interrupted, match=message):
        run_experiment(plan, copy, COMMAND)
    with RunDir(again).locked(), pytest.raises(HeldElsewhere, match="hold 1 run of the comparison"):
        run_experiment(plan, copy, COMMAND, waits=False)
    assert not (copy / "runs").exists()  # nothing is compared before all is tuned
    resumed = run_experiment(plan, copy, COMMAND)
    assert resumed.tuning.variants == found.tuning.variants
    assert [each.val_loss for each in resumed.variants] == [each.val_loss for each in found.variants]
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_runs_of_another_recipe_or_on_other_data_are_not_used(done, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(done[1], tmp_path / "out"))
    with pytest.raises(UserError, match=r"tune/runs/.*another recipe \(train\.max_grad_norm"):
        run_experiment(plan_of(tmp_path, TUNE, "train.max_grad_norm=0.5"), copy, COMMAND)
    for run in copy.glob("tune/runs/*"):
        spoil(run)
    with pytest.raises(UserError, match=r"was trained on other data .* than is compared on"):
        run_experiment(plan_of(tmp_path, TUNE), copy, COMMAND)


def test_a_run_that_failed_for_another_reason_does_not_count_as_the_worst(done, tmp_path: Path) -> None:
    message = r"tune: plain-0\.005: runs/plain-0\.005-seed11: the disk is full"
    with every_run_raises(UserError, "the disk is full"), pytest.raises(UserError, match=message):
        run_experiment(done[0], tmp_path / "out", COMMAND)


def test_the_work_is_known_before_and_a_comparison_without_tuning_has_none(tmp_path: Path) -> None:
    (words,) = plan_of(tmp_path, TUNE).tuning_lines
    assert words.startswith("tuning optimizer.lr: 8 points x 2 seeds: 16 runs of 4 steps and 384 tokens, together ")
    assert words.endswith(f"up to {MOST_BEYOND} more values beyond it")
    assert plan_of(tmp_path).tuning_lines == []


def test_a_short_run_has_the_schedule_and_the_held_out_text_that_it_should(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TUNE, "train.validation_skip=24", "train.validation_tokens=120")
    for recipe in plan.tuner.sweep().recipes.values():
        assert (recipe.schedule.warmup_steps, recipe.schedule.decay_steps) == (1, 2)
        assert (recipe.train.validation_skip, recipe.train.validation_tokens) == (144, 120)
        assert recipe.train.validate_every is None


@pytest.mark.parametrize(
    ("tune", "overrides", "message"),
    [
        ({"seeds": [13, 3]}, [], r"compare: tune\.seeds: got 3, which is reported too; must have none of \[3, 5\]"),
        ({"over": {"optimizer.lr": [1]}}, [], r"compare: tune: over\.optimizer\.lr: got \[1\.0\]; must be two"),
        ({"over": {"optimizer.lr": [1, 2, 1]}}, [], r"must be two factors or more, each once"),
        ({"over": {"optimizer.rate": [1, 2]}}, [], r"tune\.over\.optimizer\.rate: got None in plain; must be a number"),
        ({"over": {"train.steps": [1, 2]}}, [], r"tune\.over\.train\.steps: got 8 in plain; must be a number above 0"),
        ({"over": {"model.ffn.ratio": [1, 2]}}, [], r"got None in plain; must be .* of optimizer, schedule, train$"),
        ({"over": {"optimizer.weight_decay": [1, 2]}}, ["optimizer.weight_decay=0"], r"decay: got 0\.0 in plain"),
        ({}, ["train.validation_tokens=null"], r"compare\.tune: plain is judged on all held-out text; .* at most half"),
        ({"steps": 0.01}, [], r"plain-0\.005: schedule\.warmup_steps: got 1; must be less than train\.steps = 1"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_the_plan(tmp_path, tune, overrides, message) -> None:
    with pytest.raises(UserError, match=message):
        plan_of(tmp_path, {**TUNE, **tune}, *overrides)


def test_a_model_that_grows_too_little_text_and_a_sweep_are_refused(tmp_path: Path) -> None:
    grown = {"growth": [{"at_step": 4, "model": {"n_layers": 4}}], "model": {"n_layers": 2}}
    variants = {"plain": {}, "grown": grown}
    with pytest.raises(UserError, match=r"compare\.tune: grown grows, .*; tune it in a sweep"):
        plan_of(tmp_path, TUNE, variants=variants, match="none")
    plan = plan_of(tmp_path, TUNE, "train.validation_tokens=9600")
    assert read_all(tmp_path / "tiny.yaml")[1] is None
    with pytest.raises(UserError, match=r"compare\.tune: train\.validation_skip: got 9600, which leaves \d+ tokens"):
        run_experiment(plan, tmp_path / "out", COMMAND)
    assert not (tmp_path / "out" / "tune" / "runs").exists()
    with pytest.raises(UserError, match=r"sweep\.tune: is only of compare; a sweep shows every value"):
        read_sweep(recipe_file(tmp_path, {"over": {"optimizer.lr": [0.1, 0.2]}, "tune": TUNE}))
