"""Runs with a stream wider than their layers: weights, distances, slots and carries of every sublayer."""

from pathlib import Path
from typing import Any

from fake_comparison import add_to_result, write_run
from page_section import captions, rows_of, run_page, section


def virtual_width(n_layers: int, n_slots: int = 3, **further: Any) -> dict[str, Any]:
    """Every site reads the embedding with weight 3 and each sublayer before it with weight 1."""
    sites = [
        {
            "name": f"layers.{index // 2}.{('attention', 'ffn')[index % 2]}",
            "reach": [3.0] + [1.0] * index,
            "reach_sd": [0.5] * (index + 1),
            "mean_distance": (2 * (index + 1) / 2 + sum(range(index + 2)) / 2) / (index + 3),
            "plain_distance": (index + 2) / 4,
            "read": [[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]],
            "carry": [[1.0, 0.0, 0.6], [0.0, 1.0, 0.0], [0.8, 0.0, 1.0]],
            "write": [[1.0], [0.0], [-2.0]],
            "sd": {"read": [0.0, 0.125, 0.0], "carry": [0.25, 0.0, 0.0], "write": [0.0, 0.0, 0.0]},
        }
        for index in range(2 * n_layers)
    ]
    return {"n_tokens": 4096, "n_slots": n_slots, "slot_width": 24, "dynamic": True, "sites": sites, **further}


def shown(folder: Path, found: dict[str, Any]) -> str:
    write_run(folder / "r", "over-wide", 1, [64, 64, 64], 0.0)
    add_to_result(folder / "r", virtual_width=found)
    return section(run_page(folder / "r"), "virtual-width")


def test_a_run_shows_weights_distances_and_slots(tmp_path: Path) -> None:
    text = shown(tmp_path, virtual_width(3))
    assert captions(text) == [
        "over-wide",
        "Distance over which sublayers read",
        "over-wide: read from slots",
        "over-wide: written to slots",
        "over-wide: moved between slots",
    ]
    # The last of six rows has six weights, 3 + 5 * 1 in all.
    assert f"embedding with {3 / (8 / 6):.2f} and the sublayer before it with {1 / (8 / 6):.2f}" in text
    for done, lowest, highest in (("read from", 1, 5), ("written to", 0, 2), ("moved between", 0, 0.8)):
        assert f"{done} slots, over-wide: norms of the mean coefficients, from {lowest:.2f} to {highest:.2f}" in text
    cells = ["3.000", "1.000", "3.000", "2.06", "1.75", "0.125", "0.000", "0.250"]
    assert rows_of(text)["layers.2.ffn"] == cells
    n_weights = sum(range(1, 7))
    assert f"<td>{0.5 * n_weights / (n_weights + 2 * 6):.3f}</td>" in text


def test_carries_are_shown_where_they_were_looked_at(tmp_path: Path) -> None:
    found = virtual_width(3)
    for index, site in enumerate(found["sites"]):
        spectrum = {"radius": 0.5, "norm": 0.75, "product_radius": 0.5**index, "product_norm": 0.625}
        site |= {"window_share": 0.875, "gate_distance": 0.0625, "spectrum": spectrum}
    text = shown(tmp_path, found)
    assert captions(text)[2:4] == ["Carries of single sublayers", "Carries of all sublayers so far"]
    for value in ("0.875", "0.062", "0.500", "0.031, 0.625"):
        assert f">{value}<" in text
