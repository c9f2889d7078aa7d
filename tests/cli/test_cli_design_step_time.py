"""`widthwise design --match step_time`: which shape it takes, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml

from widthwise.recipe.recipe import load_recipe
from widthwise.recipe.step_time import predicted_step
from widthwise.records.rates import Rates

RATES = {
    **{name: 0.0 for name in Rates.model_fields if name.startswith("seconds_per_")},
    **{"machine": "some CPU", "torch": "2.13.0", "n_threads": 1, "precision": "fp32"},
}
QUANTUM = ("model.attention.head_dim=2", "model.n_layers=5")


@pytest.fixture
def rates(tmp_path: Path):
    """Writes rates of which some are not 0, and returns their file."""

    def write(**some: float | str) -> Path:
        path = tmp_path / "rates.json"
        path.write_text(json.dumps({**RATES, **some}))
        return path

    return write


def shape_of(path: Path) -> dict:
    return yaml.safe_load(path.read_text())["model"]["shape"]


def test_the_shape_has_the_parameters_of_the_uniform_model_and_no_other_is_faster(recipe, tmp_path, rates, widthwise):
    path, out = rates(seconds_per_kept_byte=1e-9), tmp_path / "mine.yaml"
    asked = ("design", recipe, *QUANTUM, "--match", "step_time", "--rates", path)
    code, printed, error = widthwise(*asked, "--out", out)
    assert code == 0, error
    assert "s predicted, uniform" in printed
    uniform, chosen = load_recipe(recipe, QUANTUM), load_recipe(out)
    ours, theirs = (each.model.resolve(each.seq_len) for each in (chosen, uniform))
    assert ours.cost().params == pytest.approx(theirs.cost().params, rel=0.005)
    known = Rates.model_validate(json.loads(path.read_text()))

    def predicted(layer: float, width: float) -> float:
        turn = f"model.shape={{kind: x, bottleneck_layer: {layer}, bottleneck_width: {width}, rounding: balanced}}"
        other = load_recipe(recipe, [*QUANTUM, turn])
        model = other.model.resolve(other.seq_len)
        miss = abs(model.cost().params / theirs.cost().params - 1)
        n_tokens = other.train.batch_size * other.seq_len
        return predicted_step(model, n_tokens, other.seq_len, known).total if miss <= 0.005 else float("inf")

    shape = shape_of(out)
    own = predicted(shape["bottleneck_layer"], shape["bottleneck_width"])
    assert own == min(predicted(layer / 5, width / 10) for layer in (2, 3, 4) for width in range(2, 10)) < float("inf")
    code, printed, _ = widthwise(*asked, "--json")
    assert json.loads(printed)["step_time"]["predicted_seconds"] == own


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (("--turn-width", 0.5), {"bottleneck_width": 0.5, "match": "params"}),
        (("--kind", "growing"), {"kind": "growing"}),
    ],
)
def test_a_given_turn_is_kept_and_a_growing_shape_has_a_width_to_choose_alone(
    recipe, tmp_path, rates, widthwise, asked, kept
):
    out = tmp_path / "mine.yaml"
    given = ("--match", "step_time", "--rates", rates(seconds_per_score=1e-9), *asked, "--out", out)
    assert widthwise("design", recipe, *QUANTUM, *given)[0] == 0
    assert kept.items() <= shape_of(out).items()
    assert shape_of(out)["kind"] != "growing" or 0.2 <= shape_of(out)["narrow_width"] <= 0.9
