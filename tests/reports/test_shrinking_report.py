"""The page of a run that was cut out of another: its certificate, the sizes of its layers, and how it heals."""

import re
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import write_run
from page_section import captions, drawn, rows_of, run_page, section, specs

from widthwise.records.shrinking import Shrinking
from widthwise.reports.formats import TIMES
from widthwise.reports.resizing import cut_table, shrinking_answer, shrinking_table
from widthwise.run_dir import RunDir

SIZES = [((64, 64), (4, 4), (96, 50)), ((64, 40), (4, 1), (96, 10)), ((64, 64), (4, 3), (96, 96))]
"""Of every layer: d_model, KV heads and hidden units, before and after."""


def cut(**changes: Any) -> Shrinking:
    sizes = [dict(zip(("d_model", "n_kv_heads", "n_hidden"), layer)) for layer in SIZES]
    record = {"source": "parent", "step": 900, "request": {"flops": 0.6}, "turned": True, "not_turned": None}
    record |= {"loss_before": 3.5, "loss_after": 3.75, "agreement": 0.8, "n_tokens": 1_000, "kv_bytes": [64.0, 32.0]}
    record |= {"before": {"params": 200, "flops_per_token": 1000.0}, "after": {"params": 150, "flops_per_token": 600.0}}
    record["layers"] = [{**layer, "lost": 0.25, "energy_kept": [1.0, 0.5]} for layer in sizes]
    return Shrinking.model_validate(record).with_changes(**changes)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Of 6000 steps, with a validation every 500."""
    write_run(tmp_path / "small", "small", 1, [64, 40, 64], 0.0)
    cut().write(tmp_path / "small")
    return tmp_path / "small"


def last_validation(run: Path) -> float:
    return [each["loss"] for each in RunDir(run).metrics() if each["event"] == "validation"][-1]


def test_the_certificate_comes_first_with_one_number_a_sentence(run: Path) -> None:
    page = run_page(run).read_text(encoding="utf-8")
    assert "What did the cut cost, and what does training give back?" in page
    answers = re.findall(r"<p>(.*?)</p>", page.partition('class="answer"')[2].partition("</div>")[0])
    below = 3.5 - last_validation(run)
    assert answers == [
        "parent is cut to 0.600 of its FLOPs.",
        "The held-out loss changes by +0.2500 nats before any healing.",
        "The most likely token stays the same at 80.0% of positions.",
        f"After healing it is {below:.4f} nats below the loss before the cut.",
    ]
    assert re.findall(r'<section id="([a-z-]+)"', page)[0] == "cut"
    rows = rows_of(section(run / "report.html", "cut"), "What the cut of parent")
    assert rows["held-out loss"] == ["3.5000", "3.7500", "+0.2500"]
    assert rows["held-out loss after 6,000 steps of healing"][1] == f"{last_validation(run):.4f}"
    assert rows["parameters"] == ["200", "150", f"0.750{TIMES}"]
    assert rows["forward FLOPs per token"][2] == f"0.600{TIMES}"
    assert rows["KV bytes per token"] == ["64", "32", f"0.500{TIMES}"]


def test_figures_draw_the_sizes_that_were_cut_and_the_loss_from_the_cut_on(run: Path) -> None:
    (run / "shrunk.yaml").write_text("model: {shape: {kind: curve}}\n")
    figures = specs(run_page(run).read_text())
    loss = [(row["name"], row["x"], row["y"]) for row in drawn(figures["validation-loss"]) if "x" in row]
    assert ("small", 0, 3.75) in loss
    assert {each for each in loss if each[0] == "before the cut"} == {
        ("before the cut", 0, 3.5),
        ("before the cut", 6000, 3.5),
    }
    for i, size in enumerate(("d_model", "n_kv_heads", "n_hidden")):
        lengths: dict[str, set[int]] = {}
        for row in drawn(figures[f"cut-0-{size}"]):
            if "right" in row:
                lengths.setdefault(row["label"].partition(":")[0], set()).add(row["right"])
        assert lengths == {f"layer {number}": set(layer[i]) for number, layer in enumerate(SIZES, start=1)}
    assert "Recipe of a model of this shape" in section(run / "report.html", "cut")


def test_a_size_that_stays_has_no_figure_and_a_run_not_healed_yet_no_loss(tmp_path: Path) -> None:
    write_run(tmp_path / "small", "small", 1, [64, 64, 64], 0.0, finished=False)
    (tmp_path / "small" / "metrics.jsonl").write_text("")
    uncut = [each.with_changes(d_model=[64, 64]) for each in cut().layers]
    cut(layers=uncut).write(tmp_path / "small")
    page = run_page(tmp_path / "small").read_text()
    assert captions(page) == ["KV heads of every layer", "Hidden units of every layer"]
    assert "After healing" not in page


def test_a_reason_against_turning_is_said_and_sizes_of_one_are_left_out() -> None:
    assert shrinking_answer(cut(not_turned="tied"))[-1] == "The stream was not turned: tied."
    one_head = [each.with_changes(n_kv_heads=[1, 1]) for each in cut().layers]
    table = shrinking_table(cut(layers=one_head))
    assert table.header[:3] == ["layer", "d_model", "hidden units"]
    assert table.rows[1] == ["2", "64 → 40", "96 → 10", "1.000 0.500", "0.25"]
    assert "held-out loss" in {row[0] for row in cut_table(cut()).rows}
