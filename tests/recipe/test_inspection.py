"""What each layer costs: rows that add up to the model, and ratios to the baseline."""

import pytest
from boxes import refusal
from tiny_runs import tiny_recipe

from widthwise.config_io import parse
from widthwise.model.config import cost_summary
from widthwise.recipe.inspection import inspect_recipe, layer_rows, ratios
from widthwise.reports.tables import budget_lines
from widthwise.shape.template import ModelTemplate

TEMPLATE = parse(
    ModelTemplate,
    {
        "vocab_size": 61,
        "d_model": 64,
        "n_layers": 6,
        "attention": {"head_dim": 4, "kv_group_size": 2},
        "shape": {"kind": "x", "bottleneck_width": 0.4, "bottleneck_layer": 0.5},
        "residual": {"kind": "plain", "resize": "projection"},
    },
)
MODEL, UNIFORM = TEMPLATE.resolve(33), TEMPLATE.uniform().resolve(33)


def test_rows_add_up_to_the_model_without_tables_and_final_norm_and_ratios_are_of_its_costs():
    rows, costs, total = layer_rows(MODEL, 33), MODEL.costs(), MODEL.cost()
    outside = costs["embedding"].params + costs["head"].params + MODEL.final_norm_width
    assert sum(row["params"] for row in rows) + outside == total.params
    assert sum(row["forward_flops"] for row in rows) + costs["head"].flops == total.forward_flops(33)
    assert sum(row["kv_bytes"] for row in rows) == total.kv_bytes(64)
    found = ratios(cost_summary(MODEL, 33), cost_summary(UNIFORM, 33))
    assert found["params"] == total.params / UNIFORM.cost().params
    assert found["flops"] == total.forward_flops(33) / UNIFORM.cost().forward_flops(33)
    assert found["kv_bytes"] == pytest.approx(total.kv_bytes(64) / UNIFORM.cost().kv_bytes(64))
    assert found["activation_bytes"] == total.activation_bytes() / UNIFORM.cost().activation_bytes()


def test_rows_too_short_for_mtp_heads_or_too_long_for_positions_are_refused():
    for overrides, message in (
        (["model.mtp={n_depths: 5}", "seq_len=5"], "model.mtp.n_depths: got 5; must be less than seq_len = 5"),
        (["growth=[{at_step: 5, model: {mtp: {n_depths: 5}}}]", "seq_len=5"], "growth.0: model.mtp.n_depths: got 5"),
        (["model.positions={n_positions: 16}"], "seq_len: got 17; must be at most model.positions.n_positions = 16"),
    ):
        for recipe in (tiny_recipe(*overrides), tiny_recipe(*overrides).resolved()):
            assert message in refusal(inspect_recipe, recipe)
    tiny_recipe("model.positions={n_positions: 17}").check()
    tiny_recipe("model.mtp={n_depths: 4}", "seq_len=5").check()


@pytest.mark.parametrize("rounding", ["nearest", "balanced"])
def test_a_shape_says_by_how_much_it_misses_the_uniform_model(rounding):
    shape = f"model.shape={{kind: x, bottleneck_width: 0.4, quantum: 8, rounding: {rounding}}}"
    recipe = tiny_recipe(shape, "model.d_model=64", "model.n_layers=5")
    found = inspect_recipe(recipe)
    model, uniform = recipe.final_model.cost().params, recipe.model.uniform().resolve(17).cost().params
    assert found["matched"]["miss"] == pytest.approx(model / uniform - 1)
    assert bool(budget_lines(found)) == (abs(model / uniform - 1) > 0.001)
