"""What the experiments of the items have in common: how their numbers are made, and found again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field

from widthwise.bundled import recipe_path
from widthwise.config_io import Config
from widthwise.experiments.statistics import seed_interval
from widthwise.records.comparison import Compared
from widthwise.records.estimate import Estimate
from widthwise.records.quantities import QUANTITY
from widthwise.records.record import finite
from widthwise.training.observer import Observer

TINY = (
    "train.steps=3",
    "train.batch_size=2",
    "train.validate_every=null",
    "train.validation_tokens=1024",
    "train.loss_window_steps=1",
    "schedule.warmup_steps=1",
)
"""Overrides that make an experiment last seconds: it shows that the recipe works, and nothing of what a paper finds."""


class Experiment(Config, ABC):
    """An experiment of a bundled recipe, in a folder of its own."""

    tiny_overrides: ClassVar[tuple[str, ...]]
    """What its kind adds to TINY."""
    recipe: str
    """Name of the bundled recipe that describes it."""
    overrides: tuple[str, ...] = ()
    """Changes to it, as on the command line."""
    overrides_of_tiny: tuple[str, ...] = ()
    """Further changes for its tiny form, which its kind does not know of."""
    folder: str | None = None
    """Name of its folder among the results; default: the recipe's name."""
    rows: dict[str, str] = Field(default_factory=dict)
    """Row of the item -> its name in the experiment, where that is another."""
    core_minutes: float | None = None
    """What it took, in minutes of one CPU core."""

    @property
    def name(self) -> str:
        return self.folder or self.recipe

    def name_of(self, row: str) -> str:
        """What a row of the item is called in the experiment."""
        return self.rows.get(row, row)

    @property
    def path(self) -> Path:
        return recipe_path(self.recipe)

    @property
    def tiny(self) -> Self:
        """The same experiment in a form that takes seconds."""
        overrides = (*self.overrides, *TINY, *self.tiny_overrides, *self.overrides_of_tiny)
        return self.model_copy(update={"overrides": overrides, "folder": f"{self.name}_tiny", "core_minutes": None})

    @property
    @abstractmethod
    def workload(self) -> str:
        """The amount of work, in words. Raises UserError for a recipe that cannot be trained."""

    @abstractmethod
    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        """Trains what is not finished. Returns the folders that a report can be made of."""

    @abstractmethod
    def measured(self, folder: Path) -> "Measured | None":
        """What an earlier run left in the folder; None if nothing. Raises UserError where it is broken."""


class Measured(ABC):
    """The numbers of an experiment."""

    @abstractmethod
    def value(self, name: str, quantity: str) -> Estimate | None:
        """A quantity of one of its models or groups, if it was measured."""

    def difference(self, name: str, baseline: str, quantity: str) -> Estimate | None:
        """A quantity minus the baseline's, paired by seed, if both were measured with the same seeds."""
        own, other = self.value(name, quantity), self.value(baseline, quantity)
        if own is None or other is None or not own.per_seed or len(own.per_seed) != len(other.per_seed):
            return None
        return seed_interval([finite(a) - finite(b) for a, b in zip(own.per_seed, other.per_seed)])

    @property
    @abstractmethod
    def models(self) -> Mapping[str, float]:
        """Model -> its parameters, for the size of the experiment in words; empty where it is not known."""

    @property
    @abstractmethod
    def n_seeds(self) -> int | None: ...


class MeasuredVariants(Measured):
    """Those of a comparison or a sweep."""

    def __init__(self, compared: Compared):
        self._compared = compared
        self._by_name = {variant.name: variant for variant in compared.variants}

    def value(self, name: str, quantity: str) -> Estimate | None:
        variant = self._by_name.get(name)
        return None if variant is None or quantity not in QUANTITY else QUANTITY[quantity].of_variant(variant)

    @property
    def models(self) -> Mapping[str, float]:
        return {name: variant.cost.params["total"] for name, variant in self._by_name.items()}

    @property
    def n_seeds(self) -> int:
        return len(self._compared.seeds)
