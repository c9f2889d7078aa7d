"""The picture of a shape: every bar is as wide as what it stands for."""

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from fake_comparison import cost

from widthwise.records.cost import CostSummary
from widthwise.reports.page.shapes import MOST_MAPS, width_figures
from widthwise.reports.page.svg import styles


def bars(costs: dict[str, dict[str, Any]], used: dict[str, dict[int, float]] | None = None) -> dict[str, dict]:
    """Name -> what a bar says -> how wide the bars are that say it."""
    summaries = {name: CostSummary.model_validate(each) for name, each in costs.items()}
    figures = width_figures(summaries, styles(list(costs)), used or {})
    found: dict[str, dict[str, list[float]]] = {}
    for name, svg in figures.items():
        for group in ElementTree.fromstring(svg).iter("g"):
            if group.get("class") == "area":
                places = [float(x) for x in re.findall(r"[ML] ([-\d.]+)", group[0].attrib["d"])]
                found.setdefault(name, {}).setdefault(group.attrib["data-detail"], []).append(max(places) - min(places))
    return found


def test_bars_are_as_wide_as_layers_hidden_units_and_stream_on_one_scale() -> None:
    plain = {**cost([96, 64, 96]), "hidden_widths": [[320], [192], [320]], "n_heads": []}
    slots = {**cost([96] * 3), "stream_width": 240, "n_slots": 5, "slot_width": 48, "n_heads": []}
    found = bars({"x": plain, "virtual": slots})
    unit = found["x"]["layer 1: width 96"][0] / 96
    assert found["x"]["layer 2: width 64"] == pytest.approx([64 * unit], abs=0.03)
    assert found["x"]["layer 3: hidden 320"] == pytest.approx([320 * unit], abs=0.03)
    assert found["x"]["stream 96"] == pytest.approx([96 * unit], abs=0.03)
    assert found["virtual"]["stream 240: 5 slots of 48"] == pytest.approx([240 * unit], abs=0.03)


def test_the_blocks_of_an_hourglass_are_bars_of_their_own() -> None:
    found = bars({"hourglass": {**cost([192, 192]), "hidden_widths": [[74] * 4, [74] * 4]}})["hourglass"]
    assert len(found["layer 1: hidden 4×74"]) == 4  # noqa: RUF001
    many = bars({"moe": {**cost([192]), "hidden_widths": [[74] * (MOST_MAPS + 1)]}})["moe"]
    assert [len(own) for words, own in many.items() if "hidden" in words] == [1]


def test_what_tokens_use_lies_within_what_there_is() -> None:
    data = {**cost([64, 64]), "hidden_widths": [[256], [256]]}
    found = bars({"dynamic": data}, {"dynamic": {1: 0.25, 2: 0.75}})["dynamic"]
    for layer, share in ((1, 0.25), (2, 0.75)):
        whole, part = found[f"layer {layer}: hidden 256\ntokens use {share:.3f} of them on average"]
        assert part == pytest.approx(share * whole, abs=0.03)
