"""Sizes within a budget: in proportion along a shape, or where least is lost."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import UserError, parse
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.need import LayerNeed
from widthwise.growth.shrink import LayerSizes, layer_sizes, smaller_config
from widthwise.model.config import ModelConfig
from widthwise.recipe.larger import uniform_rule
from widthwise.recipe.recipe import parse_recipe
from widthwise.recipe.shrinking import COUNTS, curve_of_cut, recipe_of_cut, sizes_at_budget, sizes_like
from widthwise.shape.kinds import CurveShape
from widthwise.shape.template import ModelTemplate

SEQ_LEN = 13


def model_of(n_layers: int = 4, d_model: int = 24, d_ff: int = 36) -> ModelConfig:
    data = {
        "vocab_size": 19,
        "d_model": d_model,
        "n_layers": n_layers,
        "attention": {"head_dim": 4, "kv_group_size": 2},
        "ffn": {"kind": "swiglu", "d_ff": d_ff},
    }
    return parse(ModelTemplate, data, "model").resolve(SEQ_LEN)


def needs_of(model: ModelConfig, seed: int) -> list[LayerNeed]:
    """Random needs, the greatest first, as after sorting; some layers need everything more than others."""
    generator = torch.Generator().manual_seed(seed)

    def falling(n: int) -> torch.Tensor:
        return torch.rand(n, generator=generator, dtype=torch.float64).sort(descending=True).values

    factors = torch.rand(model.n_layers, generator=generator, dtype=torch.float64)
    return [LayerNeed(*(falling(n) * float(f) for n in size)) for f, size in zip(factors, layer_sizes(model))]


def cost(model: ModelConfig, sizes: list[LayerSizes], budget: str) -> float:
    return COUNTS[budget](smaller_config(model, sizes).inference_cost(), SEQ_LEN)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["params", "flops", "kv_bytes"]),
    st.sampled_from(["found", "x", "uniform"]),
    st.floats(0.7, 1),
    st.integers(0, 9),
)
def test_the_budget_is_met_and_no_size_grows(budget: str, shape: str, share: float, seed: int) -> None:
    model = model_of()
    options = ShrinkOptions(**{budget: share}, shape=shape, multiple=4)
    sizes = sizes_at_budget(model, options, SEQ_LEN, needs_of(model, seed))
    assert cost(model, sizes, budget) <= share * cost(model, layer_sizes(model), budget) * (1 + 1e-9)
    for new, old in zip(sizes, layer_sizes(model), strict=True):
        assert all(0 < a <= b for a, b in zip(new, old))
        assert new.d_model % 4 == 0
        assert new.n_hidden % 4 == 0


@pytest.mark.parametrize("shape", ["found", "x", "uniform"])
def test_the_whole_budget_keeps_the_model(shape: str) -> None:
    model = model_of()
    sizes = sizes_at_budget(model, ShrinkOptions(flops=1.0, shape=shape), SEQ_LEN, needs_of(model, 0))
    assert sizes == layer_sizes(model)


@pytest.mark.parametrize("budget", ["params", "flops", "kv_bytes"])
@pytest.mark.parametrize("seed", range(4))
def test_least_is_lost_of_all_choices_within_the_budget(budget: str, seed: int) -> None:
    """Against every combination of two layers' sizes."""
    model = model_of(n_layers=2, d_model=16, d_ff=16)
    needs, options = needs_of(model, seed), ShrinkOptions(**{budget: 0.7}, multiple=8)
    limit = 0.7 * cost(model, layer_sizes(model), budget)
    single = [LayerSizes(*each) for each in product((8, 16), (1, 2), (8, 16))]
    allowed = [pair for pair in product(single, single) if cost(model, list(pair), budget) <= limit]

    def lost(pair: tuple[LayerSizes, ...]) -> float:
        return sum(need.lost(size) for need, size in zip(needs, pair))

    found = sizes_at_budget(model, options, SEQ_LEN, needs)
    assert lost(tuple(found)) == pytest.approx(min(map(lost, allowed)))


def test_an_x_is_narrowest_at_three_quarters_and_keeps_its_ends() -> None:
    model = model_of(n_layers=8, d_model=64, d_ff=64)
    sizes = sizes_at_budget(model, ShrinkOptions(params=0.7, shape="x", multiple=2), SEQ_LEN)
    widths = [size.d_model for size in sizes]
    assert widths[0] == widths[-1] == 64
    assert widths.index(min(widths)) + 1 == round(0.75 * 8)
    assert sorted(widths[:6], reverse=True) == widths[:6]


