"""The study of a search: which folders continue it."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_sweeps import recipe_file

from widthwise.experiments.study import Study
from widthwise.experiments.sweep import Search, read_sweep
from widthwise.mistakes import UserError


def search_of(folder: Path, title: str, highest: float = 0.1) -> Search:
    section = {
        "over": {"optimizer.lr": {"low": 0.001, "high": highest, "log": True}},
        "seeds": [4],
        "search": {"sampler": "tpe", "n_trials": 3},
    }
    plan = read_sweep(recipe_file(folder, section))
    assert isinstance(plan, Search)
    return replace(plan, title=title)


def test_a_study_continues_under_another_name_of_the_recipe_and_refuses_another_search(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    point = Study(search_of(tmp_path, "search"), folder).take()
    assert point is not None
    (continued,) = Study(search_of(tmp_path, "renamed"), folder).drawn()
    assert (continued.name, continued.values, continued.state) == (point.name, point.values, "running")
    with pytest.raises(UserError, match=r"study.log: is the study of another search; choose another folder with --out"):
        Study(search_of(tmp_path, "renamed", highest=0.2), folder)
