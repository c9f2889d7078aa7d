"""The page of a discovery."""

from pathlib import Path

import numpy as np
import pytest
from fake_discovery import write_discovery

from widthwise.records.discovery import Discovery
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome
from widthwise.reports.discovery import answer, gains_table, growth_table, rivals_table, sentences
from widthwise.reports.formats import minus
from widthwise.reports.writing import write_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_discovery(tmp_path_factory.mktemp("discovery"))


@pytest.fixture
def discovery(folder: Path) -> Discovery:
    return Discovery.read(folder)


def test_growth_and_gains_are_counted_for_each_layer(discovery: Discovery) -> None:
    table = growth_table(discovery)
    assert table.header == ["", "1", "2", "3"]
    # Twice the second layer, once the third.
    assert [list(row) for row in table.rows] == [["hidden", "0", "2", "0"], ["width", "0", "0", "1"]]
    table = gains_table(discovery)
    assert table.header == ["", "1", "2", "3"]
    error = 1e3 * 0.004 / 2**0.5  # of the mean of two stages
    assert [list(row) for row in table.rows] == [["hidden", "", f"30.00\n±{error:.2f}", ""], ["width", "", "", "10.00"]]


def test_the_page_shows_gains_and_names_the_quantity_in_which_rivals_are_equal(discovery, tmp_path: Path) -> None:
    write_discovery(tmp_path)
    discovery.with_changes(match="kv_bytes", budget=2048).write(tmp_path)
    text = write_report(tmp_path)[0].read_text()
    assert f"±{1e3 * 0.004 / 2**0.5:.2f}" in text
    assert "Which layers should be wide, at 2.05k KV bytes per token (bf16)?" in text
    assert "matched in KV bytes per token (bf16)" in text


def test_what_was_found_is_paired_with_each_other_rival(discovery: Discovery, folder: Path) -> None:
    """By seed: of what was found 0.1, 0.2 and 0.3 lower than the baseline, of its reverse 0.1 higher than that."""
    comparison = Outcome.read(folder / "comparison")
    uniform, own, other = comparison.variants

    def with_losses(*above: float) -> Outcome:
        """above: what the reverse has above what was found, with each seed."""
        mine = [-0.1, -0.2, -0.3][: len(above)]
        both = [
            variant.with_changes(difference=Estimate(mean=float(np.mean(each)), per_seed=each))
            for variant, each in ((own, mine), (other, [a + b for a, b in zip(mine, above)]))
        ]
        return comparison.with_changes(points=[uniform, *both])

    # Student's t of two degrees of freedom is 4.3027 at 0.975; the standard error of 0.1, 0.12, 0.14 is 0.02 / sqrt(3).
    half_width = 4.3027 * 0.02 / 3**0.5
    rows = [row for row in rivals_table(discovery, with_losses(0.1, 0.12, 0.14)).rows if row[4]]
    ends = f"{-0.12 - half_width:.4f} to {-0.12 + half_width:.4f}"
    assert [[row[0], *row[4:6]] for row in rows] == [["reversed", minus(f"-0.1200 ({ends})"), "better"]]
    for above, words in (
        ((0.1, 0.12, 0.14), "it has a lower held-out loss than reversed."),
        ((-0.1, -0.12, -0.14), "it has a higher held-out loss than reversed."),
        ((0.1, -0.1, 0.2), "it cannot be told apart from reversed."),
    ):
        assert list(sentences(discovery, with_losses(*above)))[-1].endswith(f"with its other rivals, {words}")
    assert not any("Paired" in each for each in sentences(discovery, with_losses(0.1, 0.12)))


def test_the_answer_names_the_wide_and_the_narrow_layers(discovery: Discovery) -> None:
    layers = discovery.found.stages[-1].layers
    hidden = [layer.hidden for layer in layers]
    line = answer(discovery)
    assert line.startswith("Of 3 layers, ")
    wide, narrow = hidden.index(max(hidden)) + 1, hidden.index(min(hidden)) + 1
    assert f"hidden units: most in layer {wide}, least in layer {narrow}" in line
