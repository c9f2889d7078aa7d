"""What a page draws and writes: curves, shapes to scale, pictures that nobody misreads, numbers and text."""

import math
import re
import resource
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pytest
import yaml
from boxes import refusal
from fake_comparison import cost, token_widths
from hypothesis import given, settings
from hypothesis import strategies as st
from page_section import drawn

from widthwise.records.run import Run, RunResult
from widthwise.reports import page
from widthwise.reports.charts import COLOURS, HEAT, MUTED, Figure, Plot, styles
from widthwise.reports.curves import Bundle, Curve, by_step, curve_figure, progress, thin
from widthwise.reports.formats import MINUS, MISSING, amount, clean, fixed, printable, shorten, si, signed
from widthwise.reports.page import Page, section
from widthwise.reports.run import data_table
from widthwise.reports.shapes import width_figures

SVG = "{http://www.w3.org/2000/svg}"


def run(metrics: list[dict]) -> Run:
    return Run("run", "", {}, metrics, None)


def test_records_without_the_key_are_left_out_and_the_last_of_a_step_counts() -> None:
    trained = [{"step": step, "event": "train", "loss": loss} for step, loss in ((20, 3), (10, 9), (20, 2), (30, None))]
    curve = by_step(run([*trained, {"step": 30, "event": "validation", "loss": 7}]), "train", "loss")
    assert (curve.x.tolist(), curve.y.tolist()) == ([10, 20], [9, 2])


def test_progress_counts_tokens_and_hours_and_no_flops_without_a_record_of_any() -> None:
    """Records every ten steps; the second ten take three times as long."""
    metrics = [
        {"step": step, "event": "train", "tokens": 64 * step, "step_seconds": seconds}
        for step, seconds in ((10, 0.5), (20, 1.5))
    ]
    found = progress(run(metrics))
    assert {name: curve.x.tolist() for name, curve in found.items()} == {"tokens": [10, 20], "hours": [10, 20]}
    assert found["tokens"].y.tolist() == [640, 1280]
    assert found["hours"].y == pytest.approx([5 / 3600, 20 / 3600])
    metrics.append({"step": 20, "event": "validation", "tokens": 1280, "training_flops": 7.0 * 1280})
    assert progress(run(metrics))["training FLOPs"].y == pytest.approx([7 * 640, 7 * 1280])


def test_lines_that_end_without_a_value_have_no_name() -> None:
    """The seeds of the last variant share no step, so their mean is empty."""
    line = Curve(np.array([1.0, 2.0]), np.array([3.0, 2.0]))
    apart = Bundle({"seed 1": line, "seed 2": Curve(np.array([5.0]), np.array([1.0]))})
    looks = styles(["a", "b", "apart"])
    figure = curve_figure("k", "t", {"a": line, "b": line, "apart": apart}, looks, "step", "loss")
    assert [row["name"] for row in drawn(figure.spec()) if "place" in row] == ["a", "b"]
    assert curve_figure("k", "t", {"apart": apart}, looks, "step", "loss")


@settings(deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=10), st.floats(0.1, 9))
def test_names_at_line_ends_keep_their_order_and_do_not_overlap(values: list[float], margin: float) -> None:
    """They are on the axis, and a name without close neighbours is at its value."""
    last = {f"line {i}": value for i, value in enumerate(values)}
    low, high = min(values) - margin, max(values) + margin
    names = Plot(alt.X("x:Q"), "y", styles(last), []).names_at(last, (low, high))
    rows = drawn(Figure("k", "t", "l", names).spec())
    assert [row["name"] for row in rows] == sorted(last, key=lambda name: (last[name], name))
    places = np.array([row["place"] for row in rows])
    assert np.diff(places).min() > 0.06 * (high - low)
    assert low - 1e-4 <= places.min() <= places.max() <= high + 1e-4
    ends = np.sort(values)
    if np.diff(ends).min() > 0.07 * (high - low):
        assert places == pytest.approx(ends, abs=1e-4)


def test_a_line_over_another_quantity_ends_where_its_records_end() -> None:
    """7 tokens a step, recorded up to step 20."""
    tokens = Curve(np.array([10.0, 20.0]), np.array([70.0, 140.0]))
    curve = Curve(np.array([5.0, 20.0, 21.0]), np.array([3.0, 2.0, 1.0]))
    figure = curve_figure("k", "t", {"a": replace(curve, progress={"tokens": tokens})}, styles(["a"]), "step", "y")
    assert {(row["x"], row["tokens"]) for row in drawn(figure.spec())} == {(5, 35), (20, 140), (21, None)}


