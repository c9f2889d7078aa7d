"""A field of a config is an option of a verb."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field, PositiveInt

from widthwise.cli.options import Command, Seeds, with_options
from widthwise.config_io import Config
from widthwise.mistakes import UserError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Asked(Config):
    """Every type that a field may have."""

    d_model: PositiveInt | None = None
    """Width."""
    texts: tuple[str, ...] = ()
    """Text."""
    n_blocks: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (2, 4)
    """Blocks."""
    ratio: tuple[float, ...] | None = None
    """Ratios."""
    aspect: tuple[float, float] | None = None
    """Limits."""
    std: float | Literal["initial"] = "initial"
    """Spread."""
    budget: float | None = None
    """Budget."""
    kind: Literal["x", "diamond"] = "x"
    """Kind."""
    folder: Path | None = None
    """Folder."""
    is_dry: bool = False
    """Nothing."""
    seeds: Seeds = ()
    """Seeds."""
    colours: tuple[Colour, ...] = ()
    """Colours."""
    group_by: Annotated[str | None, typer.Option("--group", "--group-by")] = None
    """Group."""


@pytest.fixture
def ask() -> Callable[..., Asked]:
    """Arguments of a verb -> the config that its function gets."""
    found: list[Asked] = []

    def verb(name: str, asked: Annotated[Asked, "Sizes"], n: Annotated[int, typer.Option()] = 1) -> None:
        assert (name, n) == ("run", 7)
        found.append(asked)

    command_line = typer.Typer()
    command_line.command(cls=Command)(with_options(verb))

    def call(*arguments: object) -> Asked:
        command_line(["run", "--n", "7", *map(str, arguments)], standalone_mode=False)
        return found.pop()

    return call


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), {}),
        (("--d-model", 48, "--is-dry"), {"d_model": 48, "is_dry": True}),
        (("--text", "a,b", "--text", "c"), {"texts": ("a,b", "c")}),
        (("--n-blocks", "1,3..5"), {"n_blocks": (1, 3, 4, 5)}),
        (("--ratio", "0.5, 2", "--aspect", "0.3..8"), {"ratio": (0.5, 2), "aspect": (0.3, 8)}),
        (("--std", "0.02", "--budget", "2.5M"), {"std": 0.02, "budget": 2_500_000}),
        (("--kind", "diamond", "--folder", "a/b"), {"kind": "diamond", "folder": Path("a/b")}),
        (("--seed", 3, "--seed", 5, "--colour", "blue"), {"seeds": (3, 5), "colours": (Colour.BLUE,)}),
        (("--group-by", "a"), {"group_by": "a"}),
    ],
)
def test_options_become_the_config_of_the_same_values(ask: Callable, arguments: tuple, expected: dict) -> None:
    assert ask(*arguments) == Asked(**expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--d-model", "0"), "--d-model: got 0; input should be greater than 0"),
        (("--d-model", "wide"), "--d-model: got 'wide'; input should be a valid integer"),
        (("--n-blocks", "0,2"), "--n-blocks: got 0; input should be greater than 0"),
        (("--aspect", "3"), "--aspect: got '3'; expected two numbers such as 0.4..0.8"),
        (("--ratio", "2,x"), "--ratio: got 'x'; input should be a valid number"),
    ],
)
def test_a_mistake_names_the_option_and_what_it_takes(ask: Callable, arguments: tuple, said: str) -> None:
    with pytest.raises(UserError) as raised:
        ask(*arguments)
    assert str(raised.value).startswith(said)
