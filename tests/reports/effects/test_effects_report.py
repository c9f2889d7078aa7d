"""The page of several comparisons, its tables and its figure."""

import csv
import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from fake_effects import (
    BASE_TOKENS,
    DATA,
    EFFECTS,
    HALF_WIDTH,
    comparison_data,
    difference,
    write,
    write_scales,
)
from page_section import section

from widthwise.config_io import UserError
from widthwise.reports.effects.figure import layout_of
from widthwise.reports.effects.scales import read_scales
from widthwise.reports.page.formats import MISSING, fixed, signed
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


def rows_of(shown: str) -> dict[str, list[str]]:
    """First cell of a row -> the others."""
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', shown)
    return {name: re.findall(r"<td[^>]*>(.*?)</td>", cells) for name, cells in rows}


def test_the_table_says_every_difference_with_its_interval_and_what_they_say_together(page: Path) -> None:
    rows = rows_of(section(page, "results"))
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


def test_the_answer_says_where_an_effect_changes_sign(page: Path) -> None:
    text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
    assert (
        "turns changes sign: its loss is lower than that of uniform at 771k parameters and 5.00M tokens "
        f"({signed(-0.03, 4)}) and 3.79M parameters and 5.00M tokens ({signed(-0.03, 4)}), and higher at 771k"
    ) in text
    assert "helps: same sign everywhere. Its loss is lower than that of uniform in all 4 comparisons by 0.0300" in text
    assert "noise: cannot tell. None of its 3 intervals excludes 0." in text


def test_every_panel_has_the_same_axes_and_a_mark_of_each_colour(page: Path) -> None:
    plots = re.findall(r"<svg .*?</svg>", section(page, "results"))
    panels = [plot for plot in plots if 'class="plot"' in plot]
    assert len(panels) == len(EFFECTS)
    axes = [json.loads(ElementTree.fromstring(panel).attrib["data-axes"]) for panel in panels]
    assert all((each["x"], each["y"]["low"], each["y"]["high"]) == (axes[0]["x"], *_ends(axes[0])) for each in axes)
    assert axes[0]["x"]["log"] is True
    assert [label for _, label in axes[0]["x"]["labels"]] == ["5.00M", "20.0M"]
    low, high = (end * axes[0]["y"]["unit"] for end in _ends(axes[0]))
    assert low < min(EFFECTS["helps"](0), 0)
    assert high > max(EFFECTS["turns"](2), 0)


def _ends(axes: dict[str, Any]) -> tuple[float, float]:
    return axes["y"]["low"], axes["y"]["high"]


def test_the_gap_of_a_variant_is_said_where_it_is_drawn(page: Path) -> None:
    shown = section(page, "results")
    assert "<figcaption>noise (not at 3.79M, 20.0M tokens)</figcaption>" in shown
    assert "not measured at 3.79M parameters and 20.0M tokens" in shown


def test_a_file_has_all_panels_as_one_figure(files: dict[str, Path]) -> None:
    (name,) = [name for name in files if name.startswith("figures/")]
    texts = ["".join(each.itertext()).strip() for each in ElementTree.parse(files[name]).iter() if "text" in each.tag]
    assert name == "figures/effects.svg"
    assert {*EFFECTS, "771k parameters", "3.79M parameters", "(not at 3.79M, 20.0M tokens)"} <= set(texts)


def test_ratios_of_tokens_have_a_table_if_they_are_there(folders: list[Path], page: Path, tmp_path: Path) -> None:
    rows = rows_of(section(page, "equal-loss"))
    expected = [fixed(math.exp2(10 * EFFECTS["turns"](doublings)), 3) for _, doublings in SCALES]
    assert [cell.partition("<")[0] for cell in rows["turns"]] == expected
    assert rows["noise"][-1] == MISSING
    without = []
    for folder in folders:
        data = json.loads((folder / "comparison.json").read_text())
        for variant in data["variants"]:
            variant.pop("at_equal_loss", None)
        without.append(write(tmp_path / folder.name, data))
    assert "equal-loss" not in write_report(without, tmp_path / "out")[0].read_text()


