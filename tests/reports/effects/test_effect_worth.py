"""What differences are worth in tokens: by formula, where twice the tokens are worth a tenth of a nat."""

import math
from pathlib import Path

import pytest
from fake_effects import DATA, DOUBLING, comparison_data, difference, write, write_scales

from widthwise.records.estimate import Estimate
from widthwise.reports.effects.scales import read_scales
from widthwise.reports.effects.worth import slopes, tokens_ratio


def test_the_slope_is_that_between_two_lengths_of_a_size(tmp_path: Path) -> None:
    assert slopes(read_scales(write_scales(tmp_path))) == pytest.approx([DOUBLING / math.log(2)] * 4)


def test_the_longest_of_three_lengths_has_the_slope_to_the_one_before_it(tmp_path: Path) -> None:
    data = [comparison_data(64, doublings) for doublings in (0, 1, 4)]
    data[-1]["variants"][0]["val_loss"]["mean"] = 2.6
    found = slopes(read_scales([write(tmp_path / str(i), each) for i, each in enumerate(data)]))
    first, last = DOUBLING / math.log(2), (3 - DOUBLING - 2.6) / math.log(8)
    assert found == pytest.approx([first, first, last])


def test_there_is_none_without_another_length_on_the_same_text_or_where_the_loss_stands(tmp_path: Path) -> None:
    alone, same_text, other_text, still = (comparison_data(width, 0) for width in (64, 96, 96, 128))
    other_text["environment"]["data"] = {**DATA, "tokenizer": {"spec": "bpe-2048"}}
    other_text["variants"][0]["measured"]["tokens"]["mean"] *= 2.0
    stays = comparison_data(128, 1)
    stays["variants"][0]["val_loss"]["mean"] = 3.0
    data = [alone, same_text, other_text, still, stays]
    assert slopes(read_scales([write(tmp_path / str(i), each) for i, each in enumerate(data)])) == [None] * 5


def test_tokens_at_equal_loss_follow_from_the_slope() -> None:
    found = tokens_ratio(Estimate(**difference(-0.03)), DOUBLING / math.log(2))
    # The baseline has lost 0.03 nats more once it has had 2**0.3 times the tokens.
    assert found.mean == pytest.approx(2**-0.3)
    assert (found.low, found.high) == pytest.approx((2**-0.4, 2**-0.2))
    assert found.per_seed == pytest.approx([2**-0.3] * 3)


def test_a_loss_that_no_number_of_tokens_undoes_is_a_number_all_the_same() -> None:
    assert math.isfinite(tokens_ratio(Estimate(mean=9.0), 0.001).mean or math.nan)


def test_one_seed_has_no_interval() -> None:
    found = tokens_ratio(Estimate(mean=0.1, per_seed=[0.1]), 0.5)
    assert (found.low, found.high) == (None, None)
