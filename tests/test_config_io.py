"""Plain data become frozen configs or one line that says what is wrong, where, and what is allowed."""

import copy
import random
import string
from typing import Any

import pytest
from boxes import Box, Item, Red, check_message, refusal
from tiny_runs import tiny_recipe

from widthwise.config_io import Config, attribute_docs, mistakes_at, parse, refusing, to_data
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import parse_yaml, to_yaml

KEYS = "by_number, is_open, items, pairs, size, text"
AT = "items.0.colour"
RED, BLUE = "allowed: depth, kind", "allowed: height, kind"
REPLACE = f"to change the kind, replace the section: '{AT}={{kind: blue}}'"


def coloured(**colour: Any) -> dict[str, Any]:
    return {"items": [{"name": "a", "colour": colour}]}


class TestParse:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            ({"sizes": 1}, "sizes: unknown key; did you mean 'size'?"),
            ({"zzz": 1}, f"zzz: unknown key; allowed: {KEYS}"),
            ({3: 1}, f"3: unknown key; allowed: {KEYS}"),
            ({"items": [{"name": "a"}, {"nam": "b"}]}, "items.1.nam: unknown key; did you mean 'name'?"),
            (coloured(kind="blue", hight=3), f"{AT}.hight: unknown key; did you mean 'height'?"),
            (coloured(kind="blu"), f"{AT}.kind: got 'blu'; did you mean 'blue'?"),
            (coloured(height=3), f"{AT}.height: unknown key; without a kind the section is of kind red; {RED}"),
            (coloured(kind="blue", depth=3), f"{AT}.depth: unknown key of kind blue; {BLUE}; {REPLACE}"),
            ({"items": [{}]}, "items.0.name: is required but missing"),
            ({"size": 13}, "size: got 13, which is unlucky"),
        ],
    )
    def test_names_path_value_and_what_is_allowed(self, data, expected):
        assert refusal(parse, Box, data) == f"recipe: {expected}"

    def test_is_strict_about_types(self):
        for data, said in (
            ({"size": 3.0}, "size: got 3.0"),
            ({"is_open": "yes"}, "is_open: got 'yes'"),
            *(({"pairs": [[1, value]]}, f"pairs.0.1: got {value!r}") for value in ("2", float("nan"), float("-inf"))),
            ({"items": [{"name": "a", "colour": None}]}, "items.0.colour: got None"),
            ({"by_number": {"three": {}}}, "by_number.three"),
        ):
            assert said in refusal(parse, Box, data)

    def test_of_several_mistakes_an_unknown_key_comes_first_and_the_others_are_counted(self):
        assert "did you mean 'name'?" in refusal(parse, Item, {"nmae": "a"})
        assert refusal(parse, Box, {"size": "a", "text": 1, "is_open": 3}).endswith("(and 2 more mistakes)")
        many = {"by_number": {str(i): 1 for i in range(30_000)}}  # in time that is not the square of their number
        assert refusal(parse, Box, many).endswith("(and 29,999 more mistakes)")

    def test_what_is_no_mapping_or_not_plain_data_is_refused(self):
        for data in (None, [], [1], "text", 3, True, float("nan"), {}):
            refusal(parse, Item, data)
        circle: dict[str, Any] = {}
        circle["text"] = circle
        deep: Any = 1
        for _ in range(100_000):
            deep = [deep]
        huge = 1 << 100_000
        for data in ({"text": {1, 2}}, {"text": b"x"}, {"text": object()}, {(1, 2): 3}, circle, {"pairs": deep}, huge):
            refusal(parse, Box, data)
        refusal(parse, Box, {"size": huge, "text": 3})

    def test_a_section_without_kind_is_of_the_default_one_and_integers_are_numbers(self):
        assert parse(Item, {"name": "a", "colour": {"depth": 3}}).colour == Red(depth=3)
        (pair,) = parse(Box, {"pairs": [[1, 2.5]]}).pairs
        assert (pair, type(pair[0])) == ((1.0, 2.5), float)


