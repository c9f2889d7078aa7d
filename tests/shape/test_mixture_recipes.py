"""The mixtures of the variable-width paper (*_moe_3b) against its formulas and reference numbers."""

import numpy as np
import pytest
from quadratic_cost import ORACLE, RHO, QuadraticCost, params_cost
from test_template import recipe

from widthwise.model.config import cost_summary, pflops_days
from widthwise.shape.template import ModelTemplate, TemplateCost

PAPER = ORACLE["configs"]["MoE"]
SEQ_LEN, N_EXPERTS, TOP_K = 4096, 22, 3
TABLES = 2 * 100263 * 1600
TOKENS = 104_857_600_000


UNIFORM, X = recipe("uniform_moe_3b"), recipe("x_moe_3b")
COUNTED = {
    "params": params_cost(1600, N_EXPERTS * RHO, N_EXPERTS),
    "active_params": params_cost(1600, TOP_K * RHO, N_EXPERTS),
    "flops": QuadraticCost(1600, 8 + 6 * TOP_K * RHO, 4 * SEQ_LEN + 2 * N_EXPERTS, 6, 2 * TOP_K * RHO),
}
"""Quantity -> the paper's own formula: layers of width w with experts of exactly 0.32 w channels."""


def real_valued(which: ModelTemplate, match: str) -> float:
    """The quantity at the built model's widths, its experts not rounded to whole channels."""
    return TemplateCost(which, match, SEQ_LEN).total(np.array(which.resolve(SEQ_LEN).widths))


@pytest.mark.parametrize("match", COUNTED)
def test_the_template_counts_by_the_papers_formula(match):
    for widths in ([1600.0] * 5, [3040.5, 97.25, 480.0, 33.3, 1700.0], [12.5, 1600.0, 3.0]):
        found = TemplateCost(X, match, SEQ_LEN).per_layer(np.array(widths))
        np.testing.assert_allclose(found, COUNTED[match].per_layer(np.array(widths)), rtol=1e-13)


def test_widths_are_the_papers():
    resolved = X.resolve(SEQ_LEN)
    assert resolved.widths == PAPER["widths"]
    assert [layer.ffn.d_expert for layer in resolved.layers] == [round(RHO * width) for width in PAPER["widths"]]
    assert (resolved.layers[0].ffn.d_expert, min(layer.ffn.d_expert for layer in resolved.layers)) == (973, 154)
    assert set(UNIFORM.resolve(SEQ_LEN).widths) == {1600}


def test_parameters_of_the_uniform_model():
    cost = UNIFORM.resolve(SEQ_LEN)
    gains = cost.costs()["norm"].params
    assert cost.cost().params - gains == 2_894_537_600
    assert cost.cost().active_params - gains == 1_026_761_600


@pytest.mark.parametrize(
    ("match", "paper", "n_counted"),
    [("params", 2_891_691_115.52, N_EXPERTS), ("active_params", 1_020_571_796.48, TOP_K)],
)
def test_parameters_of_the_x_model(match, paper, n_counted):
    """The paper counts experts of 0.32 w channels; built ones have whole channels, which is 0.015% more."""
    assert TABLES + real_valued(X, match) == pytest.approx(paper, rel=1e-12)
    built = X.resolve(SEQ_LEN)
    n_built = getattr(built.cost(), match) - getattr(built.costs()["norm"], match)
    rounded_up = sum(
        n_counted * (2 * layer.d_model + layer.d_out) * (layer.ffn.d_expert - RHO * layer.d_model)
        for layer in built.layers
    )
    assert n_built == pytest.approx(paper + rounded_up, rel=1e-12)
    assert 0 < n_built / paper - 1 < 0.0002


def test_training_compute_is_the_papers():
    days = {}
    for name, which in (("uniform", UNIFORM), ("x", X)):
        summary = cost_summary(which.resolve(SEQ_LEN), SEQ_LEN)["flops_per_token"]
        days[name] = pflops_days(summary["training"], TOKENS)
    assert {name: round(value, 2) for name, value in days.items()} == {"uniform": 10.13, "x": 9.66}
    assert round(100 * (days["x"] / days["uniform"] - 1), 1) == -4.6
    head = 2 * 100263 * 1600
    assert head + real_valued(X, "flops") == pytest.approx(PAPER["flops_per_token"], rel=1e-12)
