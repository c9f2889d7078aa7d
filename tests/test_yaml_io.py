"""A recipe's YAML holds plain data and nothing else; files inherit from each other, and overrides come last.

A change laid over a recipe: another kind, or another sort of data, replaces what was said of the one before.
"""

import copy
from itertools import product
from pathlib import Path

import pytest
from boxes import Blue, Box, Item, check_message, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import parse, to_data
from widthwise.mistakes import UserError
from widthwise.yaml_io import apply_overrides, difference, merge, parse_yaml, read_mapping, read_recipe, to_yaml

ROOT = Path(__file__).parents[1]
LONG = "9" * 5000
BAD = {
    "a key twice": ["a: 1\na: 2", "x: {a: 1, a: 2}", "x: [{b: {a: 1, a: 2}}]"],
    "code": ["a: !!python/object/apply:os.system ['true']", "a: !!python/name:os.system", "!!python/object:x.Y {}"],
    "no YAML": ["a: [1, 2", "a: b: c", "\ta: 1", "a: @b", "a: *nowhere", "--- 1\n--- 2", "%YAML 9.9\n---\na: 1"],
    "keys that are no names": ["? [1, 2]\n: 3", "? {a: 1}\n: 3", "1.5: a", "null: a", "<<: {a: 1}"],
    "tags": ["a: !!timestamp x", "a: !!bool x", "a: !!int ''", "a: !!int x", "a: !!float ''", "a: !!omap x"],
    "more tags": ["a: !!set x", "a: !!binary é", "a: 0x", "a: 0b_", "a: 2024-13-45"],
    "size": [f"a: {LONG}", f"a: [{'7,' * 50_001}]", "[" * 3000 + "]" * 3000, "{a: " * 3000 + "}" * 3000],
    "circles and controls": ["a: &x [*x]\nb: &y {c: *y}", "a: \x00", "a: \x07"],
}


class TestYaml:
    def test_exponents_are_numbers_and_what_only_looks_like_one_is_text(self):
        numbers = {"1e-5": 1e-5, "1E3": 1e3, "-2e+4": -2e4, "1.5e2": 150.0, "1.e3": 1e3, "1.0e-10": 1e-10, "+3e1": 30.0}
        for text, value in numbers.items():
            read = parse_yaml(f"a: {text}", "text")["a"]
            assert (read, type(read)) == (value, float)
        for text in ("1e", "e5", "1e5x", "v1e5", "'1e5'"):
            assert isinstance(parse_yaml(f"a: {text}", "text")["a"], str)

    @pytest.mark.parametrize("kind", BAD)
    def test_bad_yaml_is_a_user_error_that_names_the_file(self, kind, tmp_path):
        file = tmp_path / "bad.yaml"
        for text in BAD[kind]:
            file.write_text(text)
            assert str(file) in refusal(lambda: parse(Box, read_mapping(file), str(file)))

    def test_a_syntax_error_names_the_line_and_what_is_no_mapping_is_said(self, tmp_path):
        file = tmp_path / "bad.yaml"
        file.write_text("a: 1\nb: [1\nc: 2\n")
        assert "line 3" in refusal(read_mapping, file)
        for text in ("", "# nothing\n", "---\n", "3", "[1]", "text"):
            file.write_text(text)
            assert "not a mapping" in refusal(read_mapping, file)

    @settings(deadline=None, max_examples=60)
    @given(text=st.text(max_size=40) | st.text(alphabet="a1e-+.:{}[]&*!?|>'\"%@ \n\t#,<=~", max_size=40))
    def test_any_text_is_data_or_a_user_error(self, text):
        try:
            data = parse_yaml(text, "text")
            if isinstance(data, dict):
                parse(Box, data)
        except UserError as error:
            check_message(error)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
LIKE_OTHERS = ["1e5", "1e-5", "null", "yes", "~", "3", "1_0", "0x1", "a: b", "- a", "", "!x", "=", "<<"]
TEXTS = (st.text(max_size=12) | st.sampled_from(LIKE_OTHERS)).filter(lambda text: text.isprintable())


@settings(deadline=None, max_examples=60)
@given(text=TEXTS, number=NUMBERS, size=st.none() | st.integers(14, 2**63 - 1), layer=st.integers(0, 99))
def test_a_config_reads_back_equal(text, number, size, layer):
    items = (Item(name=text, colour=Blue(height=number)), Item(name=text))
    box = Box(items=items, pairs=((number, -number),), size=size, by_number={layer: {text: text}}, text=text)
    assert parse(Box, parse_yaml(to_yaml(box), "yaml")) == box
    assert parse(Box, to_data(box)) == box


