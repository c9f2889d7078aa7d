"""Sizes within a budget: in proportion along a shape, or where least is lost."""

from itertools import combinations, product

import pytest
import torch
from boxes import refusal
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_runs import tiny_recipe

from widthwise.config_io import parse, to_data
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.need import LayerNeed
from widthwise.growth.shrink import REMOVED, LayerSizes, layer_sizes, smaller_config
from widthwise.model.config import ModelConfig
from widthwise.recipe.larger import uniform_rule
from widthwise.recipe.recipe import parse_recipe
from widthwise.recipe.shrinking import curve_of_cut, recipe_of_cut, sizes_at_budget, sizes_like
from widthwise.shape.kinds import CurveShape
from widthwise.shape.template import QUANTITIES, ModelTemplate

SEQ_LEN = 13


def model_of(n_layers: int = 4, d_model: int = 24, d_ff: int = 36, **changes: object) -> ModelConfig:
    data = {
        "vocab_size": 19,
        "d_model": d_model,
        "n_layers": n_layers,
        "attention": {"head_dim": 4, "kv_group_size": 2},
        "ffn": {"kind": "swiglu", "d_ff": d_ff},
        **changes,
    }
    return parse(ModelTemplate, data, "model").resolve(SEQ_LEN)


def mixture(n_experts: int = 5, top_k: int = 2) -> ModelConfig:
    ffn = {"kind": "moe", "n_experts": n_experts, "top_k": top_k, "d_expert": 12, "n_shared_experts": 1}
    return model_of(ffn=ffn)


def needs_of(model: ModelConfig, seed: int) -> list[LayerNeed]:
    """Random needs, the greatest first, as after sorting; some layers need everything more than others."""

    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    needs = []
    for size in layer_sizes(model):
        factor, stream = drawn(1), drawn(size.d_model).sort(descending=True).values
        parts = stream, drawn(size.n_kv_heads), drawn(size.n_experts, size.n_hidden)
        needs.append(LayerNeed(*(factor * part for part in parts)).in_order())
    return needs


def cost(model: ModelConfig, sizes: list[LayerSizes], budget: str) -> float:
    return QUANTITIES[budget](smaller_config(model, sizes).inference_cost(), SEQ_LEN)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([model_of(), mixture(n_experts=5, top_k=2)]),
    st.sampled_from(["params", "flops", "kv_bytes"]),
    st.sampled_from(["found", "x", "uniform"]),
    st.floats(0.7, 1),
    st.integers(0, 9),
)
@example(mixture(), "params", "found", 0.3, 1)
@example(mixture(), "params", "uniform", 0.3, 1)
def test_the_budget_is_met_and_no_size_grows(
    model: ModelConfig, budget: str, shape: str, share: float, seed: int
) -> None:
    """And a mixture keeps at least the experts that a token chooses."""
    options = ShrinkOptions(**{budget: share}, shape=shape, multiple=4)
    sizes = sizes_at_budget(model, options, SEQ_LEN, needs_of(model, seed))
    assert cost(model, sizes, budget) <= share * cost(model, layer_sizes(model), budget) * (1 + 1e-9)
    for new, old in zip(sizes, layer_sizes(model), strict=True):
        assert new == REMOVED or all(0 < a <= b for a, b in zip(new, old))
        assert new == REMOVED or new.n_experts >= min(2 if shape == "found" else 5, old.n_experts)
        assert new.d_model % 4 == 0
        assert new.n_hidden % 4 == 0


@pytest.mark.parametrize("budget", ["params", "flops", "kv_bytes"])
@pytest.mark.parametrize("seed", range(4))
def test_least_is_lost_of_all_choices_within_the_budget(budget: str, seed: int) -> None:
    """Against every combination of two layers' sizes."""
    model = model_of(n_layers=2, d_model=16, d_ff=16)
    needs, options = needs_of(model, seed), ShrinkOptions(**{budget: 0.7}, multiple=8)
    limit = 0.7 * cost(model, layer_sizes(model), budget)
    single = [REMOVED, *(LayerSizes(*each) for each in product((8, 16), (1, 2), (8, 16)))]
    pairs = [list(pair) for pair in product(single, single) if set(pair) != {REMOVED}]
    allowed = [pair for pair in pairs if cost(model, pair, budget) <= limit]

    def lost(pair: list[LayerSizes]) -> float:
        return sum(need.lost(size) for need, size in zip(needs, pair))

    found = sizes_at_budget(model, options, SEQ_LEN, needs)
    assert lost(found) == pytest.approx(min(map(lost, allowed)))


