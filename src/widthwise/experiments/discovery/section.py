"""The `discover:` section of a recipe."""

from typing import Any

import pydantic

from widthwise.config_io import Config, parse, to_data
from widthwise.experiments.discovery.growing import GrowingMethod
from widthwise.recipe.train_section import Seeds
from widthwise.shape.kinds import Match


class DiscoverConfig(Config):
    """How sizes of layers are searched, and with what the result is compared."""

    method: GrowingMethod = GrowingMethod()
    steps: pydantic.PositiveInt | None = None
    """Training steps of the search; null: those of the recipe."""
    match: Match = "params"
    """The quantity in which the shape that is found equals the uniform model."""
    seeds: Seeds = (1, 2, 3)
    """Seeds of the comparison with rivals; the search has the recipe's own."""

    @staticmethod
    def of_recipe(data: dict[str, Any], where: str) -> "DiscoverConfig":
        """The section of a recipe, or the defaults. where: names the recipe in an error. Raises UserError."""
        return parse(_Sections, {key: data[key] for key in ("discover",) if key in data}, where).discover

    def asked(self, steps: int | None, match: str | None, seeds: list[int]) -> "DiscoverConfig":
        """With what the command line asks for in place of its own. Raises UserError."""
        changes = {"steps": steps, "match": match, "seeds": seeds or None}
        return parse(DiscoverConfig, to_data(self) | {key: each for key, each in changes.items() if each}, "discover")


class _Sections(Config):
    """A recipe as far as it is about discovery, so that errors name keys as overrides do."""

    discover: DiscoverConfig = DiscoverConfig()