class TestInheritance:
    def write(self, folder: Path, **files: str) -> None:
        for name, text in files.items():
            (folder / f"{name}.yaml").write_text(text)

    def test_a_child_wins_key_by_key_its_lists_and_sources_replace_and_overrides_come_last(self, tmp_path):
        (tmp_path / "deep").mkdir()
        self.write(tmp_path, a="m: {x: 1, y: {z: 1, w: [1, 2, 3]}}\ndata: {corpus: synthetic, tokenizer: bytes}")
        self.write(tmp_path, c="extends: deep/b.yaml\nm: {y: {w: [9]}}\ndata: {path: books}")
        self.write(tmp_path / "deep", b="extends: ../a.yaml\nm: {x: 2}\nk: 3")
        expected = {"m": {"x": 2, "y": {"z": 1, "w": [9]}}, "data": {"path": "books"}, "k": 3}
        assert read_recipe(tmp_path / "c.yaml") == expected
        assert read_recipe(tmp_path / "c.yaml", ["m.x=5"])["m"] == {"x": 5, "y": {"z": 1, "w": [9]}}

    @pytest.mark.parametrize("cycle", ["a", "abc"])
    def test_cycles_are_refused(self, cycle, tmp_path):
        self.write(tmp_path, **{name: f"extends: ./{after}.yaml" for name, after in zip(cycle, cycle[1:] + cycle[0])})
        assert "extends itself" in refusal(read_recipe, tmp_path / "a.yaml")

    def test_a_bad_parent_is_a_user_error(self, tmp_path):
        names = ["nowhere.yaml", "/proc/self/mem", ".", "'../' ", "x" * 5000, '"a\\0b"']
        for extends in (*names, "3", "[a.yaml]", "{a: 1}", "''"):
            self.write(tmp_path, a=f"extends: {extends}")
            refusal(read_recipe, tmp_path / "a.yaml")

    def test_what_cannot_be_read_is_named_and_a_folder_is_told_what_was_expected(self, tmp_path):
        (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
        (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
        for name in ("none", "latin.yaml", "loop.yaml", "y" * 5000):
            assert str(tmp_path / name)[:60] in refusal(read_recipe, tmp_path / name)
        assert refusal(read_recipe, tmp_path) == f"{tmp_path}: is a folder; expected a recipe file"
        (tmp_path / "config.yaml").write_text("a: 1")
        said = f"; expected a recipe file, such as {tmp_path}/config.yaml of this run"
        assert refusal(read_recipe, tmp_path).endswith(said)


def applied(data: dict, *overrides: str) -> dict:
    data = copy.deepcopy(data)
    apply_overrides(data, overrides)
    return data


class TestOverrides:
    def test_values_of_any_kind_are_set_and_numbers_index_lists_and_name_layers(self):
        found = applied({}, "a.b.c=1e-3", "a.d=[1, x]", "e={f: null}", "g=", "h=a=b")
        assert found == {"a": {"b": {"c": 1e-3}, "d": [1, "x"]}, "e": {"f": None}, "g": None, "h": "a=b"}
        data = {"layers": [{"d": 1}, {"d": 2}], "by_number": {}}
        changed = {"layers": [{"d": 1}, {"d": 5}], "by_number": {3: {"x": 1}}}
        assert applied(data, "layers.1.d=5", "by_number.3.x=1") == changed

    def test_a_section_that_is_null_is_entered_and_a_number_is_not(self):
        distill = {"teacher": "a", "weight": 1}
        found = applied({"train": {"distill": None}}, "train.distill.teacher=a", "train.distill.weight=1")
        assert found == {"train": {"distill": distill}}
        message = "train.steps is 5, which has no keys"
        assert message in refusal(applied, {"train": {"steps": 5}}, "train.steps.teacher=a")

    def test_what_cannot_be_set_is_refused(self):
        paths = ["", "=", "=1", "a", "a..b=1", ".a=1", "a.=1", "x.y=1", "a=[1", "a=!!int x", f"a={LONG}"]
        for override in (*paths, "l.2=1", "l.-1=1", "l.x=1", "l.0.y=1", "empty.0=1", f"l.{LONG}=1"):
            refusal(applied, {"x": 3, "l": [1, 2], "empty": [], "n": {}}, override)


CORPUS = {"corpus": "synthetic", "tokenizer": "bytes", "held_out": 0.1, "verify": "sizes"}
PATH = {"path": "books", "corpus": None, "tokenizer": None, "held_out": None}
WEB = {"path": "web", "weight": 3, "verify": "sizes"}
MIXTURE = {"mixture": {"web": WEB, "own": {**CORPUS, "weight": 2}}}
OTHER_MIXTURE = {"mixture": {"web": WEB, "own": {"path": "x", "weight": 2}}}
SECTIONS = [CORPUS, PATH, MIXTURE]


def test_another_kind_replaces_the_section():
    base = {"f": {"kind": "a", "x": 1, "y": 2}}
    assert merge(base, {"f": {"kind": "b", "z": 3}}) == {"f": {"kind": "b", "z": 3}}
    assert merge(base, {"f": {"kind": "a", "x": 3}}) == {"f": {"kind": "a", "x": 3, "y": 2}}
    assert merge(base, {"f": {"x": 3}}) == {"f": {"kind": "a", "x": 3, "y": 2}}
    assert merge(base, {"f": None}) == {"f": None}
    assert base == {"f": {"kind": "a", "x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        *((before, after, after) for before, after in product(SECTIONS, SECTIONS)),
        (CORPUS, {"corpus": "python-stdlib"}, {**CORPUS, "corpus": "python-stdlib"}),
        (PATH, {"path": "other", "verify": "sizes"}, {**PATH, "path": "other", "verify": "sizes"}),
        (CORPUS, {"path": "books", "tokenizer": "bpe-300"}, {"path": "books", "tokenizer": "bpe-300"}),
        ({"tokenizer": "bytes"}, {"path": "books"}, {"path": "books"}),
        (CORPUS, {"path": None, "mixture": None}, {**CORPUS, "path": None, "mixture": None}),
        ({"corpus": "synthetic", "weight": 3}, {"path": "books"}, {"path": "books", "weight": 3}),
        ({**CORPUS, "mask_documents": True}, {"path": "books"}, {"path": "books", "mask_documents": True}),
        (MIXTURE, {"mixture": {"own": {"path": "x"}}}, OTHER_MIXTURE),
    ],
)
def test_another_sort_of_source_replaces_the_one_before_and_the_same_sort_is_merged(before, change, expected):
    """Weight and boundaries of documents are not of the source; within a mixture a source is replaced alone."""
    kept = copy.deepcopy(before)
    assert merge({"data": before, "x": 1}, {"data": change}) == {"data": expected, "x": 1}
    assert before == kept


def test_the_difference_laid_over_the_old_gives_the_new():
    for before, after in product(SECTIONS, SECTIONS):
        old = {"data": before, "m": {"kind": "a", "x": 1, "y": {"z": 2}}}
        for model in ({"kind": "a", "x": 1, "y": {"z": 3}}, {"kind": "b", "x": 1}):
            new = {"data": after, "m": model, "n": 5}
            assert merge(old, difference(old, new)) == new
        assert difference(old, copy.deepcopy(old)) == {}
        assert difference(old, {"data": before}) == {"m": None}


def test_overrides_that_name_another_source_replace_it_as_one_change_whatever_their_order():
    new = {"path": "x", "tokenizer": "bpe-300"}
    for before, overrides, expected in (
        (CORPUS, ["data.path=x"], {"path": "x"}),
        (CORPUS, ["data.path=x", "data.tokenizer=bpe-300"], new),
        (CORPUS, ["data.tokenizer=bpe-300", "data.path=x"], new),
        (CORPUS, ["data.mixture.web.path=x"], {"mixture": {"web": {"path": "x"}}}),
        (CORPUS, ["data.path=null"], {**CORPUS, "path": None}),
        (CORPUS, ["data={held_out: 0.2}"], {"held_out": 0.2}),
        (MIXTURE, ["data.mixture.own.path=x"], OTHER_MIXTURE),
    ):
        assert applied({"data": before}, *overrides) == {"data": expected}, overrides


def test_a_name_means_the_bundled_recipe_where_no_file_has_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_recipe("x_200m") == read_recipe(ROOT / "configs" / "x_200m.yaml")
    (tmp_path / "x_200m").write_text("seq_len: 7\n")
    assert read_recipe("x_200m") == {"seq_len": 7}
    for name, message in (
        ("mine/x_200m.yaml", "mine/x_200m.yaml: no such file; did you mean x_200m,"),
        ("x_201m", "x_201m: no such file; did you mean x_20"),
        ("mine/other.yaml", "mine/other.yaml: cannot be read"),
    ):
        assert message in refusal(read_recipe, name)


def test_a_recipe_extends_a_bundled_one_by_its_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: virtual_width_1.5x\nseq_len: 5\n")
    assert read_recipe("mine.yaml") == {**read_recipe("virtual_width_1.5x"), "seq_len": 5}
    (tmp_path / "virtual_width_1.5x").write_text("seq_len: 7\n")
    assert read_recipe("mine.yaml") == {"seq_len": 5}
