"""What two variants need for the same loss, against curves whose crossings are known."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from widthwise.experiments.equal_loss import LossCurve, equal_losses, gaps, tokens_ratios
from widthwise.records.estimate import EqualLoss

TOKENS = np.array([700.0, 1500, 2900, 5000, 7100, 9000])
END = TOKENS[-1]


def curve(losses: np.ndarray | Sequence[float], tokens: np.ndarray = TOKENS, flops_per_token: float = 6.0) -> LossCurve:
    return LossCurve(np.asarray(tokens), flops_per_token * np.asarray(tokens), {"val_loss": np.asarray(losses)})


def straight(height: float, slope: float = 0.4, tokens: np.ndarray = TOKENS, flops_per_token: float = 6.0) -> LossCurve:
    """A loss that falls by `slope` nats as the tokens grow e-fold."""
    return curve(height - slope * np.log(tokens), tokens, flops_per_token)


def compared(own: Sequence[LossCurve], baseline: Sequence[LossCurve]) -> EqualLoss:
    return equal_losses(own, baseline)["val_loss"]


def test_the_crossing_of_straight_lines_is_exact() -> None:
    """A line lower by d reaches a level at exp(-d / slope) of the tokens."""
    found = compared([straight(7 - 0.1, flops_per_token=9)], [straight(7)])
    share = math.exp(-0.1 / 0.4)
    assert found.n_reached == 1
    assert (found.tokens.mean, found.tokens_ratio.mean) == pytest.approx((share * END, share))
    assert found.training_flops.mean == pytest.approx(9 * share * END)
    assert found.training_flops_ratio.mean == pytest.approx(share * 9 / 6)
    assert (found.tokens_ratio.low, found.tokens_ratio.high) == (None, None)
    # A worse one is compared at its own final loss.
    found = compared([straight(7.1, flops_per_token=9)], [straight(7)])
    assert (found.n_reached, found.tokens.mean, found.training_flops.mean) == (0, None, None)
    assert found.tokens_ratio.mean == pytest.approx(1 / share)


@st.composite
def falling(draw: st.DrawFn) -> LossCurve:
    """Falls from 5 nats at the first validation to between 3 and 4.5 at the last."""
    steps = draw(st.lists(st.floats(0.01, 1), min_size=len(TOKENS) - 1, max_size=len(TOKENS) - 1))
    fall = np.cumsum([0, *steps]) / sum(steps) * draw(st.floats(0.5, 2))
    return curve(5 - fall, flops_per_token=draw(st.floats(1, 10)))


@settings(max_examples=40, deadline=None)
@given(falling(), falling(), st.floats(0.1, 10))
def test_ratios_turn_round_with_the_pair_and_scale_with_tokens(own: LossCurve, baseline: LossCurve, scale) -> None:
    there, back = compared([own], [baseline]), compared([baseline], [own])
    assert there.tokens_ratio.mean * back.tokens_ratio.mean == pytest.approx(1)
    assert there.training_flops_ratio.mean * back.training_flops_ratio.mean == pytest.approx(1)
    assert compared([own], [own]).tokens_ratio.mean == 1
    slower = curve(own.losses["val_loss"], scale * own.tokens)
    assert compared([slower], [baseline]).tokens_ratio.mean == pytest.approx(scale * there.tokens_ratio.mean)
    ends_lower = own.losses["val_loss"][-1] <= baseline.losses["val_loss"][-1]
    assert (there.tokens_ratio.mean <= 1 + 1e-12) == ends_lower
    assert there.n_reached == ends_lower


def test_the_interval_is_that_of_the_mean_logarithm_over_seeds() -> None:
    heights = [(7.0, 6.9), (7.25, 7.2), (6.75, 6.7)]
    found = compared([straight(own) for _, own in heights], [straight(other) for other, _ in heights])
    logarithms = np.array([(own - other) / 0.4 for other, own in heights])
    low, high = stats.t.interval(0.95, 2, logarithms.mean(), stats.sem(logarithms))
    ratio = found.tokens_ratio
    assert ratio.per_seed == pytest.approx(np.exp(logarithms))
    assert (ratio.low, ratio.mean, ratio.high) == pytest.approx(tuple(np.exp([low, logarithms.mean(), high])))


def test_a_loss_counts_where_it_first_was_reached_and_outside_of_the_validations_is_unknown() -> None:
    bumpy = curve([5.0, 4.0, 3.0, 3.5, 3.2, 3.0])
    assert bumpy.tokens_at("val_loss", 3.0) == TOKENS[2]
    assert bumpy.tokens_at("val_loss", 3.5) == pytest.approx(math.sqrt(TOKENS[1] * TOKENS[2]))
    own = straight(7)
    first, last = own.losses["val_loss"][[0, -1]]
    assert math.isnan(own.tokens_at("val_loss", first + 0.01))
    assert own.tokens_at("val_loss", first) == TOKENS[0]
    assert own.tokens_at("val_loss", last) == END
    assert math.isnan(own.tokens_at("val_loss", last - 0.01))
    far = compared([straight(3)], [straight(7)])
    assert (far.n_reached, far.tokens_ratio.mean, far.tokens_ratio.per_seed) == (1, None, [None])


def test_a_curve_is_read_from_the_records_of_a_run() -> None:
    """The last of two validations of a step counts."""
    train = [{"step": step, "event": "train", "loss": 9.0, "lr": lr} for step, lr in enumerate((0.1, 0.4, 0.3), 1)]
    validations = [
        {"step": step, "event": "validation", "loss": loss, "tokens": 10 * step, "training_flops": 60.0 * step}
        for step, loss in ((4, 1.0), (1, 4.0), (2, 9.0), (2, 3.0))
    ]
    found = LossCurve.of([*train, *({**record, "mtp_losses": [1.5]} for record in validations)])
    assert (found.tokens.tolist(), found.training_flops.tolist()) == ([10, 20, 40], [60, 120, 240])
    losses = {name: values.tolist() for name, values in found.losses.items()}
    assert losses == {"val_loss": [4, 3, 1], "val_loss_next_2": [1.5] * 3}
    assert found.final_lr_share == pytest.approx(0.75)
    assert LossCurve.of(validations).losses.keys() == {"val_loss"}
    assert LossCurve.of([]).losses == {}


def test_the_gap_is_paired_by_seed_at_tokens_that_all_have() -> None:
    """The baseline's line is straight over the logarithm, so it is exact between its validations."""
    tokens = np.array([500.0, 900, 2000, 7100, 20_000])
    own = [straight(7.0, 0.5, tokens), straight(7.5, 0.5, tokens[1:])]
    baseline = [straight(7.25), straight(7.5)]
    found = gaps(own, baseline)["val_loss"]
    assert found.tokens == [900, 2000, 7100]
    by_seed = [np.log(found.tokens) * -0.1 + gap for gap in (-0.25, 0.0)]
    half = stats.t.ppf(0.975, 1) * 0.125
    for ends, expected in ((found.low, -half), (found.mean, 0), (found.high, half)):
        assert ends == pytest.approx(np.mean(by_seed, axis=0) + expected)


def test_the_ratio_in_the_course_of_training_is_that_of_straight_lines_at_every_height() -> None:
    """As far as both have it: 700 tokens are the first at which a loss is known."""
    own, baseline = [straight(6.9), straight(6.8)], [straight(7), straight(7)]
    found = tokens_ratios(own, baseline)["val_loss"]
    shares = np.exp([-0.1 / 0.4, -0.2 / 0.4])
    assert found.tokens == [t for t in TOKENS if t * shares.min() > TOKENS[0]]
    assert found.mean == pytest.approx([math.sqrt(shares.prod())] * len(found.tokens))
    assert found.mean[-1] == pytest.approx(compared(own, baseline).tokens_ratio.mean)
    assert found.high[-1] == pytest.approx(compared(own, baseline).tokens_ratio.high)
    later = tokens_ratios([straight(7.1)], [straight(7)])["val_loss"]
    assert later.tokens == [t for t in TOKENS if t * math.exp(0.1 / 0.4) <= END]
    assert tokens_ratios([straight(11)], [straight(7)]) == {}
