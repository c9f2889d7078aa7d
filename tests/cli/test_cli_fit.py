"""`widthwise fit` from argument to output."""

import json
from pathlib import Path

import pytest

ROWS = "\n".join(
    f"{group},m{x},{x},{scale * x**-0.05:.6f}" for group, scale in (("base", 3.0), ("new", 2.95)) for x in (1, 3, 9, 27)
)


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text(f"model,name,compute,loss\n{ROWS}\n")
    return path


def test_the_answer_the_table_and_the_files(points: Path, tmp_path: Path, succeeds) -> None:
    asked = ("--x", "compute", "--y", "loss", "--group", "model", "--baseline", "base", "--out", tmp_path / "o")
    out, _ = succeeds("fit", points, *asked)
    expected = f"{(2.95 / 3) ** (1 / 0.05):.1%}"
    assert f"new needs {expected} of the compute of base for the same loss (" in " ".join(out.split())
    for word in ("power *", "power_irreducible", "log_linear", "left out"):
        assert word in out
    assert (tmp_path / "o" / "report.html").is_file()
    *lines, last = out.splitlines()
    assert last == f"wrote {tmp_path}/o/report.html"
    assert max(len(line) for line in lines if not line.startswith("wrote ")) <= 80


def test_an_interval_is_shown_from_its_lower_end(points: Path, tmp_path: Path, widthwise) -> None:
    points.write_text(points.read_text().replace("new,m3,3,2.79", "new,m3,3,2.80"))
    asked = ("--x", "compute", "--y", "loss", "--group", "model", "--baseline", "base", "--law", "power")
    out = widthwise("fit", points, *asked, "--out", tmp_path / "o")[1]
    ratios = [each["ratio"] for each in json.loads((tmp_path / "o" / "scaling.json").read_text())["savings"]]
    assert all(ratio["low"] < 0.99 * ratio["high"] for ratio in ratios)
    assert all(f"{ratio['low']:.1%} to {ratio['high']:.1%}" in out for ratio in ratios)


def test_json_is_the_file(points: Path, tmp_path: Path, answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = answer("fit", points, "--x", "compute", "--y", "loss", "--group-by", "model", "--law", "log_linear")
    stored = json.loads((tmp_path / "runs" / "fit-points-loss-compute" / "scaling.json").read_text())
    assert found == {key: value for key, value in stored.items() if key != "checksums"}
    assert {group["chosen"] for group in found["groups"]} == {"log_linear"}
    assert found["savings"] == []