TURN = {"bottleneck_layer": 0.75, "bottleneck_width": 0.4, "rounding": "balanced", "endpoints": "full"}
VALID: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 24,
    "n_layers": 4,
    "shape": {"kind": "x", **TURN},
    "attention": {"n_heads": 2, "kv_group_size": 2, "scale": "1/head_dim", "qk_norm": {"over": "head"}},
    "ffn": {"kind": "swiglu", "ratio": 2.5, "multiple_of": 4},
    "residual": {"kind": "plain", "resize": "carry", "multiplier": 0.22},
    "norm": {"eps": 1e-5, "placement": "pre"},
    "init": {"std": 0.1, "width_multiplier": 8},
    "layers": {3: {"ffn": {"d_ff": 7}}, 0: {"d_model": 12}},
}
EXPLICIT = {**VALID, "shape": {"kind": "explicit", "widths": [12, 8, 20, 16]}, "ffn": {"d_ff": 9}, "layers": {}}
DIAMOND = {**VALID, "shape": {"kind": "diamond", "peak_layer": 0.5, "peak_width": 1.5, "quantum": 8, "match": "flops"}}
RECIPE = {**to_data(tiny_recipe()), "model": {key: value for key, value in VALID.items() if key != "layers"}}
WEIRD: list[Any] = [
    *(None, True, -1, 0, 1, 3, 7, 2.5, 1e308, 1e-320, float("nan"), float("inf"), 10**18, -(10**18), 2**24 + 1),
    *("", "x", "carry", "1/head_dim", [], [1], [[1]], [1, "a", None], {}, {"kind": "x"}, {"kind": None}, {"kind": []}),
    *({3: {"d_model": "a"}}, {"d_model": 1.5}, {2: {"attention": {"n_heads": 5}}}, {0: {"d_in": 999}}),
    *({3: {"attention": None}}, {1: None}, {"1": {}}, "1_0x", 10**400, 100_000 * "a", {100_000 * "a": 1}),
]


def nodes(data: Any, path: tuple = ()) -> list[tuple]:
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(inner for key, value in inside for inner in nodes(value, (*path, key)))]


def mutated(data: Any, random_: random.Random) -> Any:
    """One to three values replaced, removed, renamed, duplicated or moved."""
    data = copy.deepcopy(data)
    for _ in range(random_.randint(1, 3)):
        paths = [path for path in nodes(data) if path]
        if not paths:
            return data
        *parents, key = random_.choice(paths)
        node = data
        for parent in parents:
            node = node[parent]
        match random_.randrange(5):
            case 0 | 1:
                node[key] = copy.deepcopy(random_.choice(WEIRD))
            case 2:
                del node[key]
            case 3 if isinstance(node, dict):
                renamed = [f"{key}x", "kind", 5, "zzz", "".join(random_.choices(string.printable, k=5))]
                node[random_.choice(renamed)] = node.pop(key)
            case _ if isinstance(node, dict):
                node[random_.choice(list(VALID))] = copy.deepcopy(node[key])
            case _:
                node.append(copy.deepcopy(random_.choice(WEIRD)))
    return data


