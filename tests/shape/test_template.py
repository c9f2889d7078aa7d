"""A template resolves into layers: the paper's models to the digit, budgets that are met, and mistakes by name."""

from fractions import Fraction

import numpy as np
import pytest
from boxes import refusal
from quadratic_cost import ORACLE, RHO, QuadraticCost, params_cost
from thinned import every_pair

from widthwise.config_io import parse, to_data
from widthwise.model.config import ModelConfig, cost_summary, pflops_days
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.shape.rounding import round_nearest
from widthwise.shape.schedule import SCHEDULES, solve_widths
from widthwise.shape.template import QUANTITIES, ModelTemplate, TemplateCost
from widthwise.yaml_io import merge, read_recipe

DENSE = ORACLE["dense"]
SEQ_LEN = 4096
SMALL = {"vocab_size": 61, "d_model": 64, "n_layers": 8, "attention": {"head_dim": 4}}


def recipe(name: str, **changes) -> ModelTemplate:
    return parse(ModelTemplate, merge(read_recipe(name)["model"], changes), name)


def small(**changes) -> ModelTemplate:
    return parse(ModelTemplate, merge(SMALL, changes), "model")


@pytest.mark.parametrize("size", DENSE)
class TestPaper:
    """The dense models of the variable-width paper, to the printed digit; the recipes' names are the paper's sizes."""

    def test_widths_parameters_and_compute(self, size):
        uniform, x = (recipe(f"{kind}_{size.lower()}").resolve(SEQ_LEN) for kind in ("uniform", "x"))
        oracle = DENSE[size]
        assert x.widths == ORACLE["configs"][size]["widths"]
        assert abs(sum(x.widths) / x.n_layers - oracle["paper_average_width"]) <= 0.5
        assert set(uniform.widths) == {ORACLE["configs"][size]["d_model"]}
        assert {layer.attention.n_heads for layer in x.layers} == {16}
        assert uniform.costs()["norm"].params == oracle["norm_gains_uniform"]
        saved = 2 * x.d_model  # a slim first layer and a slim final norm
        assert x.costs()["norm"].params == 2 * sum(x.widths) - x.widths[0] + saved
        days = []
        for config, key in ((uniform, "uniform"), (x, "x")):
            assert config.cost().params - config.costs()["norm"].params == oracle[f"params_{key}"]
            assert config.cost().kv_bytes(64) == oracle[f"kv_bytes_{key}"]
            summary = cost_summary(config, SEQ_LEN)["flops_per_token"]
            assert summary["forward"] == oracle[f"forward_flops_{key}"]
            days.append(pflops_days(summary["training"], oracle["tokens"]))
            assert days[-1] == pytest.approx(oracle[f"pflops_days_{key}"], rel=1e-12)
        assert [round(value, 2) for value in days] == oracle["paper_pflops_days"]
        assert round(100 * (days[1] / days[0] - 1), 1) == oracle["paper_change_percent"]
        data = read_recipe(f"x_{size.lower()}")
        assert data["train"]["steps"] * data["train"]["batch_size"] * data["seq_len"] == oracle["tokens"]

    def test_full_endpoints_are_the_release(self, size):
        oracle = DENSE[size]
        config = recipe(f"x_{size.lower()}", shape={"endpoints": "full"}).resolve(SEQ_LEN)
        assert config.widths == ORACLE["configs"][size]["widths"]
        assert config.cost().forward_flops(SEQ_LEN) == oracle["forward_flops_full_x"]
        if oracle["params_full_x"] is not None:
            assert config.cost().params == oracle["params_full_x"]
            assert config.costs()["norm"].params == oracle["norm_gains_full_x"]

    def test_hardware_siblings_meet_the_budget(self, size):
        uniform, x = (recipe(f"{kind}_{size.lower()}_hw").resolve(SEQ_LEN) for kind in ("uniform", "x"))
        assert {layer.attention.head_dim for layer in (*uniform.layers, *x.layers)} == {64}
        assert all(width % 64 == 0 for width in x.widths)
        assert abs(x.cost().params / uniform.cost().params - 1) < 0.001
        assert x.cost().forward_flops(SEQ_LEN) < uniform.cost().forward_flops(SEQ_LEN)


