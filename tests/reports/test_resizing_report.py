"""Runs whose models grow or were cut, on the page: the loss across the change, its certificate, costs and sizes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxes import refusal
from fake_comparison import CERTIFICATE, SHAPES, add_records, growth, write_grown_run, write_run
from page_section import answers, captions, drawn, page_of, rows_of, section, specs

from widthwise.config_io import parse
from widthwise.records.resizing import Certificate, Shrinking
from widthwise.records.run import Run
from widthwise.reports.charts import Figure, styles
from widthwise.reports.curves import progress
from widthwise.reports.formats import TIMES
from widthwise.reports.resizing import cut_table, growth_section, shrinking_answer, shrinking_table
from widthwise.reports.run import read_run
from widthwise.reports.table import Table
from widthwise.run_dir import RunDir

SIZES = [((64, 64), (4, 4), (96, 50)), ((64, 40), (4, 1), (96, 10)), ((64, 64), (4, 3), (96, 96))]
"""Of every layer: d_model, KV heads and hidden units, before and after."""


@pytest.mark.parametrize("key", ["params", "flops_per_token"])
def test_a_certificate_of_a_model_that_costs_nothing_is_refused(key: str) -> None:
    data = {**CERTIFICATE, "before": {**CERTIFICATE["before"], key: 0}}
    assert f"certificate.json: before.{key}: got 0" in refusal(parse, Certificate, data, "certificate.json")


def test_flops_of_a_run_that_grew_or_began_where_another_stood_are_counted_phase_by_phase() -> None:
    """30 steps of 10 tokens; 2 FLOPs a token, then 5, then 9."""
    metrics: list[dict[str, Any]] = [{"step": step, "event": "train", "tokens": 10 * step} for step in range(1, 31)]
    for tokens, flops in {300: 1600.0, 100: 200.0, 200: 700.0}.items():
        metrics.append({"step": tokens // 10, "event": "validation", "tokens": tokens, "training_flops": flops})
    curve = progress(Run("run", "", {}, metrics, None))["training FLOPs"]
    expected = [50 * 2, 100 * 2, 200 + 50 * 5, 200 + 100 * 5, 700 + 100 * 9]
    assert np.interp([5, 10, 15, 20, 30], curve.x, curve.y) == pytest.approx(expected)


def test_every_growth_has_a_figure_and_a_row(tmp_path: Path) -> None:
    """x and hourglass grow, hourglass twice; of uniform's size before; the loss of x does not change."""
    runs: dict[str, list[Run]] = {"uniform": [], "x": [], "hourglass": []}
    for name, seeds in runs.items():
        for seed in (1, 2):
            write_run(run := tmp_path / f"{name}{seed}", name, seed, SHAPES["uniform"], 0.0)
            if name == "x":
                add_records(run, growth(2000, 0.0))
            if name == "hourglass":
                add_records(run, growth(2000, 0.2 * seed), growth(3000, 0.0, params_before=5))
            seeds.append(read_run(run))
    parts = growth_section(runs, styles(runs, "uniform")).parts
    figures = [part for part in parts if isinstance(part, Figure)]
    assert [figure.key for figure in figures] == ["growth-2000", "growth-3000"]
    assert figures[0].legend.keys() == runs.keys()
    (table,) = (part for part in parts if isinstance(part, Table))
    assert {(row[0], row[1]): row[-3:] for row in table.rows} == {
        ("x", "2,000"): ["3.5000", "3.5000", "+0.0e+00"],
        ("hourglass", "2,000"): ["3.5000", f"{3.5 + 0.3:.4f}", "+4.0e-01"],
        ("hourglass", "3,000"): ["3.5000", "3.5000", "+0.0e+00"],
    }


