import copy
import random
import string
from typing import Any

import pydantic
import pytest
import yaml
from boxes import Box, Item, Red, check_message, refusal

from widthwise.config_io import UserError, mistakes_at, nearest_hint, parse, to_data
from widthwise.model.config import ModelConfig
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import parse_yaml, to_yaml


class TestParse:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            ({"sizes": 1}, "recipe: sizes: unknown key; did you mean 'size'?"),
            ({"zzz": 1}, "recipe: zzz: unknown key; allowed: by_number, is_open, items, pairs, size, text"),
            ({"items": [{"name": "a"}, {"nam": "b"}]}, "recipe: items.1.nam: unknown key; did you mean 'name'?"),
            (
                {"items": [{"name": "a", "colour": {"kind": "blue", "hight": 3}}]},
                "recipe: items.0.colour.hight: unknown key; did you mean 'height'?",
            ),
            (
                {"items": [{"name": "a", "colour": {"kind": "blu"}}]},
                "recipe: items.0.colour.kind: got 'blu'; did you mean 'blue'?",
            ),
            (
                {"items": [{"name": "a", "colour": {"height": 3}}]},
                "recipe: items.0.colour.height: unknown key; without a kind the section is of kind red; "
                "allowed: depth, kind",
            ),
            (
                {"items": [{"name": "a", "colour": {"kind": "blue", "depth": 3}}]},
                "recipe: items.0.colour.depth: unknown key of kind blue; allowed: height, kind; "
                "to change the kind, replace the section: 'items.0.colour={kind: blue}'",
            ),
            ({"items": [{}]}, "recipe: items.0.name: is required but missing"),
            ({"size": 13}, "recipe: size: got 13, which is unlucky"),
            ({3: 1}, "recipe: 3: unknown key; allowed: by_number, is_open, items, pairs, size, text"),
        ],
    )
    def test_names_path_value_and_what_is_allowed(self, data, expected):
        assert refusal(parse, Box, data) == expected

    @pytest.mark.parametrize(
        ("data", "path"),
        [
            ({"size": "3"}, "size: got '3'"),
            ({"size": 3.0}, "size: got 3.0"),
            ({"size": True}, "size: got True"),
            ({"is_open": 1}, "is_open: got 1"),
            ({"is_open": "yes"}, "is_open: got 'yes'"),
            ({"text": 3}, "text: got 3"),
            ({"pairs": [[1, 2], [1, 2, 3]]}, "pairs.1: got"),
            ({"pairs": [[1, "2"]]}, "pairs.0.1: got '2'"),
            ({"pairs": [[1, float("nan")]]}, "pairs.0.1: got nan"),
            ({"pairs": [[1, float("-inf")]]}, "pairs.0.1: got -inf"),
            ({"pairs": {"a": 1}}, "pairs: got {'a': 1}"),
            ({"items": "abc"}, "items: got 'abc'"),
            ({"items": [{"name": "a", "colour": {"kind": "red", "depth": 0}}]}, "items.0.colour.depth: got 0"),
            ({"items": [{"name": "a", "colour": None}]}, "items.0.colour: got None"),
            ({"by_number": {"three": {}}}, "by_number.three"),
            ({"by_number": {3: 1}}, "by_number.3: got 1"),
        ],
    )
    def test_is_strict_about_types(self, data, path):
        assert path in refusal(parse, Box, data)

    def test_unknown_keys_come_before_what_they_leave_missing(self):
        assert "did you mean 'name'?" in refusal(parse, Item, {"nmae": "a"})

    def test_counts_the_other_mistakes(self):
        assert refusal(parse, Box, {"size": "a", "text": 1, "is_open": 3}).endswith("(and 2 more mistakes)")

    @pytest.mark.parametrize("data", [None, [], [1], "text", 3, True, float("nan"), {}])
    @pytest.mark.parametrize("config_class", [Item, ModelTemplate, ModelConfig])
    def test_what_is_no_mapping_is_refused(self, data, config_class):
        refusal(parse, config_class, data)

    def test_a_section_without_kind_is_of_the_default_one_where_that_has_its_keys(self):
        assert parse(Item, {"name": "a", "colour": {"depth": 3}}).colour == Red(depth=3)

    def test_what_is_not_plain_data_is_refused(self):
        circle: dict[str, Any] = {}
        circle["text"] = circle
        deep: Any = 1
        for _ in range(100_000):
            deep = [deep]
        unprintable = 1 << 100_000
        for data in (
            {"text": {1, 2}},
            {"text": b"x"},
            {"text": object()},
            {(1, 2): 3},
            circle,
            {"pairs": deep},
            unprintable,
        ):
            refusal(parse, Box, data)
        refusal(parse, Box, {"size": unprintable, "text": 3})

    def test_integers_are_numbers_where_a_number_is_wanted(self):
        box = parse(Box, {"pairs": [[1, 2.5]], "by_number": {3: {"a": [1]}}})
        assert box.pairs == ((1.0, 2.5),)
        assert isinstance(box.pairs[0][0], float)
        assert box.by_number[3]["a"] in ([1], (1,))

    def test_configs_are_frozen(self):
        with pytest.raises(pydantic.ValidationError):
            Box().size = 3  # pyright: ignore[reportAttributeAccessIssue]


