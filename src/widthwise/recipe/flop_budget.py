"""The steps of a run that is to spend so many training FLOPs, whatever its model costs and however it grows."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import pydantic
from pydantic import WithJsonSchema

from widthwise.config_io import Config, UserError, mistakes_at

if TYPE_CHECKING:
    from widthwise.recipe.recipe import Recipe

RecipeT = TypeVar("RecipeT", bound="Recipe")
ENDLESS = 2**53
"""Steps of a run while they are not known; more than any run makes, and exact as a float."""


class FlopBudget(Config):
    """A budget that may replace the number of steps in a recipe."""

    training_flops: pydantic.PositiveFloat
    """Training FLOPs of the whole run, each phase of one that grows counted with its own model. The number of steps
    follows, rounded to the nearest."""

    @classmethod
    def of(cls, data: Any) -> "FlopBudget | None":
        """Return the budget in the data of a recipe; None where they give the steps themselves. Raises UserError."""
        train = data.get("train") if isinstance(data, dict) else None
        steps = train.get("steps") if isinstance(train, dict) else None
        if not isinstance(steps, dict):
            return None
        with mistakes_at("train.steps"):
            return cls.model_validate(steps)

    def steps(self, recipe: "Recipe", step: int = 0, spent_flops: float = 0.0) -> int:
        """The steps of a run that has spent so much at a step, and goes on as the recipe says. Raises UserError.

        The number of steps in the recipe does not matter, as long as no growth comes after it.
        """
        last = recipe.phases[-1]
        start = max(last.start, step)
        before = spent_flops + recipe.training_flops_until(start) - recipe.training_flops_until(step)
        per_token = recipe.train.flops_per_token(last.model, recipe.seq_len)
        n_steps = round((self.training_flops - before) / (per_token * recipe.tokens_per_step))
        if n_steps < 1:
            raise UserError(
                f"train.steps: got training_flops {self.training_flops:.4g}, which leave no step of the last model: "
                f"those before step {start} take {before:.4g}"
            )
        return start + n_steps


Steps = Annotated[
    pydantic.PositiveInt,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {
                    "type": "object",
                    "properties": {"training_flops": {"type": "number", "exclusiveMinimum": 0}},
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""In a recipe that has been read always a number."""


def with_steps_solved(data: Any, read: Callable[[Any], RecipeT]) -> RecipeT:
    """The recipe that `read` makes of data, in which the steps may be a budget."""
    budget = FlopBudget.of(data)
    if budget is None:
        return read(data)
    return read(_with_steps(data, budget.steps(read(_with_steps(data, ENDLESS)))))


def _with_steps(data: dict[str, Any], steps: int) -> dict[str, Any]:
    return {**data, "train": {**data["train"], "steps": steps}}
