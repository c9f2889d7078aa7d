"""Which comparisons are accepted, recipes of several runs as a whole and one by one, and values read from a sweep."""

import re
from pathlib import Path
from typing import Any

import pytest
from boxes import refusal
from tiny_sweeps import RECIPE, recipe_file

from widthwise.experiments.compare import read_plan
from widthwise.experiments.plan import Comparison
from widthwise.experiments.recipes import read_all, read_one
from widthwise.experiments.running import run_experiment
from widthwise.experiments.sweep import read_sweep
from widthwise.mistakes import UserError
from widthwise.records.outcome import Outcome
from widthwise.records.record import SealedFile
from widthwise.reports.writing import answer
from widthwise.yaml_io import merge

BASE = merge(RECIPE, {"model": {"d_model": 48, "n_layers": 6}})
WIDER = {"model": {"d_model": 56}}
X = {"model": {"shape": {"kind": "x", "bottleneck_layer": 0.67, "bottleneck_width": 0.4, "rounding": "balanced"}}}


def comparison(tmp_path: Path, sweep: dict | None = None, **compare) -> Path:
    return recipe_file(tmp_path, sweep, base=BASE, compare={"variants": {"uniform": {}, "x": X}, **compare})


def test_null_drops_a_variant_and_its_adjustment_and_never_the_only_other_one(tmp_path: Path) -> None:
    variants = {"uniform": {}, "wider": WIDER, "x": X}
    path = comparison(tmp_path, variants=variants, match={"adjust": {"wider": "ffn", "x": "ffn"}})
    assert [*read_plan([path], ["compare.variants.wider=null"]).recipes] == ["uniform", "x"]
    message = refusal(read_plan, [path], ["compare.variants.wider=null", "compare.variants.x=null"])
    assert "compare: variants" in message
    groups = {"wide": {"change": WIDER}, "x": {"change": X}}
    sweep = {"match": {"quantity": "params", "adjust": {"wide": "ffn"}}, "over": {"optimizer.lr": [0.1, 0.2]}}
    path = recipe_file(tmp_path, base=BASE, sweep={**sweep, "baseline": {}, "groups": groups})
    assert [*read_sweep(path, ["sweep.groups.wide=null"]).points] == ["baseline", "x-0.1", "x-0.2"]


def test_null_drops_a_section_and_a_recipe_has_only_one_of_both(tmp_path: Path) -> None:
    path = comparison(tmp_path, sweep={"over": {"optimizer.lr": [0.1, 0.2]}})
    assert "has both a compare and a sweep section" in refusal(read_plan, [path])
    assert [*read_sweep(path, ["compare=null"]).points] == ["0.1", "0.2"]


def test_all_that_is_not_comparable_is_named_at_once(tmp_path: Path) -> None:
    def n_params(d: int) -> int:
        """Those of six layers of four times their width: tables, four matrices, three matrices, norms."""
        return 2 * 257 * d + 6 * (4 * d**2 + 3 * 4 * d**2 + 2 * d) + d

    longer = {"train": {"steps": 5, "batch_size": 8}}
    variants = {"uniform": {}, "wider": WIDER, "narrower": {"model": {"d_model": 40}}, "longer": longer}
    message = refusal(read_plan, [comparison(tmp_path, variants=variants, match="params")])
    assert "longer: train.steps is 5, but 4 in uniform; longer: train.batch_size is 8, but 3 in uniform" in message
    assert f"wider: params is {n_params(56) / n_params(48):.4f} of uniform's" in message
    assert f"narrower: params is {n_params(40) / n_params(48):.4f} of uniform's" in message


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
        ({"variants": {"uniform": {}, "../escape": X}}, r"'\.\./escape'"),
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
    (change,) = work["points"][1]["adjusted"]["changes"]
    assert change["after"] < change["before"]
    assert plan.notes[0].startswith(f"wide: model.ffn.ratio {change['before']:.7g} -> ")
    unmatched = read_plan([comparison(tmp_path, variants=variants)], match="none").workload()
    assert (unmatched["match"], [row["miss"] for row in unmatched["points"]]) == (None, [None, None])


