"""The plot of differences: order, colours, intervals longer than the axis, and the numbers of each row."""

from pathlib import Path
from typing import Any

from fake_comparison import estimate, write_comparison
from page_section import drawn

from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome
from widthwise.reports.charts import MUTED, colour
from widthwise.reports.experiment_figures import difference_figure
from widthwise.reports.formats import MINUS


def figure_of(tmp_path: Path, differences: dict[str, tuple[Estimate, str]]) -> Any:
    """The figure of a comparison of variants with these differences and verdicts."""
    outcome = Outcome.read(write_comparison(tmp_path))
    baseline, variant, *_ = outcome.variants
    variants = [
        variant.with_changes(name=name, difference=difference, verdict=verdict)
        for name, (difference, verdict) in differences.items()
    ]
    return difference_figure(outcome.with_changes(points=[baseline, *variants], seeds=[1, 2, 3]))


def three_seeds(mean: float, half_width: float) -> Estimate:
    return Estimate.model_validate(estimate(mean, half_width) | {"per_seed": [mean - 0.001, mean, mean + 0.001]})


def test_rows_are_sorted_by_the_difference_and_coloured_by_the_verdict(tmp_path: Path) -> None:
    differences = {
        "worse": (three_seeds(0.05, 0.01), "worse"),
        "better": (three_seeds(-0.03, 0.01), "better"),
        "open": (three_seeds(0.001, 0.01), "cannot tell"),
    }
    figure = figure_of(tmp_path, differences)
    rows = [row for row in drawn(figure.spec()) if "numbers" in row]
    colours = {row["name"]: row["colour"] for row in rows}
    assert list(colours) == ["better", "open", "worse"]
    assert colours == {"better": colour("good"), "open": MUTED, "worse": colour("bad")}
    numbers = {row["name"]: row["numbers"] for row in rows}
    assert numbers["better"] == f"{MINUS}0.030\n[{MINUS}0.040, {MINUS}0.020]"
    assert numbers["worse"] == "+0.050\n[+0.040, +0.060]"


def test_an_interval_longer_than_the_axis_ends_in_an_arrow(tmp_path: Path) -> None:
    """The axis fits the means: one wide interval does not shrink the others."""
    figure = figure_of(
        tmp_path,
        {"narrow": (three_seeds(-0.01, 0.004), "better"), "wide": (three_seeds(0.02, 0.5), "cannot tell")},
    )
    arrows = [row for row in drawn(figure.spec()) if "shape" in row]
    assert {(row["name"], row["shape"]) for row in arrows} == {("wide", "triangle-left"), ("wide", "triangle-right")}
    low, high = sorted({row["end"] for row in arrows})
    assert -0.1 < low < -0.014
    assert 0.02 < high < 0.1


def test_two_seeds_are_drawn_without_intervals(tmp_path: Path) -> None:
    figure = difference_figure(Outcome.read(write_comparison(tmp_path)))
    assert figure
    assert "too few seeds for intervals" in str(figure.spec())
    assert {row["seed"] for row in drawn(figure.spec()) if "seed" in row} == {1, 2}
    assert not [
        layer for layer in figure.spec()["layer"] if layer["mark"]["type"] == "rule" and "x2" in layer["encoding"]
    ]