SHAPES = [
    {"kind": "x", "bottleneck_layer": 0.6, "bottleneck_width": 0.4},
    {"kind": "x", "bottleneck_width": 0.4, "progression": "arithmetic", "last_over_first": 0.8},
    {"kind": "x", "bottleneck_width": 0.4, "last_over_first": None},
    {"kind": "diamond", "peak_width": 1.7},
    {"kind": "growing", "narrow_width": 0.4},
    {"kind": "narrowing", "narrow_width": 0.4},
]
SLOTS = [
    {"kind": "hyper_connections", "slot_width": 16, "n_slots": 80, "embedding": "expand"},
    {"kind": "hyper_connections", "slot_width": 16, "n_slots": 96, "dynamic": False, "reduce": "slot"},
    {"kind": "hyper_connections", "n_fractions": 32, "n_slots": 96, "embedding": "slot", "group_norm": "none"},
]


ENDS = [
    ("slim", {"head_dim": None, "n_heads": 4, "kv_group_size": 4}),
    ("full_matched", {"head_dim": 4}),
    ("slim", {"head_dim": 4, "ratio": 1.5}),
]


@every_pair(
    ("shape", SHAPES),
    ("match", QUANTITIES),
    (("endpoints", "attention"), ENDS),
    ("residual", [{"kind": "plain"}, *SLOTS]),
)
def test_a_balanced_shape_costs_what_its_uniform_model_costs(shape, match, endpoints, attention, residual):
    shape = {**shape, "match": match, "endpoints": endpoints, "rounding": "balanced"}
    ffn = {"kind": "swiglu", "ratio": 2.5}
    template = small(d_model=512, attention=attention, ffn=ffn, residual=residual, shape=shape)
    costs = [QUANTITIES[match](each.resolve(100).cost(), 100) for each in (template, template.uniform())]
    assert costs[0] == pytest.approx(costs[1], rel=0.01)


def test_full_endpoints_that_are_matched_leave_less_for_the_widths():
    """Appendix A without the correction for its ends, with a mean of 564.0 at 200M."""
    matched = recipe("x_200m", shape={"endpoints": "full_matched"}).resolve(SEQ_LEN)
    widths = round_nearest(solve_widths(SCHEDULES["x"], QuadraticCost(640, 16), 16, 12, 0.3), 32)
    assert matched.widths == widths.tolist()
    assert widths.mean() == 564.0


def test_slim_endpoints_stop_at_d_model_and_full_ones_do_not_and_narrow_ones_stay():
    shape = {"kind": "explicit", "widths": [96, 64, 32, 16, 32, 48, 64, 80]}
    slim = small(shape=shape).resolve(8)
    assert [layer.d_in for layer in slim.layers] == [64, *shape["widths"][1:]]
    assert [layer.d_out for layer in slim.layers] == [*shape["widths"][:-1], 64]
    assert slim.layers[0].attention_norm.norm_dim == 96
    assert slim.final_norm_width == 64
    full = small(shape={**shape, "endpoints": "full"}).resolve(8)
    assert [layer.d_in for layer in full.layers] == [layer.d_out for layer in full.layers] == shape["widths"]
    assert full.final_norm_width == 80
    narrow = small(shape={"kind": "explicit", "widths": [16, 64, 32, 16, 32, 48, 64, 32]}).resolve(8)
    assert (narrow.layers[0].d_in, narrow.layers[-1].d_out, narrow.final_norm_width) == (16, 32, 64)


def test_changes_to_single_layers():
    resolved = small(layers={2: {"ffn": {"d_ff": 7}}, 3: {"d_model": 32}, 0: {"d_model": 96}}).resolve(8)
    assert resolved.layers[2].ffn.d_ff == 7
    assert resolved.widths == [96, 64, 64, 32, 64, 64, 64, 64]
    assert resolved.layers[3].ffn.d_ff == 128
    assert resolved.layers[3].attention.n_heads == 8
    assert resolved.layers[0].d_in == 64
    untouched = small().resolve(8)
    assert [resolved.layers[i] for i in (1, 4, 5, 6, 7)] == [untouched.layers[i] for i in (1, 4, 5, 6, 7)]


def counted_heads(n_heads: int, **options) -> dict:
    """So many heads at every width."""
    return {"attention": {"head_dim": None, "n_heads": n_heads, **options}}


