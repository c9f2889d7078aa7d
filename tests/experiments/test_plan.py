"""Which comparisons are accepted, what their runs are, and recipes of several runs as a whole and one by one."""

import re
from pathlib import Path

import pytest
from boxes import refusal
from tiny_sweeps import RECIPE, recipe_file

from widthwise.experiments.compare import read_plan
from widthwise.experiments.plan import run_path, seeded
from widthwise.experiments.recipes import read_all, read_one
from widthwise.experiments.sweep import read_sweep
from widthwise.mistakes import UserError
from widthwise.yaml_io import merge

BASE = merge(RECIPE, {"model": {"d_model": 48, "n_layers": 6}})
WIDER = {"model": {"d_model": 56}}
X = {"model": {"shape": {"kind": "x", "bottleneck_layer": 0.67, "bottleneck_width": 0.4, "rounding": "balanced"}}}


def comparison(tmp_path: Path, **compare) -> Path:
    return recipe_file(tmp_path, base=BASE, compare={"variants": {"uniform": {}, "x": X}, **compare})


def test_the_first_variant_is_the_baseline_and_a_run_differs_from_its_recipe_in_the_seed_alone(tmp_path: Path) -> None:
    plan = read_plan([comparison(tmp_path, seeds=[7, 9])])
    assert plan.baseline == "uniform"
    assert plan.seeds == (7, 9)
    widths = {name: recipe.explicit_model.widths for name, recipe in plan.recipes.items()}
    assert widths["uniform"] == [48] * 6
    assert min(widths["x"]) < 48 < max(widths["x"])
    run = seeded(plan.recipes["x"], 9)
    assert run.train.seed == 9
    assert run.model_copy(update={"train": plan.recipes["x"].train}) == plan.recipes["x"]
    assert run_path("x", 9) != run_path("x", 7)


def test_null_drops_a_variant_and_its_adjustment_and_never_the_only_other_one(tmp_path: Path) -> None:
    variants = {"uniform": {}, "wider": WIDER, "x": X}
    path = comparison(tmp_path, variants=variants, match={"adjust": {"wider": "ffn", "x": "ffn"}})
    assert [*read_plan([path], ["compare.variants.wider=null"]).recipes] == ["uniform", "x"]
    (tmp_path / "fewer.yaml").write_text(f"extends: {path.name}\ncompare: {{variants: {{x: null}}}}\n")
    assert [*read_plan([tmp_path / "fewer.yaml"]).recipes] == ["uniform", "wider"]
    message = refusal(read_plan, [path], ["compare.variants.wider=null", "compare.variants.x=null"])
    assert "compare: variants" in message


def test_null_drops_a_group_of_a_sweep(tmp_path: Path) -> None:
    groups = {"wide": {"change": WIDER}, "x": {"change": X}}
    sweep = {"baseline": {}, "match": {"adjust": {"wide": "ffn"}}, "over": {"optimizer.lr": [0.1, 0.2]}}
    path = recipe_file(tmp_path, base=BASE, sweep={**sweep, "groups": groups})
    plan = read_sweep(path, ["sweep.groups.wide=null"])
    assert {point.group for point in plan.points.values() if point.name != plan.baseline} == {"x"}


def test_null_drops_a_section_and_a_recipe_has_only_one_of_both(tmp_path: Path) -> None:
    path = comparison(tmp_path, variants={"uniform": {}, "wider": WIDER})
    over = "sweep: {over: {optimizer.lr: [0.1, 0.2]}}\n"
    (tmp_path / "both.yaml").write_text(f"extends: {path.name}\n{over}")
    message = refusal(read_plan, [tmp_path / "both.yaml"])
    assert "has both a compare and a sweep section" in message
    (tmp_path / "sweep.yaml").write_text(f"extends: {path.name}\n{over}compare: null\n")
    assert [*read_sweep(tmp_path / "sweep.yaml").points] == ["0.1", "0.2"]


def test_all_that_is_not_comparable_is_named_at_once(tmp_path: Path) -> None:
    variants = {
        "uniform": {},
        "wider": WIDER,
        "narrower": {"model": {"d_model": 40}},
        "longer": {"train": {"steps": 5, "batch_size": 8}},
    }
    path = comparison(tmp_path, variants=variants, match="params")
    params = {name: BASE["model"] | change.get("model", {}) for name, change in variants.items()}
    of_base = {name: n_params(model) / n_params(BASE["model"]) for name, model in params.items()}
    message = refusal(read_plan, [path])
    assert "longer: train.steps is 5, but 4 in uniform; longer: train.batch_size is 8, but 3 in uniform" in message
    assert f"wider: params is {of_base['wider']:.4f} of uniform's" in message
    assert f"narrower: params is {of_base['narrower']:.4f} of uniform's" in message


def n_params(model: dict) -> int:
    """Those of a uniform SwiGLU decoder of four times its width: tables, four matrices, three matrices, norms."""
    d, n_layers = model["d_model"], model["n_layers"]
    return 2 * 257 * d + n_layers * (4 * d**2 + 3 * 4 * d**2 + 2 * d) + d


def test_a_feed_forward_is_adjusted_where_nothing_is_said_and_it_must_be(tmp_path: Path) -> None:
    """What matches stays as it is, and what cannot be adjusted is refused as if nothing had been tried."""
    near = {"model": {"ffn": {"ratio": 4.04}}}
    path = comparison(tmp_path, variants={"uniform": {}, "near": near, "wider": WIDER})
    plan = read_plan([path])
    assert [name for name, point in plan.points.items() if point.adjustment is not None] == ["wider"]
    assert [change.key for change in plan.points["wider"].adjustment.changes] == ["model.ffn.ratio"]
    assert abs(plan.points["wider"].adjustment.miss) < 0.002
    assert plan.recipes == read_plan([path], match="params", adjust="ffn").recipes | {"near": plan.recipes["near"]}
    deep = {"model": {"n_layers": 40}}
    with pytest.raises(UserError, match=r"^deep: params is 6\.\d+ of uniform's, and"):
        read_plan([comparison(tmp_path, variants={"uniform": {}, "deep": deep})])


