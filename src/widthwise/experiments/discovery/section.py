"""The `discover:` section of a recipe."""

from typing import Annotated, Any

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, parse, to_data
from widthwise.experiments.discovery.growing import GrowingMethod
from widthwise.experiments.discovery.learned import LearnedMethod
from widthwise.experiments.discovery.surrogate import SurrogateMethod
from widthwise.recipe.train_section import Seeds
from widthwise.shape.kinds import Match

AnyMethod = Annotated[GrowingMethod | LearnedMethod | SurrogateMethod, Field(discriminator="kind")]
METHODS = {method.model_fields["kind"].default: method for method in (GrowingMethod, LearnedMethod, SurrogateMethod)}


class DiscoverConfig(Config):
    """How sizes of layers are searched, and with what the result is compared."""

    method: AnyMethod = GrowingMethod()
    steps: pydantic.PositiveInt | None = None
    """Training steps of the search, of each model if it trains several; null: those of the recipe."""
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

    def override_for(self, method: str | None) -> list[str]:
        """The override that puts a method of the kind that is asked for, with its defaults, in the place of another. It
        comes before all others, so that these can change the fields of the new one. Raises UserError.
        """
        if method is not None and method not in METHODS:
            raise UserError(f"--method: got {method!r}; allowed: {', '.join(METHODS)}")
        return [] if method in (None, self.method.kind) else [f"discover.method={{kind: {method}}}"]


class _Sections(Config):
    """A recipe as far as it is about discovery, so that errors name keys as overrides do."""

    discover: DiscoverConfig = DiscoverConfig()
