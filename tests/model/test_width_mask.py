"""The masks over hidden units: steps, ramps and their derivatives."""

import math

import pytest
import torch
from pydantic import TypeAdapter
from thinned import in_turn

from widthwise.model.ffn.width_mask import AnyWidthMask

M = 512
CENTRES = torch.arange(M, dtype=torch.float64) + 0.5
HALFWAY = torch.tensor(0.5, dtype=torch.float64)
KINDS = ("hard", "ste", "soft", "anneal", "linear_ramp", "nested")


def parsed(**options):
    return TypeAdapter(AnyWidthMask).validate_python(options)


def mask_of(training=True, d_ff=M, **options):
    return parsed(**options).at_width(d_ff).build(d_ff).double().train(training)


def values(mask, width, centres=CENTRES, progress=HALFWAY):
    """(n_widths, n_units)."""
    return mask.edge(progress, torch.float64).mask(torch.as_tensor(width, dtype=torch.float64)[..., None], centres)


def slopes(mask, width):
    """d mask / d width, unit by unit, through the backward pass: a straight-through mask has its derivative there."""
    width = torch.tensor(width, dtype=torch.float64).requires_grad_()
    found = values(mask, width)
    if not found.requires_grad:
        return torch.zeros(M, dtype=torch.float64)
    return torch.autograd.grad(found, width, torch.eye(M, dtype=torch.float64), is_grads_batched=True)[0]


class TestStep:
    def test_unit_i_is_used_from_width_i_plus_one_half_on(self):
        mask = mask_of(kind="hard")
        for width in (0.0, 0.5, 0.5001, 7.4999, 7.5, 7.5001, 511.5, 511.6, 512.0):
            expected = [1.0 if i + 0.5 < width else 0.0 for i in range(M)]
            assert values(mask, width).tolist() == expected

    def test_straight_through_has_exactly_the_values_of_the_step_and_the_derivative_of_the_sigmoid(self):
        widths = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float32) * M
        centres = CENTRES.float()
        ste, hard = mask_of(kind="ste", temperature=3.7), mask_of(kind="hard")
        assert torch.equal(values(ste, widths, centres), values(hard, widths, centres))
        for width in (0.2, 100.3, 511.0):
            s = torch.sigmoid((width - CENTRES) / 3.7)
            torch.testing.assert_close(slopes(ste, width), s * (1 - s) / 3.7, rtol=1e-12, atol=1e-15)
            assert not slopes(hard, width).any()


def test_the_sum_of_a_soft_mask_is_the_width_and_its_distance_to_the_step_two_log_two_temperatures():
    for temperature in (1.0, 2.5, 8.0):
        mask = mask_of(kind="soft", temperature=temperature)
        widths = torch.linspace(10 * temperature, M - 10 * temperature, 37, dtype=torch.float64)  # away from the ends
        torch.testing.assert_close(values(mask, widths).sum(-1), widths, rtol=0, atol=1e-3)
        widths = 200 + torch.linspace(0, 1, 101, dtype=torch.float64)[:-1]
        distance = values(mask, widths) - values(mask_of(kind="hard"), widths)
        assert distance.abs().sum(-1).mean().item() == pytest.approx(2 * math.log(2) * temperature, rel=0.05)


def test_linear_ramp_is_the_clipped_line():
    mask, width = mask_of(kind="linear_ramp", temperature=6.0), 40.2
    expected = [min(max((width - i - 0.5) / 6 + 0.5, 0.0), 1.0) for i in range(M)]
    torch.testing.assert_close(values(mask, width), torch.tensor(expected, dtype=torch.float64))
    inside = [abs(width - i - 0.5) < 3 for i in range(M)]
    torch.testing.assert_close(slopes(mask, width), torch.tensor(inside, dtype=torch.float64) / 6)


def test_annealing_shrinks_the_temperature_in_equal_ratios_to_a_step_in_evaluation():
    mask = mask_of(kind="anneal", temperature=18.0, final_temperature=2.0)
    for progress, temperature in ((0.0, 18.0), (0.25, 18 / math.sqrt(3)), (0.5, 6.0), (1.0, 2.0)):
        moment = torch.tensor(progress, dtype=torch.float64)
        found = values(mask, 200.3, progress=moment)
        assert mask.temperature(moment).item() == pytest.approx(temperature)
        torch.testing.assert_close(found, torch.sigmoid((200.3 - CENTRES) / temperature))


