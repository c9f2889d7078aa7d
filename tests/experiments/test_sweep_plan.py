"""Which points a sweep has, what they are called, and which sweeps are refused."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tiny_sweeps import RECIPE, hourglass_sizes, recipe_file

from widthwise.experiments.matching import Point
from widthwise.experiments.plan import ALLOWED_IN_NAMES, Sweep
from widthwise.experiments.study import Study
from widthwise.experiments.sweep import read_axes, read_sweep
from widthwise.experiments.sweep_section import Range
from widthwise.mistakes import UserError
from widthwise.recipe.recipe import parse_recipe
from widthwise.yaml_io import read_recipe, to_yaml

SHAPES = Path(__file__).parents[2] / "configs" / "sweep_shapes.yaml"
X = {"model": {"n_layers": 4, "shape": {"kind": "x", "rounding": "balanced"}}}
OVER_X = {"model.shape.bottleneck_layer": [0.5, 0.75], "model.shape.bottleneck_width": [0.5, 0.75]}


def test_a_grid_is_the_product_of_its_axes_each_combination_once(tmp_path: Path) -> None:
    over = {"optimizer.lr": [0.002, 1e-5], "train.steps": [2, 10**6], "train.compile": [True]}
    plan = read_sweep(recipe_file(tmp_path, {"over": over}))
    found = [tuple(point.values.values()) for point in plan.points.values()]
    assert found == list(itertools.product(*over.values()))
    for name, point in plan.points.items():
        assert set(name) <= ALLOWED_IN_NAMES
        train = point.recipe.train
        assert (point.recipe.optimizer.lr, train.steps, train.compile) == tuple(point.values.values())
        assert train.batch_size == RECIPE["train"]["batch_size"]


def test_groups_have_their_own_axes_or_those_of_the_sweep(tmp_path: Path) -> None:
    groups = {"wide": {"change": {"model": {"d_model": 24}}}, "x": {"change": X, "over": OVER_X}}
    baseline = {"baseline": {"model": {"n_layers": 4}}, "baseline_name": "uniform", "match": "none"}
    sweep = {**baseline, "over": {"optimizer.lr": [0.002, 0.004]}, "groups": groups}
    plan = read_sweep(recipe_file(tmp_path, sweep))
    x = [f"x-{layer}-{width}" for layer in (0.5, 0.75) for width in (0.5, 0.75)]
    assert list(plan.points) == ["uniform", "wide-0.002", "wide-0.004", *x]
    widths = [plan.points[name].recipe.explicit_model.widths for name in ("wide-0.004", "uniform")]
    assert widths == [[24, 24], [16] * 4]
    assert plan.points["x-0.75-0.5"].recipe.optimizer.lr == RECIPE["optimizer"]["lr"]
    assert (plan.points["uniform"].group, plan.points["x-0.75-0.5"].group) == ("", "x")
    assert plan.axes == {"wide": {"optimizer.lr": [0.002, 0.004]}, "x": OVER_X}


def test_points_are_matched_with_the_baseline_unless_told_otherwise(tmp_path: Path) -> None:
    sweep = {"baseline": {}, "over": {"model.d_model": [16, 24]}}
    with pytest.raises(UserError, match=r"^24: params is 1\.\d+ of baseline's.*match: none under sweep"):
        read_sweep(recipe_file(tmp_path, sweep))
    assert list(read_sweep(recipe_file(tmp_path, sweep), options={"match": "none"}).points) == ["baseline", "16", "24"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    one = {"optimizer.lr": [1]}
    for sweep, named in (
        ({"over": {"optimizer.lrr": [1]}}, r"^1: optimizer\.lrr: unknown key; did you mean 'lr'"),
        ({"over": {"model.attention.head_dim": [8, 7]}}, r"^7: "),
        ({"over": {"optimizer.lr": [0.1, 0.1]}}, "values must be distinct"),
        ({"over": {"optimizer.lr": 0.1}}, r"got 0\.1; expected a list of values, or a range"),
        ({"over": {"data": [{"corpus": "synthetic"}]}}, "use a group"),
        ({"over": {"optimizer.lr": {"low": 0.1, "high": 0.2}}}, "a grid needs a list of values"),
        ({"over": {f"model.{key}": [*range(101)] for key in ("d_model", "n_layers")}}, "a grid of 10,201 points"),
        ({"over": {"optimizer.lr": {"low": 0.2, "high": 0.1}}}, r"low: got 0\.2; must be less than high"),
        ({"over": {"optimizer.lr": {"low": 0, "high": 0.1, "log": True}}}, "a logarithmic scale needs values above 0"),
        ({"over": {"optimizer.lr": {"low": 0.1, "high": 0.2, "step": 1}}}, "needs whole low and high"),
        ({"over": {"train.seed": [1, 2]}}, r"over\.train\.seed: every point runs with all of sweep\.seeds"),
        ({"over": {}}, "got no key; name what to vary"),
        ({"over": one, "match": "params"}, "nothing can be matched without a baseline"),
        ({"over": one, "groups": {"../x": {}}}, "groups: got the name '../x'"),
        ({"over": one, "groups": {"a": {}}, "baseline": {}, "baseline_name": "a-1"}, "named a-1"),
    ):
        with pytest.raises(UserError, match=named):
            read_sweep(recipe_file(tmp_path, sweep))


def test_what_is_asked_for_replaces_keys_of_the_section(tmp_path: Path) -> None:
    sweep = {"over": {"optimizer.lr": [1]}, "seeds": [1], "search": {"sampler": "random", "n_trials": 4}}
    asked = {"over": {"train.steps": [2, 3]}, "seeds": [5, 6], "search": {"n_trials": 9}}
    config = read_sweep(recipe_file(tmp_path, sweep), options=asked).space.config
    assert (config.seeds, list(config.over)) == ((5, 6), ["train.steps"])
    assert (config.search.sampler, config.search.n_trials) == ("random", 9)
    own = {"groups": {"a": {"over": {"optimizer.lr": [1]}}}}
    with pytest.raises(UserError, match="every group of the recipe defines its axes"):
        read_sweep(recipe_file(tmp_path, own), options={"over": {"train.steps": [2]}})


def test_an_axis_can_be_written_on_the_command_line() -> None:
    for text, axis in (
        ("optimizer.lr=1e-3,0.004", {"optimizer.lr": [1e-3, 0.004]}),
        ("model.shape.widths=[8, 16],[16, 8]", {"model.shape.widths": [[8, 16], [16, 8]]}),
        ("train.steps={low: 2, high: 9}", {"train.steps": {"low": 2, "high": 9}}),
    ):
        assert read_axes([text]) == axis


def test_a_drawn_number_is_rounded_and_never_out_of_its_range() -> None:
    axis = Range(low=0.12345649, high=0.98765451)
    for drawn, expected in ((axis.low, axis.low), (0.5000004, 0.5), (axis.high, axis.high)):
        trial = Mock(suggest_float=Mock(return_value=drawn))
        assert axis.suggest(trial, "optimizer.lr") == expected


def test_sweeps_that_train_something_else_may_not_share_a_study(tmp_path: Path) -> None:
    def identity(sweep: dict, **changes: Any) -> str:
        return read_sweep(recipe_file(tmp_path, sweep, **changes)).space.identity()

    search = {"over": {"optimizer.lr": [0.1, 0.2]}, "seeds": [1, 2], "search": {"n_trials": 3}}
    changes = [{}, {"over": {"optimizer.lr": [0.1, 0.3]}}, {"seeds": [1, 2, 3]}, {"baseline": {}}]
    changes.append({"baseline": {}, "match": "none"})
    identities = [*(identity(search | change) for change in changes), identity(search, train={"steps": 5})]
    assert len(set(identities)) == len(identities)
    assert identity(search | {"search": {"n_trials": 30}}) == identities[0]  # a longer search goes on


def test_the_five_shapes_are_matched_and_a_point_is_the_recipe_with_the_same_keys_written_by_hand() -> None:
    plan = read_sweep(SHAPES)
    groups = Counter(point.group for point in plan.points.values())
    assert (groups, plan.match) == ({"": 1, "x": 9, "diamond": 9, "growing": 3, "narrowing": 3}, "params")
    data = read_recipe(SHAPES)
    del data["sweep"]
    data["model"]["attention"] = {"n_heads": 4, "head_dim": None}
    place = {"bottleneck_layer": 0.25, "bottleneck_width": 0.3}
    data["model"]["shape"] = {"kind": "x", "rounding": "balanced", "quantum": 8, **place}
    by_hand = parse_recipe(data, "by hand")
    assert to_yaml(plan.points["x-0.25-0.3"].recipe.resolved()) == to_yaml(by_hand.resolved())


HOURGLASSES = {"model": {"attention": {"n_heads": 3, "head_dim": None}, "ffn": {"kind": "hourglass"}}}
CONVENTIONAL = {"model": {"d_model": 192, "n_layers": 6, "ffn": {"ratio": 4}}}
BUDGET = 6 * 192**2 * (4 + 3 * 4)


def solved(folder: Path, over: dict[str, Any], **sweep: Any) -> Sweep:
    """Hourglasses whose sizes are solved for the parameters of the conventional model's layers."""
    section = {
        "baseline": CONVENTIONAL,
        "match": {"quantity": "layer_params", "adjust": ["d_model", "ffn"]},
        "groups": {"hg": {"change": HOURGLASSES, "over": over}},
        **sweep,
    }
    return read_sweep(recipe_file(folder, section))