def test_what_a_difference_is_worth_agrees_with_what_was_measured(page: Path) -> None:
    """The fake losses fall as far with twice the tokens as the fake measurements say."""
    worth, measured = (
        [cell.partition("<")[0] for cell in rows_of(section(page, name))["turns"]] for name in ("worth", "equal-loss")
    )
    assert worth == measured


def test_the_page_says_what_was_compared_and_on_which_text(folders: list[Path], page: Path, tmp_path: Path) -> None:
    rows = rows_of(section(page, "comparisons"))
    assert list(rows) == [str(folder) for folder in folders]
    assert {cells[-1] for cells in rows.values()} == {"books, bpe-1024"}
    assert {cells[2] for cells in rows.values()} == {"1, 2, 3"}
    assert "in nats per token of its own" not in page.read_text()
    other = comparison_data(96, 0)
    other["environment"]["data"] = {**DATA, "tokenizer": {"spec": "bpe-2048"}}
    several = write_report([*folders, write(tmp_path / "other", other)], tmp_path / "out")[0]
    assert "in nats per token of its own" in several.read_text()


def test_the_csv_has_a_row_for_every_variant_at_every_scale(folders: list[Path], files: dict[str, Path]) -> None:
    rows = list(csv.DictReader(files["table.csv"].read_text().splitlines()))
    assert len(rows) == len(EFFECTS) * len(folders)
    for row, (name, (_, doublings)) in zip(rows, ((name, scale) for name in EFFECTS for scale in SCALES)):
        assert (row["variant"], int(row["tokens"])) == (name, BASE_TOKENS * 2**doublings)
        if row["difference_mean"]:
            assert float(row["difference_mean"]) == EFFECTS[name](doublings)
    (gap,) = [row for row in rows if not row["difference_mean"]]
    assert (gap["variant"], gap["comparison"], gap["sign"]) == ("noise", str(folders[-1]), "cannot tell")


def test_the_latex_has_a_line_of_differences_and_one_of_intervals(files: dict[str, Path]) -> None:
    text = files["table.tex"].read_text()
    assert r"\begin{tabular}{lrrrrl}" in text
    head = text.partition("toprule")[2].partition("midrule")[0]
    assert [line.count("&") for line in head.splitlines() if "&" in line] == [5, 5, 5]
    assert r"Variant & 771k parameters & 771k parameters & 3.79M parameters & 3.79M parameters & sign \\" in head
    assert r" & 5.00M tokens & 20.0M tokens & 5.00M tokens & 20.0M tokens &  \\" in head
    assert r"turns & $-$0.0300{*} & +0.0300{*} & $-$0.0300{*} & +0.0300{*} & changes sign \\" in text
    assert r" & $-$0.0400 to $-$0.0200 & +0.0200 to +0.0400 &" in text


def test_a_variant_with_a_gap_is_said_to_keep_its_sign_only_where_it_was_measured(tmp_path: Path) -> None:
    folders = write_scales(tmp_path, {"helps": EFFECTS["helps"], "noise": lambda doublings: 0.5})
    shown = write_report(folders, tmp_path / "out")[0]
    assert rows_of(section(shown, "results"))["noise"][-1] == "same sign wherever it was measured"
    assert "is higher than that of uniform in all 3 comparisons that have it, of 4, by" in shown.read_text()


def test_few_seeds_are_said_to_count_for_nothing(tmp_path: Path) -> None:
    two = [write(tmp_path / str(width), comparison_data(width, 0, seeds=(1, 2))) for width in (64, 192)]
    text = write_report(two, tmp_path / "out")[0].read_text()
    assert "helps: cannot tell. None of its 2 intervals excludes 0; 2 of fewer than 3 seeds count for nothing." in text


def test_one_seed_has_no_interval_and_is_drawn_all_the_same(tmp_path: Path) -> None:
    folders = []
    for width in (64, 192):
        data = comparison_data(width, 0, seeds=(1,))
        for variant in data["variants"][1:]:
            variant["difference"] = {**difference(-0.02), "low": None, "high": None, "per_seed": [-0.02]}
        folders.append(write(tmp_path / str(width), data))
    shown = section(write_report(folders, tmp_path / "out")[0], "results")
    assert rows_of(shown)["helps"] == [signed(-0.02, 4), signed(-0.02, 4), "cannot tell"]
    assert f"{signed(-0.02, 4)} (no interval) at 771k parameters" in shown