@given(st.integers(min_value=1, max_value=97), st.integers(min_value=1, max_value=31))
def test_thinning_keeps_the_mean_of_equal_groups(n_groups: int, n_each: int) -> None:
    x = np.arange(n_groups * n_each, dtype=float)
    thinned = thin(Curve(x, x**2), n_groups)
    assert len(thinned.x) == n_groups
    assert thinned.y == pytest.approx((x**2).reshape(n_groups, n_each).mean(axis=1))


def bars(cost: dict[str, Any], **results: Any) -> dict[str, list[float]]:
    """Label of a bar -> widths of the bars with this label."""
    result = RunResult.model_validate({"cost": cost, **results})
    (figure,) = width_figures({"x": result.cost}, styles(["x"]), {"x": result})
    widths: dict[str, list[float]] = {}
    for row in drawn(figure.spec()):
        if row.get("label"):
            widths.setdefault(row["label"], []).append(row["right"] - row["left"])
    return widths


def test_bars_are_as_wide_as_layers_hidden_units_stream_and_what_tokens_use() -> None:
    plain = {**cost([96, 64, 96]), "hidden_widths": [[320], [192], [320]], "n_heads": []}
    assert bars(plain) == {
        **{f"layer {layer}: width {width}": [width] for layer, width in ((1, 96), (2, 64), (3, 96))},
        **{f"layer {layer}: hidden {units}": [units] for layer, units in ((1, 320), (2, 192), (3, 320))},
        "stream 96": [96],
    }
    slots = {"stream_width": 240, "n_slots": 5, "slot_width": 48}
    assert bars(cost([96] * 3) | slots)["stream 240: 5 slots of 48"] == [240]
    used = token_widths(2)
    dynamic = bars({**cost([64, 64]), "hidden_widths": [[256], [256]]}, token_widths=used)
    for layer in used["layers"]:
        share = layer["mean"]
        label = f"layer {layer['layer']}: hidden 256; tokens use {share:.3f} of them on average"
        assert dynamic[label] == pytest.approx([256, 256 * share])


def test_a_file_is_as_wide_as_a_column_of_a_paper() -> None:
    """240 points, with text of 9 points: 4 pixels are 3 points."""
    curve = Curve(np.arange(20.0), np.arange(20.0))
    looks = styles(["uniform", "a variant with a rather long name"])
    figure = curve_figure("k", "A title", dict.fromkeys(looks, curve), looks, "step", "held-out loss")
    picture = ElementTree.fromstring(figure.document("svg"))
    assert float(picture.attrib["width"]) == pytest.approx(320, abs=1)
    assert {text.attrib["font-size"] for text in picture.iter(f"{SVG}text")} == {"12px"}


def test_text_stays_text_on_the_page_and_in_a_file() -> None:
    hostile = r"$\frac$ </script><script>alert(1)</script> ]]> --> \x1b"
    curve = Curve(np.array([1.0, 2.0]), np.array([3.0, 2.0]))
    looks = styles([hostile, "other"])
    figure = curve_figure("k", hostile, dict.fromkeys(looks, curve), looks, "x", "y")
    line = figure.spec()["layer"][0]
    names = {row["name"] for row in drawn(figure.spec())}
    assert set(line["encoding"]["color"]["scale"]["domain"]) == names  # or a line would have the colour of another
    text = Page("run", hostile, [], [section("s", figure)]).html()
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script></div>', text)
    assert "<" not in spec
    assert "\x1b" not in text
    picture = ElementTree.fromstring(figure.document("svg"))
    assert any("<script>alert(1)" in "".join(element.itertext()) for element in picture.iter(f"{SVG}text"))
    assert not list(picture.iter(f"{SVG}script"))


def test_a_figure_gives_the_page_columns_and_a_file_rows_of_the_same_numbers() -> None:
    curve = Curve(np.array([1.0, 2.0, 3.0]), np.array([3.0, np.nan, 1 / 3]))
    figure = curve_figure("k", "t", {"a": curve}, styles(["a"]), "x", "y")
    (columns,) = figure.spec()["datasets"].values()
    (rows,) = figure.spec(is_file=True)["datasets"].values()
    assert [dict(zip(columns, row)) for row in zip(*columns.values())] == rows
    assert columns["y"] == [3.0, None, 0.333333]