def sizes_of(point: Point) -> tuple[int, int, int, int]:
    """n_blocks, n_layers, d_model, d_hidden"""
    model = point.recipe.final_model
    ((d_model, d_hidden),) = {(layer.d_model, layer.ffn.hidden_widths) for layer in model.layers}
    return len(d_hidden), model.n_layers, d_model, d_hidden[0]


def test_every_point_of_a_grid_is_sized_to_the_budget(tmp_path: Path) -> None:
    over = {"model.ffn.n_blocks": [2, 5], "model.ffn.ratio": [0.3, 0.45], "model.n_layers": [4, 9]}
    plan = solved(tmp_path, over)
    assert plan.points["baseline"].adjustment is None
    for name, point in list(plan.points.items())[1:]:
        n_blocks, n_layers = point.values["model.ffn.n_blocks"], point.values["model.n_layers"]
        d_model, d_hidden = hourglass_sizes(BUDGET, n_layers, n_blocks, point.values["model.ffn.ratio"], 6)
        assert sizes_of(point) == (n_blocks, n_layers, d_model, d_hidden)
        params = n_layers * d_model * (4 * d_model + 3 * n_blocks * d_hidden)
        assert point.adjustment.miss == pytest.approx(params / BUDGET - 1)
        assert f"{name}: {point.adjustment}" in plan.notes
    assert len(plan.notes) == 8


