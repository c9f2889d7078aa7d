"""Runs whose models grow, on the page: what they had cost by then, and the loss across it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxes import refusal
from fake_comparison import SHAPES, add_records, cost, write_run
from fake_growth import CERTIFICATE, write_grown_run
from page_section import run_page

from widthwise.config_io import parse
from widthwise.records.certificate import Certificate
from widthwise.records.run import Run
from widthwise.reports.charts import Figure, styles
from widthwise.reports.curves import progress
from widthwise.reports.resizing import growth_section
from widthwise.reports.run import read_run
from widthwise.reports.table import Table


@pytest.mark.parametrize("key", ["params", "flops_per_token"])
def test_a_certificate_of_a_model_that_costs_nothing_is_refused(key: str) -> None:
    data = {**CERTIFICATE, "before": {**CERTIFICATE["before"], key: 0}}
    assert f"certificate.json: before.{key}: got 0" in refusal(parse, Certificate, data, "certificate.json")


def growth(step: int, change: float = 0.25, **values: Any) -> dict[str, Any]:
    found = {"event": "growth", "step": step, "tokens": 4096 * step, "training_flops": 3.0 * 4096 * step}
    sizes = {"params_before": cost(SHAPES["uniform"])["params"]["total"], "params_after": 99_999_999}
    return {**found, **sizes, "loss_before": 3.5, "loss_after": 3.5 + change, **values}


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
    names, runs = ("uniform", "x", "hourglass"), {}
    for name in names:
        for seed in (1, 2):
            write_run(run := tmp_path / f"{name}{seed}", name, seed, SHAPES["uniform"], 0.0)
            if name == "x":
                add_records(run, growth(2000, 0.0))
            if name == "hourglass":
                add_records(run, growth(2000, 0.2 * seed), growth(3000, 0.0, params_before=5))
            runs.setdefault(name, []).append(read_run(run))
    found = growth_section(runs, styles(list(names), "uniform"))
    assert [part.title for part in found.parts if isinstance(part, Figure)] == [
        "Loss across the growth after step 2,000",
        "Loss across the growth after step 3,000",
    ]
    (table,) = (part for part in found.parts if isinstance(part, Table))
    rows = {(row[0], row[1]): row[2:] for row in table.rows}
    assert set(rows) == {("x", "2,000"), ("hourglass", "2,000"), ("hourglass", "3,000")}
    assert rows["x", "2,000"][-3:] == ["3.5000", "3.5000", "+0.0e+00"]
    assert rows["hourglass", "2,000"][-3:] == ["3.5000", f"{3.5 + 0.3:.4f}", "+4.0e-01"]
    assert set(next(part for part in found.parts if isinstance(part, Figure)).legend) == set(names)


def test_a_run_that_a_verb_made_larger_asks_answers_and_shows_its_certificate(tmp_path: Path) -> None:
    run = write_grown_run(tmp_path / "large")
    page = run_page(run).read_text(encoding="utf-8")
    assert "Does large compute the same function after growth, and keep learning?" in page
    answers = re.findall(r"<p>(.*?)</p>", page.partition('class="answer"')[2].partition("</div>")[0])
    assert answers[0].startswith("The function is preserved: logits differ by at most 4.4e-15 (bound 8e-12)")
    assert re.match(r"Growth after step 3,000, 79.0k to 124k parameters: held-out loss [\d.]+ before\.", answers[1])
    assert answers[2] == "At the end, after step 6,000, the held-out loss is 3.0400."
    certificate = page.partition("Certificate of")[2].partition("</code>")[0]
    assert "940 new entries: 730 learn, 10 do not" in certificate
    assert "parameters 78,984 -&gt; 124,112 (1.571)" in certificate
    (run / "certificate.json").write_text(json.dumps({**CERTIFICATE, "logit_difference": 0.5}))
    assert "The function CHANGED" in run_page(run).read_text()
