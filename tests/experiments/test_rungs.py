"""A ladder's sizes and steps before it is trained, and the law that comes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sweeps import hourglass_sizes, recipe_file

from widthwise.experiments.fitting import fit_groups
from widthwise.experiments.plan import Sweep
from widthwise.experiments.running import run_experiment
from widthwise.experiments.scaling_points import Axes, gather
from widthwise.experiments.sweep import read_sweep
from widthwise.mistakes import UserError
from widthwise.records.outcome import Outcome
from widthwise.reports.formats import with_interval
from widthwise.reports.writing import answer, write_report

X = {"model": {"shape": {"kind": "x", "bottleneck_layer": 0.67, "bottleneck_width": 0.5, "quantum": 8}}}
GROUPS: dict[str, Any] = {"uniform": {}, "x": {"change": X}, "twin": {"change": {"train": {"log_every": 2}}}}
"""The twin only writes fewer records."""
RUNGS = {f"d{d}": {"model": {"d_model": d}} for d in (16, 24, 40)}


def read(folder: Path, **changes: Any) -> Sweep:
    """changes: of the sweep section."""
    sweep = {"rungs": RUNGS, "groups": GROUPS, "seeds": [4, 7], "match": "none", **changes}
    train = {"validate_every": 1, "checkpoint_every": None}
    return read_sweep(recipe_file(folder, sweep, model={"n_layers": 3}, train=train))


def test_variants_are_sized_to_the_first_of_their_rung(tmp_path: Path) -> None:
    hourglass = {"model": {"n_layers": 2, "ffn": {"kind": "hourglass", "n_blocks": 3, "ratio": 0.5}}}
    groups = {"uniform": {}, "hourglass": {"change": hourglass}}
    match = {"quantity": "layer_params", "adjust": {"hourglass": ["d_model", "ffn"]}}
    rungs = {f"d{d}": {"model": {"d_model": d}} for d in (40, 64, 96)}
    plan = read(tmp_path, rungs=rungs, groups=groups, match=match, tokens_per_param=0.7, count="layer_params")
    for d in (40, 64, 96):
        budget, point = 3 * 16 * d**2, plan.points[f"hourglass-d{d}"]
        assert point.recipe.train.steps == plan.points[f"uniform-d{d}"].recipe.train.steps == round(0.7 * budget / 51)
        layer = point.recipe.final_model.layers[0]
        assert (layer.d_model, layer.ffn.d_hidden) == hourglass_sizes(budget, 2, 3, 0.5, quantum=8)
        assert f"hourglass-d{d}: {point.adjustment}" in plan.notes
    assert len(plan.notes) == 3


def test_null_drops_a_rung(tmp_path: Path) -> None:
    rungs = {**RUNGS, "d48": {"model": {"d_model": 48}}, "d16": None}
    assert [*read(tmp_path, rungs=rungs, groups={"uniform": {}}).points] == [f"uniform-d{d}" for d in (24, 40, 48)]


def test_a_mistake_in_a_ladder_is_named(tmp_path: Path) -> None:
    deep = {"uniform": {}, "deep": {"change": {"model": {"n_layers": 4}}}}
    wide = {"uniform": {}, "wide": {"change": {"train": {"batch_size": 4}}}}
    for changes, named in (
        ({"match": "params", "groups": deep}, r"deep-d16: params is 1\.\d+ of uniform-d16's.*match: none under"),
        ({"groups": wide}, r"wide-d16: train.batch_size is 4"),
        ({"rungs": {"a": {}, "b": {}}}, r"sweep: rungs: .*at least 3"),
        ({"groups": {"x": {"change": {"model": {"d_modle": 3}}}}}, "x-d16: model.d_modle: unknown key"),
        ({"groups": {}}, "groups: got none; every group is trained on every rung"),
        ({"over": {"optimizer.lr": [1]}}, "rungs: conflicts with over"),
        ({"rungs": {}, "over": {"optimizer.lr": [1]}, "tokens_per_param": 1}, "tokens_per_param: needs rungs"),
        ({"match": {"adjust": {"uniform": "ffn"}}}, r"match\.adjust: got 'uniform', the baseline"),
    ):
        with pytest.raises(UserError, match=named):
            read(tmp_path, **changes)


Ladder = tuple[Sweep, Path, Outcome]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    folder = tmp_path_factory.mktemp("ladder")
    plan = read(folder, tokens_per_param=0.01)
    return plan, folder / "out", run_experiment(plan, folder / "out", "command")


def test_a_trained_ladder_is_fitted_over_compute(done: Ladder) -> None:
    plan, folder, _ = done
    gathered = gather([folder], Axes("training_flops", "val_loss"))
    assert [group.name for group in gathered.groups] == ["uniform", "x", "twin"]
    assert gathered.baseline == "uniform"
    fitted = {point.name: point.x for group in gathered.groups for point in group.points}
    assert fitted == {name: point.recipe.training_flops for name, point in plan.points.items()}
    assert {saving.group for saving in fit_groups(gathered, "t", "c").savings} == {"x", "twin"}


def test_every_rung_is_compared_with_that_of_the_first_variant(done: Ladder) -> None:
    """It has tokens at equal loss if it was validated often enough; the smallest has four steps and validations."""
    plan, _, outcome = done
    points = {point.name: point for point in outcome.variants}
    assert plan.points["twin-d16"].recipe.train.steps == 4
    for d in (16, 24, 40):
        # Two embeddings, three layers of 4 d^2 and 3 * 4 d^2, two norms each and one at the end.
        n_params = 2 * 257 * d + 3 * 16 * d**2 + 7 * d
        assert {plan.points[f"{name}-d{d}"].recipe.train.steps for name in GROUPS} == {round(0.01 * n_params / 51)}
        twin, uniform, x = (points[f"{name}-d{d}"] for name in ("twin", "uniform", "x"))
        assert outcome.baseline_of(twin) == outcome.baseline_of(uniform) == uniform
        assert (uniform.verdict, uniform.difference) == ("baseline", None)
        assert twin.difference.per_seed == [0, 0]
        expected = np.subtract(x.val_loss.per_seed, uniform.val_loss.per_seed)
        assert x.difference.per_seed == pytest.approx(expected, abs=1e-6)
        ratios = [equal.tokens_ratio.per_seed for equal in twin.at_equal_loss.values()]
        assert ratios == ([] if d == 16 else [[1, 1]])
    assert outcome.judged == []


def test_the_answer_of_a_ladder_is_each_variant_at_each_size(done: Ladder) -> None:
    _, folder, outcome = done
    for line, name in zip(answer(outcome), ("x", "twin")):
        points = {f"d{d}": next(p for p in outcome.variants if p.name == f"{name}-d{d}") for d in (16, 24, 40)}
        shown = [f"{size} {with_interval(point.difference, 4)}, {point.verdict}" for size, point in points.items()]
        assert line == f"{name} minus uniform at each size: {'; '.join(shown)}."
    page = write_report([folder])[0].read_text()
    assert "Do x and twin reach a lower held-out loss than uniform at each of 3 sizes?" in page
    assert 'aria-label="Loss minus the loss of uniform of the same size over rung' in page
