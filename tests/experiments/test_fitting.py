"""Where the points of a law come from, and what is said about them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from small_costs import small_cost, small_variant

from widthwise.experiments.fitting import fit_groups
from widthwise.experiments.laws import LAWS
from widthwise.experiments.scaling_points import Axes, FitData, gather
from widthwise.mistakes import UserError
from widthwise.records.cost import CostSummary
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome, Study, UnfinishedPoint, Variant
from widthwise.records.run import RunResult
from widthwise.records.scaling import ScalingLaws
from widthwise.reports.scaling import scaling_answer
from widthwise.run_dir import RunDir

PAPERS = Path(__file__).parents[2] / "benchmarks" / "papers" / "points"
SIZES = (32, 48, 72, 108)
AXES = Axes("params", "val_loss")


def loss(d_model: int, seed: int = 0, scale: float = 3.0) -> float:
    return scale * (12 * d_model**2) ** -0.05 * (1 + 0.001 * seed)


def cost(d_model: int) -> CostSummary:
    params = {"total": 12 * d_model**2, "attention": 4 * d_model**2, "ffn": 7 * d_model**2, "residual": d_model**2}
    sizes = {"d_model": d_model, "widths": [d_model], "average_width": d_model, "kv_bytes_per_token": 4 * d_model}
    return small_cost(**sizes, params=params)


def write_run(path: Path, d_model: int, seed: int = 1, kind: str = "plain") -> Path:
    recipe = {"model": {"d_model": d_model, "residual": {"kind": kind}}, "train": {"steps": 5, "seed": seed}}
    run = RunDir(path)
    run.begin(yaml.safe_dump(recipe), {})
    numbers = {"val_loss": loss(d_model, seed), "tokens": 100 * d_model, "training_flops": 1e6 * d_model**3}
    run.write_result(RunResult(**numbers, cost=cost(d_model)))
    return path


def variant(name: str, d_model: int, scale: float, **further: Any) -> Variant:
    """Of two seeds."""
    per_seed = [loss(d_model, seed, scale) for seed in range(2)]
    measured = Estimate(mean=sum(per_seed) / 2, per_seed=per_seed)
    return small_variant(name=name, val_loss=measured, cost=cost(d_model), **further)


def write_outcome(folder: Path, points: Sequence[Variant | UnfinishedPoint], **further: Any) -> Path:
    about = {"title": "t", "command": "c", "created": "now", "confidence": 0.95, "seeds": [1, 2], "environment": {}}
    Outcome(**about, points=points, **further).write(folder)
    return folder


def by_group(gathered: FitData) -> dict[str, list[tuple[float, int]]]:
    return {group.name: [(point.x, len(point.per_seed)) for point in group.points] for group in gathered.groups}


def fitted(folder: Path, *rows: str, baseline: str | None = None, law: str | None = None) -> ScalingLaws:
    """Laws of y over x in a table with these rows, with a curve for each `kind` if the table has this column."""
    path = folder / "points.csv"
    path.write_text("\n".join(rows))
    axes = Axes("x", "y", "kind" if rows[0].startswith("kind") else None)
    return fit_groups(gather([path], axes, baseline), "t", "c", law)


def test_each_variant_is_a_group_with_a_point_from_each_comparison(tmp_path: Path) -> None:
    """Comparisons of one size are seeds of one point."""
    for folder, d in [(tmp_path / f"{d}-{i}", d) for d in reversed(SIZES) for i in range(2)]:
        write_outcome(folder, [variant("uniform", d, 3.0), variant("x", d, 2.95)], baseline="uniform")
    gathered = gather([*tmp_path.glob("*-0")], AXES)
    assert by_group(gathered) == {name: [(12 * d**2, 2) for d in SIZES] for name in ("uniform", "x")}
    assert gathered.baseline == "uniform"
    gathered = gather([*tmp_path.iterdir()], AXES)
    assert by_group(gathered) == {name: [(12 * d**2, 4) for d in SIZES] for name in ("uniform", "x")}
    smallest = gathered.groups[1].points[0]
    assert smallest.per_seed == 2 * (loss(32, 0, 2.95), loss(32, 1, 2.95))
    assert smallest.y == pytest.approx((loss(32, 0, 2.95) + loss(32, 1, 2.95)) / 2)


def test_runs_of_one_recipe_are_seeds_of_one_point_and_runs_are_grouped_by_folder(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"d{d}-seed{seed}", d, seed) for d in SIZES for seed in (1, 2, 3)]
    gathered = gather(runs, Axes("training_flops", "val_loss"))
    assert by_group(gathered) == {"runs": [(1e6 * d**3, 3) for d in SIZES]}
    assert gathered.groups[0].points[0].per_seed == tuple(loss(32, seed) for seed in (1, 2, 3))
    for x, expected in {"layer_params": 12 * 32**2, "average_width": 32, "kv_bytes": 128, "tokens": 3200}.items():
        assert gather(runs, Axes(x, "val_loss")).groups[0].points[0].x == expected
    runs = [write_run(tmp_path / kind / str(d), d, kind=kind) for kind in ("plain", "wide") for d in SIZES]
    assert list(by_group(gather(runs, Axes("tokens", "val_loss", "folder")))) == ["plain", "wide"]


def test_a_mistake_in_a_table_is_named_with_its_line(tmp_path: Path) -> None:
    for text, named in (
        ("", "holds no table"),
        ("x,y", "no rows"),
        ("x,z 1,2", r"--y: got 'y'; .*x, z"),
        ("x,y 1,2 2,many", r"line 3: y is 'many', not a number"),
        ("x,y 1,2 2", r"line 3: has 1 cells; expected 2"),
        ("x,y #note 0,2", r"line 3: x is 0; a law needs finite numbers above 0"),
        ("x,y 1,nan", r"line 2: y is nan"),
        (f"x,y 1,{'2' * 131_073}", r"line 2: cannot be read \(field larger than field limit"),
        ("x,y,y 1,3,4", r"two columns have the same name \(x, y, y\)"),
        ("x,y 1,3 2,2", r"3 or more different x, and points has 2"),
        (f"x,y {'1,3 ' * 2001}", "has 2,001 points; a law takes at most 2,000"),
    ):
        with pytest.raises(UserError, match=named):
            fitted(tmp_path, *text.split(" "))


def test_what_runs_do_not_have_is_refused(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(d), d) for d in SIZES]
    for axes, named in (
        (("flop", "val_loss"), r"--x: got 'flop'; did you mean 'flops'"),
        (("val_perplexity", "val_loss"), r"--x: got 'val_perplexity'"),
        (("params", "accuracy"), r"--y: got 'accuracy'; .*val_loss"),
        (("params", "train_loss"), r"train_loss is nan"),
        (("active_params", "val_loss"), r"has no active_params"),
        (("params", "val_loss", "model.ffn.kind"), r"--group: got 'model.ffn.kind'; allowed: folder"),
    ):
        with pytest.raises(UserError, match=named):
            fit_groups(gather(runs, Axes(*axes)), "t", "c")


def test_scaling_json_is_what_reports_read_and_holds_the_finished_points_of_a_sweep(tmp_path: Path) -> None:
    """A power law is chosen where the points follow one; the same loss is at (2.95 / 3)^20 of the parameters."""
    points: list[Variant | UnfinishedPoint] = [
        variant(f"{group}-{d}", d, scale, group=group, values={"model.d_model": d})
        for group, scale in (("uniform", 3.0), ("x", 2.95))
        for d in SIZES
    ]
    points.append(UnfinishedPoint(name="x-512", group="x", values={"model.d_model": 512}, state="failed", reason="nan"))
    axes = {group: {"model.d_model": list(SIZES)} for group in ("uniform", "x")}
    study = Study(storage="s", sampler="grid", n_points=9, n_finished=8, n_failed=1)
    write_outcome(tmp_path, points, axes=axes, study=study)
    fit_groups(gather([tmp_path], AXES, "uniform"), "title", "command").write(tmp_path)
    scaling = ScalingLaws.read(tmp_path)
    assert (scaling.x, scaling.y, scaling.title, scaling.command) == ("params", "val_loss", "title", "command")
    assert {saving.fit for saving in scaling.savings} == set(LAWS)
    compared = {(saving.group, saving.baseline, saving.kind) for saving in scaling.savings}
    assert compared == {("x", "uniform", "curve"), ("x", "uniform", "point")}
    assert [point.n_seeds for point in scaling.groups[0].points] == [2] * 4
    assert "noise of runs" in scaling.sentence
    assert "x-512 (failed)" in scaling.sentence
    assert {group.chosen for group in scaling.groups} == {"power"}
    ratios = [saving.ratio.mean for saving in scaling.savings if saving.fit == "power"]
    assert ratios == pytest.approx([(2.95 / 3) ** (1 / 0.05)] * 2)


def test_a_bend_chooses_the_irreducible_loss_where_there_are_points_enough(tmp_path: Path) -> None:
    rows = [f"{x},{2 + 3 * x**-0.5 + 0.0005 * (-1) ** i}" for i, x in enumerate((1, 2, 4, 8, 16, 64))]
    assert fitted(tmp_path, "x,y", *rows).groups[0].chosen == "power_irreducible"
    assert fitted(tmp_path, "x,y", *rows[:4]).groups[0].chosen != "power_irreducible"


def test_a_curve_of_too_few_points_is_left_out_unless_it_is_the_baseline(tmp_path: Path) -> None:
    rows = ["kind,x,y", "a,1,3", "a,2,2.9", "a,4,2.85", "b,1,3", "b,2,2.8"]
    laws = fitted(tmp_path, *rows, baseline="a")
    assert [group.name for group in laws.groups] == ["a"]
    left_out = "Left out: b, because a law needs points at 3 or more different x, and b has 2."
    assert left_out in laws.sentence
    assert scaling_answer(laws)[-1] == left_out
    with pytest.raises(UserError, match=r"over x a law needs points at 3 or more different x, and b has 2"):
        fitted(tmp_path, *rows, baseline="b")


def test_a_law_that_cannot_be_fitted_says_why(tmp_path: Path) -> None:
    rows = ["x,y", "1,3", "2,2.9", "4,2.85"]
    fits = fitted(tmp_path, *rows).groups[0].fits
    assert fits["power"].parameters["b"].mean > 0
    assert fits["power_irreducible"].parameters == {}
    assert "needs points at 4 or more different x" in fits["power_irreducible"].reason
    for law, named in (
        ("power_irreducible", "--law: got power_irreducible, which needs points at 4"),
        ("powr", "--law: got 'powr'; did you mean 'power'"),
    ):
        with pytest.raises(UserError, match=named):
            fitted(tmp_path, *rows, law=law)


def paper(name: str, x: str, y: str, group_by: str | None = None, law: str | None = None) -> ScalingLaws:
    baseline = "transformer" if group_by else None
    return fit_groups(gather([PAPERS / name], Axes(x, y, group_by), baseline), "t", "c", law)


def test_the_printed_points_have_the_papers_laws_and_savings() -> None:
    """arXiv:2606.18246, Table 2; arXiv:2602.06471, Tables 5 and 6; arXiv:2511.11238, Fig. 8."""
    for x, expected in (
        ("pflops_days", [("curve", "2.745", "77.6%"), ("point", "2.751", "74.4%")]),
        ("average_width", [("curve", "2.761", "85.1%"), ("point", "2.751", "86.3%")]),
    ):
        scaling = paper("variable_width_table_2.csv", x, "loss", "model")
        drawn = [saving for saving in scaling.savings if scaling.is_drawn(saving)]
        assert {(saving.group, saving.at.name) for saving in drawn} == {("><former", "2B")}
        assert [(saving.kind, f"{saving.at.y:.4g}", f"{saving.ratio.mean:.1%}") for saving in drawn] == expected
    hourglass = paper("hourglass_tables_5_6.csv", "layer_params_millions", "val_loss").groups[0]
    assert (len(hourglass.points), hourglass.chosen) == (9, "power_irreducible")
    assert round(hourglass.chosen_fit.rms, 3) == 0.004
    virtual = paper("virtual_width_figure_8.csv", "r", "loss", law="log_linear").groups[0].chosen_fit
    assert virtual.parameters["slope"].mean == pytest.approx(-0.00685, abs=1e-12)
    assert round(virtual.parameters["intercept"].mean, 4) == 1.6212
    assert round(virtual.r_squared, 4) == 0.9986


def test_points_that_rise_again_are_no_monotone_law(tmp_path: Path) -> None:
    """A law through a parabola carries a warning, through one side of it none."""
    rows = [f"{x},{3 + 0.04 * np.log(x) ** 2}" for x in (0.2, 0.4, 0.9, 1.8, 4.0)]
    assert "fall and rise again, lowest at 0.9" in (fitted(tmp_path, "x,y", *rows).groups[0].chosen_fit.reason or "")
    assert fitted(tmp_path, "x,y", *rows[:3]).groups[0].chosen_fit.reason is None
