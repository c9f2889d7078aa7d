import copy
from pathlib import Path

import pytest
from boxes import Blue, Box, Item, Red, check_message, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import UserError, parse, to_data
from widthwise.yaml_io import apply_overrides, parse_yaml, read_mapping, read_recipe, to_yaml

LONG = "9" * 5000


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


class TestInheritance:
    def write(self, folder: Path, **files: str) -> None:
        for name, text in files.items():
            (folder / f"{name}.yaml").write_text(text)

    def test_chain_child_wins_key_by_key_and_lists_replace(self, tmp_path):
        (tmp_path / "deep").mkdir()
        self.write(tmp_path, a="m: {x: 1, y: {z: 1, w: [1, 2, 3]}}\nn: 1", c="extends: deep/b.yaml\nm: {y: {w: [9]}}")
        self.write(tmp_path / "deep", b="extends: ../a.yaml\nm: {x: 2}\nk: 3")
        assert read_recipe(tmp_path / "c.yaml") == {"m": {"x": 2, "y": {"z": 1, "w": [9]}}, "n": 1, "k": 3}

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
