"""Variants that are adjusted until they cost what the baseline costs, and the search for the nearest size."""

import math
from functools import partial
from pathlib import Path

import pytest
from boxes import refusal
from thinned import in_turn
from tiny_sweeps import recipe_file

from widthwise.experiments.compare import read_plan
from widthwise.experiments.matching import LARGEST_MISMATCH, Change, matched_ratio
from widthwise.experiments.plan import Comparison
from widthwise.mistakes import UserError
from widthwise.model.ffn.interface import FEED_FORWARDS
from widthwise.model.kinds import kind_of, load_plugins
from widthwise.model.residual.interface import RESIDUALS
from widthwise.shape.adjusting import NEIGHBOURS, Knob, closest_size, nearest_size
from widthwise.yaml_io import merge

load_plugins()
FFNS = {
    "moe": [{"n_experts": 5, "top_k": 2, "n_shared_experts": 1}, {"n_experts": 3, "top_k": 1, "d_expert": 7}],
    "hourglass": [{"n_blocks": 3, "d_hidden": 19}, {"ratio": 0.2}],
    "swiglu": [{"ratio": None, "d_ff": 7}, {"ratio": 1.3, "multiple_of": 3}],
    "dynamic": [{"ratio": 1.5}],
}
FFN_CASES = [
    pytest.param({"kind": kind_of(each), **options}, id=f"{kind_of(each)}-{options}")
    for each in FEED_FORWARDS.templates
    for options in FFNS.get(kind_of(each), [{}])
]
RESIDUAL_CASES = {"hyper_connections": {"n_fractions": 2, "n_slots": 3}}
MODEL = {"d_model": 240, "n_layers": 5, "attention": {"head_dim": 2}, "ffn": {"kind": "swiglu", "ratio": 3}}


def read_all(tmp_path: Path, match: object, *overrides: str, **variants: dict) -> Comparison:
    """The plan of a comparison of MODEL, with overrides, with variants of it."""
    compare = {"match": match, "variants": {"base": {}, **{name: {"model": own} for name, own in variants.items()}}}
    return read_plan([recipe_file(tmp_path, model=MODEL, compare=compare)], overrides)


def read(tmp_path: Path, model: dict, adjust: str, quantity: str = "params") -> Comparison:
    """With one variant, `other`."""
    return read_all(tmp_path, {"quantity": quantity, "adjust": adjust}, other=model)


def only_change(plan: Comparison, name: str = "other") -> Change:
    (change,) = plan.points[name].adjustment.changes
    return change


def assert_nearest(plan: Comparison, adjust: str) -> None:
    """The miss is the real one, and one step more or less is no nearer."""
    base, other, adjustment = plan.recipes["base"], plan.recipes["other"], plan.points["other"].adjustment
    knob = Knob.of(other.model, adjust, other.seq_len)
    models = [other.model, knob.at(knob.start - 1), knob.at(knob.start + 1)]
    misses = [matched_ratio(other.model_copy(update={"model": model}), base, plan.match) - 1 for model in models]
    assert misses[0] == adjustment.miss
    assert abs(misses[0]) == min(LARGEST_MISMATCH, *map(abs, misses))
    assert knob.adjustable.value == adjustment.changes[-1].after


@pytest.mark.parametrize("ffn", FFN_CASES)
def test_every_feed_forward_is_adjusted_to_the_nearest_size(tmp_path: Path, ffn: dict) -> None:
    plan = read(tmp_path, {"ffn": ffn}, "ffn")
    assert only_change(plan).after != only_change(plan).before
    assert_nearest(plan, "ffn")


@in_turn(("kind", [kind_of(each) for each in RESIDUALS.configs]), ("adjust", ["ffn", "d_model"]))
def test_every_residual_leaves_room_to_adjust(tmp_path: Path, kind: str, adjust: str) -> None:
    model = {"residual": {"kind": kind, **RESIDUAL_CASES.get(kind, {})}, "ffn": {"ratio": 2.7}}
    assert_nearest(read(tmp_path, model, adjust), adjust)


@in_turn(
    ("quantity", ["params", "layer_params", "active_params", "flops_causal", "training_flops"]),
    ("adjust", ["ffn", "d_model"]),
)
def test_every_quantity_can_be_met(tmp_path: Path, quantity: str, adjust: str) -> None:
    model = {"ffn": {"kind": "moe", "n_experts": 4, "top_k": 2, "ratio": 0.9}}
    assert_nearest(read(tmp_path, model, adjust, quantity), adjust)


def test_the_width_keeps_whole_heads_and_slots(tmp_path: Path) -> None:
    residual = {"kind": "hyper_connections", "n_fractions": 4, "n_slots": 4}
    other = {"d_model": 1200, "residual": residual}
    plan = read_all(tmp_path, {"adjust": "d_model"}, "model.d_model=2400", "model.attention.head_dim=6", other=other)
    assert plan.recipes["other"].final_model.d_model % 12 == 0