def test_a_run_that_a_verb_made_larger_asks_answers_and_shows_its_certificate(tmp_path: Path) -> None:
    run = write_grown_run(tmp_path / "large")
    page = page_of(run)
    assert "Does large compute the same function after growth, and keep learning?" in page
    preserved, losses, end = answers(page)
    assert preserved.startswith("The function is preserved: logits differ by at most 4.4e-15 (bound 8e-12)")
    assert re.match(r"Growth after step 3,000, 79.0k to 124k parameters: held-out loss [\d.]+ before\.", losses)
    assert end == "At the end, after step 6,000, the held-out loss is 3.0400."
    certificate = page.partition("Certificate of")[2].partition("</code>")[0]
    assert "940 new entries: 730 learn, 10 do not" in certificate
    assert "parameters 78,984 -&gt; 124,112 (1.571)" in certificate
    (run / "certificate.json").write_text(json.dumps({**CERTIFICATE, "logit_difference": 0.5}))
    assert "The function CHANGED" in page_of(run)


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


def test_the_certificate_comes_first_with_one_number_a_sentence(run: Path) -> None:
    page = page_of(run)
    assert "What did the cut cost, and what does training give back?" in page
    last_loss = [record["loss"] for record in RunDir(run).metrics() if record["event"] == "validation"][-1]
    assert answers(page) == [
        "parent is cut to 0.600 of its FLOPs.",
        "The held-out loss changes by +0.2500 nats before any healing.",
        "The most likely token stays the same at 80.0% of positions.",
        f"After healing it is {3.5 - last_loss:.4f} nats below the loss before the cut.",
    ]
    assert re.findall(r'<section id="([a-z-]+)"', page)[0] == "cut"
    rows = rows_of(section(page, "cut"), "What the cut of parent")
    assert rows["held-out loss"] == ["3.5000", "3.7500", "+0.2500"]
    assert rows["held-out loss after 6,000 steps of healing"][1] == f"{last_loss:.4f}"
    assert rows["parameters"] == ["200", "150", f"0.750{TIMES}"]
    assert rows["forward FLOPs per token"][2] == f"0.600{TIMES}"
    assert rows["KV bytes per token"] == ["64", "32", f"0.500{TIMES}"]


def test_figures_draw_the_sizes_that_were_cut_and_the_loss_from_the_cut_on(run: Path) -> None:
    (run / "shrunk.yaml").write_text("model: {shape: {kind: curve}}\n")
    page = page_of(run)
    figures = specs(page)
    loss = {(row["name"], row["x"], row["y"]) for row in drawn(figures["validation-loss"]) if "x" in row}
    assert {("small", 0, 3.75), ("before the cut", 0, 3.5), ("before the cut", 6000, 3.5)} <= loss
    for i, size in enumerate(("d_model", "n_kv_heads", "n_hidden")):
        lengths: dict[str, set[int]] = {}
        for row in drawn(figures[f"cut-0-{size}"]):
            if "right" in row:
                lengths.setdefault(row["label"].partition(":")[0], set()).add(row["right"])
        assert lengths == {f"layer {number}": set(layer[i]) for number, layer in enumerate(SIZES, start=1)}
    assert "Recipe of a model of this shape" in section(page, "cut")


def test_a_size_that_stays_has_no_figure_and_a_run_not_healed_yet_no_loss(tmp_path: Path) -> None:
    write_run(tmp_path / "small", "small", 1, [64, 64, 64], 0.0, finished=False)
    (tmp_path / "small" / "metrics.jsonl").write_text("")
    uncut = [each.with_changes(d_model=[64, 64]) for each in cut().layers]
    cut(layers=uncut).write(tmp_path / "small")
    page = page_of(tmp_path / "small")
    assert captions(page) == ["KV heads of every layer", "Hidden units of every layer"]
    assert "After healing" not in page


def test_a_reason_against_turning_is_said_and_sizes_of_one_are_left_out() -> None:
    assert shrinking_answer(cut(not_turned="tied"))[-1] == "The stream was not turned: tied."
    one_head = [each.with_changes(n_kv_heads=[1, 1]) for each in cut().layers]
    table = shrinking_table(cut(layers=one_head))
    assert table.header[:3] == ["layer", "d_model", "hidden units"]
    assert table.rows[1] == ["2", "64 → 40", "96 → 10", "1.000 0.500", "0.25"]
    assert "held-out loss" in {row[0] for row in cut_table(cut()).rows}
