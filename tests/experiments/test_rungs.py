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
RUNGS: dict[str, Any] = {
    "rungs": {f"d{d}": {"model": {"d_model": d}} for d in (16, 24, 40)},
    "groups": {"uniform": {}, "x": {"change": X}},
    "seeds": [4, 7],
    "match": "none",
}


def read(folder: Path, train: dict[str, Any] | None = None, **changes: Any) -> Sweep:
    """changes: of the sweep section."""
    return read_sweep(recipe_file(folder, RUNGS | changes, model={"n_layers": 3}, train=train or {}))


def test_tokens_of_a_rung_follow_from_the_parameters_of_its_first_variant(tmp_path: Path) -> None:
    plan = read(tmp_path, tokens_per_param=0.7, count="params")
    for d in (16, 24, 40):
        # Two embeddings, three layers of 4 d^2 and 3 * 4 d^2, two norms each and one at the end.
        n_params = 3 * 16 * d**2 + 2 * 257 * d + 7 * d
        for variant in ("uniform", "x"):
            recipe = plan.points[f"{variant}-d{d}"].recipe
            assert recipe.train.steps == round(0.7 * n_params / (3 * 17))
            assert recipe.n_tokens == pytest.approx(0.7 * n_params, abs=0.5 * 3 * 17)


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
        assert f"hourglass-d{d}: {point.adjustment}" in plan.adjustment_lines
    assert len(plan.adjustment_lines) == 3


def test_a_mistake_in_a_ladder_is_named(tmp_path: Path) -> None:
    deep = {"uniform": {}, "deep": {"change": {"model": {"n_layers": 4}}}}
    for changes, named in (
        ({"match": "params", "groups": deep}, r"deep-d16: params is 1\.\d+ of uniform-d16's.*match: none under"),
        (
            {"groups": {"uniform": {}, "long": {"change": {"train": {"batch_size": 4}}}}},
            r"long-d16: train.batch_size is 4",
        ),
        ({"rungs": {"a": {}, "b": {}}}, r"sweep: rungs: .*at least 3"),
        ({"groups": {"a b": {}}}, "got the name 'a b'"),
        ({"groups": {"x": {"change": {"model": {"d_modle": 3}}}}}, "x-d16: model.d_modle: unknown key"),
        ({"groups": {}}, "groups: got none; every group is trained on every rung"),
        ({"over": {"optimizer.lr": [1]}}, "rungs: conflicts with over"),
        ({"rungs": {}, "over": {"optimizer.lr": [1]}, "tokens_per_param": 1}, "tokens_per_param: needs rungs"),
        ({"match": {"adjust": {"uniform": "ffn"}}}, r"match\.adjust: got 'uniform', the baseline"),
    ):
        with pytest.raises(UserError, match=named):
            read(tmp_path, **changes)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Path, Outcome]:
    """A ladder with a twin of its first variant, which only writes fewer records; validated in every step."""
    pytest.importorskip("optuna")
    folder = tmp_path_factory.mktemp("ladder")
    groups = {"uniform": {}, "x": {"change": X}, "twin": {"change": {"train": {"log_every": 2}}}}
    train = {"validate_every": 1, "checkpoint_every": None}
    plan = read(folder, train, groups=groups, tokens_per_param=0.01)
    return plan, folder / "out", run_experiment(plan, folder / "out", "command")


def test_a_trained_ladder_is_fitted_over_compute(done: tuple[Sweep, Path, Outcome]) -> None:
    """Through the sweep's own machinery: as many runs as planned, x as planned, beside the first variant."""
    plan, folder, _ = done
    gathered = gather([folder], Axes("training_flops", "val_loss"))
    assert [group.name for group in gathered.groups] == ["uniform", "x", "twin"]
    assert gathered.baseline == "uniform"
    for group in gathered.groups:
        assert [(point.name, point.x) for point in group.points] == [
            (name, point.recipe.training_flops) for name, point in plan.points.items() if point.group == group.name
        ]
    assert {saving["group"] for saving in fit_groups(gathered, "t", "c")["savings"]} == {"x", "twin"}


def test_every_rung_is_compared_with_that_of_the_first_variant(done: tuple[Sweep, Path, Outcome]) -> None:
    found = done[2]
    points = {point.name: point for point in found.variants}
    for d in (16, 24, 40):
        twin, uniform, x = (points[f"{name}-d{d}"] for name in ("twin", "uniform", "x"))
        assert found.baseline_of(twin) == found.baseline_of(uniform) == uniform
        assert (uniform.verdict, uniform.difference) == ("baseline", None)
        assert twin.difference["per_seed"] == [0, 0]
        expected = np.subtract(x.val_loss.per_seed, uniform.val_loss.per_seed)
        assert x.difference.per_seed == pytest.approx(expected, abs=1e-6)


def test_the_answer_of_a_ladder_is_each_variant_at_each_size(done: tuple[Sweep, Path, Outcome]) -> None:
    _, folder, found = done
    points = {point.name: point for point in found.variants}
    groups = [group for group in found.groups if group != "uniform"]
    assert len(groups) > 1
    *lines, settings = answer(found)
    assert "differ from" in settings
    for line, name in zip(lines, groups, strict=True):
        sizes = [(f"d{d}", points[f"{name}-d{d}"]) for d in (16, 24, 40)]
        shown = [f"{size} {with_interval(point.difference, 4)}, {point.verdict}" for size, point in sizes]
        assert line == f"{name} minus uniform at each size: {'; '.join(shown)}."
    assert found.judged == []
    page = write_report([folder])[0].read_text()
    assert f"Do {' and '.join(groups)} reach a lower held-out loss than uniform at each of 3 sizes?" in page
    assert 'aria-label="Loss minus the loss of uniform of the same size over rung' in page


def test_a_rung_has_its_tokens_at_equal_loss_where_it_was_validated_often_enough(done) -> None:
    """The smallest takes four steps, and so four validations."""
    plan, _, found = done
    twins = {d: next(point for point in found.variants if point.name == f"twin-d{d}") for d in (16, 24, 40)}
    assert plan.points["twin-d16"].recipe.train.steps == 4
    assert twins[16].at_equal_loss == {}
    for d in (24, 40):
        assert twins[d].at_equal_loss["val_loss"].tokens_ratio.per_seed == [1, 1]
