"""Which points a sweep has, what they are called, and which sweeps are refused."""

import copy
import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_sweeps import RECIPE, recipe_file

from widthwise.config_io import UserError
from widthwise.experiments.runs import ALLOWED_IN_NAMES
from widthwise.experiments.sweep.axes import Range
from widthwise.experiments.sweep.plan import SweepPlan, SweepPoint, read_axes, read_axis, read_sweep
from widthwise.recipe.recipe import load_recipe, parse_recipe
from widthwise.yaml_io import to_yaml

SHAPES = Path(__file__).parents[2] / "configs" / "sweep_shapes.yaml"
X = {"model": {"n_layers": 4, "shape": {"kind": "x", "rounding": "balanced"}}}

AXES = {
    "optimizer.lr": st.lists(st.floats(1e-5, 0.5), min_size=1, max_size=4, unique=True),
    "train.steps": st.lists(st.integers(2, 10**6), min_size=1, max_size=4, unique=True),
    "model.d_model": st.lists(st.integers(1, 60).map(lambda n: 8 * n), min_size=1, max_size=4, unique=True),
    "train.z_loss": st.lists(st.floats(0, 1), min_size=1, max_size=3, unique=True),
    "train.compile": st.lists(st.booleans(), min_size=1, max_size=2, unique=True),
}
axes = st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=3, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: AXES[key] for key in keys})
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(over=axes)
def test_a_grid_is_the_product_of_its_axes_each_combination_once(tmp_path: Path, over: dict[str, list[Any]]) -> None:
    plan = read_sweep(recipe_file(tmp_path, {"over": over}))
    found = Counter(tuple(point.values.items()) for point in plan.grid.values())
    assert found == Counter(tuple(zip(over, values)) for values in itertools.product(*over.values()))
    assert plan.n_points == math.prod(map(len, over.values()))
    assert all(name == point.name and set(name) <= ALLOWED_IN_NAMES for name, point in plan.grid.items())
    for point in plan.grid.values():
        lr = point.values.get("optimizer.lr", RECIPE["optimizer"]["lr"])
        assert point.recipe.optimizer.lr == lr
        assert point.recipe.train.steps == point.values.get("train.steps", RECIPE["train"]["steps"])


def test_groups_have_their_own_axes_or_those_of_the_sweep(tmp_path: Path) -> None:
    sweep = {
        "baseline": {"model": {"n_layers": 4}},
        "baseline_name": "uniform",
        "over": {"optimizer.lr": [0.002, 0.004]},
        "match": "none",
        "groups": {"wide": {"change": {"model": {"d_model": 24}}}, "x": {"change": X, "over": OVER_X}},
    }
    plan = read_sweep(recipe_file(tmp_path, sweep))
    x = [f"x-{layer}-{width}" for layer in (0.5, 0.75) for width in (0.5, 0.75)]
    assert list(plan.grid) == ["uniform", "wide-0.002", "wide-0.004", *x]
    assert plan.grid["wide-0.004"].recipe.explicit_model.widths == [24, 24]
    assert plan.grid["x-0.75-0.5"].recipe.optimizer.lr == RECIPE["optimizer"]["lr"]
    assert plan.grid["uniform"].recipe.explicit_model.widths == [16] * 4
    assert (plan.grid["uniform"].group, plan.grid["x-0.75-0.5"].group) == ("", "x")
    assert plan.axes_as_data() == {"wide": {"optimizer.lr": [0.002, 0.004]}, "x": OVER_X}


OVER_X = {"model.shape.bottleneck_layer": [0.5, 0.75], "model.shape.bottleneck_width": [0.5, 0.75]}


def test_a_list_is_a_value_whose_words_are_joined(tmp_path: Path) -> None:
    change = {"model": {"shape": {"kind": "explicit", "widths": [16, 16]}}}
    over = {"model.shape.widths": [[16, 24], [24, 16]], "data.corpus": ["synthetic"]}
    plan = read_sweep(recipe_file(tmp_path, {"groups": {"hand": {"change": change, "over": over}}}))
    assert list(plan.grid) == ["hand-16+24-synthetic", "hand-24+16-synthetic"]
    assert plan.grid["hand-24+16-synthetic"].recipe.explicit_model.widths == [24, 16]