def test_mistakes_are_named(tmp_path: Path) -> None:
    for other, named in (
        ({"seq_len": 16}, "seq_len is 16"),
        ({"data": {"held_out": 0.2}}, r"^other: data\.held_out is 0\.2, but 0\.05 in uniform; not comparable$"),
        ({"schedule": {"warmup_steps": 4}}, r"other: schedule\.warmup_steps: got 4"),
        ({"model": {"shapes": {}}}, r"variants\.other: model\.shapes: unknown key; did you mean 'shape'"),
    ):
        with pytest.raises(UserError, match=named):
            read_plan([comparison(tmp_path, variants={"uniform": {}, "other": other})])
    for compare, named in (
        ({"variants": {"uniform": {}}}, "variants"),
        ({"variants": {f"v{i}": {} for i in range(1001)}}, "variants"),
        ({"variants": {"uniform": {}, "../escape": X}}, "'../escape'"),
        ({"seeds": [1, 1]}, r"seeds: got \[1, 1\]; each seed may be given once"),
        ({"seeds": []}, "seeds"),
    ):
        with pytest.raises(UserError, match=named):
            read_plan([comparison(tmp_path, **compare)])


def test_the_workload_as_data_has_what_a_variant_misses_and_what_was_changed(tmp_path: Path) -> None:
    variants = {"uniform": {}, "wide": {"model": {"d_model": 56}}}
    plan = read_plan([comparison(tmp_path, seeds=[7, 9], variants=variants)], match="flops", adjust="ffn")
    base, wide = (recipe.explicit_model.cost().forward_flops(17) for recipe in plan.recipes.values())
    work = plan.workload()
    assert (work["n_runs"], work["baseline"], work["match"]) == (4, "uniform", "flops")
    assert [row["miss"] for row in work["points"]] == [None, pytest.approx(wide / base - 1)]
    assert work["points"][0]["params"] == plan.recipes["uniform"].final_model.cost().params
    assert 0 < abs(wide / base - 1) < 0.01
    (change,) = work["points"][1]["adjusted"]["changes"]
    assert change["key"].startswith("model.ffn.")
    assert change["after"] < change["before"]
    assert plan.adjustment_lines[0].startswith(f"wide: {change['key']} {change['before']:.7g} -> ")
    unmatched = read_plan([comparison(tmp_path, variants=variants)], match="none").workload()
    assert (unmatched["match"], [row["miss"] for row in unmatched["points"]]) == (None, [None, None])


def growing(steps: int) -> dict:
    """Half of the layers for two steps, then all."""
    growth = [{"at_step": 2, "model": {"n_layers": 6}}]
    return {"model": {"n_layers": 3}, "train": {"steps": steps}, "growth": growth}


def test_equal_compute_allows_other_steps(tmp_path: Path) -> None:
    plan = read_plan(
        [comparison(tmp_path, match="training_flops", variants={"scratch": {}, "grown": growing(203)})],
        ["train.steps=202"],
    )
    scratch, grown = plan.recipes["scratch"], plan.recipes["grown"]
    per_token = [recipe.explicit_model.cost().training_flops(17) for recipe in (scratch, grown)]
    assert grown.training_flops == 3 * 17 * (2 * per_token[1] + 201 * per_token[0])
    assert abs(grown.training_flops / scratch.training_flops - 1) < 0.01
    assert "6 runs of 202 to 203 steps and 10,302 to 10,353 tokens, together" in plan.in_words


def test_unequal_compute_is_refused_with_the_steps_that_would_match(tmp_path: Path) -> None:
    def read(n_steps: int):
        variants = {"scratch": {}, "grown": growing(n_steps)}
        return read_plan([comparison(tmp_path, match="training_flops", variants=variants)], ["train.steps=100"])

    found = re.match(
        r"grown: training_flops is 1\.\d+ of scratch's.*train\.steps: (\d+) would match", refusal(read, 120)
    )
    assert read(int(found[1])).recipes["grown"].train.steps == int(found[1])


NARROW = {"model": {"d_model": 40}}


def test_one_variant_is_what_the_comparison_would_train_even_beside_one_that_cannot_be(tmp_path: Path) -> None:
    path = comparison(tmp_path, match={"adjust": "ffn"}, variants={"base": {}, "narrow": NARROW})
    recipes = read_plan([path]).recipes
    for name, recipe in recipes.items():
        assert read_one(path, variant=name) == recipe
    variants = {"base": {}, "narrow": NARROW, "deep": {"model": {"n_layers": 40}}}
    comparison(tmp_path, match={"adjust": "ffn"}, variants=variants)
    assert read_one(path, variant="narrow") == recipes["narrow"]
    with pytest.raises(UserError, match=r"^deep: params is"):
        read_one(path, variant="deep")


def test_the_points_of_a_sweep_are_seen_too(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, {"baseline": {}, "over": {"optimizer.lr": [0.1, 0.2]}})
    found = read_all(path)
    assert (found.recipes, found.baseline) == (read_sweep(path).recipes, "baseline")
    for name, recipe in found.recipes.items():
        assert read_one(path, variant=name) == recipe