def test_sizes_are_the_axis_where_all_have_as_many_tokens(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(width), comparison_data(width, 0)) for width in (64, 96, 192)]
    layout = layout_of(read_scales(folders))
    assert layout.x_title == "parameters"
    (line,) = layout.lines
    assert line.name == "5.00M tokens"
    assert [x for x, _ in line.places] == list(layout.ticks)


@pytest.mark.parametrize("ratio", [1.01, 1.5, 64])
def test_lines_do_not_lie_on_each_other_and_points_stay_nearest_to_their_tick(tmp_path: Path, ratio: float) -> None:
    folders = []
    for width in (64, 96, 192):
        for tokens in (BASE_TOKENS, BASE_TOKENS * ratio, BASE_TOKENS * 100):
            data = comparison_data(width, 0)
            for variant in data["variants"]:
                variant["measured"]["tokens"]["mean"] = tokens
            folders.append(write(tmp_path / f"{width}-{tokens:.0f}", data))
    scales = read_scales(folders)
    layout = layout_of(scales)
    for line in layout.lines:
        for x, index in line.places:
            assert min(layout.ticks, key=lambda tick: abs(math.log(tick / x))) == scales.each[index].tokens
    for small, large in itertools.pairwise(layout.lines):
        assert all(one[0] < other[0] for one, other in zip(small.places, large.places, strict=True))


def test_same_comparisons_give_the_same_bytes_in_any_order(folders: list[Path], tmp_path: Path) -> None:
    first, second = (
        [path.read_bytes() for path in write_report(order, tmp_path / str(i))]
        for i, order in enumerate((folders, folders[::-1]))
    )
    assert first == second


def test_the_page_is_made_anew_from_its_own_folder(tmp_path: Path) -> None:
    folders = write_scales(tmp_path)
    out = tmp_path / "out"
    before = {path.name: path.read_bytes() for path in write_report(folders, out)}
    record = json.loads(before["effects.json"])
    assert record["comparisons"] == [f"../{folder.name}" for folder in folders]
    assert record["command"] == f"widthwise report {' '.join(record['comparisons'])} --out ."
    assert {path.name: path.read_bytes() for path in write_report(out)} == before
    moved = {path.name: path.read_bytes() for path in write_report(out, tmp_path / "elsewhere")}
    assert moved == before


def test_the_record_says_what_the_page_answers(files: dict[str, Path], page: Path) -> None:
    lines = json.loads(files["effects.json"].read_text())["sentence"].splitlines()
    assert len(lines) == len(EFFECTS)
    assert all(line in page.read_text() for line in lines)


def test_a_comparison_that_is_gone_is_named(tmp_path: Path) -> None:
    folders = write_scales(tmp_path)
    write_report(folders, tmp_path / "out")
    (folders[1] / "comparison.json").unlink()
    with pytest.raises(UserError, match=re.escape(str(folders[1] / "comparison.json"))):
        write_report(tmp_path / "out")


def test_hostile_names_are_shown_and_never_interpreted(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    folders = write_scales(tmp_path, {name: EFFECTS["turns"], "=cmd()": EFFECTS["helps"]})
    html, table, latex, _ = write_report(folders, tmp_path / "out")
    assert html.read_text().count("<script>") == 1
    assert "'=cmd()" in table.read_text()
    assert r"\textless{}script\textgreater{}" in latex.read_text()


def test_several_comparisons_need_a_folder_of_their_own(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"got 4 comparisons; name the folder for their common report with --out"):
        write_report(folders)
    with pytest.raises(UserError, match=r"holds comparison\.json, whose report would be replaced"):
        write_report(folders, folders[0])
    assert [path.name for path in folders[0].iterdir()] == ["comparison.json"]


def test_comparisons_go_with_comparisons_alone(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/sweep.json").write_text("{}")
    with pytest.raises(UserError, match=r"one with sweep\.json; give .* or only runs, or only comparisons"):
        write_report([folders[0], tmp_path / "sweep"], tmp_path / "out")
    planned = {"title": "t", "command": "c", "baseline": "uniform", "runs": []}
    (tmp_path / "planned.json").write_text(json.dumps(planned))
    with pytest.raises(UserError, match="has not finished; give it alone"):
        write_report([folders[0], tmp_path], tmp_path / "out")
