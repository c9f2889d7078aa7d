import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium_pipe import CHROMIUM, IN_CHROMIUM, chromium_page
from fake_analysis import model, write_analysis
from fake_comparison import token_widths, width_oracle

from widthwise.config_io import UserError
from widthwise.records.analysis import Analysis
from widthwise.reports.analysis.layers import exit_curve
from widthwise.reports.analysis.report import write_analysis_report
from widthwise.reports.page.formats import MINUS, MISSING
from widthwise.reports.page.svg import as_files
from widthwise.reports.writing import write_report

HOSTILE = "<script>alert(1)</script>"
FIGURES_OF_ALL_LAYERS = 5 + 2 + 3 + 2
"""Activations, stream, logit lens, sinks."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a uniform model of level 0.5 and an x-shaped one of 0.8, made by the verb."""
    folder = write_analysis(tmp_path_factory.mktemp("analysis"))
    assert write_report([folder]) == [folder / "report.html"]
    return (folder / "report.html").read_text(encoding="utf-8")


def page_of(folder: Path) -> str:
    return write_analysis_report(folder)["html"].read_text(encoding="utf-8")


def captions(page: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", page)


def labels(page: str) -> list[str]:
    return re.findall(r'role="img" aria-label="([^"]*)" class="plot"', page)


def change(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    data = json.loads((folder / "analysis.json").read_text())
    edit(data)
    (folder / "analysis.json").write_text(json.dumps(data))
    return folder


def test_page_has_every_figure_with_a_text_alternative(page: str) -> None:
    assert captions(page) == [
        "Activations beyond a threshold",
        "Activations beyond 0.1, by layer",
        "Effective number of units",
        "Effective number of units over d_ff",
        "Units that are never active",
        "Layer 1",
        "Layer 2",
        "Layer 3: narrowest of x",
        "Layer 4",
        "Matrix entropy",
        "Participation ratio of the stream",
        "Log-probability of the target",
        "Change to the next layer",
        "Entropy of the prediction",
        "Attention to the first token",
        "Size of the first token&#39;s state",
    ]
    found = labels(page)
    assert len(found) == FIGURES_OF_ALL_LAYERS + 4
    assert all("uniform" in label and "x" in label for label in found)
    # 0.45 of the activations of every layer times the level lie beyond the middle threshold.
    assert "At 0.1: uniform 0.225; x 0.360." in found[0]
    assert "uniform from 0.10 at 4 to 0.50 at 0; x from 0.16 at 4 to 0.80 at 0." in found[9]
    assert "uniform, layer 3: median unit 0.225, 10.0% never active; x, layer 3: median unit 0.360" in found[7]


def test_page_answers_and_says_how_to_reproduce(page: str) -> None:
    assert "on 8.19k tokens of held-out documents of python-stdlib in windows of 256?" in page
    # The mean of 1/n over the queries n = 1 to 256, by its asymptotic series.
    assert f"would give {(math.log(256) + 0.5772156649 + 1 / 512) / 256:.4f} in windows of 256 tokens" in page
    assert "<p>x uses more of its units.</p>" in page
    assert "<p>That is no law.</p>" in page
    assert "<code>widthwise analyze runs/uniform runs/x</code>" in page
    assert "<code>runs/x (widthwise, step 900)</code>" in page


def row(page: str, title: str) -> list[str]:
    found = re.search(rf'<th scope="row">{re.escape(title)}</th>(.*?)</tr>', page)
    assert found, title
    return re.findall(r"<td>(.*?)</td>", found[1])


def test_tables_hold_means_and_layers(page: str) -> None:
    assert row(page, "activations beyond 0.1") == ["0.2250", "0.3600"]
    assert row(page, "participation / d_ff") == ["0.4500", "0.4500"]
    assert row(page, "lowest matrix entropy (after layer)") == ["0.1000 (4)", "0.1600 (4)"]
    assert row(page, "target log-prob, half-way (after layer)") == [f"{MINUS}5.000 (2)", f"{MINUS}4.400 (2)"]
    assert row(page, "KL to the next layer") == ["0.2500", "0.4000"]
    assert row(page, "attention to the first token") == ["0.1250", "0.2000"]
    cells = f"64 10 0.2250 0.1000 4.0 0.4000 64 64 0.1667 3.00 {MINUS}5.0000 0.2500 4.0000 0.1000 0.4000 40.000"
    assert row(page, "2") == cells.split()


def test_several_maps_of_a_layer_count_together(tmp_path: Path) -> None:
    def enlarge(data: dict[str, Any]) -> None:
        last = data["models"][0]["activations"][-1]
        last.update(d_ff=20, density=[0.9] * 3, utilisation=[0.9] * 20, dead_share=0.4)

    page = page_of(change(write_analysis(tmp_path, model("hourglass", [64, 64], 0.5, n_blocks=3)), enlarge))
    # Layer 2: two maps of 10 units and one of 20, each of which uses 4 effectively.
    assert row(page, "1")[1:6] == ["30", "0.2250", "0.1000", "9.0", "0.3000"]
    assert row(page, "2")[1:6] == ["40", "0.5625", "0.2500", "12.0", "0.3000"]
    # Every unit of the model counts the same: (50 * 0.225 + 20 * 0.9) / 70.
    assert "At 0.1: hourglass 0.418." in labels(page)[0]


def test_models_of_different_depth_share_an_axis_of_fractions(tmp_path: Path) -> None:
    page = page_of(write_analysis(tmp_path, model("deep", [64] * 4, 0.5), model("shallow", [64, 32], 0.5)))
    assert [title for title in captions(page) if title.startswith("Layer")] == [
        *("Layer 1 of 4", "Layer 2 of 4", "Layer 3 of 4: narrowest of shallow", "Layer 4 of 4: narrowest of shallow")
    ]
    found = labels(page)
    assert "by layers passed, as a share of all. deep from 0.10 at 1 to 0.50 at 0; shallow" in found[5 + 4]
    assert "deep, layer 2: " in found[6]
    assert "shallow, layer 1: " in found[6]


@pytest.mark.parametrize("n_layers", [1, 9])
def test_any_depth_and_a_model_alone_can_be_drawn(tmp_path: Path, n_layers: int) -> None:
    page = page_of(write_analysis(tmp_path, model("alone", [64] * n_layers, 0.5)))
    assert len(captions(page)) == FIGURES_OF_ALL_LAYERS + n_layers
    assert "What does alone do inside" in page


def test_what_was_not_measured_is_left_open(tmp_path: Path) -> None:
    def forget(data: dict[str, Any]) -> None:
        for each in data["models"]:
            each.update(activations=[], sinks=[], step=None)
            for key in ("entropy", "participation"):
                for point in each["stream"]:
                    point[key] = None
        data["models"][1]["activations"] = []

    page = page_of(change(write_analysis(tmp_path), forget))
    assert len(captions(page)) == 3
    assert 'href="#sinks"' not in page
    assert row(page, "matrix entropy / log(rank)") == [MISSING, MISSING]
    assert row(page, "attention to the first token") == [MISSING, MISSING]


def test_the_loss_of_an_early_exit_is_drawn_over_what_it_costs(page: str, tmp_path: Path) -> None:
    assert "Loss of an early exit" not in page  # FLOPs are unknown
    counted = {**model("counted", [64, 64], 0.5), "exit_flops": [2e5, 3e5, 4e5]}
    folder = write_analysis(tmp_path, counted)
    written = write_report(folder)[0].read_text()
    assert "Loss of an early exit" in written
    curve = exit_curve(Analysis.read(folder).models[0])
    assert curve is not None
    assert (curve.x.tolist(), curve.y.tolist()) == ([2e5, 3e5, 4e5], [6.0, 5.5, 5.0])


def test_exits_inside_layers_stand_between_those_after_layers(tmp_path: Path) -> None:
    inside = [{"layer": 2, "block": 1, "target_log_prob": -5.25}, {"layer": 1, "block": 1, "target_log_prob": -5.75}]
    counted = {"exit_flops": [2e5, 3e5, 4e5], "block_exits": inside, "block_exit_flops": [[2.5e5], [3.5e5]]}
    folder = write_analysis(tmp_path, {**model("counted", [64, 64], 0.5), **counted})
    curve = exit_curve(Analysis.read(folder).models[0])
    assert curve is not None
    assert (curve.x.tolist(), curve.y.tolist()) == ([2e5, 2.5e5, 3e5, 3.5e5, 4e5], [6.0, 5.75, 5.5, 5.25, 5.0])


def test_widths_of_tokens_have_their_section(tmp_path: Path) -> None:
    dynamic = {**model("dynamic", [64] * 4, 0.5), "token_widths": token_widths(4)}
    page = page_of(write_analysis(tmp_path, model("uniform", [64] * 4, 0.5), dynamic))
    assert 'href="#dynamic-width"' in page
    assert len(captions(page)) == FIGURES_OF_ALL_LAYERS + 4 + 1
    assert 'id="virtual-width"' not in page


def test_losses_at_equal_width_stand_beside_the_oracles(tmp_path: Path) -> None:
    widths = {**token_widths(3), "oracle": width_oracle(3)}
    dynamic = {**model("dynamic", [64] * 3, 0.5), "token_widths": widths}
    page = page_of(write_analysis(tmp_path, model("uniform", [64] * 3, 0.5), dynamic))
    assert "oracle 2.750, oracle, one a token 3.125, chosen by tokens 3.250, one a layer 3.375" in page
    assert "Widths of dynamic beside the oracle" in page
    for row in (["fitted to the oracle", MISSING], ["oracle", "2.7500"], ["mean fraction of d_ff", "0.5000"]):
        assert re.search(r'<th scope="row">{}</th><td[^>]*>{}</td>'.format(*map(re.escape, row)), page)
    assert "<td>+0.12</td>" in page


def test_hostile_names_are_shown_and_never_interpreted(tmp_path: Path) -> None:
    hostile = {**model(HOSTILE, [64] * 2, 0.5), "source": HOSTILE, "kind": HOSTILE}
    folder = write_analysis(tmp_path, model("\"'><img src=x onerror=alert(1)>\x1b[31m\n_y", [64, 32], 0.5), hostile)
    page = page_of(
        change(folder, lambda data: data.update(title=HOSTILE, sentence=HOSTILE, command=f"a && b {HOSTILE}"))
    )
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_page_refers_to_nothing_outside_itself(page: str) -> None:
    assert not re.search(r"https?://|@import|<script\s|url\((?!#)|\ssrc=", page)
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(ids)


def test_same_input_gives_same_bytes_and_figures_as_files(page: str, tmp_path: Path) -> None:
    with as_files("svg") as files:
        assert page_of(write_analysis(tmp_path)) == page
    assert len(files.contents) == FIGURES_OF_ALL_LAYERS + 4


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.pop("sentence"), r"analysis\.json: sentence: is required but missing"),
        (lambda data: data.update(models=[]), "models"),
        (lambda data: data["models"][1].update(name="uniform"), "models: two have the same name"),
        (lambda data: data["models"][0]["stream"][2].update(entropy="high"), r"stream\.2\.entropy: got 'high'"),
        (lambda data: data["models"][0]["activations"][0].update(d_ff=9), "utilisation: got 10 entries for d_ff = 9"),
        (lambda data: data["models"][0]["sinks"][0].update(layer=7), "sinks: got layer 7 of a model of 4 layers"),
        (
            lambda data: data["models"][1]["activations"][2].update(density=[0.5]),
            "models: x: density of layer 3: got 1 entries for 3 thresholds",
        ),
        (lambda data: data["text"].update(seq_len=2.5), r"text\.seq_len: got 2\.5"),
    ],
)
def test_a_broken_analysis_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    folder = change(write_analysis(tmp_path), edit)
    with pytest.raises(UserError, match=message) as error:
        write_analysis_report(folder)
    assert "\n" not in str(error.value)
    assert not (folder / "report.html").exists()


