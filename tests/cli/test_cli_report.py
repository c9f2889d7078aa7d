"""`widthwise report` from argument to files."""

import json
import shutil
from pathlib import Path

import pytest

from widthwise.run_dir import RunDir

WRITTEN = Path(__file__).parents[1] / "data_files"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunDir(tmp_path).begin("train: {seed: 1}\n", {})
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "event": "train", "loss": 9.0}\n')
    return tmp_path


def test_report_prints_where_page_and_figures_are(run: Path, succeeds, answer, refused) -> None:
    refused("report", run, "--figures", "png")
    assert not (run / "report.html").exists()
    assert succeeds("report", run)[0] == f"{run}/report.html\n"
    assert (run / "report.html").is_file()
    assert answer("report", run, "--out", run / "out") == {"files": [f"{run}/out/report.html"]}
    files = answer("report", run, "--figures", "pdf")["files"]
    assert f"{run}/figures/main.pdf" in files
    assert all(Path(path).is_file() for path in files)


def test_report_takes_the_columns_of_a_sweep(tmp_path: Path, succeeds) -> None:
    folder = shutil.copytree(WRITTEN / "sweep", tmp_path / "sweep")
    succeeds("report", folder, "--columns", "layer_params,train_loss")
    assert "& Parameters, layers without norms & Training loss" in (folder / "table.tex").read_text()


def test_several_comparisons_have_a_table_of_their_effects(tmp_path: Path, answer, succeeds) -> None:
    folders = []
    for factor in (1, 4):
        data = json.loads((WRITTEN / "comparison" / "outcome.json").read_text())
        for variant in data["points"]:
            variant["measured"] = {"tokens": {"mean": 1e6 * factor, "per_seed": [1e6 * factor]}}
        folders.append(tmp_path / str(factor))
        folders[-1].mkdir()
        (folders[-1] / "outcome.json").write_text(json.dumps(data))
    arguments = ("report", *folders, "--out", tmp_path / "out")
    names = [variant["name"] for variant in data["points"] if variant.get("difference")]
    signs = dict.fromkeys(names, "cannot tell")
    assert answer(*arguments) == {"signs": signs, "files": [f"{tmp_path}/out/table.csv"]}
    printed = succeeds(*arguments)[0]
    assert printed.startswith("No conclusion for ")
    assert printed.endswith(f"wrote {tmp_path}/out/table.csv\n")
