import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from widthwise.cli.report import report

app = typer.Typer()
app.command()(report)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("train: {seed: 1}\n")
    (tmp_path / "environment.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "event": "train", "loss": 9.0}\n')
    return tmp_path


def test_report_prints_where_the_files_are(run: Path) -> None:
    result = CliRunner().invoke(app, [str(run)])
    assert result.exit_code == 0
    assert result.stdout == f"{run}/report.html\n"
    assert (run / "report.html").is_file()


def test_report_prints_json(run: Path) -> None:
    result = CliRunner().invoke(app, [str(run), "--out", str(run / "out"), "--json"])
    assert json.loads(result.stdout) == {"files": [f"{run}/out/report.html"]}


def test_report_takes_the_columns_of_a_sweep(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(Path(__file__).parents[1] / "data_files/version_0_1/sweep", tmp_path / "sweep"))
    result = CliRunner().invoke(app, [str(folder), "--columns", "layer_params,train_loss"])
    assert result.exit_code == 0
    assert "& Parameters, layers without norms & Training loss" in (folder / "table.tex").read_text()


def test_report_writes_figures_as_files(run: Path) -> None:
    result = CliRunner().invoke(app, [str(run), "--figures", "pdf", "--json"])
    files = [Path(path) for path in json.loads(result.stdout)["files"]]
    assert run / "figures/train-loss.pdf" in files
    assert all(path.is_file() for path in files)


def test_report_refuses_another_kind_of_figure(run: Path) -> None:
    result = CliRunner().invoke(app, [str(run), "--figures", "png"])
    assert result.exit_code == 2
    assert not (run / "report.html").exists()


def test_several_comparisons_have_a_page_of_their_effects(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "data_files/version_0_1/comparison/comparison.json"
    folders = []
    for factor in (1, 4):
        data = json.loads(source.read_text())
        for variant in data["variants"]:
            variant["measured"] = {"tokens": {"mean": 1e6 * factor, "per_seed": [1e6 * factor]}}
        folders.append(tmp_path / str(factor))
        folders[-1].mkdir()
        (folders[-1] / "comparison.json").write_text(json.dumps(data))
    result = CliRunner().invoke(app, [*map(str, folders), "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "files": [f"{tmp_path}/out/{name}" for name in ("report.html", "table.csv", "table.tex", "effects.json")]
    }
