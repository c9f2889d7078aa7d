"""The page of several comparisons, its tables and its figure."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_discovery import write_searches
from fake_effects import BASE_TOKENS, DATA, EFFECTS, HALF_WIDTH, comparison_data, write, write_scales
from fake_sweep import write_sweep
from page_section import drawn, rows_of, section
from scipy import stats

from widthwise.config_io import UserError
from widthwise.reports.effects import effect_figures
from widthwise.reports.formats import MISSING, fixed, signed
from widthwise.reports.scales import read_scales
from widthwise.reports.writing import write_report

SCALES = [(width, doublings) for width in (64, 192) for doublings in (0, 2)]
"""Those of `write_scales`, from small to large."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_scales(tmp_path_factory.mktemp("scales"))


@pytest.fixture(scope="module")
def files(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    written = write_report(folders, tmp_path_factory.mktemp("report"), figures="svg")
    return {str(path.relative_to(written[0].parent)): path for path in written}


@pytest.fixture(scope="module")
def page(files: dict[str, Path]) -> Path:
    return files["report.html"]


def test_table_and_record_say_every_difference_and_what_they_say_together(files: dict[str, Path]) -> None:
    rows = rows_of(section(files["report.html"], "effects-over-size-and-tokens"))
    expected = {"turns": "changes sign", "helps": "same sign everywhere", "noise": "cannot tell"}
    assert {name: cells[-1] for name, cells in rows.items()} == expected
    for name, (*cells, _) in rows.items():
        for cell, (width, doublings) in zip(cells, SCALES, strict=True):
            mean = EFFECTS[name](doublings)
            ends = f"{signed(mean - HALF_WIDTH, 4)} to {signed(mean + HALF_WIDTH, 4)}"
            mark = "*" if abs(mean) > HALF_WIDTH else ""
            is_lacking = name == "noise" and (width, doublings) == (192, 2)
            shown = f'{signed(mean, 4)}{mark}<small class="whole">{ends}</small>'
            assert cell == (MISSING if is_lacking else shown)
    text = json.loads(files["effects.json"].read_text())["sentence"]
    ends = f"{signed(-0.03 - HALF_WIDTH, 4)} to {signed(-0.03 + HALF_WIDTH, 4)}"
    first = f"{signed(-0.03, 4)} ({ends}) at 771k parameters and 5.00M tokens; "
    assert f"turns: changes sign. Its loss minus that of uniform is {first}" in text
    assert "helps: same sign everywhere. Its loss minus that of uniform is " in text
    assert "; not measured at 3.79M parameters and 20.0M tokens." in text


def test_page_and_record_say_how_effects_change_and_where_that_is_no_luck(files: dict[str, Path]) -> None:
    """Seeds do not differ here, so that only what intervals owe to the text is left: HALF_WIDTH at each scale, which
    was Student's t of three seeds, and the text has windows enough for the normal distribution."""
    rows = rows_of(section(files["report.html"], "changes-of-effects"))
    half_width = HALF_WIDTH / stats.t.ppf(0.975, 2) * stats.norm.ppf(0.975) * math.sqrt(2)
    mean = EFFECTS["turns"](2) - EFFECTS["turns"](0)
    ends = f"{signed(mean - half_width, 4)} to {signed(mean + half_width, 4)}"
    assert rows["turns"][0] == f'{signed(mean, 4)}*<small class="whole">{ends}</small>'
    assert rows["turns"][1].startswith(f"{signed(0, 4)}<small")
    assert rows["noise"][2:] == [MISSING] * 2
    assert "Between scales the effect changes for turns and helps." in files["report.html"].read_text()
    (change, *_) = json.loads(files["effects.json"].read_text())["changes"]
    assert (change["variant"], change["before"], change["after"]) == ("turns", 0, 1)
    assert change["change"]["high"] == pytest.approx(mean + half_width)


def test_ratios_of_tokens_agree_with_what_differences_are_worth(folders: list[Path], page: Path, tmp_path) -> None:
    """The fake losses fall as far with twice the tokens as the fake measurements say."""
    rows = rows_of(section(page, "tokens-at-equal-loss"))
    expected = [fixed(math.exp2(10 * EFFECTS["turns"](doublings)), 3) for _, doublings in SCALES]
    for shown in (rows, rows_of(section(page, "differences-in-tokens"))):
        assert [cell.partition("<")[0] for cell in shown["turns"]] == expected
    assert rows["noise"][-1] == MISSING
    without = []
    for folder in folders:
        data = json.loads((folder / "outcome.json").read_text())
        for variant in data["points"]:
            variant.pop("at_equal_loss", None)
        without.append(write(tmp_path / folder.name, data))
    assert "tokens-at-equal-loss" not in write_report(without, tmp_path / "out")[0].read_text()


def test_the_page_says_what_was_compared_and_on_which_text(folders: list[Path], page: Path, tmp_path: Path) -> None:
    rows = rows_of(section(page, "the-comparisons"))
    assert list(rows) == [str(folder) for folder in folders]
    assert {cells[-1] for cells in rows.values()} == {"books, bpe-1024"}
    assert {cells[2] for cells in rows.values()} == {"1, 2, 3"}
    assert "in nats per token of its own" not in page.read_text()
    other = comparison_data(96, 0)
    other["environment"]["data"] = {**DATA, "tokenizer": {"spec": "bpe-2048", "id": "j"}}
    several = write_report([folders[0], write(tmp_path / "other", other)], tmp_path / "out")[0]
    assert "in nats per token of its own" in several.read_text()


def test_tables_as_files_have_every_variant_at_every_scale(folders: list[Path], files: dict[str, Path]) -> None:
    rows = list(csv.DictReader(files["table.csv"].read_text().splitlines()))
    assert len(rows) == len(EFFECTS) * len(folders)
    for row, (name, (_, doublings)) in zip(rows, ((name, scale) for name in EFFECTS for scale in SCALES)):
        assert (row["variant"], int(row["tokens"])) == (name, BASE_TOKENS * 2**doublings)
        if row["difference_mean"]:
            assert float(row["difference_mean"]) == EFFECTS[name](doublings)
    (gap,) = [row for row in rows if not row["difference_mean"]]
    assert (gap["variant"], gap["comparison"], gap["sign"]) == ("noise", str(folders[-1]), "cannot tell")
    latex = files["table.tex"].read_text()
    head = latex.partition("toprule")[2].partition("midrule")[0]
    assert [line.count("&") for line in head.splitlines() if "&" in line] == [5, 5, 5]
    assert r"Variant & 771k parameters & 771k parameters & 3.79M parameters & 3.79M parameters & sign \\" in head
    assert r" & 5.00M tokens & 20.0M tokens & 5.00M tokens & 20.0M tokens &  \\" in head
    assert r"turns & $-$0.0300{*} & +0.0300{*} & $-$0.0300{*} & +0.0300{*} & changes sign \\" in latex
    assert r" & $-$0.0400 to $-$0.0200 & +0.0200 to +0.0400 &" in latex


def test_sizes_are_the_axis_where_all_have_as_many_tokens(tmp_path: Path) -> None:
    scales = read_scales([write(tmp_path / str(w), comparison_data(w, 0)) for w in (64, 96, 192)])
    figure = effect_figures(scales)[0]
    assert list(figure.legend) == ["5.00M tokens"]
    places = [row["x"] for row in drawn(figure.spec()) if "x" in row]
    assert places == pytest.approx(list(scales.sizes), rel=1e-5)


def test_a_marker_is_full_where_the_interval_excludes_0_and_lacks_what_was_not_measured(folders: list[Path]) -> None:
    figures = {figure.title.partition(" (")[0]: figure for figure in effect_figures(read_scales(folders))}
    rows = {name: [row for row in drawn(each.spec()) if "x" in row] for name, each in figures.items()}
    assert {row["sure"] for row in rows["turns"]} == {True}
    assert {row["sure"] for row in rows["noise"]} == {False}
    assert [row["y"] is None for row in rows["noise"]].count(True) == 1
    assert "not at" in next(figure.title for figure in figures.values() if figure.title.startswith("noise"))


@pytest.mark.parametrize(
    ("write_all", "kind", "file"),
    [(write_scales, "comparisons", "effects.json"), (write_searches, "searches", "consensus.json")],
)
def test_a_common_page_is_made_anew_from_its_own_folder(
    tmp_path: Path, write_all: Callable[[Path], list[Path]], kind: str, file: str
) -> None:
    folders, out = write_all(tmp_path), tmp_path / "out"
    before = {path.name: path.read_bytes() for path in write_report(folders, out)}
    record = json.loads(before[file])
    assert record[kind] == [f"../{folder.name}" for folder in folders]
    assert record["command"] == f"widthwise report {' '.join(record[kind])} --out ."
    for again in (write_report(out), write_report(out, tmp_path / "elsewhere")):
        assert {path.name: path.read_bytes() for path in again} == before


def test_comparisons_need_a_folder_of_their_own_and_go_with_comparisons_alone(folders: list[Path], tmp_path) -> None:
    with pytest.raises(UserError, match=r"got 4 comparisons; name the folder for their common report with --out"):
        write_report(folders)
    with pytest.raises(UserError, match=r"holds outcome\.json, whose report would be replaced"):
        write_report(folders, folders[0])
    assert [path.name for path in folders[0].iterdir()] == ["outcome.json"]
    sweep = write_sweep(tmp_path / "grid")
    with pytest.raises(UserError, match="grid: holds a sweep; effects are those of comparisons"):
        write_report([folders[0], sweep], tmp_path / "out")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/scaling.json").write_text("{}")
    with pytest.raises(UserError, match=r"one with scaling\.json; give .* or only runs, or only comparisons"):
        write_report([folders[0], tmp_path / "sweep"], tmp_path / "out")
    planned = {"title": "t", "command": "c", "baseline": "uniform", "runs": []}
    (tmp_path / "planned.json").write_text(json.dumps(planned))
    with pytest.raises(UserError, match="has not finished; give it alone"):
        write_report([folders[0], tmp_path], tmp_path / "out")