CASES = {
    "x": (ModelTemplate, VALID),
    "explicit": (ModelTemplate, EXPLICIT),
    "diamond": (ModelTemplate, DIAMOND),
    "resolved model": (ModelConfig, to_data(parse(ModelTemplate, VALID).resolve(13))),
    "recipe": (Recipe, RECIPE),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mutated_config_is_valid_or_refused_in_one_line(name):
    config_class, valid = CASES[name]
    for seed in [None, *range(60)]:
        data = valid if seed is None else mutated(valid, random.Random(seed))
        if isinstance(data.get("n_layers"), int) and data["n_layers"] > 50:
            data["n_layers"] = 10**6 + 1  # refused; what is allowed would be written out layer by layer
        try:
            config = parse(config_class, data)
            if isinstance(config, ModelTemplate):
                config = config.resolve(13)
        except UserError as error:
            check_message(error)
            assert seed is not None
            continue
        if isinstance(config, ModelConfig):
            assert config.cost().params > 0, seed
            assert parse(ModelConfig, parse_yaml(to_yaml(config), "yaml")) == config, seed


def test_mistakes_are_named_with_the_path_to_where_they_were_found():
    for size, said in ((13, "got 13, which is unlucky"), ("x", "got 'x'; input should be a valid integer")):
        with pytest.raises(UserError) as found, mistakes_at("model"), mistakes_at("box"):
            Box(size=size)
        assert str(found.value) == f"model.box.size: {said}"
    with pytest.raises(UserError, match=r"^model\.width: got 0$"), mistakes_at("model"):
        raise ValueError("width: got 0")


def test_long_values_are_shortened_and_what_stands_behind_them_stays():
    assert str(UserError(f"kind: got {100_000 * 'a'}; allowed: b")) == f"kind: got {100 * 'a'}...{99 * 'a'}; allowed: b"
    of_words = str(UserError(f"kind: got {50_000 * 'a '}; allowed: b"))
    assert (of_words[:13], of_words[-16:], len(of_words)) == ("kind: got a a", "a a ; allowed: b", 2003)


def test_a_value_that_none_of_several_types_takes_is_one_mistake():
    class Several(Box):
        either: int | list[int] | dict[str, int]

    said = refusal(parse, Several, {"either": "x"}, "box")
    assert said.startswith("box: either: got 'x'; ")
    assert "more mistake" not in said
    assert refusal(parse, Several, {"either": "x", "size": "y"}, "box").endswith("(and 1 more mistake)")


class Base(Config):
    kept: int = 1
    """A field of the base."""
    changed: int = 1
    """A field of the base that is declared anew."""


class Derived(Base):
    """Not of a field."""

    changed: int = 2
    own: int = 3
    """Two
    lines."""
    bare: int = 4


def of_fields(config: type[Config]) -> dict[str, str]:
    return {name: text for name, text in attribute_docs(config).items() if name in config.model_fields}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("model.ngrams={max_n: 3}", "model.ngrams: unknown key; embeddings of n-grams were removed; .* mtp"),
        ("model.ffn={kind: dynamic_hourglass}", "model.ffn.kind: got 'dynamic_hourglass', .* removed; use hourglass"),
        ("growth=[{at_tokens: 99, model: {}}]", "growth.0.at_tokens: unknown key; was removed; give at_step"),
        ("growth=[{at_step: 2, model: {}, rewarmup_of: new}]", "rewarmup_of: unknown key; was removed; .*freeze_steps"),
    ],
)
def test_what_was_removed_is_refused_with_what_to_use(change, expected):
    with pytest.raises(UserError, match=expected):
        tiny_recipe(change)


def test_a_field_declared_anew_leaves_the_docstring_of_the_base_and_a_class_without_source_has_none():
    assert of_fields(Derived) == {"kept": "A field of the base.", "own": "Two\nlines."}
    namespace = {"Config": Config}
    exec("class Typed(Config):\n    size: int = 1\n    'A size.'", namespace)
    assert of_fields(namespace["Typed"]) == {}


def test_the_schema_describes_every_field_that_has_a_docstring():
    for config in (AttentionConfig, TrainConfig):
        properties = config.model_json_schema()["properties"]
        docs = of_fields(config)
        assert docs
        assert {name: properties[name]["description"] for name in docs} == docs


def test_what_a_library_says_becomes_one_line_with_what_it_is_about():
    for error in (RuntimeError("first\n  second"), OSError(2, "first second"), KeyError()):
        said = "KeyError" if isinstance(error, KeyError) else "first second"
        with pytest.raises(UserError, match=rf"^data: lost \({said}\)$"), refusing("data: lost", Exception):
            raise error