@pytest.mark.parametrize("aspect", [12, 31.5])
def test_an_aspect_chooses_the_depth_whose_width_meets_the_budget(tmp_path: Path, aspect: float) -> None:
    """With d_model = aspect * n_layers the budget is aspect^2 n_layers^3 (4 + 3 K r)."""
    plan = solved(tmp_path, {"aspect": [aspect], "model.ffn.ratio": [0.4], "model.ffn.n_blocks": [3]})
    exact = (BUDGET / (aspect**2 * (4 + 3 * 3 * 0.4))) ** (1 / 3)
    point = plan.points[f"hg-{aspect}-0.4-3"]
    n_blocks, n_layers, d_model, d_hidden = sizes_of(point)
    assert abs(n_layers - exact) < 1
    assert (d_model, d_hidden) == hourglass_sizes(BUDGET, n_layers, n_blocks, 0.4, quantum=6)
    assert [change.key for change in point.adjustment.changes] == ["model.n_layers", "model.d_model", "model.ffn.ratio"]
    assert point.values["aspect"] == aspect


def test_mistakes_of_solved_sizes_are_named(tmp_path: Path) -> None:
    ratio = {"model.ffn.ratio": [0.4]}
    for over, sweep, named in (
        ({"aspect": [30]}, {"match": "layer_params"}, r"groups\.hg\.over\.aspect: needs match: \{adjust: d_model\}"),
        ({"aspect": [30], "model.n_layers": [3]}, {}, r"over\.model\.n_layers: is solved from the budget"),
        ({"model.d_model": [48]}, {}, r"groups\.hg\.over\.model\.d_model: is solved from the budget"),
        (ratio, {"match": {"adjust": {"gh": "ffn"}}}, r"match\.adjust: got 'gh'; allowed: hg"),
        ({"aspect": [0]}, {}, "hg-0: aspect: got 0; d_model / n_layers must be above 0"),
    ):
        with pytest.raises(UserError, match=named):
            solved(tmp_path, over, **sweep)


def test_a_study_continues_under_another_name_of_the_recipe_and_refuses_another_search(tmp_path: Path) -> None:
    def study(title: str, highest: float = 0.1) -> Study:
        over = {"optimizer.lr": {"low": 0.001, "high": highest, "log": True}}
        plan = read_sweep(recipe_file(tmp_path, {"over": over, "search": {"n_trials": 3}}, name=title))
        return Study(plan, tmp_path / "out")

    point = study("first").claim()
    (continued,) = study("renamed").drawn()
    assert (continued.name, continued.values, continued.state) == (point.name, point.values, "running")
    with pytest.raises(UserError, match=r"study.log: is the study of another search; choose another folder with --out"):
        study("renamed", highest=0.2)
