"""What a page draws: curves of records, shapes to scale, and pictures that nobody misreads."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_comparison import cost
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from widthwise.records.cost import CostSummary
from widthwise.records.run import Run, RunResult
from widthwise.reports.page import svg
from widthwise.reports.page.plots import Curve, against_flops, by_step, further_heads, thin
from widthwise.reports.page.shapes import width_figures
from widthwise.reports.page.svg import HEAT, INK, MUTED, SERIES, draw, styles, swatch
from widthwise.reports.page.tables import data_table, text_key


def run(metrics: list[dict]) -> Run:
    return Run("run", "", {}, metrics, None)


def test_records_without_the_key_are_left_out_and_the_last_of_a_step_counts() -> None:
    metrics = [
        {"step": 20, "event": "train", "loss": 3.0},
        {"step": 10, "event": "train", "loss": 9.0},
        {"step": 20, "event": "train", "loss": 2.0},
        {"step": 30, "event": "train", "loss": None},
        {"step": 30, "event": "validation", "loss": 7.0},
    ]
    curve = by_step(run(metrics), "train", "loss")
    assert (curve.x.tolist(), curve.y.tolist()) == ([10, 20], [9, 2])


def test_flops_are_tokens_times_cost_and_steps_beyond_the_records_are_left_out() -> None:
    metrics = [{"step": step, "event": "train", "tokens": 64 * step} for step in (10, 20)]
    flops = against_flops(Curve(np.array([5.0, 20.0, 21.0]), np.array([3.0, 2.0, 1.0])), run(metrics), 7.0)
    assert (flops.x.tolist(), flops.y.tolist()) == ([5 * 64 * 7, 20 * 64 * 7], [3.0, 2.0])


@given(st.integers(min_value=1, max_value=97), st.integers(min_value=1, max_value=31))
def test_thinning_keeps_the_mean_of_equal_groups(n_groups: int, n_each: int) -> None:
    x = np.arange(n_groups * n_each, dtype=float)
    thinned = thin(Curve(x, x**2), n_groups)
    assert len(thinned.x) == n_groups
    assert thinned.y == pytest.approx((x**2).reshape(n_groups, n_each).mean(axis=1))


def test_further_heads_have_a_curve_each_from_validation_alone() -> None:
    records = [
        {"event": "validation", "step": 1, "mtp_losses": [3.0, 4.0]},
        {"event": "train", "step": 2, "mtp_losses": [9.0, 9.0]},
        {"event": "validation", "step": 3, "mtp_losses": [2.5, float("nan")]},
        {"event": "validation", "step": 4},
    ]
    near, far = further_heads(run(records))
    assert (near.x.tolist(), near.y.tolist()) == ([1, 3], [3.0, 2.5])
    assert far.y == pytest.approx([4.0, np.nan], nan_ok=True)
    assert further_heads(run(records[3:])) == []


def bars(costs: dict[str, dict[str, Any]], used: dict[str, dict[int, float]] | None = None) -> dict[str, dict]:
    """Name -> what a bar says -> how wide the bars are that say it."""
    summaries = {name: CostSummary.model_validate(each) for name, each in costs.items()}
    found: dict[str, dict[str, list[float]]] = {}
    for name, picture in width_figures(summaries, styles(list(costs)), used or {}).items():
        for group in ElementTree.fromstring(picture).iter("g"):
            if group.get("class") == "area":
                places = [float(x) for x in re.findall(r"[ML] ([-\d.]+)", group[0].attrib["d"])]
                found.setdefault(name, {}).setdefault(group.attrib["data-detail"], []).append(max(places) - min(places))
    return found


def test_bars_are_as_wide_as_layers_hidden_units_stream_and_what_tokens_use_on_one_scale() -> None:
    plain = {**cost([96, 64, 96]), "hidden_widths": [[320], [192], [320]], "n_heads": []}
    slots = {**cost([96] * 3), "stream_width": 240, "n_slots": 5, "slot_width": 48, "n_heads": []}
    found = bars({"x": plain, "virtual": slots})
    unit = found["x"]["layer 1: width 96"][0] / 96
    assert found["x"]["layer 2: width 64"] == pytest.approx([64 * unit], abs=0.03)
    assert found["x"]["layer 3: hidden 320"] == pytest.approx([320 * unit], abs=0.03)
    assert found["x"]["stream 96"] == pytest.approx([96 * unit], abs=0.03)
    assert found["virtual"]["stream 240: 5 slots of 48"] == pytest.approx([240 * unit], abs=0.03)
    used = {1: 0.25, 2: 0.75}
    found = bars({"dynamic": {**cost([64, 64]), "hidden_widths": [[256], [256]]}}, {"dynamic": used})["dynamic"]
    for layer, share in used.items():
        whole, part = found[f"layer {layer}: hidden 256\ntokens use {share:.3f} of them on average"]
        assert part == pytest.approx(share * whole, abs=0.03)


def hostile(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=SERIES[0], marker="o")
    axes.set_title(r"$\frac$ <script>&amp;</script> ]]> -->")
    axes.set_yticks([0, 1], [r"$\undefined{$", "_hidden"])


def test_text_stays_text_and_is_not_read_as_mathematics_or_markup() -> None:
    root = ElementTree.fromstring(draw("key", 'label "<&>"', (3, 2), hostile))
    texts = {"".join(element.itertext()) for element in root.iter("text")}
    assert texts >= {r"$\frac$ <script>&amp;</script> ]]> -->", r"$\undefined{$", "_hidden"}
    assert root.attrib["aria-label"] == 'label "<&>"'
    assert {element.tag for element in root.iter()} <= {"svg", "g", "defs", "path", "use", "text", "clipPath", "rect"}


def test_no_two_variants_look_alike() -> None:
    for n_variants in (1, 7, 28):
        chosen = styles([f"v{i}" for i in range(n_variants)] + ["base"], "base")
        assert chosen["base"].colour == MUTED
        assert len(set(chosen.values())) == len({str(swatch(each)) for each in chosen.values()}) == n_variants + 1


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_ink_can_be_read_on_every_cell_of_a_heat_map_in_light_and_in_dark() -> None:
    page = (Path(svg.__file__).parent / "template.html").read_text()
    blocks = re.findall(r":root \{(.*?)\}", page, re.DOTALL)[:2]
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks)
    cells = [f"heat-{i}" for i in range(1, len(HEAT) + 1)]
    for values in (light, dark):
        for cell in cells:
            bright, dim = sorted((luminance(values["ink"]), luminance(values[cell])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5
    assert ([light[cell] for cell in cells], light["ink"]) == (list(HEAT), INK)


def test_the_table_of_the_data_says_how_much_there_was_and_how_much_was_read() -> None:
    data = {"corpus": {"name": "books", "fingerprint": "f"}, "tokenizer": {"spec": "bpe-2048", "id": "i"}}
    counts = {
        "n_train_tokens": 385_542,
        "n_train_bytes": 1_300_311,
        "n_held_out_tokens": 137_669,
        "n_held_out_bytes": 7,
    }
    found = {"tokens": 96_386, "val_window_losses": [7.0] * 13, "data": counts, "cost": cost([64]) | {"seq_len": 129}}
    read = Run("run", "", {"data": data}, [], RunResult.model_validate(found))
    table = data_table({"a": read, "b": read})
    assert table is not None
    assert table.header == ["Item", "Value"]
    rows: dict[str, str] = dict(table.rows)
    assert rows["corpus"] == "books"
    assert rows["training text"] == "385,542 tokens, 1,300,311 bytes"
    assert rows["read in training"] == "96,386 tokens, 0.25 times the training text"
    assert rows["held-out text"] == "137,669 tokens, 7 bytes"
    assert rows["read for the held-out loss"] == f"{13 * 129:,} tokens: 13 windows of 129, from the start"


def test_a_text_is_the_same_under_other_names_of_its_files_and_another_with_another_tokenizer() -> None:
    def key(name: str, spec: str, fingerprint: str = "a", tokenizer: str = "t") -> str:
        source = {"weight": 1, "corpus": {"name": name, "fingerprint": fingerprint}}
        return text_key({"data": {"tokenizer": {"spec": spec, "id": tokenizer}, "sources": {"s": source}}})

    assert key("books", "data/tokenizer.json") == key("novels", "../tokenizer.json")
    assert key("books", "tokenizer.json") != key("books", "tokenizer.json", tokenizer="u")
    assert key("books", "tokenizer.json") != key("books", "tokenizer.json", fingerprint="b")
    named = [text_key({"data": {"corpus": {"name": name}}}) for name in ("books", "novels", "books")]
    assert named[0] == named[2] != named[1]