def test_the_stream_alone_leaves_heads_and_units() -> None:
    model = model_of()
    sizes = sizes_at_budget(model, ShrinkOptions(flops=0.8, shape="uniform", parts="stream"), SEQ_LEN)
    assert [size[1:] for size in sizes] == [size[1:] for size in layer_sizes(model)]
    assert {size.d_model for size in sizes} != {24}


def test_a_budget_that_no_sizes_meet_is_refused_with_the_least_that_can_be_reached() -> None:
    model = model_of()
    with pytest.raises(UserError, match=r"kv_bytes: got 0.5; .* no less than 1.000"):
        sizes_at_budget(model, ShrinkOptions(kv_bytes=0.5, parts="stream"), SEQ_LEN, needs_of(model, 0))
    with pytest.raises(UserError, match=r"params: got 0.01; .* no less than 0\.\d"):
        sizes_at_budget(model, ShrinkOptions(params=0.01, shape="uniform"), SEQ_LEN)


def test_one_budget_is_given() -> None:
    with pytest.raises(UserError, match="give one of params, flops, kv_bytes"):
        parse(ShrinkOptions, {"params": 0.5, "flops": 0.5}, "shrink")


def test_another_model_gives_the_sizes_if_this_one_can_be_cut_to_it() -> None:
    model = model_of()
    assert sizes_like(model, model_of(d_ff=20)) == [size._replace(n_hidden=20) for size in layer_sizes(model)]
    for wanted, message in (
        (model_of(d_model=16), "d_model: got 16 where it was 24"),
        (model_of(n_layers=3), "got sizes of 3 layers; the model has 4"),
        (model_of(d_ff=40), "layers.0.n_hidden: got 40 where there are 36; a cut adds nothing"),
    ):
        with pytest.raises(UserError, match=message):
            sizes_like(model, wanted)


SIZES = [LayerSizes(24, 3, 36), LayerSizes(10, 1, 7), LayerSizes(17, 2, 29), LayerSizes(4, 3, 36)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.builds(LayerSizes, st.integers(1, 24), st.integers(1, 3), st.integers(1, 36)), min_size=4, max_size=4)
)
def test_the_curve_of_a_cut_has_its_layers_at_its_own_widths(sizes: list[LayerSizes]) -> None:
    model = model_of()
    curve, rule = curve_of_cut(model, smaller_config(model, sizes)), uniform_rule(model)
    shape = CurveShape.model_validate({name: tuple(points) for name, points in curve.points.items()})
    widths = [size.d_model for size in sizes]
    assert [point * model.d_model for point in curve.widths] == pytest.approx(widths)
    for size, (attention, ffn) in zip(sizes, shape.layer_parts(rule.attention, rule.ffn, model.d_model, widths)):
        assert attention.at_width(size.d_model).n_kv_heads == size.n_kv_heads
        assert ffn.at_width(size.d_model).hidden_widths == (size.n_hidden,)


@pytest.mark.parametrize("match", ["params", "flops", "kv_bytes"])
def test_the_recipe_of_a_cut_costs_what_the_uniform_model_costs_in_its_proportions(match: str) -> None:
    """A width of hundreds of channels, so that rounding to whole heads moves the cost by less than a hundredth."""
    data = {
        "model": {"vocab_size": 19, "d_model": 384, "n_layers": 4, "attention": {"head_dim": 2}},
        "seq_len": SEQ_LEN,
    }
    train = {"optimizer": {"kind": "adamw", "lr": 0.1}, "schedule": {"kind": "constant"}}
    recipe = parse_recipe({**data, **train, "train": {"steps": 1, "batch_size": 1}}, "recipe").resolved()
    model = recipe.explicit_model
    (whole, *_) = layer_sizes(model)
    sizes = [
        whole._replace(d_model=384 // n, n_kv_heads=192 // m, n_hidden=128 * m) for n, m in ((1, 2), (3, 3), (2, 6))
    ]
    curve = curve_of_cut(model, smaller_config(model, [*sizes, whole]))
    found = parse_recipe(recipe_of_cut(recipe, model, curve, match), "recipe").explicit_model
    whole_cost, own_cost = (COUNTS[match](each.inference_cost(), SEQ_LEN) for each in (model, found))
    assert own_cost == pytest.approx(whole_cost, rel=0.01)
    ratios = [layer.d_model / found.layers[0].d_model for layer in found.layers]
    assert ratios == pytest.approx([1, 1 / 3, 1 / 2, 1], rel=0.02)


def test_a_curve_needs_a_uniform_model_that_was_cut() -> None:
    model = model_of()
    smaller = smaller_config(model, SIZES)
    with pytest.raises(UserError, match="not all as wide as the embedding"):
        curve_of_cut(smaller, smaller)
