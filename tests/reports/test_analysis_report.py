"""The page of an analysis: figures, tables and answers of what models do inside."""

import html
import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fake_analysis import model, write_analysis
from page_section import answers, captions, change, drawn, labels, page_of, rows_of, specs

from widthwise.records.analysis import Analysis
from widthwise.reports.analysis import exit_curve
from widthwise.reports.analysis_tables import findings, summary_table
from widthwise.reports.formats import MINUS, MISSING


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a uniform model of level 0.5 and an x-shaped one of 0.8."""
    return page_of(write_analysis(tmp_path_factory.mktemp("analysis")))


def test_page_has_every_figure_with_a_text_alternative(page: str) -> None:
    found = dict(zip(captions(page), labels(page), strict=True))
    layers = ["Layer 1", "Layer 2", "Layer 3: narrowest of x", "Layer 4"]
    assert [title for title in found if title.startswith("Layer")] == layers
    assert len(found) == 5 + 2 + 3 + 2 + 4  # activations, stream, logit lens, sinks, layers
    assert all("uniform" in label and "x" in label for label in found.values())
    # 0.45 of the activations of every layer times the level lie beyond the middle threshold.
    assert "At 0.1: uniform 0.225; x 0.360." in found["Activations beyond a threshold"]
    entropies = found["Matrix entropy / log(rank)"]
    assert "uniform from 0.10 at 4 to 0.50 at 0; x from 0.16 at 4 to 0.80 at 0." in entropies
    assert "uniform, layer 3: median unit 0.225, 10.0% never active; x, layer 3: median unit 0.360" in found[layers[2]]


def test_the_first_figures_are_those_of_the_answer(page: str) -> None:
    titles = [sentence.partition(": ")[0] for sentence in answers(page)]
    assert len(titles) == 3
    assert [html.unescape(title) for title in captions(page)[:3]] == list(map(html.unescape, titles))


def test_seeds_of_a_model_are_one_line_with_a_band(tmp_path: Path) -> None:
    """Entropies are level / (1 + depth). A model with one seed has a line alone."""
    levels = {"uniform-seed1": 0.4, "uniform-seed2": 0.6, "x-seed1": 0.8, "x-seed2": 0.9, "alone-seed1": 0.7}
    made = [model(name, [64] * 3, level) for name, level in levels.items()]
    spec = specs(page_of(write_analysis(tmp_path, *made)))["stream-entropy"]
    found = {(row["name"], row["x"]): row for row in drawn(spec) if row.get("low") is not None}
    means_and_ends = {"uniform": [0.5, 0.4, 0.6], "x": [0.85, 0.8, 0.9]}
    assert found.keys() == set(itertools.product(means_and_ends, range(4)))
    for (name, depth), row in found.items():
        expected = [level / (1 + depth) for level in means_and_ends[name]]
        assert [row["y"], row["low"], row["high"]] == pytest.approx(expected, rel=1e-5)


def test_page_answers_and_tables_hold_means_and_layers(page: str) -> None:
    assert "on 8.19k tokens of held-out documents of python-stdlib in windows of 256?" in page
    # The mean of 1/n over the queries n = 1 to 256, by its asymptotic series.
    assert f"would give {(math.log(256) + 0.5772156649 + 1 / 512) / 256:.4f} in windows of 256 tokens" in page
    assert "x: runs/x (widthwise, step 900)" in page
    assert "<code>widthwise analyze</code>" in page
    means = rows_of(page.partition('scope="row">2<')[0])
    assert means["Activations beyond 0.1"] == ["0.2250", "0.3600"]
    assert means["Change to the next layer"] == ["0.2500", "0.4000"]
    cells = f"64 10 0.2250 0.1000 4.0 0.4000 64 64 0.1667 3.00 {MINUS}5.0000 0.2500 4.0000 0.1000 0.4000 40.000"
    assert f'<th scope="row">2</th>{"".join(f"<td>{cell}</td>" for cell in cells.split())}</tr>' in page


def test_what_was_not_measured_is_left_open(tmp_path: Path) -> None:
    def forget(data: dict[str, Any]) -> None:
        for each in data["models"]:
            each.update(activations=[], sinks=[], step=None)
            for key in ("entropy", "participation"):
                for point in each["stream"]:
                    point[key] = None

    page = page_of(change(write_analysis(tmp_path) / "analysis.json", forget))
    assert len(captions(page)) == 3
    assert 'href="#attention-sinks"' not in page
    rows = rows_of(page)
    assert rows["Matrix entropy / log(rank)"] == rows["Attention to the first token"] == [MISSING, MISSING]


def test_the_loss_of_an_exit_after_or_inside_a_layer_is_drawn_over_what_it_costs(page: str, tmp_path: Path) -> None:
    assert "Loss of an early exit" not in page  # FLOPs are unknown
    counted = {**model("counted", [64, 64], 0.5), "exit_flops": [2e5, 3e5, 4e5]}
    folder = write_analysis(tmp_path / "after", counted)
    assert "Loss of an early exit" in page_of(folder)
    curve = exit_curve(Analysis.read(folder).models[0])
    assert (curve.x.tolist(), curve.y.tolist()) == ([2e5, 3e5, 4e5], [6.0, 5.5, 5.0])
    inside = [{"layer": 2, "block": 1, "target_log_prob": -5.25}, {"layer": 1, "block": 1, "target_log_prob": -5.75}]
    counted |= {"block_exits": inside, "block_exit_flops": [[2.5e5], [3.5e5]]}
    curve = exit_curve(Analysis.read(write_analysis(tmp_path / "inside", counted)).models[0])
    assert (curve.x.tolist(), curve.y.tolist()) == ([2e5, 2.5e5, 3e5, 3.5e5, 4e5], [6.0, 5.75, 5.5, 5.25, 5.0])


def test_findings_compare_means_over_seeds_with_the_first_variant_and_checkpoints_with_the_first(
    tmp_path: Path,
) -> None:
    """All numbers go with the level: of 0.4 and 0.6 the mean is 0.5, of 0.8 and 0.9 it is 0.85."""
    levels = {"uniform-seed1": 0.4, "uniform-seed2": 0.6, "x-seed1": 0.8, "x-seed2": 0.9}
    seeds = [model(name, [64] * 3, level) for name, level in levels.items()]
    for models, words in (
        (seeds, ": higher by 70% in x than in uniform, mean of 2 seeds."),
        (checkpoints("x", [96, 32], 3)[::-1], ": higher by 200% in x, step 3 than in x, step 1."),
    ):
        found = findings(Analysis.read(write_analysis(tmp_path, *models)))
        assert len(found) == 3
        assert all(sentence.endswith(words) for _, sentence in found)


def test_the_middle_half_of_the_layers_has_means_of_its_own(tmp_path: Path) -> None:
    """Entropies are level / (1 + depth); layers 2 and 3 of 4 are the middle, those with a quarter of them before."""
    for n_layers, middle in ((1, [1]), (2, [1]), (4, [1, 2, 3]), (8, [2, 3, 4, 5, 6])):
        found = Analysis.read(write_analysis(tmp_path / str(n_layers), model("a", [64] * n_layers, 0.5)))
        rows = dict(summary_table(found).rows)
        expected = f"{sum(0.5 / (1 + depth) for depth in middle) / len(middle):.4f}"
        assert rows["Matrix entropy / log(rank), middle half"] == expected
        assert f"Matrix entropy / log(rank): {expected} in the middle half of the layers." in [
            sentence for _, sentence in findings(found)
        ]


def checkpoints(run: str, widths: list[int], n: int) -> list[dict[str, Any]]:
    """A model whose level grows by 0.1 with each of its checkpoints, given last to first."""
    made = [
        model(f"{run}, step {step}", widths, step / 10) | {"run": run, "tokens": 100 * step} for step in range(1, n + 1)
    ]
    return made[::-1]


def test_checkpoints_give_curves_over_tokens_with_a_line_for_each_run(tmp_path: Path) -> None:
    page = page_of(write_analysis(tmp_path, *checkpoints("u", [64], 3), *checkpoints("x", [96, 32], 2)))
    found = [label for label in labels(page) if " over tokens. " in label]
    words, u, x = re.fullmatch(r"(.*): u (.*); x (.*)\.", found[0]).groups()
    assert words == "Activations beyond 0.1 over tokens. Last mean value of each line"
    assert [float(u), float(x)] == pytest.approx([0.45 * 0.3, 0.45 * 0.2], abs=0.005 + 1e-9)  # of a third and a second
    assert len(found) == 8
    assert "What do u and x do inside, in the course of training," in page
    assert rows_of(page)["x, step 2"][:2] == ["200", "0.0900"]
