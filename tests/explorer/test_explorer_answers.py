"""What the page says of a setting is what the other verbs say of the recipe that it gives."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from boxes import check_message, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import UserError, parse
from widthwise.explorer.answers import Answers, remembered
from widthwise.explorer.setting import Setting
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import load_recipe
from widthwise.reports.formats import MISSING, duration, si

CHANGES = ("train.batch_size=24", "train.micro_batch_size=null")
SHAPES = ("uniform", "x", "diamond", "growing", "narrowing")


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers("x_200m", CHANGES)


def _drawn(draw: random.Random) -> dict[str, Any]:
    """A setting with about half of the controls moved."""
    shape = draw.choice(SHAPES)
    asked = {
        "shape": shape,
        "quantum": "smallest",
        "d_model": 64 * draw.randint(4, 20),
        "n_layers": draw.randint(5, 23),
        "kv_group_size": draw.choice([1, 2]),
        "ffn": draw.choice(["swiglu", "mlp", "hourglass", "dynamic"]),
        draw.choice(["n_heads", "head_dim"]): draw.choice([8, 16, 32]),
    }
    if shape != "uniform":
        asked["turn_width"] = 1.25 if shape == "diamond" else draw.randint(30, 90) / 100
        asked["match"] = draw.choice(["params", "flops", "kv_bytes"])
        asked["rounding"] = draw.choice(["nearest", "balanced"])
    if draw.random() < 0.5:
        asked["ratio"] = draw.randint(2, 17) / 4
    if draw.random() < 0.3:
        asked |= {"budget": f"{draw.randint(80, 300)}M", "match": "params"}
    return {name: asked[name] for name in asked if name in ("shape", "quantum") or draw.random() < 0.6}


@pytest.mark.parametrize("seed", range(8))
def test_the_numbers_are_those_of_inspect_for_the_recipe_that_it_gives(answers, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        asked = _drawn(draw)
        setting = parse(Setting, {name: str(value) for name, value in asked.items()})
        with suppress(UserError):
            found = answers.costs(setting)
            break
    else:
        pytest.fail("none of the settings can be had")
    path = tmp_path / "explored.yaml"
    path.write_text(answers.recipe_yaml(setting))
    recipe = load_recipe(path)
    assert json.dumps(found["inspection"]) == json.dumps(inspect_recipe(recipe))
    assert found["yaml"] == path.read_text()
    _check_asked(asked, found)


def _check_asked(asked: dict[str, Any], found: dict[str, Any]) -> None:
    """What was asked is there."""
    inspection = found["inspection"]
    assert inspection["n_layers"] == asked.get("n_layers", 16)
    assert found["budget"].startswith("budget: ") == ("budget" in asked)
    if "budget" not in asked:
        assert inspection["d_model"] == asked.get("d_model", 640)
    if "n_heads" in asked:
        assert set(inspection["n_heads"]) == {asked["n_heads"]}
    if "head_dim" in asked:
        assert set(inspection["head_dim"]) == {asked["head_dim"]}
    assert {layer["n_heads"] // layer["n_kv_heads"] for layer in inspection["layers"]} == {
        asked.get("kv_group_size", 1)
    }
    assert (len(set(inspection["widths"])) == 1) == (asked["shape"] == "uniform")
    if asked["shape"] == "diamond":
        assert max(inspection["widths"][1:-1]) > inspection["widths"][0]
    if "ratio" in asked and asked.get("ffn", "swiglu") == "swiglu":
        hidden_widths = [round(asked["ratio"] * width) for width in inspection["widths"]]
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


@settings(deadline=None, max_examples=15)
@given(
    setting=st.builds(
        Setting,
        shape=st.sampled_from(SHAPES),
        turn_width=st.floats(0.01, 3) | st.none(),
        turn_layer=st.floats(0, 1) | st.none(),
        n_layers=st.integers(1, 9),
        d_model=st.integers(1, 700),
        quantum=st.just("smallest"),
    )
)
def test_a_combination_that_cannot_be_had_is_a_mistake_in_one_line(answers: Answers, setting: Setting) -> None:
    try:
        assert len(answers.costs(setting)["inspection"]["widths"]) == setting.n_layers
    except UserError as error:
        check_message(error)


def test_a_recipe_that_cannot_be_explored_is_refused() -> None:
    for message, recipe, *overrides in (
        ("describes several runs", "quickstart"),
        ("model.shape.kind: got 'explicit'", "x_200m", "model.shape={kind: explicit, widths: [64]}"),
        ("bottleneck_width", "x_200m", "model.shape.bottleneck_width=3"),
    ):
        assert message in refusal(Answers, recipe, overrides)


def test_answers_are_kept_up_to_a_number_and_the_oldest_leaves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int | None] = []

    def count(setting: Setting) -> int | None:
        counted.append(setting.d_model)
        return setting.d_model

    monkeypatch.setattr("widthwise.explorer.answers.N_KEPT", 2)
    answer = remembered(count)
    for d_model in (1, 2, 1, 3, 1, 2):
        assert answer(Setting(d_model=d_model)) == str(d_model)
    assert counted == [1, 2, 3, 2]  # 1 was asked again before 3 came, so that 2 left


def test_nobody_waits_for_the_answer_of_another_setting() -> None:
    may_end = threading.Event()

    def count(setting: Setting) -> bool:
        return setting.d_model == 1 or may_end.wait(60)

    answer = remembered(count)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(answer, Setting(d_model=2))
        try:
            assert pool.submit(answer, Setting(d_model=1)).result(timeout=30) == "true"
            assert not slow.done()
        finally:
            may_end.set()


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