def test_a_number_between_two_steps_stays_where_no_step_is_nearer(tmp_path: Path) -> None:
    """Down to whole units it is the same model, whichever side of the budget that lies on."""
    for n_layers in (4, 5):
        hourglass = {"n_layers": n_layers, "ffn": {"kind": "hourglass", "n_blocks": 3, "ratio": 0.5}}
        nearest = read(tmp_path, hourglass, "ffn").points["other"].adjustment
        assert (nearest.miss < 0) == (n_layers == 4)
        between = nearest.changes[0].after + 1e-4
        change = only_change(read(tmp_path, merge(hourglass, {"ffn": {"ratio": between}}), "ffn"))
        assert (change.before, change.after) == (between, between)


def test_some_variants_can_be_adjusted_and_others_must_match(tmp_path: Path) -> None:
    match = {"adjust": {"small": "d_model", "narrow": "ffn"}}
    plan = read_all(tmp_path, match, small={"d_model": 150}, narrow={"d_model": 200}, same={})
    small, narrow = (only_change(plan, name) for name in ("small", "narrow"))
    assert (small.key, small.after, narrow.key) == ("model.d_model", 240, "model.ffn.ratio")
    layers = plan.recipes["narrow"].resolved().model.layers
    assert {layer.ffn.d_ff for layer in layers} == {round(narrow.after * 200)}
    assert plan.points["same"].adjustment is None
    with pytest.raises(UserError, match=r"^wide: params is 1\.\d+ of base's"):
        read_all(tmp_path, match, small={"d_model": 150}, narrow={"d_model": 200}, wide={"d_model": 250})
    off = read_plan([tmp_path / "tiny.yaml"], match="none")
    assert (off.match, off.notes) == ("none", [])
    assert off.recipes["narrow"].model.ffn == off.recipes["base"].model.ffn


def test_what_cannot_be_reached_or_adjusted_is_refused(tmp_path: Path) -> None:
    kv_bytes = {"quantity": "kv_bytes", "adjust": "ffn"}
    slots = {"d_model": 120, "residual": {"kind": "hyper_connections", "slot_width": 40, "n_slots": 3}}
    for match, model, named in (
        (kv_bytes, {"d_model": 200}, r"^other: kv_bytes is 0\.8333 of .* the nearest model\.ffn\.ratio, 3,"),
        ({"adjust": "ffn"}, {"n_layers": 20}, r"^other: params is 1\.\d+ of .*nearest model\.ffn\.ratio, 0\.0041\d+, "),
        ({"adjust": "ffn"}, {"d_model": 201}, r"^other: model\.layers\.0\.d_model: got 201"),
        (
            {"adjust": "d_model"},
            slots,
            r"^other: params is .* \(model\.d_model .*: model\.residual\.n_slots: got 3; must be at least",
        ),
        ({"adjust": ["ffn", "width"]}, {}, r"match\.adjust: got 'width'; allowed: ffn, d_model"),
        ({"adjust": "ffn,ffn"}, {}, r"match\.adjust: got 'ffn' twice"),
        ({"adjust": {"base": "ffn"}}, {}, "the baseline"),
        ({"adjust": {"othr": "ffn"}}, {}, "did you mean 'other'"),
        ({"quantity": "none", "adjust": "ffn"}, {}, "match: quantity: got 'none'"),
    ):
        with pytest.raises(UserError, match=named):
            read_all(tmp_path, match, other=model)


@pytest.mark.parametrize("start", [1, 7, 41, 1000])
def test_a_rising_cost_is_met_by_the_nearest_size_from_any_start(start: int) -> None:
    for budget in (0.4, 1.0, 37.4, 37.6, 52.0, 100_000.3):
        assert nearest_size(lambda size, budget=budget: size - budget, start) == max(1, round(budget))
    for miss in (-0.2, 0.2):  # a cost that does not change leaves the size
        assert nearest_size(lambda size, miss=miss: miss, start) == start


@pytest.mark.parametrize("start", [100, 165, 300])
def test_sizes_that_there_are_not_are_passed_over(start: int) -> None:
    """Costs rise in steps of 20 sizes, so that no neighbour leads to the nearest."""
    for budget in (50.0, 109.0, 131.0, 233.0, 288.0, 299.0, 450.0):

        def miss(size: int, budget: float = budget) -> float:
            if not 100 <= size <= 300:
                raise UserError(f"size: got {size}; allowed: 100 to 300")
            return size // 20 * 20 - budget

        assert abs(miss(nearest_size(miss, start))) == min(abs(miss(size)) for size in range(100, 301))
    for search in (nearest_size, partial(closest_size, sizes=range(50, 60), tolerance=0.1)):
        assert refusal(search, lambda size: miss(-size), start) == f"size: got {-start}; allowed: 100 to 300"


def test_no_neighbour_is_nearer_where_rounding_makes_costs_fall() -> None:
    def miss(size: int) -> float:
        return size - 501.3 + 3.1 * math.sin(2.7 * size)

    found = nearest_size(miss, 90)
    assert all(abs(miss(found)) <= abs(miss(found + step)) for step in range(-NEIGHBOURS, NEIGHBOURS + 1))


def test_of_the_sizes_within_the_tolerance_the_closest_is_taken() -> None:
    misses = {30: 0.2, 31: 0.01, 32: 0.3, 33: 0.2, 34: -0.02, 35: 0.001}
    assert closest_size(misses.__getitem__, 33, range(30, 36), tolerance=0.02) == 34
    assert closest_size(misses.__getitem__, 33, range(30, 36), tolerance=0.0001) == 35
