"""Folders that version 0.1 wrote are resumed, reported and fitted as before.

`data_files/version_0_1` was written by that version on runs of seconds: `interrupted` as a kill after step 6 left them,
`finished` the same runs undisturbed.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WRITTEN = Path(__file__).parents[1] / "data_files" / "version_0_1"
MEASURED = ("tokens_per_second", "step_seconds", "mfu", "memory_bytes")


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a folder that may be written to."""
    return lambda name: Path(shutil.copytree(WRITTEN / name, tmp_path / name))


def metrics(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in MEASURED} for record in records]


def assert_alike(got: Any, wanted: Any, where: str = "") -> None:
    """Every key of `wanted` is there, every number equal up to the rounding of another processor."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            assert key in got, f"{where}.{key}"
            assert_alike(got[key], value, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), where
        for i, (a, b) in enumerate(zip(got, wanted)):
            assert_alike(a, b, f"{where}.{i}")
    elif isinstance(wanted, float):
        assert got == pytest.approx(wanted, rel=1e-3, abs=1e-5), where
    else:
        assert got == wanted, where


@pytest.mark.parametrize("name", ["dynamic", "grown", "nested", "virtual"])
def test_an_interrupted_run_ends_as_the_undisturbed_one(written, widthwise, name: str) -> None:
    run = written(f"interrupted/{name}")
    code, _, error = widthwise("resume", run)
    assert code == 0, error
    whole = WRITTEN / "finished" / name
    assert_alike(metrics(run), metrics(whole))
    result, wanted = (json.loads((folder / "result.json").read_text()) for folder in (run, whole))
    result["notes"] = [note for note in result["notes"] if not note.startswith("cpu was")]  # it was written on another
    for measured in ("tokens_per_second", "wall_seconds"):
        wanted.pop(measured)
    for intervals in ("token_widths", "growth"):  # bootstrapped intervals, and the seconds that growing took
        wanted.pop(intervals, None)
    assert_alike(result, wanted)


@pytest.mark.parametrize("name", ["grownrun", "baked"])
def test_a_grown_or_baked_run_is_resumed(written, widthwise, name: str) -> None:
    run = written(name)
    code, _, error = widthwise("resume", run)
    assert code == 0, error
    assert json.loads((run / "result.json").read_text())["status"] == "finished"
    assert widthwise("report", run)[0] == 0
    assert "grown" in (run / "report.html").read_text()


@pytest.mark.parametrize("name", ["comparison", "sweep", "ladder", "scaling", "analysis"])
def test_its_records_are_reported(written, widthwise, name: str) -> None:
    folder = written(name)
    code, _, error = widthwise("report", folder)
    assert code == 0, error
    assert (folder / "report.html").stat().st_size > 10_000


def test_its_finished_runs_are_reported_together(written, widthwise, tmp_path: Path) -> None:
    runs = [written(f"finished/{name}") for name in ("dynamic", "nested", "virtual")]
    code, _, error = widthwise("report", *runs, "--out", tmp_path / "out")
    assert code == 0, error


def test_a_law_is_fitted_to_its_ladder(written, widthwise, tmp_path: Path) -> None:
    code, out, error = widthwise("fit", written("ladder"), "--baseline", "uniform", "--out", tmp_path / "out", "--json")
    assert code == 0, error
    fitted, wanted = json.loads(out), json.loads((WRITTEN / "scaling" / "scaling.json").read_text())
    assert_alike(fitted["groups"], wanted["groups"])
