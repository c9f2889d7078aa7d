"""Configs with a field of each sort, and what all refusals have in common."""

from typing import Annotated, Any, Literal

import pydantic
import pytest

from widthwise.config_io import Config
from widthwise.mistakes import UserError


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
    assert len(str(error)) < 6000
    assert "pydantic" not in str(error)


def refusal(function, *arguments, **options) -> str:
    """The message of the UserError, which must be one line."""
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    check_message(caught.value)
    return str(caught.value)