def test_equal_compute_allows_other_steps_and_unequal_is_refused_with_the_nearest_steps(tmp_path) -> None:
    def read(n_steps: int, n_scratch_steps: int = 202) -> Comparison:
        """With half of the layers for two steps, then all, against all of them from the start."""
        growth = [{"at_step": 2, "model": {"n_layers": 6}}]
        grown = {"model": {"n_layers": 3}, "train": {"steps": n_steps}, "growth": growth}
        path = comparison(tmp_path, match="training_flops", variants={"scratch": {}, "grown": grown})
        return read_plan([path], [f"train.steps={n_scratch_steps}"])

    plan = read(203)
    scratch, grown = plan.recipes["scratch"], plan.recipes["grown"]
    per_token = [recipe.explicit_model.cost().training_flops(17) for recipe in (scratch, grown)]
    assert grown.training_flops == 3 * 17 * (2 * per_token[1] + 201 * per_token[0])
    assert abs(grown.training_flops / scratch.training_flops - 1) < 0.01
    assert "6 runs of 202 to 203 steps and 10,302 to 10,353 tokens, together" in plan.summary
    message = refusal(read, 240)
    n_steps = re.match(r"grown: training_flops is 1\.\d+ of scratch's.*train\.steps: (\d+) is nearest", message)[1]
    assert read(int(n_steps)).recipes["grown"].train.steps == int(n_steps)
    # A step of a short run is more than two percent, so that no number of steps matches.
    n_nearest = 2 + round(5 - 2 * per_token[1] / per_token[0])
    assert f"(train.steps: {n_nearest} is nearest)" in refusal(read, n_nearest, 5)


def test_one_variant_or_point_is_what_the_experiment_would_train_even_beside_one_that_cannot_be(tmp_path) -> None:
    variants = {"base": {}, "narrow": {"model": {"d_model": 40}}, "deep": {"model": {"n_layers": 40}}}
    path = comparison(tmp_path, match={"adjust": "ffn"}, variants=variants)
    trainable = read_all(path, ["compare.variants.deep=null"])
    with pytest.raises(UserError, match=r"^deep: params is"):
        read_one(path, variant="deep")
    swept = recipe_file(tmp_path, {"baseline": {}, "over": {"optimizer.lr": [0.1, 0.2]}}, name="swept")
    for file, plan in ((path, trainable), (swept, read_all(swept))):
        for name, recipe in plan.recipes.items():
            assert read_one(file, variant=name) == recipe


COMMAND = "widthwise compare tiny.yaml"
RATES = [0.002, 0.02, 1e6]
"""With the last all runs diverge."""
VARIANTS: dict[str, Any] = {
    "plain": {},
    "slow": {"model": {"shape": {"kind": "explicit", "widths": [16, 16]}}, "optimizer": {"lr": 0.0003}},
}
SHORT = ("train.steps=4", "schedule.warmup_steps=1", "schedule.decay_steps=2", "train.validation_skip=85")
"""Half of the steps, and held-out text that the comparison does not report."""


def trained_recipe(folder: Path, **compare: Any) -> Path:
    settings = {"schedule": {"kind": "wsd", "warmup_steps": 2, "decay_steps": 4}, "train": {"steps": 8}}
    return recipe_file(folder, **settings, compare={"seeds": [3, 5], "variants": VARIANTS, **compare})


