"""Values that a comparison reads from a sweep of its variants, and what makes that choice unfair."""

from pathlib import Path
from typing import Any

import pytest
from boxes import refusal
from tiny_sweeps import RECIPE, recipe_file

from widthwise.experiments.compare import read_plan
from widthwise.experiments.plan import Comparison
from widthwise.experiments.running import run_experiment
from widthwise.experiments.sweep import read_sweep
from widthwise.mistakes import UserError
from widthwise.records.outcome import Outcome
from widthwise.records.record import SealedFile
from widthwise.reports.writing import answer
from widthwise.yaml_io import merge

COMMAND = "widthwise compare tiny.yaml"
DIVERGES = 1e6
RATES = [0.002, 0.02, DIVERGES]
BASE = merge(
    {**RECIPE, "schedule": {"kind": "wsd", "warmup_steps": 2, "decay_steps": 4}, "validation": {"texts": {}}},
    {
        "model": {"n_layers": 3},
        "seq_len": 24,
        "train": {"steps": 8, "batch_size": 4, "validation_tokens": 240, "validate_every": 4},
    },
)
VARIANTS: dict[str, Any] = {
    "plain": {},
    "slow": {"model": {"shape": {"kind": "explicit", "widths": [16, 16, 16]}}, "optimizer": {"lr": 0.0003}},
}
SHORT = ("train.steps=4", "schedule.warmup_steps=1", "schedule.decay_steps=2", "train.validation_skip=240")
"""Half of the steps, and held-out text that the comparison does not report."""


def recipe(folder: Path, **compare: Any) -> Path:
    return recipe_file(folder, base=BASE, compare={"seeds": [3, 5], "variants": VARIANTS, **compare})


def comparison(folder: Path, *overrides: str, rates_from: Path | None = None, **compare: Any) -> Comparison:
    return read_plan(recipe(folder, **compare), overrides, rates_from=rates_from)


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sweep of the comparison."""
    folder = tmp_path_factory.mktemp("rates")
    plan = read_sweep(recipe(folder), SHORT, {"over": {"optimizer.lr": RATES}, "seeds": [11, 13]})
    run_experiment(plan, folder / "rates", COMMAND)
    return folder / "rates"


def test_a_sweep_of_a_comparison_has_a_group_for_each_variant_sized_as_it_is_compared(tmp_path: Path) -> None:
    variants = {"plain": {}, "wide": {"model": {"d_model": 24}}}
    path = recipe(tmp_path, variants=variants, match={"quantity": "layer_params", "adjust": "ffn"})
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
    plan = comparison(tmp_path, rates_from=rates)
    assert (plan.tuning.sweep, plan.tuning.seeds, plan.tuning.steps) == (str(rates), [11, 13], 0.5)
    by_hand = dict[str, Any]()
    for variant in plan.tuning.variants:
        points = [point for point in sweep.variants if point.group == variant.name]
        best = min(points, key=lambda point: point.val_loss.mean)
        rate = best.values["optimizer.lr"]
        assert (variant.chosen, variant.val_loss) == ({"optimizer.lr": rate}, best.val_loss.mean)
        assert variant.is_at_limit == (rate == RATES[0])
        assert f"{variant.name}: optimizer.lr {rate} (of {rates})" in plan.adjustment_lines
        by_hand[variant.name] = VARIANTS[variant.name] | {"optimizer": {"lr": rate}}
    for name, expected in comparison(tmp_path, variants=by_hand).recipes.items():
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
        ({}, ("train.batch_size=8",), r"plain: train\.batch_size is 4, but 8 in the comparison"),
        ({}, ("train.validation_tokens=480",), r"held-out text that is reported; sweep with .*_skip=480"),
        ({}, ("train.validation_tokens=null",), r"held-out text that is reported; set train\.validation_tokens"),
    ],
)
def test_a_sweep_that_is_no_fair_choice_is_refused(rates: Path, tmp_path: Path, compare, overrides, message) -> None:
    with pytest.raises(UserError, match=rf"^--rates-from .*{message}"):
        comparison(tmp_path, *overrides, rates_from=rates, **compare)


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
        assert message in refusal(comparison, tmp_path, rates_from=folder)
