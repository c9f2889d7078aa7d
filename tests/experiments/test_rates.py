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


def comparison(folder: Path, *overrides: str, rates_from: Path | None = None, **compare: Any) -> Comparison:
    section = {"seeds": [3, 5], "variants": VARIANTS, **compare}
    return read_plan(recipe_file(folder, base=BASE, compare=section), overrides, rates_from=rates_from)


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sweep of the comparison."""
    folder = tmp_path_factory.mktemp("rates")
    path = recipe_file(folder, base=BASE, compare={"seeds": [3, 5], "variants": VARIANTS})
    plan = read_sweep(path, SHORT, {"over": {"optimizer.lr": RATES}, "seeds": [11, 13]})
    run_experiment(plan, folder / "rates", COMMAND)
    return folder / "rates"


def test_a_sweep_of_a_comparison_has_a_group_for_each_variant_sized_as_it_is_compared(tmp_path: Path) -> None:
    wide = {"model": {"d_model": 24}}
    section = {"variants": {"plain": {}, "wide": wide}, "match": {"quantity": "layer_params", "adjust": "ffn"}}
    path = recipe_file(tmp_path, base=BASE, compare=section)
    plan = read_sweep(path, (), {"over": {"optimizer.lr": [0.002, 0.02]}})
    assert list(plan.points) == ["plain-0.002", "plain-0.02", "wide-0.002", "wide-0.02"]
    for name, recipe in read_plan(path).recipes.items():
        assert plan.recipes[f"{name}-0.02"].final_model == recipe.final_model
        assert plan.recipes[f"{name}-0.02"].optimizer.lr == 0.02
    with pytest.raises(UserError, match="has a compare section; `compare` trains it"):
        read_sweep(path)


def test_each_variant_gets_the_values_of_its_lowest_loss(rates: Path, tmp_path: Path) -> None:
    sweep = Outcome.read(rates)
    plan = comparison(tmp_path, rates_from=rates)
    assert plan.tuning is not None
    assert (plan.tuning.sweep, plan.tuning.seeds, plan.tuning.steps) == (str(rates), [11, 13], 0.5)
    for each in plan.tuning.variants:
        losses = {
            point.values["optimizer.lr"]: point.val_loss.mean for point in sweep.variants if point.group == each.name
        }
        best = min(losses, key=losses.__getitem__)
        assert each.chosen == {"optimizer.lr": best}
        assert plan.recipes[each.name].optimizer.lr == best
        assert each.val_loss == losses[best]
        assert each.is_at_limit == (best == RATES[0])
        assert f"{each.name}: optimizer.lr {best} (of {rates})" in plan.adjustment_lines


def test_the_comparison_is_the_one_with_the_values_written_by_hand(rates: Path, tmp_path: Path) -> None:
    plan = comparison(tmp_path, rates_from=rates)
    assert plan.tuning is not None
    chosen = {each.name: {"optimizer": {"lr": each.chosen["optimizer.lr"]}} for each in plan.tuning.variants}
    by_hand = comparison(tmp_path, variants={name: VARIANTS[name] | chosen[name] for name in VARIANTS})
    assert by_hand.tuning is None
    for name, recipe in plan.recipes.items():
        assert recipe.resolved() == by_hand.recipes[name].resolved()
    read = run_experiment(plan, tmp_path / "a", COMMAND)
    assert Outcome.read(tmp_path / "a").tuning == read.tuning == plan.tuning
    ended = [each.name for each in plan.tuning.variants if each.is_at_limit]
    assert any("a better one may lie beyond" in line for line in answer(read)) == bool(ended)


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


def refusal_of(rates: Path, tmp_path: Path, **changes: Any) -> str:
    """Return why the comparison cannot use a changed record of the sweep."""
    folder = tmp_path / "rates"
    if not folder.exists():
        folder.mkdir()
        (folder / "runs").symlink_to(rates / "runs")
    SealedFile(folder / Outcome.file_name).write(SealedFile(rates / Outcome.file_name).read() | changes)
    return refusal(comparison, tmp_path, rates_from=folder)


def test_records_of_an_unfinished_sweep_or_with_another_grid_are_refused(rates: Path, tmp_path: Path) -> None:
    def grids(key: str, plain: Any, slow: Any) -> dict[str, Any]:
        return {"plain": {key: plain}, "slow": {key: slow}}

    unfinished = SealedFile(rates / Outcome.file_name).read()["study"] | {"n_finished": 0}
    for changes, message in (
        ({"axes": grids("optimizer.lr", RATES, RATES[:2])}, "slow has other values than plain; the grid must be the"),
        (
            {"axes": grids("optimizer.lr", *[{"low": 0.1, "high": 1.0}] * 2)},
            "optimizer.lr is searched in a range; must",
        ),
        ({"axes": grids("model.d_model", [1], [1])}, "varies model.d_model; must be a key of"),
        ({"axes": {}}, "holds a comparison; must be a finished sweep"),
        ({"study": unfinished}, "holds an unfinished sweep"),
    ):
        assert message in refusal_of(rates, tmp_path, **changes)


def test_a_sweep_of_which_all_runs_of_a_variant_diverged_or_one_failed_is_refused(rates: Path, tmp_path: Path) -> None:
    points = SealedFile(rates / Outcome.file_name).read()["points"]
    diverged = [each for each in points if each["state"] == "failed" or each["group"] == "slow"]
    message = refusal_of(rates, tmp_path, points=diverged)
    assert "all runs of plain diverged; sweep other values" in message
    broken = {"name": "plain-0.1", "state": "failed", "group": "plain", "values": {}, "reason": "the disk is full"}
    message = refusal_of(rates, tmp_path, points=[*points, broken])
    assert "plain-0.1 failed: the disk is full; repeat the sweep" in message