def test_an_x_is_narrowest_at_three_quarters_and_keeps_its_ends() -> None:
    model = model_of(n_layers=8, d_model=64, d_ff=64)
    sizes = sizes_at_budget(model, ShrinkOptions(params=0.7, shape="x", multiple=2), SEQ_LEN)
    widths = [size.d_model for size in sizes]
    assert widths[0] == widths[-1] == 64
    assert widths.index(min(widths)) + 1 == round(0.75 * 8)
    assert sorted(widths[:6], reverse=True) == widths[:6]


def test_a_budget_that_no_sizes_meet_is_refused_with_the_least_that_can_be_reached_and_so_are_two() -> None:
    model = model_of()
    for options in (ShrinkOptions(kv_bytes=0.01), ShrinkOptions(params=0.01, shape="uniform")):
        message = refusal(sizes_at_budget, model, options, SEQ_LEN, needs_of(model, 0))
        assert f"{options.budget}: got 0.01; must be no less than 0." in message
    assert "give one of params" in refusal(parse, ShrinkOptions, {"params": 0.5, "flops": 0.5}, "shrink")


def test_experts_and_layers_without_need_go_first() -> None:
    model = mixture()
    needs = [LayerNeed(need.stream, need.groups, need.units.clone()) for need in needs_of(model, 0)]
    for need in needs:
        need.units[3:] = 0
    needs[2] = LayerNeed(needs[2].stream, *(torch.zeros_like(part) for part in (needs[2].groups, needs[2].units)))
    whole = layer_sizes(model)
    unneeded = [REMOVED if i == 2 else size._replace(n_experts=3) for i, size in enumerate(whole)]
    share = cost(model, unneeded, "params") / cost(model, whole, "params")
    options = ShrinkOptions(params=share + 1e-9, multiple=4)
    assert sizes_at_budget(model, options, SEQ_LEN, needs) == unneeded


def test_fewer_layers_take_the_places_at_which_least_is_lost() -> None:
    """Against every choice of places."""
    model, wanted = model_of(n_layers=5), model_of(n_layers=3, d_ff=20)
    for seed in range(4):
        needs = needs_of(model, seed)
        found = sizes_like(model, wanted, needs)
        size = layer_sizes(wanted)[0]
        ways = [[size if i in places else REMOVED for i in range(5)] for places in combinations(range(5), 3)]
        assert found == min(ways, key=lambda way: sum(need.lost(each) for need, each in zip(needs, way)))


def test_fewer_layers_take_only_places_where_they_fit() -> None:
    shape = {"kind": "explicit", "widths": [24, 8, 16, 24]}
    model = model_of(shape=shape)
    wanted = model_of(n_layers=3, shape={**shape, "widths": [24, 16, 24]})
    for needs in ([], needs_of(model, 0)):
        assert [size.d_model for size in sizes_like(model, wanted, needs)] == [24, 0, 16, 24]
    message = refusal(sizes_like, model, model_of(n_layers=3, shape={**shape, "widths": [24, 24, 24]}))
    assert message.startswith("n_layers: got 3 ")
    assert "such as layers.0.d_model: got 24 where there are 8" in message


