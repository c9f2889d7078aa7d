"""Whatever is wrong with a recipe, the user gets one line and exit code 2."""

import copy
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

VALID: dict[str, Any] = {
    "model": {
        "vocab_size": 257,
        "d_model": 48,
        "n_layers": 6,
        "attention": {"head_dim": 8, "kv_group_size": 2, "qk_norm": {"eps": 1e-6, "over": "head"}},
        "ffn": {"kind": "swiglu", "ratio": 3.5, "multiple_of": 2},
        "norm": {"eps": 1e-5, "placement": "pre"},
        "residual": {"kind": "plain", "resize": "carry", "multiplier": 0.5},
        "shape": {"kind": "x", "bottleneck_layer": 0.5, "bottleneck_width": 0.5, "quantum": 16, "match": "params"},
        "init": {"std": 0.02, "width_multiplier": 1.5},
        "layers": {2: {"ffn": {"d_ff": 40}}},
    },
    "seq_len": 24,
    "data": {"corpus": "synthetic", "tokenizer": "bytes", "held_out": 0.1},
    "optimizer": {"kind": "adamw", "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-10},
    "schedule": {"kind": "cosine", "warmup_steps": 1},
    "train": {"steps": 3, "batch_size": 4, "precision": "fp32"},
}
Place = tuple[Any, Any]
"""A container inside the recipe and a key of it."""


def places(node: Any) -> Iterator[Place]:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        yield node, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def unknown_key(recipe: dict[str, Any], random_: random.Random) -> None:
    mappings = [recipe, *(node[key] for node, key in places(recipe) if isinstance(node[key], dict))]
    random_.choice(mappings)[random_.choice(["d_modell", "x", "", "n heads", "__class__", "é"])] = 1


def wrong_type(recipe: dict[str, Any], random_: random.Random) -> None:
    node, key = random_.choice(list(places(recipe)))
    values: list[Any] = ["three", [1, "a"], {"a": 1}, [[]], {"kind": []}, {1: 2}]
    if isinstance(node[key], str):
        values = [3, [node[key]], {"a": 1}, True]
    node[key] = random_.choice(values)


def bad_number(recipe: dict[str, Any], random_: random.Random) -> None:
    numbers = [place for place in places(recipe) if type(place[0][place[1]]) in (int, float)]
    node, key = random_.choice(numbers)
    node[key] = random_.choice([-1, -0.5, math.nan, math.inf, -math.inf, True, "1_0x", 10**400])


def missing_key(recipe: dict[str, Any], random_: random.Random) -> None:
    required = [(recipe, key) for key in ("model", "seq_len", "optimizer", "schedule", "train")]
    required += [(recipe["model"], key) for key in ("vocab_size", "d_model", "n_layers")]
    required += [(recipe["train"], "steps"), (recipe["train"], "batch_size"), (recipe["optimizer"], "lr")]
    node, key = random_.choice(required)
    del node[key]


def wrong_choice(recipe: dict[str, Any], random_: random.Random) -> None:
    choices = ("kind", "match", "placement", "over", "resize", "precision", "corpus", "tokenizer")
    node, key = random_.choice([place for place in places(recipe) if place[1] in choices])
    node[key] = random_.choice(["swigluu", "X", "none of these", "", "adam w", "\n"])


def impossible_size(recipe: dict[str, Any], random_: random.Random) -> None:
    model = recipe["model"]
    change: Callable[[], Any] = random_.choice(
        [
            lambda: model["attention"].update(head_dim=random_.choice([7, 9, 13])),
            lambda: model["attention"].update(n_heads=4),
            lambda: model["shape"].update(quantum=random_.choice([4, 8, 20, 10**6])),
            lambda: model["shape"].update(bottleneck_layer=random_.choice([0.01, 1.0])),
            lambda: model["shape"].update(bottleneck_width=1.0),
            lambda: model.update(n_layers=random_.choice([1, 2])),
            lambda: model.update(layers={99: {}}),
            lambda: model.update(layers={2: {"d_model": random_.choice([0, 8, -16])}}),
            lambda: model.update(layers={2: {"ffn": {"d_ff": 0}}}),
            lambda: model.update(shape={"kind": "diamond", "peak_width": 40.0}),
            lambda: model.update(shape={"kind": "explicit", "widths": [48, 48]}),
        ]
    )
    change()


def long_value(recipe: dict[str, Any], random_: random.Random) -> None:
    node, key = random_.choice([place for place in places(recipe) if not isinstance(place[0][place[1]], (dict, list))])
    node[key] = random_.choice([100_000 * "a", 30_000 * "a b ", 1000 * [100 * "a"], {100_000 * "a": 1}])


MUTATIONS = (unknown_key, wrong_type, bad_number, missing_key, wrong_choice, impossible_size, long_value)


def assert_one_line(error: str) -> None:
    assert error.startswith("error: ")
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    assert len(error) < 6000


def test_the_recipe_that_is_spoiled_below_is_valid(tmp_path: Path, widthwise) -> None:
    (tmp_path / "valid.yaml").write_text(yaml.safe_dump(VALID))
    code, _, error = widthwise("inspect", tmp_path / "valid.yaml")
    assert (code, error) == (0, "")


@pytest.mark.parametrize("batch", range(4))
def test_fifty_random_mistakes_each_give_one_line(batch: int, tmp_path: Path, widthwise) -> None:
    for seed in range(50 * batch, 50 * batch + 50):
        random_ = random.Random(seed)
        recipe = copy.deepcopy(VALID)
        mutation = MUTATIONS[seed % len(MUTATIONS)]
        mutation(recipe, random_)
        path = tmp_path / f"{seed}.yaml"
        path.write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
        code, _, error = widthwise("inspect", path)
        assert code == 2, f"seed {seed}, {mutation.__name__}: exit code {code}\n{path.read_text()}"
        assert_one_line(error)
        assert path.name in error or "model." in error, error


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n- b\n",
        "model: [\n",
        "a: 1\na: 2\n",
        "model: !!python/object:os.system {}\n",
        "3",
        "\t",
        "extends: missing.yaml",
        "&a [*a]",
    ],
)
def test_files_that_hold_no_recipe(text: str, tmp_path: Path, widthwise) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    code, _, error = widthwise("inspect", path)
    assert code == 2
    assert_one_line(error)


def test_missing_folders_and_binary_files(tmp_path: Path, widthwise) -> None:
    (tmp_path / "binary.yaml").write_bytes(bytes(range(128, 256)))
    for path in (tmp_path, tmp_path / "absent.yaml", tmp_path / "binary.yaml"):
        code, _, error = widthwise("inspect", path)
        assert code == 2
        assert_one_line(error)
        assert str(path) in error


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.d_modle=3", "model.d_modle: unknown key; did you mean 'd_model'?"),
        ("model.layers.3.ffn.d_f=3", "model.layers.3: ffn.d_f: unknown key; did you mean 'd_ff'?"),
        ("model.attention.head_dim=7", "head_dim"),
        ("model.d_model", "expected path.to.key=value"),
        ("seq_len.x=3", "seq_len is 24"),
        ("train.steps=many", "train.steps: got 'many'"),
    ],
)
def test_overrides_are_checked_with_their_path(override: str, named: str, tmp_path: Path, widthwise) -> None:
    (tmp_path / "valid.yaml").write_text(yaml.safe_dump(VALID))
    code, _, error = widthwise("inspect", tmp_path / "valid.yaml", override)
    assert code == 2
    assert_one_line(error)
    assert named in error
