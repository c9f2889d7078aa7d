"""What a run has cost by a step, including the cost of the run that it comes from."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from widthwise.recipe.recipe import Recipe
from widthwise.records.run import DESCENTS


class Spent(NamedTuple):
    """Tokens and compute spent by the end of a step."""

    step: int = 0
    tokens: int = 0
    training_flops: float = 0.0
    """Every step counted with the model that made it."""

    def until(self, recipe: Recipe, step: int) -> "Spent":
        """What is spent by a later step if the run goes on with a recipe."""
        flops = recipe.training_flops_until(step) - recipe.training_flops_until(self.step)
        tokens = (step - self.step) * recipe.tokens_per_step
        return Spent(step, self.tokens + tokens, self.training_flops + flops)


def inherited(records: Iterable[Mapping[str, Any]]) -> Spent:
    """What was spent when a run began: nothing, unless it began where another one stood. records: of metrics.jsonl."""
    found = [record for record in records if record["event"] in DESCENTS]
    return Spent(**{key: found[-1][key] for key in Spent._fields}) if found else Spent()
