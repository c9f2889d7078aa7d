"""The `discover:` section of a recipe."""

from typing import Annotated, Any

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, parse, to_data
from widthwise.experiments.discovery.growing import GrowingMethod
from widthwise.experiments.discovery.learned import LearnedMethod
from widthwise.experiments.discovery.surrogate import SurrogateMethod
from widthwise.recipe.train_section import Seed
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
    seeds: tuple[Seed, ...] = Field(default=(1, 2, 3), min_length=1)
    """Seeds of the comparison with rivals; the search has the recipe's own."""

    def asked(self, method: str | None, steps: int | None, match: str | None, seeds: list[int]) -> "DiscoverConfig":
        """With what the command line asks for in place of its own. A method of another kind has its defaults.

        Raises UserError.
        """
        if method is not None and method not in METHODS:
            raise UserError(f"--method: got {method!r}; allowed: {', '.join(METHODS)}")
        own: dict[str, Any] = to_data(self)
        if method not in (None, self.method.kind):
            own["method"] = {"kind": method}
        changes = {"steps": steps, "match": match, "seeds": seeds or None}
        return parse(DiscoverConfig, own | {key: value for key, value in changes.items() if value}, "discover")