def test_another_model_gives_the_sizes_if_this_one_can_be_cut_to_it() -> None:
    model = model_of()
    assert sizes_like(model, model_of(d_ff=20)) == [size._replace(n_hidden=20) for size in layer_sizes(model)]
    for wanted, message in (
        (model_of(d_model=32), "d_model: got 32 where there are 24; a cut adds nothing"),
        (model_of(n_layers=5), "n_layers: got 5 where there are 4; a cut adds nothing"),
        (mixture(), "layers.0.ffn.kind: got 'moe' where it was 'swiglu'"),
        (model_of(d_ff=40), "layers.0.n_hidden: got 40 where there are 36; a cut adds nothing"),
    ):
        assert message in refusal(sizes_like, model, wanted)
    of_one_expert = "layers.0.ffn.top_k: got 1 where it was 2, which a cut cannot change"
    assert of_one_expert in refusal(sizes_like, mixture(), mixture(top_k=1))
    fewer = [size._replace(n_experts=3) for size in layer_sizes(mixture())]
    assert sizes_like(mixture(), mixture(n_experts=3)) == fewer


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.builds(LayerSizes, st.integers(1, 24), st.integers(1, 3), st.integers(1, 36), st.just(1))] * 4))
def test_the_curve_of_a_cut_has_its_layers_at_its_own_widths(sizes: tuple[LayerSizes, ...]) -> None:
    model = model_of()
    curve, rule = curve_of_cut(model, smaller_config(model, sizes)), uniform_rule(model)
    points = {"widths": curve.widths, "attention": curve.attention, "hidden": curve.hidden}
    shape = CurveShape.model_validate({name: tuple(values) for name, values in points.items() if values})
    widths = [size.d_model for size in sizes]
    assert [point * model.d_model for point in curve.widths] == pytest.approx(widths)
    for size, (attention, ffn) in zip(sizes, shape.layer_parts(rule.attention, rule.ffn, model.d_model, widths)):
        assert attention.at_width(size.d_model).n_kv_heads == size.n_kv_heads
        assert ffn.at_width(size.d_model).hidden_widths == (size.n_hidden,)


def check_recipe_of_cut(d_model: int, head_dim: int, changes: list[dict[str, int]], match: str) -> ModelConfig:
    """Return the model of the recipe of a cut after checking that it costs what the uniform model costs."""
    template = {"vocab_size": 19, "d_model": d_model, "n_layers": 4, "attention": {"head_dim": head_dim}}
    recipe = parse_recipe({**to_data(tiny_recipe()), "model": template, "seq_len": SEQ_LEN}, "recipe").resolved()
    model = recipe.explicit_model
    sizes = [size._replace(**change) for size, change in zip(layer_sizes(model), changes, strict=True)]
    data = recipe_of_cut(recipe, model, curve_of_cut(model, smaller_config(model, sizes)), match)
    found = parse_recipe(data, "recipe").explicit_model
    costs = [QUANTITIES[match](each.inference_cost(), SEQ_LEN) for each in (model, found)]
    assert costs[1] == pytest.approx(costs[0], rel=0.01)
    return found


@pytest.mark.parametrize("match", ["params", "flops", "kv_bytes"])
def test_the_recipe_of_a_cut_costs_what_the_uniform_model_costs_in_its_proportions(match: str) -> None:
    """A width of hundreds of channels, so that rounding to whole heads moves the cost by less than a hundredth."""
    cuts = ((1, 2), (3, 3), (2, 6))
    changes = [{"d_model": 384 // n, "n_kv_heads": 192 // m, "n_hidden": 128 * m} for n, m in cuts]
    found = check_recipe_of_cut(384, 2, [*changes, {}], match)
    ratios = [layer.d_model / found.layers[0].d_model for layer in found.layers]
    assert ratios == pytest.approx([1, 1 / 3, 1 / 2, 1], rel=0.02)


@pytest.mark.parametrize("match", ["params", "flops"])
@pytest.mark.parametrize("d_model", [36, 60])
def test_the_recipe_of_a_small_cut_meets_its_budget_though_heads_are_whole(match: str, d_model: int) -> None:
    check_recipe_of_cut(d_model, 12, [{"n_kv_heads": 1}, {"d_model": 17}, {"n_hidden": 31}, {}], match)


def test_a_curve_needs_a_uniform_model_that_was_cut() -> None:
    smaller = smaller_config(model_of(), [LayerSizes(24, 3, 36), LayerSizes(10, 1, 7)] * 2)
    assert "not all as wide as the embedding" in refusal(curve_of_cut, smaller, smaller)
