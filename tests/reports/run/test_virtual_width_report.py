import re
from pathlib import Path

import pytest
from fake_comparison import add_to_result, write_comparison, write_run
from page_section import section

from widthwise.config_io import UserError
from widthwise.reports.comparison.report import write_comparison_report
from widthwise.reports.page.formats import MISSING
from widthwise.reports.run.report import write_run_report


def virtual_width(n_layers: int, n_slots: int = 3) -> dict:
    """Every site reads the embedding with weight 3 and each sublayer before it with weight 1."""
    sites = []
    for index in range(2 * n_layers):
        n_sources = index + 1
        sites.append(
            {
                "name": f"layers.{index // 2}.{('attention', 'ffn')[index % 2]}",
                "reach": [3.0] + [1.0] * index,
                "reach_sd": [0.5] * n_sources,
                "mean_distance": (2 * (index + 1) / 2 + sum(range(index + 2)) / 2) / (index + 3),
                "plain_distance": (index + 2) / 4,
                "read": [[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]],
                "carry": [[1.0, 0.0, 0.6], [0.0, 1.0, 0.0], [0.8, 0.0, 1.0]],
                "write": [[1.0], [0.0], [-2.0]],
                "sd": {"read": [0.0, 0.125, 0.0], "carry": [0.25, 0.0, 0.0], "write": [0.0, 0.0, 0.0]},
            }
        )
    return {"n_tokens": 4096, "n_slots": n_slots, "slot_width": 24, "dynamic": True, "sites": sites}


def test_carries_are_shown_where_they_were_looked_at(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "over-wide", 1, [64, 64, 64], 0.0)
    found = virtual_width(3)
    for index, site in enumerate(found["sites"]):
        spectrum = {"radius": 0.5, "norm": 0.75, "product_radius": 0.5**index, "product_norm": 0.625}
        site |= {"window_share": 0.875, "gate_distance": 0.0625, "spectrum": spectrum}
    add_to_result(tmp_path / "r", virtual_width=found)
    text = section(write_run_report(tmp_path / "r"), "virtual-width")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert captions[2:4] == ["Carries of single sublayers", "Carries of all sublayers so far"]
    for value in ("0.875", "0.062", "0.500", "0.031, 0.625"):
        assert f">{value}<" in text


def test_a_run_shows_weights_distances_and_slots(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "over-wide", 1, [64, 64, 64], 0.0)
    add_to_result(tmp_path / "r", virtual_width=virtual_width(3))
    text = section(write_run_report(tmp_path / "r"), "virtual-width")
    assert re.findall(r"<figcaption>(.*?)</figcaption>", text) == [
        "over-wide",
        "Distance over which sublayers read",
        "over-wide: read from slots",
        "over-wide: written to slots",
        "over-wide: moved between slots",
    ]
    # The last of six rows has six weights, 3 + 5 * 1 in all.
    assert f"embedding with {3 / (8 / 6):.2f} and the sublayer before it with {1 / (8 / 6):.2f}" in text
    assert "read from slots, over-wide: norms of the mean coefficients, from 1.00 to 5.00" in text
    assert "written to slots, over-wide: norms of the mean coefficients, from 0.00 to 2.00" in text
    assert "moved between slots, over-wide: norms of the mean coefficients, from 0.00 to 0.80" in text
    cells = ["3.000", "1.000", "3.000", "2.06", "1.75", "0.125", "0.000", "0.250"]
    row = "".join(f"<td>{cell}</td>" for cell in cells)
    assert re.findall(r'<th scope="row">layers.2.ffn</th>(.*?)</tr>', text) == [row]
    n_weights = sum(range(1, 7))
    assert f"<td>{0.5 * n_weights / (n_weights + 2 * 6):.3f}</td>" in text


def test_cells_follow_the_colours_of_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "over-wide", 1, [64], 0.0)
    add_to_result(tmp_path / "r", virtual_width=virtual_width(1))
    text = section(write_run_report(tmp_path / "r"), "virtual-width")
    assert "fill: var(--series-1); fill-opacity:" in text
    assert "<image" not in text
    assert not re.search(r"fill: #(?!fefefe)[0-9a-f]{6}", text)


@pytest.mark.parametrize("n_layers", [1, 40])
def test_any_depth_can_be_drawn(tmp_path: Path, n_layers: int) -> None:
    write_run(tmp_path / "r", "over-wide", 1, [64] * n_layers, 0.0)
    add_to_result(tmp_path / "r", virtual_width=virtual_width(n_layers))
    assert f'<th scope="row">layers.{n_layers - 1}.ffn</th>' in section(
        write_run_report(tmp_path / "r"), "virtual-width"
    )


def test_a_site_that_reads_nothing_has_no_distance(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "over-wide", 1, [64], 0.0)
    found = virtual_width(1)
    for site in found["sites"]:
        site |= {"reach": [0.0] * len(site["reach"]), "mean_distance": None}
    add_to_result(tmp_path / "r", virtual_width=found)
    assert f"<td>{MISSING}</td>" in section(write_run_report(tmp_path / "r"), "virtual-width")


def test_a_comparison_shows_only_the_variants_that_have_hyper_connections(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    add_to_result(tmp_path / "runs/variant1-seed1", virtual_width=virtual_width(2))
    titles = re.findall(
        r"<figcaption>(.*?)</figcaption>", section(write_comparison_report(tmp_path)["html"], "virtual-width")
    )
    assert titles[0] == "x"
    assert len(titles) == 5


def test_without_hyper_connections_there_is_no_section(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "static", 1, [64], 0.0)
    assert "virtual-width" not in write_run_report(tmp_path / "r").read_text()


def test_broken_numbers_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "over-wide", 1, [64], 0.0)
    broken = virtual_width(1)
    broken["sites"][1]["reach"].pop()
    add_to_result(tmp_path / "r", virtual_width=broken)
    with pytest.raises(UserError, match=r"virtual_width: sites.1.reach: expected 2 weights"):
        write_run_report(tmp_path / "r")
    add_to_result(tmp_path / "r", virtual_width=virtual_width(1, n_slots=4))
    with pytest.raises(UserError, match=r"sites.0: expected tables of n_slots = 4 rows"):
        write_run_report(tmp_path / "r")
