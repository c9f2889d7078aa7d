"""What the documents tell a reader to type works: commands run at toy size, recipes are valid, Python runs."""

import re
import shutil
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from snippets import PAGES, ROOT, Block, all_blocks, check_arguments, inline_commands
from thinned import hard_but
from torch.distributed.run import get_args_parser
from typer._click.exceptions import BadOptionUsage, MissingParameter
from world import RECIPES, build, call

from widthwise.recipe.recipe import Recipe
from widthwise.yaml_io import parse_yaml

EXTRAS = {"docs/sweeps.md": "optuna", "docs/interop.md": "transformers"}
"""Page -> package of the extra that its commands need."""
PYTHON = [block for block in all_blocks("python") if block.page != "README.md"]
"""That of the README has a test of its own, and so have the examples."""
PREPARED = {"docs/interop.md": [("export", "runs/x", "models/x")]}
"""Page -> commands that its Python takes for done."""
BY_PAGE = {page: list(found) for page, found in groupby(all_blocks("bash", "yaml"), key=lambda block: block.page)}
RUN = {page: found for page, found in BY_PAGE.items() if any(block.language == "bash" for block in found)}
PIECES = all_blocks("yaml")
"""Some with `adjust:` solve for the sizes of many models, which takes seconds."""


def test_commands_name_verbs_options_and_recipes_that_there_are() -> None:
    """Where the text, and not a block, names a verb or an option alone, something required may be missing."""
    for block in all_blocks("", "bash"):
        for words in block.commands if block.of_ours else []:
            if "torchrun" in words:
                get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
        for arguments in block.of_ours:
            check_arguments(arguments)
            for name in arguments:
                if name.startswith("configs/") and name.removeprefix("configs/").split(".")[0] not in RECIPES:
                    assert (ROOT / name).exists(), f"{block}: {name}"
    for path in PAGES:
        for arguments in inline_commands(path):
            with suppress(MissingParameter, BadOptionUsage):
                check_arguments(arguments)


@pytest.mark.parametrize("block", hard_but([block for block in PIECES if "adjust:" not in block.text], PIECES), ids=str)
def test_pieces_of_recipes_are_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laid over a small recipe, or over the one that a piece extends, `inspect` shows the model."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    piece = parse_yaml(block.text, str(block))
    if not piece.keys() <= {*Recipe.model_fields, "extends", "compare", "sweep"}:
        pytest.skip("no piece of a recipe")
    below = {} if piece.keys() >= {"model", "seq_len", "train"} else {"extends": "configs/small.yaml"}
    (tmp_path / "piece.yaml").write_text(yaml.safe_dump(below | _beside(piece)))
    monkeypatch.chdir(tmp_path)
    call("inspect", "piece.yaml")
    if "compare" in piece:
        call("compare", "piece.yaml", "--dry-run")


def _beside(piece: dict[str, Any]) -> dict[str, Any]:
    """A piece of configs/, for a file beside that folder."""
    name = str(piece.get("extends", ""))
    return piece | {"extends": f"configs/{name}"} if name.endswith(".yaml") and "/" not in name else piece


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build(folder)
    return folder


@pytest.mark.hard
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run_in_order(
    page: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in EXTRAS:
        pytest.importorskip(EXTRAS[page], reason=f"needs the extra of {EXTRAS[page]}")
    folder = shutil.copytree(world, tmp_path / "world", symlinks=True)
    monkeypatch.chdir(folder)
    for block in RUN[page]:
        if block.file:
            Path(block.file).write_text(re.sub(r"\bsteps: \d+", "steps: 4", block.text))
        if block.language != "bash":
            continue
        assert block.of_ours, f"{block}: marked bash, but nothing in it runs"
        for arguments in block.of_ours:
            try:
                if arguments[0] == "explore":  # serves a page until Ctrl-C
                    check_arguments(arguments)
                else:
                    call(*arguments)
            except BaseException as error:
                raise AssertionError(f"{block}: widthwise {' '.join(arguments)}") from error


@pytest.mark.hard
@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_runs(block: Block, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile(block.text, str(block), "exec")
    if block.page in EXTRAS:
        pytest.importorskip(EXTRAS[block.page], reason=f"needs the extra of {EXTRAS[block.page]}")
    if "datatrove" in block.text:
        pytest.importorskip("datatrove", reason="needs the extra prep")
    monkeypatch.chdir(shutil.copytree(world, tmp_path / "world", symlinks=True))
    for arguments in PREPARED.get(block.page, []):
        call(*arguments)
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(code, names)
