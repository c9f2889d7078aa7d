"""The page of a discovery that added a layer."""

import re
from pathlib import Path

import numpy as np
import pytest
from fake_discovery import write_discovery
from page_section import section

from widthwise.experiments.sentences import difference_sentence
from widthwise.records.comparison import Comparison
from widthwise.records.discovery import DISCOVERED, Discovery
from widthwise.records.estimate import Estimate
from widthwise.reports.discovery.report import write_discovery_report
from widthwise.reports.discovery.tables import (
    cost_table,
    gains_table,
    growth_table,
    rivals_table,
    sentences,
    sizes_table,
)
from widthwise.reports.page.formats import minus


@pytest.fixture
def discovery(tmp_path: Path) -> Discovery:
    return Discovery.read(write_discovery(tmp_path / "discovery"))


def test_layers_of_every_stage_are_found_again_in_the_last(discovery):
    assert discovery.found.places() == [[0, 1, 3], [0, 1, 3], [0, 1, 2, 3]]
    assert discovery.found.added() == {2: 30}


def test_growth_is_counted_for_the_layers_that_were_found(discovery):
    table = growth_table(discovery)
    assert table is not None
    assert table.header == ["", "1", "2", "3", "4"]
    # Twice the second layer; once the third of the second stage, which is the fourth now; and the added one.
    assert [list(row) for row in table.rows] == [
        ["hidden", "0", "2", "0", "0"],
        ["blocks", "0", "0", "0", "1"],
        ["layer", "0", "0", "1", "0"],
    ]


def test_gains_are_averaged_over_stages_and_have_the_error_of_their_draws(discovery, tmp_path):
    table = gains_table(discovery)
    assert table is not None
    assert table.header == ["", "1", "2", "3", "4", "end"]
    error = 1e3 * 0.004 / 2**0.5  # of the mean of two stages
    assert [list(row) for row in table.rows] == [
        ["hidden", "", f"30.00\n±{error:.2f}", "", "", ""],
        ["blocks", "", "", "", "10.00", ""],
        ["layer", "", "", "", "20.00", "10.00\n±0.00"],
    ]
    assert f"±{error:.2f}" in write_discovery_report(tmp_path / "discovery")["html"].read_text()


def test_it_is_said_where_the_search_chose_by_the_text_that_is_reported(discovery):
    said = "The search chose by the held-out text on which discovered and its rivals are judged, which favours it."
    assert said not in sentences(discovery, None)
    assert said in sentences(discovery.with_changes(selects_held_out=True), None)


def test_the_table_of_sizes_says_which_layers_were_added(discovery):
    table = sizes_table(discovery)
    assert table.header == ["layer", "width", "attention", "hidden", "blocks", "added after"]
    assert [row[-2:] for row in table.rows] == [
        ["2", ""],
        ["2", ""],
        ["2", "step 30"],
        ["3", ""],
    ]
    assert next(sentences(discovery, None)).startswith("4 layers, 1 of them added, grown where it gained most: ")


def test_what_was_found_has_a_sentence_beside_its_rivals(discovery, tmp_path):
    comparison = Comparison.read(tmp_path / "discovery" / "comparison")
    *_, said = sentences(discovery, comparison)
    found = next(variant for variant in comparison.variants if variant.name == DISCOVERED)
    assert found.difference is not None
    assert said == difference_sentence(found, found.difference, "uniform")


def test_the_page_draws_blocks_only_where_they_were_varied(discovery, tmp_path):
    def page(name: str) -> str:
        return write_discovery_report(tmp_path / name)["html"].read_text()

    assert "Blocks of each layer" in page("discovery")
    layers = [each.with_changes(blocks=None) for each in discovery.found.stages[-1].layers]
    stages = [*discovery.found.stages[:-1], discovery.found.stages[-1].with_changes(layers=layers)]
    plain = discovery.with_changes(found=discovery.found.with_changes(stages=stages))
    (tmp_path / "plain").mkdir()
    plain.write(tmp_path / "plain")
    assert "Blocks of each layer" not in page("plain")


def test_the_recipe_is_on_the_page_under_its_name(discovery, tmp_path):
    (tmp_path / "discovery" / "discovered.yaml").write_text("model: {n_layers: 4, vocab_size: 1 < 2}\n")
    text = write_discovery_report(tmp_path / "discovery")["html"].read_text()
    assert "<code>discovered.yaml</code>" in text
    assert "<code>model: {n_layers: 4, vocab_size: 1 &lt; 2}\n</code>" in text


def test_a_difference_has_its_interval_where_there_is_one(discovery, tmp_path):
    comparison = Comparison.read(tmp_path / "discovery" / "comparison")
    uniform, other, _ = comparison.variants
    assert [row[2] for row in cost_table(discovery, comparison).rows[:2]] == ["", minus("-0.0123 (-0.0203 to -0.0043)")]
    one_seed = other.with_changes(difference=Estimate(mean=-0.0123, per_seed=[-0.0123]))
    comparison = comparison.with_changes(variants=[uniform, one_seed])
    assert cost_table(discovery, comparison).rows[1][2] == minus("-0.0123")


def test_the_page_names_the_quantity_in_which_rivals_are_equal(discovery, tmp_path):
    discovery.with_changes(match="kv_bytes", budget=2048).write(tmp_path / "discovery")
    text = write_discovery_report(tmp_path / "discovery")["html"].read_text()
    assert "Which layers should be wide, at 2.05k KV bytes per token (bf16)?" in text
    assert "matched in KV bytes per token (bf16)" in text


def test_what_was_found_is_paired_with_each_other_rival(discovery, tmp_path):
    """By seed: of what was found 0.1, 0.2 and 0.3 lower than the baseline, of its reverse 0.1 higher than that."""
    comparison = Comparison.read(tmp_path / "discovery" / "comparison")
    uniform, own, other = comparison.variants

    def with_losses(*above: float) -> Comparison:
        """above: what the reverse has above what was found, with each seed."""
        mine = [-0.1, -0.2, -0.3][: len(above)]
        both = [
            variant.with_changes(difference=Estimate(mean=float(np.mean(each)), per_seed=each))
            for variant, each in ((own, mine), (other, [a + b for a, b in zip(mine, above)]))
        ]
        return comparison.with_changes(variants=[uniform, *both])

    # Student's t of two degrees of freedom is 4.3027 at 0.975; the standard error of 0.1, 0.12, 0.14 is 0.02 / sqrt(3).
    half_width = 4.3027 * 0.02 / 3**0.5
    table = rivals_table(with_losses(0.1, 0.12, 0.14))
    assert table is not None
    ends = f"{-0.12 - half_width:.4f} to {-0.12 + half_width:.4f}"
    assert table.rows == [["reversed", minus(f"-0.1200 ({ends})"), "better"]]
    for above, words in (
        ((0.1, 0.12, 0.14), "it has a lower held-out loss than reversed."),
        ((-0.1, -0.12, -0.14), "it has a higher held-out loss than reversed."),
        ((0.1, -0.1, 0.2), "it cannot be told from reversed."),
    ):
        assert list(sentences(discovery, with_losses(*above)))[-1].endswith(f"with its other rivals, {words}")
    assert not any("Paired" in each for each in sentences(discovery, with_losses(0.1, 0.12)))


def test_the_page_lists_the_options_of_the_method(discovery, tmp_path):
    text = section(write_discovery_report(tmp_path / "discovery")["html"], "reproduce")
    rows = dict(re.findall(r'<th scope="row">(.*?)</th><td[^>]*>(.*?)</td>', text))
    assert rows == {"kind": "growing", "step": "0.125", "parts": "width, hidden"}
