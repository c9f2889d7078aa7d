"""Several comparisons as one: which go together, when an effect changes sign, and what it is worth in tokens."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from boxes import refusal
from fake_comparison import cost, estimate
from fake_effects import BASE_TOKENS, DATA, DOUBLING, EFFECTS, SEEDS, comparison_data, write, write_scales

from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.reports.scales import read_scales, sign, signs, slopes, tokens_ratio


def test_scales_are_ordered_by_size_and_tokens_and_what_one_lacks_is_none_there(tmp_path: Path) -> None:
    scales = read_scales(write_scales(tmp_path)[::-1])
    sizes = [cost([width] * 5)["params"]["total"] for width in (64, 192)]
    expected = [(size, BASE_TOKENS * factor) for size in sizes for factor in (1, 4)]
    assert [(scale.params, scale.tokens) for scale in scales.each] == expected
    effects = {effect.name: effect for effect in scales.effects}
    assert list(effects) == list(EFFECTS)
    assert [each is None for each in effects["noise"].differences] == [False, False, False, True]
    assert len(effects["noise"].measured) == 3
    means = [each.mean for each in effects["turns"].measured]
    assert means == [EFFECTS["turns"](doublings) for doublings in (0, 2, 0, 2)]


def test_other_baselines_and_confidences_and_the_same_scale_twice_are_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "good", comparison_data(64, 0))
    renamed = comparison_data(192, 0)
    renamed["points"][0]["name"] = renamed["baseline"] = "plain"
    size = cost([64] * 5)["params"]["total"]
    others: dict[str, dict[str, Any]] = {
        "other: its baseline is 'plain', that of": renamed,
        f"has the size and tokens of {good} ({size:,} parameters, 5,000,000 tokens)": comparison_data(64, 0),
        "its intervals are of 90%, those of": comparison_data(192, 0) | {"confidence": 0.9},
    }
    for message, other in others.items():
        assert message in refusal(read_scales, [good, write(tmp_path / "other", other)])


def estimated(mean: float, n_seeds: int = FEWEST_SEEDS) -> Estimate:
    return Estimate(**estimate(mean, 0.01, n_seeds))


def test_a_sign_takes_an_interval_that_excludes_0_and_as_many_seeds_as_a_verdict() -> None:
    expected = {-0.02: -1, 0.02: 1, 0.0: 0, 0.009: 0, -0.009: 0, 0.01: 0, -0.01: 0}
    assert {mean: sign(estimated(mean)) for mean in expected} == expected
    assert sign(estimated(-0.5, n_seeds=FEWEST_SEEDS - 1)) == 0
    assert sign(Estimate(mean=-0.5, per_seed=[-0.5] * FEWEST_SEEDS)) == 0


def test_an_effect_changes_sign_or_not_in_whatever_order_the_comparisons_come() -> None:
    lower, higher, unclear = -0.05, 0.05, 0.005
    expected = {
        "same sign everywhere": [[lower, lower], [higher] * 3],
        "changes sign": [[lower, higher], [lower, unclear, higher]],
        "cannot tell": [[lower, unclear], [higher, higher, -unclear], [unclear, -unclear], [lower], []],
    }
    for said, cases in expected.items():
        for order in itertools.chain.from_iterable(map(itertools.permutations, cases)):
            assert signs([estimated(mean) for mean in order]) == said


def test_changes_are_between_scales_of_one_size_or_as_many_tokens_or_else_from_one_to_the_next(tmp_path: Path) -> None:
    scales = read_scales(write_scales(tmp_path / "grid"))  # 0 and 1 are of one size, 0 and 2 of as many tokens
    pairs = {(each.before, each.after) for each in scales.changes if each.variant == "turns"}
    assert pairs == {(0, 1), (0, 2), (1, 3), (2, 3)}
    for each in scales.changes:
        at = EFFECTS[each.variant]
        doublings = [2 * (place % 2) for place in (each.before, each.after)]
        assert each.change.mean == pytest.approx(at(doublings[1]) - at(doublings[0]))
    assert {(each.before, each.after) for each in scales.changes if each.variant == "noise"} == {(0, 1), (0, 2)}
    ladder = [write(tmp_path / str(i), comparison_data(*each)) for i, each in enumerate(((64, 0), (96, 1), (192, 2)))]
    assert {(each.before, each.after) for each in read_scales(ladder).changes} == {(0, 1), (1, 2)}
    assert scales.title(scales.changes[0]) == "771k parameters\n5.00M to 20.0M tokens"


def test_changes_are_paired_where_seeds_and_text_are_the_same(tmp_path: Path) -> None:
    other_text = comparison_data(192, 0)
    other_text["environment"]["data"] = {**DATA, "tokenizer": {"spec": "bpe-2048", "id": "j"}}
    small = write(tmp_path / "small", comparison_data(64, 0))
    for name, large, n_values in (
        ("same", comparison_data(192, 0), len(SEEDS)),
        ("seeds", comparison_data(192, 0, seeds=(4, 5, 6)), 0),
        ("text", other_text, 0),
    ):
        changes = read_scales([small, write(tmp_path / name, large)]).changes
        assert {len(each.change.per_seed) for each in changes} == {n_values}


def slopes_of(folder: Path, *data: dict[str, Any]) -> list[float | None]:
    return slopes(read_scales([write(folder / str(i), each) for i, each in enumerate(data)]))


def test_the_slope_is_that_between_two_lengths_of_a_size_for_the_longest_that_to_the_one_before(tmp_path: Path) -> None:
    slope = DOUBLING / math.log(2)
    assert slopes(read_scales(write_scales(tmp_path / "two"))) == pytest.approx([slope] * 4)
    data = [comparison_data(64, doublings) for doublings in (0, 1, 4)]
    data[-1]["points"][0]["val_loss"]["mean"] = 2.6
    assert slopes_of(tmp_path, *data) == pytest.approx([slope, slope, (3 - DOUBLING - 2.6) / math.log(8)])


def test_there_is_none_without_another_length_on_the_same_text_or_where_the_loss_stands(tmp_path: Path) -> None:
    alone, same_text, other_text, still = (comparison_data(width, 0) for width in (64, 96, 96, 128))
    other_text["environment"]["data"] = {**DATA, "tokenizer": {"spec": "bpe-2048", "id": "j"}}
    other_text["points"][0]["measured"]["tokens"]["mean"] *= 2.0
    stays = comparison_data(128, 1)
    stays["points"][0]["val_loss"]["mean"] = 3.0
    assert slopes_of(tmp_path, alone, same_text, other_text, still, stays) == [None] * 5


def test_tokens_at_equal_loss_follow_from_the_slope() -> None:
    found = tokens_ratio(estimated(-0.03), DOUBLING / math.log(2))
    # The baseline has lost 0.03 nats more once it has had 2**0.3 times the tokens.
    assert found.mean == pytest.approx(2**-0.3)
    assert (found.low, found.high) == pytest.approx((2**-0.4, 2**-0.2))
    assert found.per_seed == pytest.approx([2**-0.3] * 3)
