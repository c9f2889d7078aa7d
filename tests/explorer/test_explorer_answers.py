"""What the page says of a setting is what the other verbs say of the recipe that it gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from boxes import refusal

from widthwise.config_io import parse
from widthwise.explorer.server import Answers
from widthwise.explorer.setting import Setting
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import load_recipe
from widthwise.reports.formats import MISSING, duration, si

CHANGES = ("train.batch_size=24", "train.micro_batch_size=null")


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers("x_200m", CHANGES)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"shape": "uniform", "n_heads": "8", "quantum": "smallest"}, {"d_model": 640, "n_heads": [8]}),
        ({"shape": "diamond", "turn_width": "1.25", "d_model": "704", "quantum": "smallest"}, {"d_model": 704}),
        ({"n_layers": "9", "head_dim": "16", "ratio": "2.5", "match": "kv_bytes"}, {"n_layers": 9, "head_dim": [16]}),
        ({"shape": "growing", "ffn": "hourglass", "kv_group_size": "2", "rounding": "balanced"}, {"d_model": 640}),
        ({"shape": "narrowing", "ffn": "dynamic", "budget": "150M", "match": "params"}, {"n_layers": 16}),
    ],
)
def test_the_numbers_are_those_of_inspect_for_the_recipe_that_it_gives(
    answers: Answers, tmp_path: Path, setting: dict[str, str], expected: dict[str, Any]
) -> None:
    asked = parse(Setting, setting)
    found = answers.costs(asked)
    path = tmp_path / "explored.yaml"
    path.write_text(answers.recipe_yaml(asked))
    inspection = found["inspection"]
    assert json.dumps(inspection) == json.dumps(inspect_recipe(load_recipe(path)))
    assert found["yaml"] == path.read_text()
    assert found["budget"].startswith("budget: ") == ("budget" in setting)
    assert (len(set(inspection["widths"])) == 1) == (setting.get("shape") == "uniform")
    for key, value in expected.items():
        assert (sorted(set(inspection[key])) if isinstance(value, list) else inspection[key]) == value
    assert {layer["n_heads"] // layer["n_kv_heads"] for layer in inspection["layers"]} == {asked.kv_group_size or 1}
    if "ratio" in setting:
        hidden_widths = [round(2.5 * width) for width in inspection["widths"]]
        assert [sum(hidden) for hidden in inspection["hidden_widths"]] == hidden_widths


def test_untouched_it_is_the_recipe(answers: Answers) -> None:
    recipe = load_recipe("x_200m", CHANGES)
    assert json.dumps(answers.costs(Setting())["inspection"]) == json.dumps(inspect_recipe(recipe))
    start = answers.controls["start"]
    assert (start["shape"], start["turn_layer"], start["turn_width"], start["quantum"]) == ("x", 0.75, 0.3, 32)
    assert (start["d_model"], start["n_layers"], start["n_heads"], start["ratio"]) == (640, 16, 16, 4)


def test_counted_key_value_heads_are_groups_that_other_heads_have_too(tmp_path: Path) -> None:
    answers, path = Answers("x_200m", ["model.attention.n_kv_heads=4"]), tmp_path / "explored.yaml"
    settings = ((Setting(kv_group_size=2), 8), (Setting(n_heads=8), 2), (Setting(head_dim=40, shape="uniform"), 4))
    for setting, n_kv_heads in settings:
        path.write_text(answers.recipe_yaml(setting))
        found = {layer.attention.n_kv_heads for layer in load_recipe(path).explicit_model.layers}
        counted = {layer["n_kv_heads"] for layer in answers.costs(setting)["inspection"]["layers"]}
        assert found == counted == {n_kv_heads}


def test_a_curve_is_tried_at_other_sizes_and_left_for_another_kind() -> None:
    of_curve = Answers("x_200m", ["model.shape={kind: curve, widths: [2, 1, 1.5]}"])
    assert of_curve.controls["start"]["shape"] == "curve"
    setting = Setting(n_layers=9, d_model=704)
    found = of_curve.costs(setting)["inspection"]
    assert found == inspect_recipe(of_curve.recipe(setting)) | {"layers": found["layers"]}
    assert (len(found["widths"]), found["widths"].index(min(found["widths"]))) == (9, 4)
    assert of_curve.costs(Setting(shape="x"))["inspection"]["widths"] != found["widths"]


def test_a_recipe_that_cannot_be_explored_is_refused() -> None:
    for message, recipe, *overrides in (
        ("describes several runs", "quickstart"),
        ("model.shape.kind: got 'explicit'", "x_200m", "model.shape={kind: explicit, widths: [64]}"),
        ("bottleneck_width", "x_200m", "model.shape.bottleneck_width=3"),
    ):
        assert message in refusal(Answers, recipe, overrides)


def test_memory_is_that_of_plan(answers: Answers) -> None:
    from widthwise.runs.plan import Planner
    from widthwise.training.devices import WITH_MEMORY

    setting = Setting(n_layers=5, turn_layer=0.5)
    recipe = answers.recipe(setting)
    rows = {row[0]: row[1:] for row in answers.memory(setting)["rows"]}
    assert set(rows) == {device.name for device in WITH_MEMORY}
    for device in (WITH_MEMORY[0], WITH_MEMORY[-1]):
        (none,) = (
            each for each in Planner(recipe).deployment(device).setups if each.activation_checkpointing == "none"
        )
        size = MISSING if none.micro_batch_size is None else str(none.micro_batch_size)
        hours = MISSING if none.micro_batch_size is None else duration(none.run_hours)
        assert rows[device.name] == [f"{si(device.memory_bytes)}B", size, f"{si(none.memory.total_bytes)}B", hours]