VALID: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 24,
    "n_layers": 4,
    "shape": {
        "kind": "x",
        "bottleneck_layer": 0.75,
        "bottleneck_width": 0.4,
        "rounding": "balanced",
        "endpoints": "full",
    },
    "attention": {"n_heads": 2, "kv_group_size": 2, "scale": "1/head_dim", "qk_norm": {"over": "head"}},
    "ffn": {"kind": "swiglu", "ratio": 2.5, "multiple_of": 4},
    "residual": {"kind": "plain", "resize": "carry", "multiplier": 0.22},
    "norm": {"eps": 1e-5, "placement": "pre"},
    "init": {"std": 0.1, "width_multiplier": 8},
    "layers": {3: {"ffn": {"d_ff": 7}}, 0: {"d_model": 12}},
}
WEIRD = [
    None,
    True,
    -1,
    0,
    1,
    3,
    7,
    2.5,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    "",
    "x",
    "carry",
    "1/head_dim",
    [],
    [1],
    [[1]],
    {},
]
WEIRD += [
    {"kind": "x"},
    {"kind": None},
    {"kind": []},
    {3: {"d_model": "a"}},
    {"d_model": 1.5},
    {2: {"attention": {"n_heads": 5}}},
]
WEIRD += [
    10**18,
    -(10**18),
    2**24 + 1,
    {0: {"d_in": 999}},
    {3: {"attention": None}},
    {1: None},
    {"1": {}},
    [1, "a", None],
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
                node[random_.choice([f"{key}x", "kind", 5, "zzz", "".join(random_.choices(string.printable, k=5))])] = (
                    node.pop(key)
                )
            case _ if isinstance(node, dict):
                node[random_.choice(list(VALID))] = copy.deepcopy(node[key])
            case _:
                node.append(copy.deepcopy(random_.choice(WEIRD)))
    return data


EXPLICIT = {
    **VALID,
    "shape": {"kind": "explicit", "widths": [12, 8, 20, 16]},
    "attention": {"head_dim": 4},
    "ffn": {"kind": "swiglu", "d_ff": 9},
    "layers": {},
}
DIAMOND = {**VALID, "shape": {"kind": "diamond", "peak_layer": 0.5, "peak_width": 1.5, "quantum": 8, "match": "flops"}}


class TestMutations:
    @pytest.mark.parametrize("valid", [VALID, EXPLICIT, DIAMOND], ids=["x", "explicit", "diamond"])
    def test_a_mutated_template_resolves_or_is_refused(self, valid):
        for seed in range(150):
            data = mutated(valid, random.Random(seed))
            if isinstance(data.get("n_layers"), int) and data["n_layers"] > 50:
                data["n_layers"] = 10**6 + 1  # refused; what is allowed would be written out layer by layer
            try:
                resolved = parse(ModelTemplate, data, "model").resolve(13)
            except UserError as error:
                check_message(error)
                continue
            assert parse(ModelConfig, parse_yaml(to_yaml(resolved), "yaml")) == resolved, seed
            assert resolved.cost().params > 0, seed

    def test_a_mutated_resolved_model_is_valid_or_refused(self):
        valid = to_data(parse(ModelTemplate, VALID).resolve(13))
        for seed in range(150):
            try:
                parse(ModelConfig, mutated(valid, random.Random(seed)), "model").cost()
            except UserError as error:
                check_message(error)

    def test_templates_and_resolved_models_read_back_equal(self):
        template = parse(ModelTemplate, {**VALID, "layers": {1: {"ffn": {"d_ff": 9}}}})
        for config in (template, template.resolve(7)):
            assert parse(type(config), parse_yaml(to_yaml(config), "yaml")) == config

    def test_the_unchanged_ones_are_valid(self):
        for valid in (VALID, EXPLICIT, DIAMOND):
            assert parse(ModelTemplate, yaml.safe_load(yaml.safe_dump(valid))).resolve(13).n_layers == 4


def test_nearest_hint():
    assert nearest_hint("d_f", ["d_ff", "kind"]) == "did you mean 'd_ff'?"
    assert nearest_hint("zzz", ["b", "a"]) == "allowed: a, b"


def test_mistakes_are_named_with_the_path_to_where_they_were_found():
    unlucky = pytest.raises(UserError, match=r"^model\.box\.size: got 13, which is unlucky$")
    with unlucky, mistakes_at("model"), mistakes_at("box"):
        Box(size=13)
    wrong = pytest.raises(UserError, match=r"^model\.box\.size: got 'x'; input should be a valid integer$")
    with wrong, mistakes_at("model"), mistakes_at("box"):
        Box(size="x")
    with pytest.raises(UserError, match=r"^model\.width: got 0$"), mistakes_at("model"):
        raise ValueError("width: got 0")


def test_long_values_are_shortened_and_what_stands_behind_them_stays():
    assert str(UserError(f"kind: got {499 * 'a'}; allowed: b")) == f"kind: got {499 * 'a'}; allowed: b"
    assert str(UserError(f"kind: got {100_000 * 'a'}; allowed: b")) == f"kind: got {100 * 'a'}...{99 * 'a'}; allowed: b"
    of_words = str(UserError(f"kind: got {50_000 * 'a '}; allowed: b"))
    assert of_words.startswith("kind: got a a")
    assert of_words.endswith("a a ; allowed: b")
    assert len(of_words) == 2003


def test_a_value_that_none_of_several_types_takes_is_one_mistake():
    class Several(Box):
        either: int | list[int] | dict[str, int]

    with pytest.raises(UserError, match=r"^box: either: got 'x'; [^()]*$"):
        parse(Several, {"either": "x"}, "box")
    with pytest.raises(UserError, match=r"\(and 1 more mistake\)$"):
        parse(Several, {"either": "x", "size": "y"}, "box")