def test_others_evaluate_as_a_step():
    for kind in ("ste", "anneal", "nested"):
        edge = mask_of(training=False, kind=kind).edge(HALFWAY, torch.float64)
        assert edge.margin == 0
        assert torch.equal(edge.mask(HALFWAY * 100.4, CENTRES), values(mask_of(kind="hard"), 50.2))


@in_turn(
    ("kind", KINDS),
    ("training", [True, False]),
)
def test_beyond_the_margin_the_mask_is_0_or_1_without_derivative(kind, training):
    """A straight-through mask has a derivative everywhere, of which rounding leaves nothing beyond its margin."""
    mask = mask_of(training, kind=kind)
    edge = mask.edge(HALFWAY, torch.float64)
    for width in (0.0, 0.5, 3.3, 255.5, 256.0, 400.49, 512.0):
        inner, outer = width - edge.margin > CENTRES, width + edge.margin < CENTRES
        assert (values(mask, width)[inner] == 1).all()
        assert (values(mask, width)[outer] == 0).all()
        assert slopes(mask, width)[inner | outer].sum() <= 1.1 * 2**-52


class TestTemperature:
    def test_default_is_a_thirty_second_of_d_ff_but_at_least_one(self):
        for kind in ("ste", "soft", "anneal", "linear_ramp"):
            for d_ff, expected in ((512, 16.0), (100, 3.125), (32, 1.0), (7, 1.0)):
                assert parsed(kind=kind).at_width(d_ff).temperature == expected
                assert parsed(kind=kind, temperature=2.5).at_width(d_ff).temperature == 2.5

    def test_learned_one_starts_where_it_is_said_and_stays_in_bounds(self):
        for kind in ("ste", "soft", "linear_ramp"):
            module = mask_of(kind=kind, learn_temperature=True, temperature=5.0).temperature
            for theta, expected in ((0.0, 5.0), (0.3, 5 * math.exp(0.3)), (9.0, M / 16), (-9.0, 1.0)):
                torch.nn.init.constant_(module.theta.weight, theta)
                assert module(HALFWAY).item() == pytest.approx(expected)
                assert module(HALFWAY) <= module.highest

    @pytest.mark.parametrize("kind", ["soft", "linear_ramp"])
    def test_gradients_in_width_and_log_temperature(self, kind):
        mask = mask_of(d_ff=20, kind=kind, learn_temperature=True)
        theta = mask.temperature.theta.weight
        torch.nn.init.constant_(theta, 0.1)
        width = torch.tensor([3.21, 9.87, 15.03], dtype=torch.float64, requires_grad=True)
        # The second input is the parameter itself, which the mask reads wherever it is moved to.
        assert torch.autograd.gradcheck(lambda width, _: values(mask, width, CENTRES[:20]), (width, theta))

    def test_options_that_do_not_suit_are_refused(self):
        with pytest.raises(ValueError, match=r"mask.temperature: got 40; where d_ff = 512 .* between 1 and 32"):
            parsed(kind="soft", learn_temperature=True, temperature=40.0).at_width(M)
        assert parsed(kind="soft", temperature=40.0).at_width(M).temperature == 40
        for bad in ({"kind": "soft", "temperature": 0.0}, {"kind": "nested", "n_buckets": 1}):
            with pytest.raises(ValueError, match="greater than"):
                parsed(**bad)


class TestNested:
    LEVEL = torch.rand(64, 50, generator=torch.Generator().manual_seed(0))

    def test_every_token_draws_one_of_the_levels_evenly(self):
        torch.manual_seed(0)
        drawn = mask_of(kind="nested", n_buckets=5).drawn(self.LEVEL)
        levels, counts = drawn.unique(return_counts=True)
        torch.testing.assert_close(levels, torch.tensor([0, 0.25, 0.5, 0.75, 1]))
        assert drawn.shape == self.LEVEL.shape
        assert (counts - 640).abs().max() < 5 * math.sqrt(640)
        neighbours_equal = (drawn[:, 1:] == drawn[:, :-1]).double().mean().item()
        assert neighbours_equal == pytest.approx(1 / 5, abs=0.03)

    def test_a_batch_shares_one_draw(self):
        torch.manual_seed(0)
        mask = mask_of(kind="nested", per="batch")
        draws = [mask.drawn(self.LEVEL) for _ in range(40)]
        assert all((drawn == drawn[0, 0]).all() for drawn in draws)
        assert len({drawn[0, 0].item() for drawn in draws}) == 4

    def test_evaluation_takes_the_level_of_the_score_and_draws_nothing(self):
        before = torch.get_rng_state()
        assert mask_of(training=False, kind="nested").drawn(self.LEVEL) is self.LEVEL
        assert torch.equal(before, torch.get_rng_state())