@IN_CHROMIUM[0]
@IN_CHROMIUM[1]
@pytest.mark.parametrize("width", [1280, 400])
def test_page_opens_offline_and_shows_every_figure(tmp_path: Path, width: int) -> None:
    path = write_analysis_report(write_analysis(tmp_path / "analysis"))["html"]
    with chromium_page(str(CHROMIUM), tmp_path / "profile") as page:
        page.open(path, width)
        inside = """[...document.querySelectorAll('svg.plot')].map(svg => {
          const box = svg.getBoundingClientRect();
          return box.left >= 0 && box.right <= innerWidth && box.width > 200 && box.height > 60;
        })"""
        assert page.evaluate(inside) == [True] * (FIGURES_OF_ALL_LAYERS + 4)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        smallest = (
            "Math.min(...[...document.querySelectorAll('svg.plot text')].map(t => t.getBoundingClientRect().height))"
        )
        assert page.evaluate(smallest) >= 7
        assert page.requests() == [path.resolve().as_uri()]
        assert page.complaints() == []


def checkpoints(run: str, widths: list[int], n: int) -> list[dict[str, Any]]:
    """A model whose level grows by 0.1 with each of its checkpoints, given last to first."""
    made = [
        model(f"{run}, step {step}", widths, step / 10) | {"run": run, "tokens": 100 * step} for step in range(1, n + 1)
    ]
    return made[::-1]


