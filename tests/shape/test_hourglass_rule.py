import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_hourglass import BASELINES, SEARCHED, params

from widthwise.config_io import UserError
from widthwise.shape.hourglass_rule import (
    paper_d_hidden,
    paper_sizes,
    solved_d_model,
    solved_n_layers,
    solved_ratio,
)

shapes = st.tuples(st.integers(1, 96), st.integers(1, 12), st.floats(0.05, 4), st.integers(8, 20_000))


@pytest.mark.parametrize(("scale", "n_blocks", "n_layers", "ratio", "d_model", "d_hidden"), SEARCHED)
def test_the_rule_gives_the_sizes_of_the_paper(scale, n_blocks, n_layers, ratio, d_model, d_hidden) -> None:
    baseline = BASELINES[scale]
    assert paper_sizes(baseline.params, n_layers, n_blocks, ratio, baseline.n_heads) == (d_model, d_hidden)
    assert paper_d_hidden(baseline.params, n_layers, n_blocks, d_model) == d_hidden


@given(shapes)
def test_closed_forms_invert_the_count(shape) -> None:
    n_layers, n_blocks, ratio, d_model = shape
    budget = params(n_blocks, n_layers, d_model, ratio * d_model)
    assert solved_d_model(budget, n_layers, n_blocks, ratio) == pytest.approx(d_model, rel=1e-10)
    assert solved_n_layers(budget, d_model, n_blocks, ratio) == pytest.approx(n_layers, rel=1e-10)
    assert solved_ratio(budget, n_layers, n_blocks, d_model) == pytest.approx(ratio, rel=1e-9)


@given(shapes)
def test_the_hidden_width_is_the_nearest_whole_one(shape) -> None:
    n_layers, n_blocks, ratio, d_model = shape
    budget = params(n_blocks, n_layers, d_model, ratio * d_model)
    found = paper_d_hidden(budget, n_layers, n_blocks, d_model)
    misses = {h: abs(params(n_blocks, n_layers, d_model, h) - budget) for h in (found - 1, found, found + 1)}
    assert misses[found] == pytest.approx(min(misses.values()), abs=budget * 1e-9)


@given(st.integers(1, 96), st.integers(1, 12), st.integers(8, 20_000), st.floats(0.01, 0.5))
def test_a_width_whose_attention_alone_holds_the_budget_is_refused(n_layers, n_blocks, d_model, excess) -> None:
    budget = 4 * n_layers * d_model**2
    limit = math.sqrt(budget / (4 * n_layers))
    assert solved_ratio(budget, n_layers, n_blocks, 0.99 * limit) > 0
    for too_wide in (d_model, d_model * (1 + excess)):
        with pytest.raises(UserError, match=rf"d_model: got .* {n_layers} layers .* must be smaller"):
            solved_ratio(budget, n_layers, n_blocks, too_wide)


def test_every_head_size_of_the_rule_is_even() -> None:
    for n_heads in (5, 12, 16, 7):
        d_model, _ = paper_sizes(BASELINES["113M"].params, 12, 4, 0.4, n_heads)
        assert d_model % (2 * n_heads) == 0