def test_points_are_matched_with_the_baseline_unless_told_otherwise(tmp_path: Path) -> None:
    sweep = {"baseline": {}, "over": {"model.d_model": [16, 24]}}
    with pytest.raises(UserError, match=r"^24: params is 1\.\d+ of baseline's.*match: none under sweep"):
        read_sweep(recipe_file(tmp_path, sweep))
    assert list(read_sweep(recipe_file(tmp_path, sweep), asked={"match": "none"}).grid) == ["baseline", "16", "24"]


def test_points_without_a_baseline_are_judged_on_the_same_text(tmp_path: Path) -> None:
    assert read_sweep(recipe_file(tmp_path, {"over": {"train.batch_size": [2, 3]}})).config.matched == "none"
    with pytest.raises(UserError, match="12: seq_len is 12, but 17 in 17; not comparable"):
        read_sweep(recipe_file(tmp_path, {"over": {"seq_len": [17, 12]}}))


@pytest.mark.parametrize(
    ("sweep", "named"),
    [
        ({"over": {"optimizer.lrr": [1]}}, r"^1: optimizer\.lrr: unknown key; did you mean 'lr'"),
        ({"over": {"model.attention.head_dim": [8, 7]}}, r"^7: "),
        ({"over": {"optimizer.lr": []}}, r"over\.optimizer\.lr"),
        ({"over": {"optimizer.lr": [0.1, 0.1]}}, "each value may be given once"),
        ({"over": {"optimizer.lr": 0.1}}, r"got 0\.1; expected a list of values, or a range"),
        ({"over": {"data": [{"corpus": "synthetic"}]}}, "make a group of it"),
        ({"over": {"optimizer.lr": {"low": 0.1, "high": 0.2}}}, "a grid needs a list of values"),
        ({"over": {"optimizer.lr": {"low": 0.2, "high": 0.1}}}, r"low: got 0\.2; must be less than high"),
        ({"over": {"optimizer.lr": {"low": 0, "high": 0.1, "log": True}}}, "a logarithmic scale needs values above 0"),
        ({"over": {"optimizer.lr": {"low": 0.1, "high": 0.2, "step": 1}}}, "goes with whole low and high"),
        ({"over": {"train.seed": [1, 2]}}, r"over\.train\.seed: every point runs with all of sweep\.seeds"),
        ({"over": {"optimizer.lr": [1]}, "groups": ["a"]}, "groups: got"),
        ({"over": {}}, "got no key; name what to vary"),
        ({"seeds": [1, 1], "over": {"optimizer.lr": [1]}}, "each seed may be given once"),
        ({"over": {"optimizer.lr": [1]}, "match": "params"}, "nothing can be matched without a baseline"),
        ({"over": {"optimizer.lr": [1]}, "groups": {"../x": {}}}, "groups: got the name '../x'"),
        ({"over": {"optimizer.lr": [1]}, "groups": {"a": {}}, "baseline": {}, "baseline_name": "a-1"}, "named a-1"),
        ({"over": {"optimizer.lr": [1]}, "search": {"sampler": "cma", "n_trials": 3}}, r"search\.sampler: got 'cma'"),
        ({"over": {"optimizer.lr": [1]}, "search": {}}, r"search\.n_trials: is required"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, sweep: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        read_sweep(recipe_file(tmp_path, sweep))


def test_a_recipe_without_a_sweep_is_refused_and_a_sweep_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no sweep section"):
        read_sweep(recipe_file(tmp_path))
    with pytest.raises(UserError, match=r"has a sweep section.*`widthwise sweep` runs them"):
        load_recipe(recipe_file(tmp_path, {"over": {"optimizer.lr": [1]}}))


def test_what_is_asked_for_replaces_keys_of_the_section(tmp_path: Path) -> None:
    sweep = {"over": {"optimizer.lr": [1]}, "seeds": [1], "search": {"sampler": "random", "n_trials": 4}}
    asked = {"over": {"train.steps": [2, 3]}, "seeds": [5, 6], "search": {"n_trials": 9}}
    config = read_sweep(recipe_file(tmp_path, sweep), asked=asked).config
    assert (config.seeds, list(config.over), config.search.sampler, config.search.n_trials) == (
        (5, 6),
        ["train.steps"],
        "random",
        9,
    )
    own = {"groups": {"a": {"over": {"optimizer.lr": [1]}}}}
    with pytest.raises(UserError, match="every group of the recipe has axes of its own"):
        read_sweep(recipe_file(tmp_path, own), asked={"over": {"train.steps": [2]}})


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("optimizer.lr=1e-3,0.004", ("optimizer.lr", [1e-3, 0.004])),
        ("data.corpus=a,b", ("data.corpus", ["a", "b"])),
        ("model.shape.widths=[8, 16],[16, 8]", ("model.shape.widths", [[8, 16], [16, 8]])),
        ("train.steps={low: 2, high: 9}", ("train.steps", {"low": 2, "high": 9})),
    ],
)
def test_an_axis_can_be_written_on_the_command_line(text: str, axis: tuple) -> None:
    assert read_axis(text) == axis


@pytest.mark.parametrize("text", ["optimizer.lr", "=1,2", "optimizer.lr="])
def test_an_axis_without_key_or_values_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected key=value,value"):
        read_axis(text)


def test_a_value_that_rounding_puts_outside_its_range_is_the_end_of_the_range() -> None:
    axis = Range(low=1 / 3, high=2 / 3)
    drawn = [axis.drawn(optuna.trial.FixedTrial({"lr": value}), "lr") for value in (1 / 3, 0.123456789 * 4, 2 / 3)]
    assert drawn == [1 / 3, 0.493827, 2 / 3]


def test_axes_of_one_key_are_refused() -> None:
    assert read_axes(["a=1,2", "b=3"]) == {"a": [1, 2], "b": [3]}
    with pytest.raises(UserError, match="--over a: is given twice"):
        read_axes(["a=1", "a=2"])


def test_sweeps_that_train_something_else_may_not_share_a_study(tmp_path: Path) -> None:
    def identity(sweep: dict, **changes: Any) -> str:
        return read_sweep(recipe_file(tmp_path, sweep, **changes)).identity

    over = {"over": {"optimizer.lr": [0.1, 0.2]}, "seeds": [1, 2]}
    search = {**over, "search": {"n_trials": 3}}
    assert identity(over) == identity(over)
    others = [
        identity(over),
        identity({**over, "seeds": [1, 2, 3]}),
        identity({**over, "baseline": {}}),
        identity({**over, "baseline": {}, "match": "none"}),
        identity(over, train={**RECIPE["train"], "steps": 5}),
        identity(search),
        identity({**search, "over": {"optimizer.lr": [0.1, 0.3]}}),
        identity(search, train={**RECIPE["train"], "steps": 5}),
    ]
    assert len(set(others)) == len(others)
    assert identity(search) == identity({**search, "search": {"n_trials": 30}})  # a longer search goes on


def test_the_workload_counts_all_seeds(tmp_path: Path) -> None:
    plan = read_sweep(recipe_file(tmp_path, {"over": {"train.steps": [3, 5]}, "seeds": [1, 2, 3]}))
    work = plan.workload()
    per_token = plan.grid["3"].recipe.explicit_model.cost().training_flops(17)
    assert (work["n_points"], work["n_runs"]) == (2, 6)
    assert [row["tokens"] for row in work["points"]] == [3 * steps * 3 * 17 for steps in (3, 5)]
    assert work["training_flops"] == pytest.approx(3 * (3 + 5) * 3 * 17 * per_token)


def test_the_five_shapes_are_all_matched_and_named() -> None:
    plan = read_sweep(SHAPES)
    grid = [f"x-{layer}-{width}" for layer in (0.25, 0.5, 0.75) for width in (0.3, 0.5, 0.7)]
    diamonds = [f"diamond-{layer}-{width}" for layer in (0.25, 0.5, 0.75) for width in (1.25, 1.5, 1.75)]
    monotone = [f"{kind}-{width}" for kind in ("growing", "narrowing") for width in (0.3, 0.5, 0.7)]
    assert list(plan.grid) == ["uniform", *grid, *diamonds, *monotone]
    assert len(plan.grid) == 25
    assert plan.config.matched == "params"
    narrowest = {name: min(point.recipe.explicit_model.widths) for name, point in plan.grid.items()}
    assert all(narrowest[name] < 64 for name in plan.grid if name != "uniform")
    assert narrowest["uniform"] == 64


def test_a_point_is_the_recipe_with_the_same_keys_written_by_hand() -> None:
    """x-0.25-0.3 of the five shapes beside its recipe without a sweep."""
    data = yaml.safe_load(SHAPES.read_text())
    base = yaml.safe_load((SHAPES.parent / data.pop("extends")).read_text())
    del data["sweep"]
    for key, value in data.items():
        base[key] = base[key] | value if isinstance(base[key], dict) and key in ("model", "train") else value
    base["model"]["attention"] = {"n_heads": 4, "head_dim": None}
    base["model"]["shape"] = {
        **{"kind": "x", "rounding": "balanced", "quantum": 8},
        **{"bottleneck_layer": 0.25, "bottleneck_width": 0.3},
    }
    by_hand = parse_recipe(base, "by hand")
    assert to_yaml(read_sweep(SHAPES).grid["x-0.25-0.3"].recipe.resolved()) == to_yaml(by_hand.resolved())


HOURGLASSES = {"model": {"attention": {"n_heads": 3, "head_dim": None}, "ffn": {"kind": "hourglass"}}}
CONVENTIONAL = {"model": {"d_model": 192, "n_layers": 6, "ffn": {"ratio": 4}}}
BUDGET = 6 * 192**2 * (4 + 3 * 4)


def solved(folder: Path, over: dict[str, Any], **sweep: Any) -> SweepPlan:
    """Hourglasses whose sizes are solved for the parameters of the conventional model's layers."""
    section = {
        "baseline": CONVENTIONAL,
        "match": {"quantity": "layer_params", "adjust": ["d_model", "ffn"]},
        "groups": {"hg": {"change": HOURGLASSES, "over": over}},
        **sweep,
    }
    return read_sweep(recipe_file(folder, section))


def sizes_of(point: SweepPoint) -> tuple[int, int, int, int]:
    """n_blocks, n_layers, d_model, d_hidden"""
    model = point.recipe.final_model
    ((d_model, d_hidden),) = {(layer.d_model, layer.ffn.hidden_widths) for layer in model.layers}
    return len(d_hidden), model.n_layers, d_model, d_hidden[0]


def by_the_rule(n_blocks: int, n_layers: int, ratio: float) -> tuple[int, int]:
    """The hourglass paper's sizes: d_model in whole heads of an even size for the ratio, then what is left."""
    d_model = 6 * round(math.sqrt(BUDGET / (n_layers * (4 + 3 * n_blocks * ratio))) / 6)
    return d_model, round((BUDGET / n_layers - 4 * d_model**2) / (3 * n_blocks * d_model))


def test_every_point_of_a_grid_is_sized_to_the_budget(tmp_path: Path) -> None:
    over = {"model.ffn.n_blocks": [2, 5], "model.ffn.ratio": [0.3, 0.45], "model.n_layers": [4, 9]}
    plan = solved(tmp_path, over)
    assert plan.config.matched == "layer_params"
    assert plan.grid["baseline"].adjustment is None
    for name, point in list(plan.grid.items())[1:]:
        n_blocks, n_layers = point.values["model.ffn.n_blocks"], point.values["model.n_layers"]
        d_model, d_hidden = by_the_rule(n_blocks, n_layers, point.values["model.ffn.ratio"])
        assert sizes_of(point) == (n_blocks, n_layers, d_model, d_hidden)
        params = n_layers * d_model * (4 * d_model + 3 * n_blocks * d_hidden)
        assert point.adjustment.miss == pytest.approx(params / BUDGET - 1)
        assert f"{name}: {point.adjustment}" in plan.adjustment_lines
    assert len(plan.adjustment_lines) == 8


@pytest.mark.parametrize("aspect", [12, 31.5, 88])
def test_an_aspect_chooses_the_depth_whose_width_meets_the_budget(tmp_path: Path, aspect: float) -> None:
    """With d_model = aspect * n_layers the budget is aspect^2 n_layers^3 (4 + 3 K r)."""
    plan = solved(tmp_path, {"aspect": [aspect], "model.ffn.ratio": [0.4], "model.ffn.n_blocks": [3]})
    exact = (BUDGET / (aspect**2 * (4 + 3 * 3 * 0.4))) ** (1 / 3)
    point = plan.grid[f"hg-{aspect}-0.4-3"]
    n_blocks, n_layers, d_model, d_hidden = sizes_of(point)
    assert abs(n_layers - exact) < 1
    assert (d_model, d_hidden) == by_the_rule(n_blocks, n_layers, 0.4)
    assert [change.key for change in point.adjustment.changes] == ["model.n_layers", "model.d_model", "model.ffn.ratio"]
    assert point.values["aspect"] == aspect


def test_groups_that_are_not_named_must_match_as_they_are(tmp_path: Path) -> None:
    groups = {
        "hg": {"change": HOURGLASSES, "over": {"model.ffn.ratio": [0.4]}},
        "same": {"change": copy.deepcopy(CONVENTIONAL), "over": {"optimizer.lr": [0.1]}},
    }
    match = {"quantity": "layer_params", "adjust": {"hg": "d_model,ffn"}}
    plan = solved(tmp_path, {}, groups=groups, match=match)
    assert plan.grid["same-0.1"].adjustment is None
    groups["same"]["change"] = {}
    with pytest.raises(UserError, match=r"^same-0\.1: layer_params is 0\."):
        solved(tmp_path, {}, groups=groups, match=match)


def test_the_command_line_replaces_what_is_matched_and_adjusted(tmp_path: Path) -> None:
    solved(tmp_path, {"model.ffn.ratio": [0.4]})
    path = tmp_path / "tiny.yaml"
    plan = read_sweep(path, asked={"match": "flops"})
    assert plan.grid["hg-0.4"].adjustment.match == plan.config.matched == "flops"
    plan = read_sweep(path, asked={"adjust": "d_model"})
    assert [change.key for change in plan.grid["hg-0.4"].adjustment.changes] == ["model.d_model"]
    assert plan.config.matched == "layer_params"
    plan = read_sweep(path, ["model.d_model=18"], asked={"match": "none"})
    assert plan.grid["hg-0.4"].adjustment is None


def test_what_adjusting_changes_makes_another_study(tmp_path: Path) -> None:
    search = {"search": {"sampler": "random", "n_trials": 2}}
    over = {"model.ffn.ratio": {"low": 0.3, "high": 0.5}}
    one = solved(tmp_path, over, **search).identity
    other = solved(tmp_path, over, match={"quantity": "layer_params", "adjust": "ffn"}, **search)
    assert other.identity != one


@pytest.mark.parametrize(
    ("over", "sweep", "named"),
    [
        ({"aspect": [30]}, {"match": "layer_params"}, r"groups\.hg\.over\.aspect: needs match: \{adjust: d_model\}"),
        ({"aspect": [30], "model.n_layers": [3]}, {}, r"groups\.hg\.over\.model\.n_layers: follows from the budget"),
        ({"model.d_model": [48]}, {}, r"groups\.hg\.over\.model\.d_model: follows from the budget"),
        (
            {"model.ffn.ratio": [0.4]},
            {"match": {"adjust": {"gh": "ffn"}}},
            r"match\.adjust: got 'gh'; allowed: hg",
        ),
        ({"model.ffn.ratio": [0.4]}, {"baseline": None}, "got 'layer_params'; nothing can be matched without a base"),
        (
            {"model.ffn.ratio": [0.4, 0.4001]},
            {},
            r"hg-0\.4 and hg-0\.4001 become the same model \(model\.d_model 16 ->",
        ),
        ({"aspect": [0]}, {}, "hg-0: aspect: got 0; d_model / n_layers must be above 0"),
    ],
)
def test_mistakes_of_solved_sizes_are_named(tmp_path: Path, over: dict, sweep: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        solved(tmp_path, over, **sweep)
