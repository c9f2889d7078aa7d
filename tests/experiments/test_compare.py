"""A whole comparison, tiny."""

from pathlib import Path

import pytest
from file_operations import forge
from tiny_sweeps import every_run_raises, recipe_file

from widthwise.config_io import checked_copy
from widthwise.experiments.compare import read_plan
from widthwise.experiments.plan import Comparison, run_path
from widthwise.experiments.running import run_experiment
from widthwise.mistakes import RunFailed, UserError
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.outcome import Outcome
from widthwise.run_dir import RunDir

TRAIN = {"steps": 5, "validate_every": 1, "checkpoint_every": None}
VARIANTS = {"uniform": {}, "twin": {"model": {"shape": {"kind": "explicit", "widths": [32, 32]}}}}
COMMAND = "widthwise compare tiny.yaml"
N_TOKENS = 3 * 17
"""Of a step."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path, Outcome]:
    folder = tmp_path_factory.mktemp("comparison")
    compare = {"seeds": [3, 5, 8], "variants": VARIANTS}
    plan = read_plan([recipe_file(folder, model={"d_model": 32}, train=TRAIN, compare=compare)])
    return plan, folder / "out", run_experiment(plan, folder / "out", COMMAND)


def test_runs_of_one_seed_see_the_same_data_in_the_same_order(done) -> None:
    """A twin of the baseline, described otherwise, trains to exactly the same numbers."""
    plan, folder, comparison = done
    baseline, twin = comparison.points
    assert len(set(baseline.val_loss.per_seed)) == 3
    assert twin.difference.per_seed == [0.0, 0.0, 0.0]
    assert (twin.verdict, twin.difference.low, twin.difference.high) == ("tie", 0.0, 0.0)
    assert set(twin.ratio) >= {"params", "flops", "average_width", "kv_bytes"}
    assert all(ratio == 1.0 for name, ratio in twin.ratio.items() if name != "tokens_per_second")
    equal, gap = twin.at_equal_loss["val_loss"], twin.gap["val_loss"]
    assert (equal.n_reached, equal.tokens.per_seed) == (3, [5 * N_TOKENS] * 3)
    assert equal.training_flops.mean == plan.recipes["twin"].training_flops
    assert (equal.tokens_ratio.low, equal.training_flops_ratio.high) == (1, 1)
    assert (gap.tokens, gap.mean) == ([step * N_TOKENS for step in range(1, 6)], [0] * 5)
    assert comparison.validations.n_fewest == 5
    trained = saved_recipe(RunDir(folder / run_path("twin", 5)))
    assert trained.train.seed == 5
    assert checked_copy(trained, "", train=plan.recipes["twin"].train) == plan.recipes["twin"].resolved()


@pytest.fixture
def short(tmp_path: Path) -> Comparison:
    """Two variants and one seed."""
    variants = {"plain": {}, "slow": {"optimizer": {"lr": 0.002}}}
    path = recipe_file(tmp_path, train={"steps": 2}, compare={"seeds": [3], "variants": variants})
    return read_plan([path])


def test_a_run_that_fails_stops_its_worker_and_waits_for_another(short: Comparison, tmp_path: Path) -> None:
    message = "plain-seed3: loss is nan"
    with every_run_raises(RunFailed, "loss is nan"), pytest.raises(RunFailed, match=message):
        run_experiment(short, tmp_path, COMMAND)
    assert len(run_experiment(short, tmp_path, COMMAND).variants) == 2


def test_a_run_on_other_data_is_refused(short: Comparison, tmp_path: Path) -> None:
    run_experiment(short, tmp_path, COMMAND)
    environment = tmp_path / run_path("slow", 3) / "environment.json"  # as if it had been trained on other data
    forge(environment, lambda record: record["data"]["corpus"].update(fingerprint="of another Python"))
    message = r"slow-seed3: was trained on other data .*plain-seed3.*compare in a new folder"
    with pytest.raises(UserError, match=message):
        run_experiment(short, tmp_path, COMMAND)
