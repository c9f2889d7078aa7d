"""The script of the papers, from argument to output."""

import json

import paper
import pytest


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert paper.main([str(each) for each in arguments]) == 0
    return capsys.readouterr().out


def test_an_item_is_counted_as_json(capsys, tmp_path):
    found = json.loads(printed(capsys, "hourglass_table_1", "--results", tmp_path, "--json"))
    rows = {(line["row"], line["quantity"]): line for line in found["lines"]}
    assert rows["k8", "params_ffn"]["counted"] == 12 * 8 * 3 * 768 * 384
    assert rows["k8", "params_ffn"]["agrees"] is True


def test_a_dry_run_says_the_work_and_writes_nothing(capsys, tmp_path):
    out = printed(capsys, "hourglass_table_1", "--scale", "small", "--results", tmp_path, "--dry-run")
    assert "10 runs of 160 steps" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("hourglass_table_22", "did you mean 'hourglass_table_2'"),
        ("list --scale small", "name an item"),
        ("hourglass_table_3 --scale small", "has paper"),
        ("hourglass_table_1 --dry-run", "give --scale small or tiny"),
    ],
)
def test_a_mistake_is_one_line(capsys, arguments: str, error: str):
    assert paper.main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line


@pytest.mark.hard
def test_a_tiny_experiment_is_trained_and_shown_with_what_is_printed(capsys, tmp_path):
    tiny = ("hourglass_table_1", "--scale", "tiny", "--results", tmp_path)
    out = printed(capsys, *tiny)
    assert "measured: tiny" in out
    page = tmp_path / "hourglass_table_1" / "report.html"
    assert page.is_file()
    assert f"wrote {page}" in out
    assert json.loads(printed(capsys, *tiny, "--json"))["experiment"]["scale"] == "tiny"
    assert (tmp_path / "hourglass_table_1_small_tiny" / "outcome.json").is_file()