def test_under_a_limit_of_addresses_a_figure_costs_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the JavaScript engine would end the process."""
    figure = curve_figure("k", "t", {"a": Curve(np.arange(2.0), np.arange(2.0))}, styles(["a"]), "x", "y")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (8 * 2**30, resource.RLIM_INFINITY))
    assert "this process is limited to 8 GiB; run `ulimit -v unlimited` first" in refusal(figure.document, "svg")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert figure.document("svg")


def test_every_note_is_used() -> None:
    folder = Path(page.__file__).parent
    sources = "".join(path.read_text() for path in folder.glob("*.py"))
    assert [name for name in yaml.safe_load((folder / "notes.yaml").read_text()) if f'"{name}"' not in sources] == []


def test_no_two_variants_look_alike() -> None:
    for n_variants in (1, 7, 28):
        chosen = styles([f"v{i}" for i in range(n_variants)] + ["base"], "base")
        assert chosen["base"].colour == MUTED
        assert len({style.swatch for style in chosen.values()}) == n_variants + 1


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_ink_can_be_read_on_every_cell_of_a_heat_map_in_light_and_in_dark() -> None:
    for values in zip(*COLOURS.values()):
        of = dict(zip(COLOURS, values))
        for i in range(1, len(HEAT) + 1):
            bright, dim = sorted((luminance(of["ink"]), luminance(of[f"heat-{i}"])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5


def test_the_table_of_the_data_says_how_much_there_was_and_how_much_was_read() -> None:
    data = {"corpus": {"name": "books", "fingerprint": "f"}, "files": {}, "tokenizer": {"spec": "bpe-2048", "id": "i"}}
    counts = {"n_train_tokens": 385_542, "n_train_bytes": 1_300_311}
    counts |= {"n_held_out_tokens": 137_669, "n_held_out_bytes": 7}
    found = {"tokens": 96_386, "val_window_losses": [7.0] * 13, "data": counts, "cost": cost([64]) | {"seq_len": 129}}
    read = Run("run", "", {"data": data}, [], RunResult.model_validate(found))
    table = data_table({"a": read, "b": read})
    assert table.header == ["Item", "Value"]
    rows: dict[str, str] = dict(table.rows)
    assert rows["training text"] == "385,542 tokens, 1,300,311 bytes"
    assert rows["read in training"] == "96,386 tokens, 0.25 times the training text"
    assert rows["read for the held-out loss"] == f"{13 * 129:,} tokens: 13 windows of 129, from the start"


def test_si_keeps_three_digits() -> None:
    numbers = {0: "0", 63: "63", 999: "999", 999.6: "1.00k", 1234567: "1.23M", 9.995e9: "10.0G", 0.5: "0.50"}
    numbers |= {-41000.0: f"{MINUS}41.0k", 2.5e17: "250P", -math.inf: f"{MINUS}infinite"}
    assert {value: si(value) for value in numbers} == numbers
    assert (si(None), si(math.nan)) == (MISSING, "not a number")
    assert [amount(value) for value in (2.17e9, 1234567, 63, None)] == ["2.17B", "1.23M", "63", MISSING]


@given(st.floats(min_value=1, max_value=9e17))
def test_si_is_within_half_a_percent_of_the_value(value: float) -> None:
    exponents = {"k": "e3", "M": "e6", "G": "e9", "T": "e12", "P": "e15"}
    assert float(si(value).translate(str.maketrans(exponents))) == pytest.approx(value, rel=0.00501)


def test_a_number_too_long_to_be_read_has_a_power_of_ten() -> None:
    assert (fixed(9_999_999, 1), fixed(1.25e12, 4)) == ("9999999.0", "1.250e+12")
    assert (signed(1.25e12, 3), signed(-1.25e12, 3)) == ("+1.250e+12", f"{MINUS}1.250e+12")


@given(st.text())
def test_clean_text_is_one_line_without_control_characters(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable() or not any(ord(letter) < 32 or letter in "\x7f\x9b\u2028\u2029" for letter in cleaned)
    assert len(shorten(text, 9)) <= 9


def test_printable_text_loses_no_line_end_and_no_mark_of_direction() -> None:
    """Embedding, override and isolate could show a name backwards; marks beside letters cannot."""
    assert printable("a\r\nb\tc\fd\n") == "a\nb\tc d\n"
    marks = "\u05d0\u200f!\u200e \u0628\u061c \u200d"
    assert printable(marks) == marks
    refused = "\x1b\r\x9b\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    assert printable(refused) == "\N{REPLACEMENT CHARACTER}" * len(refused)
