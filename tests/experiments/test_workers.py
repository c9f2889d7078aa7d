"""Workers that share a folder, some of which are killed; workers.py is the worker."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from ranks import command_in, launched, said_by_script
from tiny_sweeps import recipe_file

from widthwise.experiments.compare import read_plan
from widthwise.experiments.plan import Plan
from widthwise.experiments.running import run_experiment
from widthwise.experiments.sweep import STUDY_FILE, read_sweep
from widthwise.run_dir import RunDir

pytestmark = pytest.mark.hard

SCRIPT = Path(__file__).with_name("workers.py")
GROUP = Path(__file__).with_name("group_processes.py")
TIME_KEYS = {"checksums", "created", "command", "environment", "study", "shares_machine"}
TIME_KEYS |= {"tokens_per_second", "wall_seconds", "peak_memory_bytes"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a sweep."""
    sweep = {"baseline": {}, "over": {"optimizer.lr": [0.002, 0.03]}, "seeds": [4, 7]}
    return recipe_file(tmp_path_factory.mktemp("recipe"), sweep)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a comparison."""
    compare = {"seeds": [4, 7], "variants": {"plain": {}, "slow": {"optimizer": {"lr": 0.002}}}}
    return recipe_file(tmp_path_factory.mktemp("recipe"), compare=compare)


def run_workers(recipe: Path, folder: Path, *kill_after: str) -> list[int]:
    (said,) = said_by_script(1, SCRIPT, recipe, folder, *kill_after, folder=recipe.parent)
    return json.loads(said.splitlines()[-1])


def steps_of(folder: Path) -> dict[str, list[int]]:
    """Run -> the steps on its record."""
    return {
        path.parent.name: [record["step"] for record in RunDir(path.parent).metrics() if record["event"] == "train"]
        for path in folder.glob("runs/*/metrics.jsonl")
    }


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIME_KEYS}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def check_as_alone(shared: Path, plan: Plan) -> None:
    """The folder holds what a worker alone, whom nobody disturbed, leaves: every run once, with the same results."""
    alone = shared.parent / "alone" / shared.name  # the title is the name of the folder
    run_experiment(plan, alone, "widthwise")
    one, other = (json.loads((folder / "outcome.json").read_text()) for folder in (alone, shared))
    assert without_times(other) == without_times(one)
    assert steps_of(shared) == steps_of(alone)


def test_two_workers_of_a_comparison_one_of_them_killed(pair: Path, tmp_path: Path) -> None:
    """Both begin at once. The survivor goes on with the run that was cut off, and writes what a worker alone writes."""
    assert run_workers(pair, tmp_path / "shared", "6,0") == [signal.SIGKILL, 0]
    check_as_alone(tmp_path / "shared", read_plan([pair]))


def test_after_many_kills_every_run_is_there_once_and_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Two workers at a time, both killed again and again, at other steps."""
    path = recipe_file(tmp_path, {"over": {"optimizer.lr": [0.001 * n for n in range(1, 26)]}, "seeds": [4]})
    signals = run_workers(path, tmp_path / "shared", "3,4", "5,2", "1,6", "4,4", "2,7", "0")
    assert signals == [signal.SIGKILL] * 10 + [0]
    check_as_alone(tmp_path / "shared", read_sweep(path))


def test_workers_of_a_search_choose_every_point_once(tmp_path: Path) -> None:
    """The point of the one that is killed is taken over with its values."""
    section = {
        "over": {"optimizer.lr": {"low": 0.001, "high": 0.1, "log": True}},
        "seeds": [4],
        "search": {"sampler": "random", "n_trials": 4},
    }
    path, folder = recipe_file(tmp_path, section), tmp_path / "shared"
    assert run_workers(path, folder, "6,0") == [signal.SIGKILL, 0]
    check_as_alone(folder, read_sweep(path))
    storage = JournalStorage(JournalFileBackend(str(folder / STUDY_FILE)))
    trials = optuna.load_study(study_name="tiny", storage=storage).trials
    assert Counter(trial.state.name for trial in trials) == {"COMPLETE": 4}


def test_a_worker_may_be_several_processes(pair: Path, recipe: Path, tmp_path: Path) -> None:
    """Both in a comparison and in a sweep the first process decides and prints."""
    alone = run_experiment(read_plan([pair], ["train.batch_size=4"]), tmp_path / "alone", "widthwise compare")
    for name, *command in (("compared", "compare", str(pair)), ("swept", "sweep", str(recipe), "--seed", "4")):
        arguments = [*command, "train.batch_size=4", "--out", str(tmp_path / name)]
        both = launched(2, command_in, tmp_path, *arguments, errors=tmp_path / f"{name}_said")
        assert both.codes() == [0, 0], both.everything()
        assert both.everything().count(f"wrote {tmp_path / name / 'report.html'}") == 1
    found = json.loads((tmp_path / "compared" / "outcome.json").read_text())
    assert found["environment"]["n_processes"] == 2
    for together, one in zip(found["points"], alone["points"], strict=True):
        assert together["val_loss"]["per_seed"] == pytest.approx(one["val_loss"]["per_seed"], rel=1e-5)
    assert json.loads((tmp_path / "swept" / "outcome.json").read_text())["study"]["n_finished"] == 3


def test_all_processes_of_a_worker_get_what_the_first_has_and_a_signal_to_any_ends_all(tmp_path: Path) -> None:
    expected = {
        "value": [3, 5],
        "mistake": "UserError: nothing there",
        "waiting": "Interrupted: stopped before the next run",
    }
    said = said_by_script(2, GROUP, folder=tmp_path / "here")
    assert [json.loads(each.splitlines()[-1]) for each in said] == [expected, expected]
