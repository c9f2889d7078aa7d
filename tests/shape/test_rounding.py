"""Widths become multiples: the nearest ones, or those that meet the budget."""

import itertools

import numpy as np
import pytest
from boxes import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic_cost import ORACLE, params_cost

from widthwise.shape.rounding import FAR, TOLERANCE, round_balanced, round_nearest, round_whole
from widthwise.shape.schedule import SCHEDULES, solve_widths


def solved_x(d_model, n_layers, turn_layer, ratio):
    """The cost of a layer, the budget of the uniform model and the widths before they are rounded."""
    cost = params_cost(d_model)
    return cost, cost.uniform(n_layers), solve_widths(SCHEDULES["x"], cost, n_layers, turn_layer, ratio)


def test_ties_go_to_the_even_multiple():
    assert round_nearest(np.array([48.0, 80.0, 112.0, 49.0]), 32).tolist() == [64, 64, 128, 64]


def test_a_vanishing_layer_is_named_with_the_largest_quantum_that_works():
    widths = np.array([97.0, 21.5, 63.0])
    message = refusal(round_nearest, widths, 64)
    assert message.startswith("model.shape.quantum: 64 rounds layer 2 of 3 (21.5 channels) to no channels")
    assert message.endswith("works is 42")
    assert round_nearest(widths, 42).min() > 0
    refusal(round_nearest, widths, 43)  # 21.5 / 43 is a tie, and 0 is even


def test_the_remedy_is_a_quantum_that_may_be_given():
    for widths, quantum, least, message in [
        ([15.0, 63.0], 32, 8, "the largest quantum that works is 24"),
        ([15.0, 63.0], 32, 32, "no quantum works: widen the shape, or give smaller heads or slots"),
        ([0.5, 63.0], 1, 1, "no quantum works"),
    ]:
        assert f"to no channels; {message}" in refusal(round_nearest, np.array(widths), quantum, least_quantum=least)


@pytest.mark.parametrize("name", ["200M", "2B"])
def test_balanced_rounding_meets_the_papers_budgets(name):
    """Of 16 and 40 layers, too many for the enumeration below."""
    where = [ORACLE["configs"][name][key] for key in ("d_model", "n_layers", "turn_layer", "turn_ratio")]
    cost, budget, widths = solved_x(*where)
    nearest, balanced = round_nearest(widths, 32), round_balanced(widths, 32, cost, budget)
    assert abs(cost.total(nearest) / budget - 1) > TOLERANCE > abs(cost.total(balanced) / budget - 1)


def best_of_every_choice(widths, quantum, cost, budget):
    """(whether the budget is met within TOLERANCE, summed distance or miss) of the best choice, by enumeration of those
    whose ends are equal and that are nowhere wider than what the first layer writes, or the embedding."""
    sides = [sorted({np.floor(w / quantum) * quantum, np.ceil(w / quantum) * quantum} - {0.0}) for w in widths]
    choices = [np.array(choice) for choice in itertools.product(*sides)]
    choices = [each for each in choices if each[0] == each[-1] and each.max() <= max(each[0], cost.d_model)]
    misses = [abs(cost.total(choice) / budget - 1) for choice in choices]
    distances = [np.abs(choice - widths).sum() for choice in choices]
    good = [distance for distance, miss in zip(distances, misses) if miss <= TOLERANCE]
    return min(good) if good else None, min(misses)


@given(
    d_model=st.integers(97, 900),
    n_layers=st.integers(3, 8),
    where=st.floats(0, 1),
    ratio=st.floats(0.3, 0.9),
    quantum=st.sampled_from([8, 13, 32]),
)
@settings(deadline=None, max_examples=40)
def test_balanced_rounding_finds_the_best_choice(d_model, n_layers, where, ratio, quantum):
    cost, budget, widths = solved_x(d_model, n_layers, 2 + round(where * (n_layers - 3)), ratio)
    balanced = round_balanced(widths, quantum, cost, budget)
    least_distance, least_miss = best_of_every_choice(widths, quantum, cost, budget)
    if least_distance is None and least_miss > FAR:  # layers may go further
        assert abs(cost.total(balanced) / budget - 1) <= least_miss + 1e-12
    elif least_distance is None:
        assert abs(cost.total(balanced) / budget - 1) == pytest.approx(least_miss, abs=1e-12)
    else:
        assert np.abs(balanced - widths).sum() == pytest.approx(least_distance, abs=1e-6)


@given(
    n_layers=st.integers(18, 80), d_model=st.integers(512, 4096), ratio=st.floats(0.2, 0.9), quantum=st.integers(1, 96)
)
@settings(deadline=None, max_examples=25)
def test_balanced_rounding_never_misses_more_than_nearest(n_layers, d_model, ratio, quantum):
    cost, budget, widths = solved_x(d_model, n_layers, n_layers // 2, ratio)
    nearest, balanced = round_nearest(widths, quantum), round_balanced(widths, quantum, cost, budget)
    assert abs(cost.total(balanced) - budget) <= abs(cost.total(nearest) - budget) * (1 + 1e-12)
    assert (balanced % quantum == 0).all()
    assert balanced.min() > 0
    assert np.abs(balanced - widths).max() < quantum


def test_rounding_widens_and_narrows_only_where_the_widths_do():
    """Up would be nearer for 209, but lies beyond the embedding's 210 coordinates."""
    assert round_whole(np.array([209.0, 64.0, 209.0]), 32, 210).tolist() == [192, 64, 192]
    assert round_whole(np.array([215.0, 209.0, 215.0]), 32, 210).tolist() == [224, 224, 224]
    assert round_whole(np.array([64.0, 215.0, 209.0]), 32, 210).tolist() == [64, 224, 192]
    assert round_whole(np.array([209.0, 215.0, 64.0]), 32, 210).tolist() == [192, 224, 64]
    # A layer that exceeds only because its neighbours go down goes down too.
    assert round_whole(np.array([209.5, 209.0, 209.5]), 32, 210).tolist() == [192, 192, 192]
    assert round_whole(np.array([64.0, 208.5, 209.0, 209.5, 215.0]), 32, 210).tolist() == [64, 192, 192, 192, 224]