IN_SLOTS = {"d_model": 480, "attention": {"head_dim": 12}, "residual": SLOTS[0]}
MISTAKES: list[tuple[dict, str]] = [
    ({"layers": {8: {}}}, "layers.8: layers count from 0 to 7"),
    ({"layers": {1: {"ffn": {"d_f": 3}}}}, "model.layers.1: ffn.d_f: unknown key; did you mean 'd_ff'?"),
    ({"layers": {1: {"d_model": 30}}}, "model.layers.1.d_model: got 30; attention needs a multiple of 4 (head_dim"),
    ({"layers": {1: {"d_in": 999}}}, "d_in: got 999"),
    ({"d_model": 62}, "model.layers.0.d_model: got 62; attention needs a multiple of 4 (head_dim * kv_group_size)"),
    (counted_heads(3), "d_model: got 64; attention needs a multiple of 6 (2 * n_heads)"),
    (counted_heads(3, rope_base=None), "d_model: got 64; attention needs a multiple of 3 (n_heads)"),
    ({"attention": {"n_heads": 2}}, "n_heads: conflicts with head_dim; set one to null"),
    ({"attention": {"n_kv_heads": 2}}, "n_kv_heads: needs n_heads; without n_heads give kv_group"),
    (counted_heads(4, n_kv_heads=3), "n_kv_heads: got 3; must divide n_heads = 4"),
    (counted_heads(4, n_kv_heads=2, kv_group_size=4), "n_kv_heads: conflicts with kv_group_size"),
    (counted_heads(4, kv_group_size=3), "kv_group_size: got 3; must divide n_heads = 4"),
    ({"residual": {"kind": "virtual", "width": 1.51}}, "width: got 1.51; must be a fraction n/m with m up to 8, such"),
    ({"residual": {"kind": "virtual", "width": 2, "n_slots": 4}}, "n_slots: conflicts with width"),
    ({"attention": {"ratio": 0.5, "d_attention": 32}}, "d_attention: conflicts with ratio"),
    ({"attention": {"d_attention": 30}}, "d_attention: got 30; must be a multiple of 4 (head_dim * kv_group_size)"),
    ({"attention": {"ratio": 0.3}}, "got 64; attention needs a multiple of 40 (head_dim * kv_group_size, over"),
    ({"ffn": {"kind": "swiglu", "d_ff": 3, "ratio": 2}}, "d_ff: conflicts with ratio"),
    ({"shape": {"kind": "explicit", "widths": [64]}}, "model.shape.widths: got 1 widths for n_layers = 8"),
    ({"shape": {"kind": "growing", "last_over_first": 2.0}}, "shape.last_over_first: unknown key"),
    ({"shape": {"kind": "x", "bottleneck_width": 0.01}}, "model.shape.quantum"),
    ({"residual": {"kind": "plain", "projections": "as_released"}}, "residual: projections: got as_released"),
    (IN_SLOTS | {"shape": {"kind": "x", "quantum": 24}}, "model.shape.quantum: got 24; must be a multiple of 48"),
    ({"residual": SLOTS[0] | {"n_slots": None}, "shape": {"kind": "x"}}, "residual.n_slots: missing; a solved shape"),
]


def test_mistakes_are_named():
    for changes, message in MISTAKES:
        assert message in refusal(lambda changes=changes: small(**changes).resolve(8))


def test_the_baseline_lacks_the_shape_or_else_the_slots_and_the_further_heads():
    stream = {"residual": {"kind": "hyper_connections", "slot_width": 8, "n_slots": 20, "multiplier": 0.5}}
    heads = {"mtp": {"n_depths": 2}, "norm": {"eps": 1e-3}}
    shaped = small(**stream, **heads, shape={"kind": "x"}, layers={1: {"d_model": 32}})
    assert shaped.baseline() == small(**stream, **heads)
    plain = small(residual={"kind": "plain", "multiplier": 0.5}, norm=heads["norm"])
    assert shaped.baseline().baseline() == plain
    assert plain.baseline() == plain


