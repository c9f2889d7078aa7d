"""Pages of what is still trained: what they say, and that they load themselves again only as long as it is."""

import shutil
from pathlib import Path

import pytest
from fake_comparison import write_run
from page_section import rows_of
from tiny_runs import Listener, tiny_recipe
from typer.testing import CliRunner

from widthwise.cli import look as report_module
from widthwise.cli.main import app
from widthwise.experiments.plan import Comparison, Point
from widthwise.experiments.running import run_experiment
from widthwise.mistakes import RunFailed
from widthwise.reports.writing import is_at_work, write_report
from widthwise.run_dir import RunDir
from widthwise.runs.train import train

REFRESH = '<meta http-equiv="refresh" content="7">'


def test_the_page_of_a_run_at_work_shows_its_last_records_and_reloads(tmp_path: Path) -> None:
    pages: list[str] = []

    def look(step: int) -> None:
        if step in (6, 8):
            pages.append(write_report(run, refresh_seconds=7)[0].read_text())

    run = tmp_path / "run"
    train(tiny_recipe(), run, Listener(look))
    records = {(record["step"], record["event"]): record for record in RunDir(run).metrics()}
    assert len(pages) == 2
    for text, step in zip(pages, (5, 8)):
        assert REFRESH in text
        assert f"It is running, at step {step} of 9" in text
        assert "reloads itself every 7 s" in text
        trained, validated = records[4 if step == 5 else 8, "train"]["loss"], records[5, "validation"]["loss"]
        assert rows_of(text, "So far")["run"][:4] == ["running", f"{step}/9", f"{trained:.4f}", f"{validated:.4f}"]
    finished = write_report(run, refresh_seconds=7)[0].read_text()
    assert 'http-equiv="refresh"' not in finished
    assert not is_at_work([run])


def test_the_page_of_a_comparison_at_work_counts_its_runs(tmp_path: Path) -> None:
    recipes = {"a": tiny_recipe(), "b": tiny_recipe("optimizer.lr=0.02")}
    points = {name: Point(name, recipe) for name, recipe in recipes.items()}
    plan = Comparison(title="pair", points=points, seeds=(1, 2), baseline="a")
    pages: list[str] = []

    def look_and_fail(step: int) -> None:
        if step == 6 and len([*tmp_path.glob("runs/*")]) == 2:
            pages.append(write_report(tmp_path, refresh_seconds=7)[0].read_text())
            raise RunFailed("as requested")

    with pytest.raises(RunFailed):
        run_experiment(plan, tmp_path, "widthwise compare pair", Listener(look_and_fail))
    (page,) = pages
    assert REFRESH in page
    assert "4 runs: 1 finished, 1 running, 2 waiting." in page
    states = {name: row[0] for name, row in rows_of(page, "So far").items()}
    names = ("a-seed1", "b-seed1", "a-seed2", "b-seed2")
    assert list(states.items()) == list(zip(names, ("finished", "running", "waiting", "waiting")))
    assert is_at_work([tmp_path])
    run_experiment(plan, tmp_path, "widthwise compare pair")
    assert not is_at_work([tmp_path])
    assert "not finished" not in write_report(tmp_path, refresh_seconds=7)[0].read_text()


def test_watch_writes_until_the_run_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "done", "x", 3, [64], 0.0)
    write_run(tmp_path / "r", "x", 3, [64], 0.0, finished=False)
    seen: list[bool] = []

    def sleep(seconds: float) -> None:
        seen.append(f'content="{seconds}"' in (tmp_path / "r/report.html").read_text())
        if len(seen) == 3:
            shutil.copy(tmp_path / "done/result.json", tmp_path / "r")

    monkeypatch.setattr(report_module.time, "sleep", sleep)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "r"), "--watch", "5"], catch_exceptions=False)
    assert (done.exit_code, seen) == (0, [True] * 3)
    assert 'http-equiv="refresh"' not in (tmp_path / "r/report.html").read_text()
