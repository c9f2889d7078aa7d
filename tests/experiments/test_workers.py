"""Workers that share a study: killed and not, on SQLite and on a real PostgreSQL; workers.py is the worker."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from ranks import said_by_script
from tiny_sweeps import LEARNING_RATES, RECIPE, recipe_file

from widthwise.experiments.compare import run_plan
from widthwise.experiments.plan import read_plan
from widthwise.experiments.sharing.storage import sqlite_url
from widthwise.experiments.sweep.plan import read_sweep
from widthwise.experiments.sweep.worker import run_sweep
from widthwise.run_dir import RunDir

pytestmark = pytest.mark.hard

SCRIPT = Path(__file__).with_name("workers.py")
COMMAND_LINES = Path(__file__).with_name("command_lines.py")
POINTS = ["baseline", "0.002", "0.03"]
TIME_KEYS = {"checksums", "created", "command", "environment", "study", "shares_machine"}
TIME_KEYS |= {"tokens_per_second", "wall_seconds", "peak_memory_bytes"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_file(tmp_path_factory.mktemp("recipe"), LEARNING_RATES)


def run_workers(recipe: Path, folder: Path, storage: str, *kill_after: str) -> list[int]:
    (said,) = said_by_script(1, SCRIPT, recipe, folder, storage, *kill_after, folder=recipe.parent)
    return json.loads(said.splitlines()[-1])


def trials_by_state(storage: str, study: str = "tiny") -> dict[str, Counter]:
    """State -> how many trials each point has in it."""
    trials = optuna.load_study(study_name=study, storage=storage).trials
    found: dict[str, Counter] = {}
    for trial in trials:
        found.setdefault(trial.state.name, Counter())[trial.user_attrs["key"]] += 1
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIME_KEYS}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def test_a_sweep_whose_only_worker_was_killed_is_finished_by_two_others(recipe: Path, tmp_path: Path) -> None:
    """On a SQLite file, every point once, and with the results of a worker that nobody disturbed."""
    alone = json.loads(run_sweep(read_sweep(recipe), tmp_path / "alone", "widthwise sweep").to_json())
    storage, folder = sqlite_url(tmp_path / "study.db"), tmp_path / "shared"
    assert run_workers(recipe, folder, storage, "10", "0,0") == [signal.SIGKILL, 0, 0]
    sweep = json.loads((folder / "sweep.json").read_text())
    assert [point["name"] for point in sweep["points"]] == POINTS
    assert sweep["study"]["n_finished"] == len(POINTS)
    assert without_times(sweep) == without_times(alone)
    assert trials_by_state(storage) == {"COMPLETE": Counter(POINTS), "FAIL": Counter(["0.002"])}


COMPARE = {"seeds": [4, 7], "variants": {"plain": {}, "slow": {"optimizer": {"lr": 0.002}}}}
RUNS = ["plain-seed4", "slow-seed4", "plain-seed7", "slow-seed7"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a comparison."""
    path = tmp_path_factory.mktemp("recipe") / "pair.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "compare": COMPARE}, sort_keys=False))
    return path


def test_two_workers_of_a_comparison_one_of_them_killed(pair: Path, tmp_path: Path, postgres: str) -> None:
    """Both begin at once on an empty database. The survivor goes on with the run that was cut off, and writes what a
    worker alone writes without a study."""
    run_plan(read_plan([pair]), tmp_path / "alone", "widthwise compare")
    folder = tmp_path / "shared"
    assert run_workers(pair, folder, postgres, "6,0") == [signal.SIGKILL, 0]
    alone, shared = (json.loads((tmp_path / name / "comparison.json").read_text()) for name in ("alone", "shared"))
    assert without_times(shared) == without_times(alone)
    by_state = trials_by_state(postgres, "pair")
    assert by_state.keys() == {"COMPLETE", "FAIL"}
    assert by_state["COMPLETE"] == Counter(RUNS)
    (lost,) = by_state["FAIL"].elements()
    cut_off = RunDir(folder / "runs" / lost)
    assert [record["step"] for record in cut_off.metrics() if record["event"] == "train"] == [1, 2, 3, 4]
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".json", ".yaml", ".jsonl", "")]
    assert len(files) > 3 * len(RUNS)
    assert not [path for path in files if b"secret" in path.read_bytes()]  # the password of the server


def test_a_worker_may_be_several_processes(pair: Path, recipe: Path, tmp_path: Path) -> None:
    """Both in a comparison and in a sweep the first process speaks to the study and prints."""
    alone = run_plan(read_plan([pair], ["train.batch_size=4"]), tmp_path / "alone", "widthwise compare")
    shared = ["--storage", sqlite_url(tmp_path / "study.db"), "train.batch_size=4"]
    commands = [
        ["compare", str(pair), *shared, "--out", str(tmp_path / "compared")],
        ["sweep", str(recipe), *shared, "--seed", "4", "--out", str(tmp_path / "swept")],
    ]
    output = "".join(said_by_script(2, COMMAND_LINES, json.dumps(commands), folder=tmp_path / "here"))
    assert [output.count(f"wrote {tmp_path / name / 'report.html'}") for name in ("compared", "swept")] == [1, 1]
    found = json.loads((tmp_path / "compared" / "comparison.json").read_text())
    assert found["environment"]["n_processes"] == 2
    for together, one in zip(found["variants"], alone["variants"], strict=True):
        assert together["val_loss"]["per_seed"] == pytest.approx(one["val_loss"]["per_seed"], rel=1e-5)
    assert trials_by_state(shared[1], "pair") == {"COMPLETE": Counter(RUNS)}
    assert trials_by_state(shared[1]) == {"COMPLETE": Counter(POINTS)}
