"""Runs whose models grow, on the page: what they had cost by then, and the loss across it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_comparison import SHAPES, add_to_result, cost, write_comparison, write_run
from fake_growth import CERTIFICATE, EVENT, write_grown_run

from widthwise.records.run import Run, RunResult
from widthwise.reports.comparison.report import write_comparison_report
from widthwise.reports.page.curves import Curve, against_flops
from widthwise.reports.page.svg import styles
from widthwise.reports.run.growth import growth_section
from widthwise.reports.run.growth_figures import lines_at, measured_growths
from widthwise.reports.run.reading import read_run
from widthwise.reports.run.report import write_run_report


def growth(step: int, change: float = 0.25, **values: Any) -> dict[str, Any]:
    found = {"step": step, "tokens": 4096 * step, "training_flops": 3.0 * 4096 * step}
    sizes = {"params_before": cost(SHAPES["uniform"])["params"]["total"], "params_after": 99_999_999}
    return {**found, **sizes, "loss_before": 3.5, "loss_after": 3.5 + change, **values}


def result_of(**values: Any) -> RunResult:
    return RunResult.model_validate({"cost": cost(SHAPES["uniform"]), **values})


def let_grow(run: Path, growths: list[dict[str, Any]]) -> None:
    add_to_result(run, training_flops=3.0 * 4096 * 2000 + 7.0 * 4096 * 4000, growth=growths)


def test_flops_of_a_run_that_grew_are_counted_phase_by_phase() -> None:
    metrics = [{"step": step, "event": "train", "tokens": 10 * step} for step in range(1, 31)]
    events = [growth(10, tokens=100, training_flops=200.0), growth(20, tokens=200, training_flops=700.0)]
    result = result_of(steps=30, tokens=300, training_flops=1600.0, growth=events)
    curve = Curve(np.array([5.0, 10.0, 15.0, 20.0, 30.0]), np.zeros(5))
    flops = against_flops(curve, Run("run", "", {}, metrics, result), 1e9)
    # 2 FLOPs a token, then 5, then 9.
    assert flops.x == pytest.approx([50 * 2, 100 * 2, 200 + 50 * 5, 200 + 100 * 5, 700 + 100 * 9])


def test_flops_of_a_run_that_began_where_another_stood_are_counted_with_both_models() -> None:
    metrics: list[dict[str, Any]] = [{"step": step, "event": "train", "tokens": 10 * step} for step in range(1, 31)]
    metrics.insert(10, {"step": 10, "event": "grown", "tokens": 100, "training_flops": 200.0})
    curve = Curve(np.array([5.0, 10.0, 30.0]), np.zeros(3))
    result = result_of(steps=30, tokens=300, training_flops=1600.0)
    # 2 FLOPs a token, then 7.
    assert against_flops(curve, Run("run", "", {}, metrics, result), 1e9).x == pytest.approx([100, 200, 1600])


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """x and hourglass grow, hourglass twice; of uniform's size before; the loss of x does not change."""
    folder = write_comparison(tmp_path)
    for seed in (1, 2):
        let_grow(folder / f"runs/variant1-seed{seed}", [growth(2000, 0.0)])
        let_grow(folder / f"runs/variant2-seed{seed}", [growth(2000, 0.2 * seed), growth(3000, 0.0, params_before=5)])
    return folder


def section(folder: Path):
    names = ("uniform", "x", "hourglass")
    runs = {name: [read_run(folder / f"runs/variant{i}-seed{seed}") for seed in (1, 2)] for i, name in enumerate(names)}
    return growth_section(runs, styles(list(names), "uniform"))


def test_every_growth_has_a_figure_and_a_row(grown: Path) -> None:
    found = section(grown)
    assert [panel.title for panel in found.figures] == [
        "Loss across the growth after step 2,000",
        "The same minus the loss of uniform",
        "Loss across the growth after step 3,000",
    ]
    rows = {(row[0], row[1]): row[2:] for row in found.table.rows}
    assert set(rows) == {("x", "2,000"), ("hourglass", "2,000"), ("hourglass", "3,000")}
    assert rows["x", "2,000"][-3:] == ["3.5000", "3.5000", "+0.0e+00"]
    assert rows["hourglass", "2,000"][-3:] == ["3.5000", f"{3.5 + 0.3:.4f}", "+4.0e-01"]
    assert [name for _, name in found.legend] == ["uniform", "x", "hourglass"]


def test_the_figures_say_what_they_show(grown: Path) -> None:
    losses, above, _ = (panel.svg for panel in section(grown).figures)
    assert "x 3.5000 to 3.5000; hourglass 3.5000 to 3.8000" in losses
    assert "x 0.0000 to 0.0000; hourglass 0.0000 to 0.3000" in above


def test_the_page_has_growth_only_where_a_model_grew(grown: Path, tmp_path: Path) -> None:
    assert 'id="growth"' in write_comparison_report(grown)["html"].read_text()
    plain = write_comparison(tmp_path / "plain")
    assert 'id="growth"' not in write_comparison_report(plain)["html"].read_text()


def test_the_report_of_a_run_shows_its_growth(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "x", 1, SHAPES["x"], 0.0)
    let_grow(tmp_path / "run", [growth(2000, 0.0)])
    assert "Loss across the growth after step 2,000" in write_run_report(tmp_path / "run").read_text()


