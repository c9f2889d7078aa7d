"""The recipes that come with the package."""

from pathlib import Path

import pytest

from widthwise.bundled import recipe_name, recipe_path, recipes_folder
from widthwise.config_io import UserError
from widthwise.recipe.design import copy_recipes
from widthwise.yaml_io import read_recipe

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder outside the repository."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_means_the_bundled_recipe_where_no_file_has_it(elsewhere: Path) -> None:
    assert read_recipe("x_200m") == read_recipe(ROOT / "configs" / "x_200m.yaml")
    (elsewhere / "x_200m").write_text("seq_len: 7\n")
    assert read_recipe("x_200m") == {"seq_len": 7}
    with pytest.raises(UserError, match="configs/x_200m: cannot be read"):
        read_recipe("configs/x_200m")


def test_a_recipe_extends_a_bundled_one_by_its_name(elsewhere: Path) -> None:
    (elsewhere / "mine.yaml").write_text("extends: virtual_width_1.5x\nseq_len: 5\n")
    assert read_recipe("mine.yaml") == {**read_recipe("virtual_width_1.5x"), "seq_len": 5}
    (elsewhere / "virtual_width_1.5x").write_text("seq_len: 7\n")
    assert read_recipe("mine.yaml") == {"seq_len": 5}


def test_a_run_is_named_after_the_whole_name() -> None:
    for path in recipes_folder().glob("*.yaml"):
        assert recipe_name(path.stem) == recipe_name(path) == path.stem
        assert recipe_path(path.stem) == path


def test_copies_are_the_recipes_and_replace_nothing(elsewhere: Path) -> None:
    n_recipes = copy_recipes("configs")
    for path in (ROOT / "configs").glob("*.yaml"):
        assert (elsewhere / "configs" / path.name).read_bytes() == path.read_bytes()
        n_recipes -= 1
    assert n_recipes == 0
    with pytest.raises(UserError, match="exists already"):
        copy_recipes(Path("configs"))