def test_checkpoints_give_curves_over_tokens_with_a_line_for_each_run(tmp_path: Path) -> None:
    page = page_of(write_analysis(tmp_path, *checkpoints("u", [64] * 4, 3), *checkpoints("x", [96, 32, 96], 2)))
    found = [label for label in labels(page) if " over tokens. " in label]
    assert found[0] == "activations beyond 0.1 over tokens. Last mean value of each line: u 0.14; x 0.09."
    assert len(found) == 8
    assert "What do u and x do inside, in the course of training," in page
    assert row(page, "x, step 2")[:2] == ["200", "0.0900"]


def test_of_many_checkpoints_figures_over_layers_show_some(tmp_path: Path) -> None:
    page = page_of(write_analysis(tmp_path, *checkpoints("u", [64] * 4, 9)))
    (entropy,) = [label for label in labels(page) if label.startswith("matrix entropy / log(rank) by layer")]
    assert re.findall(r"step (\d)", entropy) == ["9", "7", "5", "3", "1"]
    assert "4 are left out" in page
    assert page.count("<summary>Layers of u") == 9


def test_a_run_with_one_checkpoint_has_no_curve(page: str, tmp_path: Path) -> None:
    assert "Over training" not in page_of(write_analysis(tmp_path, *checkpoints("u", [64] * 4, 1)))
    assert "Over training" not in page