@pytest.fixture(scope="module")
def of_a_verb(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = write_grown_run(tmp_path_factory.mktemp("growth") / "large")
    return write_run_report(run).read_text(encoding="utf-8")


def test_a_run_that_a_verb_made_larger_asks_and_answers(of_a_verb: str) -> None:
    assert "Does large compute after its growth what was computed before, and go on to learn?" in of_a_verb
    answers = re.findall(r"<p>(.*?)</p>", of_a_verb.partition('class="answer"')[2].partition("</div>")[0])
    assert answers[0].startswith("The function is preserved: logits differ by at most 4.4e-15 (bound 8e-12)")
    assert re.match(r"Growth after step 3,000, 79.0k to 124k parameters: held-out loss [\d.]+ before\.", answers[1])
    assert answers[2] == "At the end, after step 6,000, the held-out loss is 3.0400."


def test_its_certificate_is_a_table(of_a_verb: str) -> None:
    certificate = of_a_verb.partition("Certificate of")[2].partition("</table>")[0]
    rows = dict(re.findall(r'<th scope="row">([^<]+)</th><td>([^<]+)</td>', certificate))
    assert rows["largest difference of logits"] == "4.4e-15"
    assert rows["largest difference of old gradients, over the largest gradient"] == "1.2e-15"
    assert rows["function"] == "preserved"
    assert (rows["new entries"], rows["of these: learn"], rows["had no gradient"]) == ("940", "730", "10")
    assert rows["parameters"].startswith("78,984 to 124,112 (1.571")


def test_a_certificate_that_says_no_is_not_hidden(tmp_path: Path) -> None:
    run = write_grown_run(tmp_path / "large")
    (run / "certificate.json").write_text(json.dumps({**CERTIFICATE, "is_preserved": False, "logit_difference": 0.5}))
    assert "The function CHANGED" in write_run_report(run).read_text()


def test_loss_curves_have_a_mark_where_the_model_grew(of_a_verb: str, tmp_path: Path) -> None:
    labels = re.findall(r'aria-label="([^"]*)" class="plot"', of_a_verb)
    marked = [label for label in labels if "A model grew at 3.00k." in label]
    assert [label.split(" over")[0] for label in marked[:2]] == ["held-out loss", "training loss"]
    write_run(tmp_path / "plain", "plain", 1, [64], 0.0)
    assert "A model grew" not in write_run_report(tmp_path / "plain").read_text()


def test_growth_shows_before_the_run_has_finished(tmp_path: Path) -> None:
    page = write_run_report(write_grown_run(tmp_path / "large", finished=False)).read_text()
    assert "Loss across the growth after step 3,000" in page
    assert "At the end" not in page


def test_growth_in_the_course_of_an_unfinished_run_is_read_from_its_records(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "x", 1, SHAPES["x"], 0.0, finished=False)
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write(json.dumps({"event": "growth", **growth(2000, 0.25)}) + "\n")
    answer = "held-out loss 3.5000 before, 3.7500 right after (change +0.2500)."
    assert answer in write_run_report(tmp_path / "run").read_text()


def test_the_curves_of_a_comparison_are_marked_in_steps_and_in_compute(grown: Path) -> None:
    page = write_comparison_report(grown)["html"].read_text()
    labels = re.findall(r'aria-label="([^"]*)" class="plot"', page)
    by_flops = [label for label in labels if "held-out loss over training FLOPs" in label]
    assert "A model grew at 24.6M, 36.9M." in by_flops[0]  # 3 FLOPs a token, 4096 tokens a step
    assert any("held-out loss over step" in label and "A model grew at 2.00k, 3.00k." in label for label in labels)


def test_what_verbs_did_at_one_step_has_a_row_each(tmp_path: Path) -> None:
    run = write_grown_run(tmp_path / "large")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**EVENT, "event": "padded", "params_before": 124_112, "params_after": 131_072}) + "\n")
    found = growth_section({"large": [read_run(run)]}, styles(["large"]))
    assert found
    assert [row[1:4] for row in found.table.rows] == [
        ["3,000", "grown", "79.0k to 124k"],
        ["3,000", "padded", "124k to 131k"],
    ]
    assert found.table.caption == "Growth"


def test_losses_of_different_seeds_are_not_subtracted(tmp_path: Path) -> None:
    for name, seed in (("small", 1), ("same", 1), ("other", 2)):
        write_run(tmp_path / name, name, seed, SHAPES["uniform"], 0.0, n_records=60)
    for name in ("same", "other"):
        let_grow(tmp_path / name, [growth(2000)])
    runs = {name: [read_run(tmp_path / name)] for name in ("small", "same", "other")}
    titles = {}
    for grown in ("same", "other"):
        pair = {"small": runs["small"], grown: runs[grown]}
        titles[grown] = [panel.title for panel in growth_section(pair, styles(list(pair))).figures]
    assert len(titles["same"]) == 2
    assert len(titles["other"]) == 1


def test_an_unfinished_run_shows_as_much_around_its_growth_as_a_finished_one(tmp_path: Path) -> None:
    curves = []
    for finished in (True, False):
        run = read_run(write_grown_run(tmp_path / str(finished), finished))
        (line,) = lines_at(3000, {"large": [run]}, {"large": measured_growths([run])}, styles(["large"]))
        curves.append(line.seeds[0].x)
    assert curves[0].tolist() == curves[1].tolist()
    assert (curves[0].min(), curves[0].max()) == (2400, 3600)


def test_a_verb_at_the_step_of_a_growth_does_not_hide_its_losses(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "x", 1, SHAPES["x"], 0.0, n_records=60)
    let_grow(tmp_path / "run", [growth(3000)])
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write(json.dumps({**EVENT, "event": "padded"}) + "\n")
    found = growth_section({"x": [read_run(tmp_path / "run")]}, styles(["x"]))
    assert found
    assert "before and after: x 3.5000 to 3.7500." in found.figures[0].svg