def tuned(folder: Path, *overrides: str, rates_from: Path | None = None, **compare: Any) -> Comparison:
    return read_plan(trained_recipe(folder, **compare), overrides, rates_from=rates_from)


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sweep of the comparison."""
    folder = tmp_path_factory.mktemp("rates")
    plan = read_sweep(trained_recipe(folder), SHORT, {"over": {"optimizer.lr": RATES}, "seeds": [11, 13]})
    run_experiment(plan, folder / "rates", COMMAND)
    return folder / "rates"


def test_a_sweep_of_a_comparison_has_a_group_for_each_variant_sized_as_it_is_compared(tmp_path: Path) -> None:
    variants = {"plain": {}, "wide": {"model": {"d_model": 24}}}
    path = trained_recipe(tmp_path, variants=variants, match={"quantity": "layer_params", "adjust": "ffn"})
    plan = read_sweep(path, (), {"over": {"optimizer.lr": [0.002, 0.02]}})
    assert list(plan.points) == ["plain-0.002", "plain-0.02", "wide-0.002", "wide-0.02"]
    for name, compared in read_plan(path).recipes.items():
        assert plan.recipes[f"{name}-0.02"].final_model == compared.final_model
        assert plan.recipes[f"{name}-0.02"].optimizer.lr == 0.02
    with pytest.raises(UserError, match="has a compare section; `compare` trains it"):
        read_sweep(path)


def test_each_variant_gets_the_values_of_its_lowest_loss(rates: Path, tmp_path: Path) -> None:
    """The comparison is the one with these values written by hand."""
    sweep = Outcome.read(rates)
    plan = tuned(tmp_path, rates_from=rates)
    assert (plan.tuning.sweep, plan.tuning.seeds, plan.tuning.steps) == (str(rates), [11, 13], 0.5)
    by_hand = dict[str, Any]()
    for variant in plan.tuning.variants:
        points = [point for point in sweep.variants if point.group == variant.name]
        best = min(points, key=lambda point: point.val_loss.mean)
        rate = best.values["optimizer.lr"]
        assert (variant.chosen, variant.val_loss) == ({"optimizer.lr": rate}, best.val_loss.mean)
        assert variant.is_at_limit == (rate == RATES[0])
        assert f"{variant.name}: optimizer.lr {rate} (of {rates})" in plan.notes
        by_hand[variant.name] = VARIANTS[variant.name] | {"optimizer": {"lr": rate}}
    for name, expected in tuned(tmp_path, variants=by_hand).recipes.items():
        assert plan.recipes[name].resolved() == expected.resolved()
    outcome = run_experiment(plan, tmp_path / "a", COMMAND)
    assert outcome.tuning == plan.tuning
    is_at_limit = any(variant.is_at_limit for variant in plan.tuning.variants)
    assert any("a better one may lie beyond" in line for line in answer(outcome)) == is_at_limit


@pytest.mark.parametrize(
    ("compare", "overrides", "message"),
    [
        ({"seeds": [3, 11]}, (), r"seed 11 is reported too; must use none of \[3, 11\]"),
        ({"variants": VARIANTS | {"new": {}}}, (), "has no group new; its groups: plain, slow; `widthwise sweep`"),
        ({}, ("model.n_layers=4",), r"plain: model\.\S+ is .* in the comparison; must be the same"),
        ({}, ("optimizer.weight_decay=0.3",), r"plain: optimizer\.weight_decay is 0\.1, but 0\.3 in the comparison"),
        ({}, ("train.batch_size=8",), r"plain: train\.batch_size is 3, but 8 in the comparison"),
        ({}, ("train.validation_tokens=170",), r"held-out text that is reported; sweep with .*_skip=170"),
        ({}, ("train.validation_tokens=null",), r"held-out text that is reported; set train\.validation_tokens"),
    ],
)
def test_a_sweep_that_is_no_fair_choice_is_refused(rates: Path, tmp_path: Path, compare, overrides, message) -> None:
    with pytest.raises(UserError, match=rf"^--rates-from .*{message}"):
        tuned(tmp_path, *overrides, rates_from=rates, **compare)


def test_a_sweep_that_is_unfinished_or_has_another_grid_or_no_result_of_a_variant_is_refused(rates, tmp_path) -> None:
    def axes(plain: dict[str, Any], slow: dict[str, Any]) -> dict[str, Any]:
        return {"axes": {"plain": plain, "slow": slow}}

    record = SealedFile(rates / Outcome.file_name).read()
    diverged = [point for point in record["points"] if point["state"] == "failed" or point["group"] == "slow"]
    broken = {"name": "plain-0.1", "state": "failed", "group": "plain", "values": {}, "reason": "the disk is full"}
    searched = {"optimizer.lr": {"low": 0.1, "high": 1.0}}
    folder = tmp_path / "rates"
    folder.mkdir()
    (folder / "runs").symlink_to(rates / "runs")
    for changes, message in (
        (axes({"optimizer.lr": RATES}, {"optimizer.lr": RATES[:2]}), "slow has other values than plain; the grid must"),
        (axes(searched, searched), "optimizer.lr is searched in a range; must be a grid"),
        (axes({"model.d_model": [1]}, {"model.d_model": [1]}), "varies model.d_model; must be a key of"),
        ({"axes": {}}, "holds a comparison; must be a finished sweep"),
        ({"study": record["study"] | {"n_finished": 0}}, "holds an unfinished sweep"),
        ({"points": diverged}, "all runs of plain diverged; sweep other values"),
        ({"points": [*record["points"], broken]}, "plain-0.1 failed: the disk is full; repeat the sweep"),
    ):
        SealedFile(folder / Outcome.file_name).write(record | changes)
        assert message in refusal(tuned, tmp_path, rates_from=folder)
