"""`widthwise design --match step_time`: which shape it takes, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml

from widthwise.recipe.recipe import load_recipe
from widthwise.recipe.step_time import predicted_step
from widthwise.records.rates import Rates

RATES = {
    "machine": "some CPU",
    "torch": "2.13.0",
    "n_threads": 1,
    "precision": "fp32",
    **dict.fromkeys(
        (
            *("seconds_per_flop", "seconds_per_product_element", "seconds_per_product", "seconds_per_score_flop"),
            *("seconds_per_score", "seconds_per_kept_byte", "seconds_per_logit", "seconds_per_param"),
        ),
        0.0,
    ),
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


def test_a_given_turn_is_kept(recipe, tmp_path, rates, widthwise):
    out = tmp_path / "mine.yaml"
    asked = ("--match", "step_time", "--rates", rates(seconds_per_score=1e-9), "--turn-width", 0.5, "--out", out)
    assert widthwise("design", recipe, *QUANTUM, *asked)[0] == 0
    assert shape_of(out)["bottleneck_width"] == 0.5
    assert shape_of(out)["match"] == "params"


def test_a_growing_shape_has_a_width_to_choose_alone(recipe, tmp_path, rates, widthwise):
    out = tmp_path / "mine.yaml"
    asked = ("--match", "step_time", "--rates", rates(seconds_per_score=1e-9), "--kind", "growing", "--out", out)
    assert widthwise("design", recipe, *QUANTUM, *asked)[0] == 0
    assert shape_of(out)["kind"] == "growing"
    assert 0.2 <= shape_of(out)["narrow_width"] <= 0.9


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--kind", "uniform"), "kind 'uniform' has no turn; allowed: x, diamond, growing, narrowing"),
        (("optimizer={kind: muon, lr: 0.01, adamw: {lr: 0.01}}",), "optimizer.kind: got muon"),
        (("train.activation_checkpointing=layer",), "train.activation_checkpointing: got layer"),
        (("train.precision=bf16",), "precision is fp32; must be the recipe's, bf16"),
        (("--turn-width", 3), "model.shape.bottleneck_width"),
        (("model.n_layers=2",), "model.n_layers: 2 is too few"),
    ],
)
def test_what_is_not_predicted_is_refused(arguments, named, recipe, rates, widthwise):
    asked = ("--match", "step_time", "--rates", rates(seconds_per_flop=1e-9))
    code, _, error = widthwise("design", recipe, *QUANTUM, *arguments, *asked)
    assert code == 2
    assert named in error
    assert len(error.splitlines()) == 1


def test_rates_belong_to_step_time(recipe, rates, widthwise):
    code, _, error = widthwise("design", recipe, "--rates", rates())
    assert (code, "--rates: needs --match step_time" in error) == (2, True)


def test_a_file_without_rates_is_named(recipe, tmp_path, widthwise):
    path = tmp_path / "empty.json"
    path.write_text("{}")
    code, _, error = widthwise("design", recipe, *QUANTUM, "--match", "step_time", "--rates", path)
    assert code == 2
    assert "empty.json" in error
