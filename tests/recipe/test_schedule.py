"""Schedules of the learning rate: the paper's own numbers, closed forms, and what all have in common.

And steps that follow from a budget of training FLOPs.
"""

import math
from itertools import pairwise

import pytest
from boxes import refusal
from growing_runs import DYNAMIC, TWICE, UNIFORM
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from thinned import in_turn
from tiny_runs import tiny_recipe

from widthwise.config_io import to_data
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.schedule import ConstantSchedule, CosineSchedule, PowerSchedule, WSDSchedule

# Specification of the variable-width paper's recipe: a, c, warm-up, steps, peak and final learning rate at lr 0.01.
PAPER = {
    "200M": (512, 524_288, 1526, 19080, 0.004678, 0.001120),
    "500M": (1024, 1_048_576, 1908, 23844, 0.005570, 0.001334),
    "1B": (2048, 2_097_152, 1907, 23842, 0.007527, 0.001802),
    "2B": (4096, 4_194_304, 2000, 25000, 0.009898, 0.002370),
}


@pytest.mark.parametrize("size", PAPER)
def test_power_schedule_has_the_papers_peak_and_final_rate_and_takes_a_and_c_from_the_batch(size):
    a, c, warmup, steps, peak, final = PAPER[size]
    schedule = PowerSchedule(a=a, c=c, warmup_steps=warmup)
    assert 0.01 * schedule.factor(warmup, 0.01, steps, 1) == pytest.approx(peak, abs=5e-7)
    assert 0.01 * schedule.factor(steps, 0.01, steps, 1) == pytest.approx(final, abs=5e-7)
    rates = [schedule.factor(step, 0.01, steps, 1) for step in range(1, steps + 1, 7)]
    assert max(rates) <= schedule.factor(warmup, 0.01, steps, 1)
    derived = PowerSchedule(warmup_steps=warmup)
    for step in (1, warmup, steps):
        assert derived.factor(step, 0.01, steps, c) == schedule.factor(step, 0.01, steps, 1)


def test_cosine_reaches_half_way_in_the_middle_and_its_final_factor_at_the_last_step():
    schedule = CosineSchedule(warmup_steps=10, final_factor=0.2)
    assert schedule.factor(10, 1.0, 110, 1) == 1.0
    assert schedule.factor(60, 1.0, 110, 1) == pytest.approx(0.6)
    assert schedule.factor(110, 1.0, 110, 1) == pytest.approx(0.2)


@pytest.mark.parametrize("length", [{"decay_steps": 30}, {"decay_fraction": 0.3}])
def test_wsd_is_flat_then_linear(length):
    schedule = WSDSchedule(warmup_steps=7, final_factor=0.1, **length)
    factors = [schedule.factor(step, 1.0, 100, 1) for step in range(1, 101)]
    assert factors[6:70] == [1.0] * 64
    steps = [after - before for before, after in pairwise(factors[69:])]
    assert steps == pytest.approx([-0.9 / 30] * 30)
    assert factors[-1] == pytest.approx(0.1)


KINDS = (PowerSchedule, CosineSchedule, WSDSchedule, ConstantSchedule)
schedules = st.one_of(*(st.builds(kind, warmup_steps=st.integers(0, 40)) for kind in KINDS))


@settings(deadline=None, max_examples=40)
@given(schedules, st.integers(51, 300))
def test_every_schedule_warms_up_linearly_never_rises_after_and_stays_within_0_and_1(schedule, total_steps):
    factors = [schedule.factor(step, 0.01, total_steps, 4096) for step in range(1, total_steps + 1)]
    warmup = schedule.warmup_steps
    assert all(0 <= factor <= 1 for factor in factors)
    for step in range(1, warmup):
        assert math.isclose(factors[step - 1], factors[warmup - 1] * step / warmup)
    after = factors[max(warmup - 1, 0) :]
    assert all(later <= earlier for earlier, later in pairwise(after))


def test_what_does_not_fit_into_the_run_is_refused():
    too_long = "warmup_steps: got 10; must be less than train.steps = 10"
    assert too_long in refusal(CosineSchedule(warmup_steps=10).check, 10)
    assert "takes 8 steps, but warm-up leaves 7" in refusal(WSDSchedule(warmup_steps=3, decay_steps=8).check, 10)
    with pytest.raises(ValidationError, match="give one of them"):
        WSDSchedule(decay_steps=3, decay_fraction=0.1)


def budgeted(training_flops: float, *overrides: str) -> Recipe:
    return tiny_recipe(*overrides, f"train.steps={{training_flops: {training_flops!r}}}")


@in_turn(("overrides", [(), (TWICE,), (UNIFORM, DYNAMIC, "train.nested={}")]), ("training_flops", [3.1e8, 7.7e9]))
def test_the_run_spends_the_budget_to_within_half_a_step(overrides: tuple[str, ...], training_flops: float) -> None:
    recipe = budgeted(training_flops, *overrides)
    last_step = recipe.training_flops - recipe.training_flops_until(recipe.train.steps - 1)
    assert abs(recipe.training_flops - training_flops) <= last_step / 2
    whole = tiny_recipe(*overrides)
    assert budgeted(whole.training_flops, *overrides) == whole


def test_what_is_said_later_replaces_it_and_it_what_was_said() -> None:
    assert tiny_recipe("train.steps={training_flops: 1e9}", "train.steps=5").train.steps == 5
    assert to_data(budgeted(3e8))["train"]["steps"] == budgeted(3e8).train.steps


def test_a_budget_that_cannot_be_is_refused() -> None:
    for steps, message in (
        ("{training_flops: 1e6}", "got training_flops 1e+06, which leave no step for the last model"),
        ("{flops: 1e9}", "train.steps.flops: unknown key; allowed: training_flops"),
    ):
        assert message in refusal(tiny_recipe, TWICE, f"train.steps={steps}")