@pytest.mark.parametrize(
    ("widths", "attention", "expected"),
    [
        ([64, 32], {"head_dim": 4, "ratio": 0.75}, [(12, 4), (6, 4)]),
        ([64, 32], {"head_dim": None, "n_heads": 4, "ratio": 1.5}, [(4, 24), (4, 12)]),
        ([64, 32], {"head_dim": 4, "d_attention": 40}, [(10, 4), (10, 4)]),
        ([64, 32], {"head_dim": None, "n_heads": 2, "d_attention": 20}, [(2, 10), (2, 10)]),
        ([60, 36], {"head_dim": 4, "ratio": 0.33333}, [(5, 4), (3, 4)]),
    ],
)
def test_attention_may_be_wider_or_narrower_than_its_layer(widths, attention, expected):
    shape = {"kind": "explicit", "widths": widths}
    layers = small(d_model=widths[0], n_layers=2, attention=attention, shape=shape).resolve(8).layers
    assert [(layer.attention.n_heads, layer.attention.head_dim) for layer in layers] == expected
    assert all(layer.attention.scale == layer.attention.head_dim**-0.5 for layer in layers)


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(4, 1), (4, 2)])
def test_key_value_heads_may_be_counted(n_heads: int, n_kv_heads: int) -> None:
    """In every layer, also where widths vary, and at the matched cost of the groups that they mean."""
    counted = small(**counted_heads(n_heads, n_kv_heads=n_kv_heads), shape={"kind": "x"})
    assert {layer.attention.n_kv_heads for layer in counted.resolve(8).layers} == {n_kv_heads}
    assert counted == small(**counted_heads(n_heads, kv_group_size=n_heads // n_kv_heads), shape={"kind": "x"})


@pytest.mark.parametrize("width", [1.5, 2, 1.3333, 2.625])
def test_a_virtual_width_is_slots_of_which_the_stream_is_so_much_wider(width: float) -> None:
    model = small(d_model=48, residual={"kind": "virtual", "width": width, "embedding": "expand"}).resolve(8)
    residual = model.residual
    assert isinstance(residual, HyperConnectionsConfig)
    assert (residual.kind, residual.embedding) == ("hyper_connections", "expand")
    assert residual.stream_width == round(48 * width)
    assert 48 // residual.slot_width == max(2, Fraction(width).limit_denominator(8).denominator)
    assert parse(ModelConfig, to_data(model)) == model


MIXTURE = ORACLE["configs"]["MoE"]
N_EXPERTS, TOP_K = 22, 3
TABLES = 2 * 100263 * 1600
TOKENS = 104_857_600_000
"""Sizes of the mixtures of the variable-width paper, *_moe_3b; tables: embedding and head."""


UNIFORM_MOE, X_MOE = recipe("uniform_moe_3b"), recipe("x_moe_3b")
COUNTED = {
    "params": params_cost(1600, N_EXPERTS * RHO, N_EXPERTS),
    "active_params": params_cost(1600, TOP_K * RHO, N_EXPERTS),
    "flops": QuadraticCost(1600, 8 + 6 * TOP_K * RHO, 4 * SEQ_LEN + 2 * N_EXPERTS, 6, 2 * TOP_K * RHO),
}
"""Quantity -> the paper's own formula: layers of width w with experts of exactly 0.32 w channels."""


@pytest.mark.parametrize("match", COUNTED)
def test_the_template_counts_a_mixture_by_the_papers_formula(match):
    for widths in ([1600.0] * 5, [3040.5, 97.25, 480.0, 33.3, 1700.0], [12.5, 1600.0, 3.0]):
        found = TemplateCost(X_MOE, match, SEQ_LEN).per_layer(np.array(widths))
        np.testing.assert_allclose(found, COUNTED[match].per_layer(np.array(widths)), rtol=1e-13)


def test_the_mixtures_are_the_papers():
    """The paper counts experts of 0.32 w channels; built ones have whole channels, which is 0.015% more."""
    uniform, x = models = [template.resolve(SEQ_LEN) for template in (UNIFORM_MOE, X_MOE)]
    assert set(uniform.widths) == {1600}
    assert x.widths == MIXTURE["widths"]
    assert [layer.ffn.d_expert for layer in x.layers] == [round(RHO * width) for width in x.widths]
    for match, of_uniform, of_x in [
        ("params", 2_894_537_600, 2_891_691_115.52),
        ("active_params", 1_026_761_600, 1_020_571_796.48),
    ]:
        counted = [getattr(model.cost(), match) - getattr(model.costs()["norm"], match) for model in models]
        assert counted[0] == of_uniform
        assert 0 < counted[1] / of_x - 1 < 0.0002
        assert TABLES + TemplateCost(X_MOE, match, SEQ_LEN).total(np.array(x.widths)) == pytest.approx(of_x, rel=1e-12)
    head_flops = 2 * 100263 * 1600
    n_flops = head_flops + TemplateCost(X_MOE, "flops", SEQ_LEN).total(np.array(x.widths))
    assert n_flops == pytest.approx(MIXTURE["flops_per_token"], rel=1e-12)
    training = [cost_summary(model, SEQ_LEN)["flops_per_token"]["training"] for model in models]
    assert [round(pflops_days(flops, TOKENS), 2) for flops in training] == [10.13, 9.66]
    assert round(100 * (training[1] / training[0] - 1), 1) == -4.6
