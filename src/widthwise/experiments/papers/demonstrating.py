"""An item whose numbers are what expansions do to a model with random weights."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field

from widthwise.config_io import UserError, mistakes_at
from widthwise.experiments.papers.expanding import Expanding
from widthwise.experiments.papers.experiment import Experiment, Measured
from widthwise.experiments.statistics import seed_interval
from widthwise.growth.describe import expansions
from widthwise.growth.plan.model_plan import GrowthPlan, plan_growth
from widthwise.model.config import ModelConfig
from widthwise.recipe.model_section import ModelChange, changed_section
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.recipe.train_section import Seeds
from widthwise.records.certificate import Demonstrated, Demonstration
from widthwise.records.estimate import Estimate
from widthwise.runs.environment import command_line, environment
from widthwise.training.observer import Observer

NO_EPS = 1e-30
"""Of norms, whose eps must be above 0; far below the rounding of any mean square."""
WITHOUT_EPS = "change_of_logits_as_printed_without_eps"


class Demonstrating(Experiment):
    """The model of a recipe, drawn with every seed, and expansions of it; nothing is trained."""

    kind: Literal["demonstration"] = "demonstration"
    tiny_overrides: ClassVar = ()
    expansions: dict[str, ModelChange] = Field(min_length=1)
    """Row -> the sizes of the larger model, as changes to the model section."""
    seeds: Seeds = (1, 2, 3)

    @property
    def tiny(self) -> Self:
        return super().tiny.model_copy(update={"seeds": self.seeds[:2]})

    @property
    def recipe_of_model(self) -> Recipe:
        return load_recipe(self.path, self.overrides)

    @property
    def workload(self) -> str:
        n_params = self.recipe_of_model.final_model.cost().params
        return f"{len(list(self.plans()))} expansions of a model of {n_params:,.0f} parameters, {len(self.seeds)} seeds"

    def plans(self) -> Iterator[tuple[str, GrowthPlan, ModelConfig]]:
        """Row, how the model grows, and the larger model as a recipe describes it. Raises UserError where it cannot."""
        recipe = self.recipe_of_model
        for row, change in self.expansions.items():
            where = f"expansions.{row}"
            section = changed_section(recipe.model, change, where)
            with mistakes_at(where):
                wanted = section.resolve(recipe.seq_len)
            try:
                yield row, plan_growth(recipe.final_model, wanted), wanted
            except UserError as error:
                raise UserError(f"{where}: {error}") from None

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        recipe, found = self.recipe_of_model, {}
        without_eps = self.model_copy(update={"overrides": (*self.overrides, f"model.norm.eps={NO_EPS}")})
        for (row, plan, wanted), (_, without, wanted_without) in zip(self.plans(), without_eps.plans(), strict=True):
            observer.message(f"{row}: {'; '.join(expansions(plan))}")
            by_seed = [
                Expanding(plan, wanted, seed, recipe.optimizer.lr).quantities()
                | {WITHOUT_EPS: Expanding(without, wanted_without, seed, recipe.optimizer.lr).change_as_printed()}
                for seed in self.seeds
            ]
            found[row] = Demonstrated(
                does=expansions(plan),
                params=int(plan.new.cost().params),
                quantities={name: [each[name] for each in by_seed] for name in by_seed[0]},
            )
        Demonstration(
            command=command_line(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            environment=environment(),
            seeds=list(self.seeds),
            params=int(recipe.final_model.cost().params),
            expansions=found,
        ).write(folder)
        return []

    def measured(self, folder: Path) -> "MeasuredDemonstration | None":
        if not (folder / Demonstration.file_name).is_file():
            return None
        return MeasuredDemonstration(Demonstration.read(folder))


class MeasuredDemonstration(Measured):
    """Its names are the expansions."""

    def __init__(self, demonstration: Demonstration):
        self._demonstration = demonstration

    def value(self, name: str, quantity: str) -> Estimate | None:
        found = self._demonstration.expansions.get(name)
        return None if found is None or quantity not in found.quantities else seed_interval(found.quantities[quantity])

    @property
    def models(self) -> Mapping[str, float]:
        return {name: each.params for name, each in self._demonstration.expansions.items()}

    @property
    def n_seeds(self) -> int:
        return len(self._demonstration.seeds)
