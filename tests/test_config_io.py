import copy
import random
import string
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import (
    Config,
    UserError,
    apply_overrides,
    merge,
    mistakes_at,
    nearest_hint,
    parse,
    parse_yaml,
    read_mapping,
    read_recipe,
    to_data,
    to_yaml,
)
from widthwise.model.config import ModelConfig
from widthwise.shape.template import ModelTemplate

LONG = "9" * 5000


class Red(Config):
    kind: Literal["red"] = "red"
    depth: pydantic.PositiveInt = 1


class Blue(Config):
    kind: Literal["blue"] = "blue"
    height: float = 1.0


class Item(Config):
    name: str
    colour: Annotated[Red | Blue, pydantic.Field(discriminator="kind")] = Red()


class Box(Config):
    items: tuple[Item, ...] = ()
    pairs: tuple[tuple[float, float], ...] = ()
    size: int | None = None
    is_open: bool = False
    by_number: dict[int, dict[str, Any]] = pydantic.Field(default_factory=dict)
    text: str = ""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Box":
        if self.size == 13:
            raise ValueError("size: got 13, which is unlucky")
        return self


def check_message(error: UserError) -> None:
    assert len(str(error).splitlines()) == 1
    assert "pydantic" not in str(error)


def refusal(function, *arguments) -> str:
    """The message of the UserError, which must be one line."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    check_message(caught.value)
    return str(caught.value)


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
                "recipe: items.0.colour.kind: is required but missing",
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
        assert refusal(parse, Box, {"size": "a", "text": 1, "is_open": 3}).endswith("(and 2 more)")

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


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-5", 1e-5),
            ("1E3", 1e3),
            ("-2e+4", -2e4),
            ("1.5e2", 150.0),
            ("1.e3", 1e3),
            ("1.0e-10", 1e-10),
            ("+3e1", 30.0),
        ],
    )
    def test_exponents_are_numbers(self, text, value):
        read = parse_yaml(f"a: {text}", "text")["a"]
        assert read == value
        assert isinstance(read, float)

    @pytest.mark.parametrize("text", ["1e", "e5", "1e5x", "v1e5", "'1e5'"])
    def test_what_only_looks_like_an_exponent_is_text(self, text):
        assert isinstance(parse_yaml(f"a: {text}", "text")["a"], str)

    @pytest.mark.parametrize(
        "text",
        [
            "a: 1\na: 2",
            "x: {a: 1, a: 2}",
            "x: [{b: {a: 1, a: 2}}]",
            "a: !!python/object/apply:os.system ['true']",
            "a: !!python/name:os.system",
            "!!python/object:collections.OrderedDict {}",
            "a: [1, 2",
            "a: b: c",
            "\ta: 1",
            "a: @b",
            "a: *nowhere",
            "? [1, 2]\n: 3",
            "? {a: 1}\n: 3",
            "1.5: a",
            "null: a",
            "<<: {a: 1}",
            "a: !!timestamp x",
            "a: !!bool x",
            "a: !!int ''",
            "a: !!int x",
            "a: !!float ''",
            "a: !!omap x",
            "a: !!set x",
            "a: !!binary é",
            "a: 0x",
            "a: 0b_",
            "a: 2024-13-45",
            f"a: {LONG}",
            "a: &x [*x]\nb: &y {c: *y}",
            "a: \x00",
            "a: \x07",
            "[" * 3000 + "]" * 3000,
            "{a: " * 3000 + "}" * 3000,
            "--- 1\n--- 2",
            "%YAML 9.9\n---\na: 1",
        ],
    )
    def test_bad_yaml_is_a_user_error(self, text, tmp_path):
        file = tmp_path / "bad.yaml"
        file.write_text(text)
        assert str(file) in refusal(lambda: parse(Box, read_mapping(file), str(file)))

    def test_a_syntax_error_names_the_line(self, tmp_path):
        file = tmp_path / "bad.yaml"
        file.write_text("a: 1\nb: [1\nc: 2\n")
        assert "line 3" in refusal(read_mapping, file)

    @pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "3", "[1]", "text"])
    def test_a_file_without_a_mapping_is_refused(self, text, tmp_path):
        file = tmp_path / "recipe.yaml"
        file.write_text(text)
        assert "not a mapping" in refusal(read_mapping, file)

    @settings(deadline=None, max_examples=100)
    @given(text=st.text(max_size=40) | st.text(alphabet="a1e-+.:{}[]&*!?|>'\"%@ \n\t#,<=~", max_size=40))
    def test_any_text_is_data_or_a_user_error(self, text):
        try:
            data = parse_yaml(text, "text")
        except UserError as error:
            check_message(error)
        else:
            if isinstance(data, dict):
                try:
                    parse(Box, data)
                except UserError as error:
                    check_message(error)


class TestRoundTrip:
    texts = st.text(max_size=12) | st.sampled_from(
        ["1e5", "1e-5", "null", "yes", "~", "3", "1_0", "0x1", "a: b", "- a", "", "!x", "=", "<<"]
    )
    numbers = st.floats(allow_nan=False, allow_infinity=False)

    @settings(deadline=None, max_examples=100)
    @given(data=st.data())
    def test_yaml_reads_back_equal(self, data):
        colours = st.builds(Red, depth=st.integers(1, 2**63 - 1)) | st.builds(Blue, height=self.numbers)
        texts = self.texts.filter(lambda text: text.isprintable())
        box = Box(
            items=tuple(data.draw(st.lists(st.builds(Item, name=texts, colour=colours), max_size=3))),
            pairs=tuple(data.draw(st.lists(st.tuples(self.numbers, self.numbers), max_size=3))),
            size=data.draw(st.none() | st.integers(14, 2**63 - 1)),
            is_open=data.draw(st.booleans()),
            by_number=data.draw(
                st.dictionaries(st.integers(0, 99), st.dictionaries(texts, texts, max_size=2), max_size=2)
            ),
            text=data.draw(texts),
        )
        assert parse(Box, parse_yaml(to_yaml(box), "yaml")) == box
        assert parse(Box, to_data(box)) == box

    def test_model_template_and_resolved_model(self):
        template = parse(ModelTemplate, {**VALID, "layers": {1: {"ffn": {"d_ff": 9}}}})
        for config in (template, template.resolve(7)):
            assert parse(type(config), parse_yaml(to_yaml(config), "yaml")) == config


class TestInheritance:
    def write(self, folder: Path, **files: str) -> None:
        for name, text in files.items():
            (folder / f"{name}.yaml").write_text(text)

    def test_chain_child_wins_key_by_key_and_lists_replace(self, tmp_path):
        (tmp_path / "deep").mkdir()
        self.write(tmp_path, a="m: {x: 1, y: {z: 1, w: [1, 2, 3]}}\nn: 1", c="extends: deep/b.yaml\nm: {y: {w: [9]}}")
        self.write(tmp_path / "deep", b="extends: ../a.yaml\nm: {x: 2}\nk: 3")
        assert read_recipe(tmp_path / "c.yaml") == {"m": {"x": 2, "y": {"z": 1, "w": [9]}}, "n": 1, "k": 3}

    def test_another_kind_replaces_the_mapping(self):
        base = {"f": {"kind": "a", "x": 1, "y": 2}}
        assert merge(base, {"f": {"kind": "b", "z": 3}}) == {"f": {"kind": "b", "z": 3}}
        assert merge(base, {"f": {"kind": "a", "x": 3}}) == {"f": {"kind": "a", "x": 3, "y": 2}}
        assert merge(base, {"f": {"x": 3}}) == {"f": {"kind": "a", "x": 3, "y": 2}}
        assert merge(base, {"f": None}) == {"f": None}
        assert base == {"f": {"kind": "a", "x": 1, "y": 2}}

    @pytest.mark.parametrize("cycle", [["a"], ["a", "b"], ["a", "b", "c"]])
    def test_cycles_are_refused(self, cycle, tmp_path):
        self.write(tmp_path, **{name: f"extends: ./{after}.yaml" for name, after in zip(cycle, [*cycle[1:], cycle[0]])})
        assert "extends itself" in refusal(read_recipe, tmp_path / "a.yaml")

    def test_the_same_parent_by_two_ways_is_no_cycle(self, tmp_path):
        self.write(tmp_path, a="x: 1", b="extends: a.yaml", c="extends: b.yaml")
        assert read_recipe(tmp_path / "c.yaml") == {"x": 1}

    @pytest.mark.parametrize(
        "extends",
        ["nowhere.yaml", "3", "[a.yaml]", "{a: 1}", "''", ".", '"a\\0b"', "x" * 5000, "'../' ", "/proc/self/mem"],
    )
    def test_a_bad_parent_is_a_user_error(self, extends, tmp_path):
        self.write(tmp_path, a=f"extends: {extends}")
        refusal(read_recipe, tmp_path / "a.yaml")

    def test_a_folder_is_told_what_was_expected(self, tmp_path):
        assert refusal(read_recipe, tmp_path) == f"{tmp_path}: is a folder; expected a recipe file"
        (tmp_path / "config.yaml").write_text("a: 1")
        assert refusal(read_recipe, tmp_path).endswith(
            f"; expected a recipe file, such as {tmp_path}/config.yaml, that of this run"
        )

    def test_unreadable_files(self, tmp_path):
        (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
        (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
        for path in (
            tmp_path,
            tmp_path / "none",
            tmp_path / "latin.yaml",
            tmp_path / "loop.yaml",
            tmp_path / ("y" * 5000),
        ):
            assert str(path)[:60] in refusal(read_recipe, path)


class TestOverrides:
    def applied(self, data: dict, *overrides: str) -> dict:
        data = copy.deepcopy(data)
        apply_overrides(data, overrides)
        return data

    def test_sets_values_of_any_kind(self):
        assert self.applied({}, "a.b.c=1e-3", "a.d=[1, x]", "e={f: null}", "g=", "h=a=b") == {
            "a": {"b": {"c": 1e-3}, "d": [1, "x"]},
            "e": {"f": None},
            "g": None,
            "h": "a=b",
        }

    def test_numbers_index_lists_and_name_layers(self):
        data = {"layers": [{"d": 1}, {"d": 2}], "by_number": {}}
        assert self.applied(data, "layers.1.d=5", "by_number.3.x=1") == {
            "layers": [{"d": 1}, {"d": 5}],
            "by_number": {3: {"x": 1}},
        }

    @pytest.mark.parametrize(
        "override",
        [
            "",
            "=",
            "=1",
            "a",
            "a..b=1",
            ".a=1",
            "a.=1",
            "x.y=1",
            "l.2=1",
            "l.-1=1",
            "l.x=1",
            "l.0.y=1",
            "empty.0=1",
            "a=[1",
            "a=!!int x",
            f"l.{LONG}=1",
            f"a={LONG}",
        ],
    )
    def test_refused_with_the_override_or_its_path(self, override):
        refusal(self.applied, {"x": 3, "l": [1, 2], "empty": [], "n": {}}, override)

    def test_come_after_inheritance(self, tmp_path):
        (tmp_path / "a.yaml").write_text("x: {y: 1, z: 2}")
        (tmp_path / "b.yaml").write_text("extends: a.yaml\nx: {y: 2}")
        assert read_recipe(tmp_path / "b.yaml", ["x.y=3"]) == {"x": {"y": 3, "z": 2}}


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
