"""What a quantity is: a number that models, runs or comparisons of two have, and how tables show it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from widthwise.records.comparison import Variant
from widthwise.records.cost import CostSummary
from widthwise.records.estimate import Estimate
from widthwise.records.record import Number, finite
from widthwise.records.run import RunResult


@dataclass(frozen=True)
class Quantity(ABC):
    """A number that every model or every run has."""

    name: str
    """Its name in recipes, on the command line, among ratios and, unless `column` is given, in CSV."""
    title: str
    """Its title in tables and figures, with its unit."""
    read: Callable[[Any], Number | None] = field(repr=False)
    """Takes the number from a record; None if the record lacks it."""
    n_decimals: int | None = None
    """Decimals shown; None: three significant digits with a decimal prefix."""
    note: str = ""
    """Its definition, for the footnotes of the main table; formatted with `confidence` and `baseline`."""
    short: str = ""
    """Its title on a terminal, if `title` is too long there."""
    column: str = ""
    """Its column in CSV, if that is not `name`."""
    is_main: bool = False
    """Whether the main table of a comparison shows it."""
    is_loss: bool = False
    """Whether it measures the quality of a model, so that laws can be fitted to it."""
    has_ratio: bool = False
    """Whether comparisons give its ratio to the baseline's."""
    is_cost: bool = False
    """Whether tables of costs show it, if it was measured in training; counted quantities need no mark."""
    is_speed: bool = False
    """Whether other processes on the machine change it."""
    is_signed: bool = False
    """Whether it is a difference, shown with its sign."""
    is_judged: bool = False
    """Whether the verdict is about it, and stands beside it."""

    @property
    def csv_column(self) -> str:
        return self.column or self.name

    @property
    def brief_title(self) -> str:
        """The title for tables on a terminal."""
        return self.short or self.title

    @property
    def bare_title(self) -> str:
        """The title without a unit, for ratios."""
        return self.title.replace(" per token", "")

    def over_seeds(self, results: Sequence[RunResult]) -> list[float]:
        """One value per seed; NaN for a run that lacks it."""
        return [finite(self.of_run(result)) for result in results]

    @abstractmethod
    def of_run(self, result: RunResult) -> Number | None:
        """Its value for a run; None if the run lacks it."""

    @abstractmethod
    def of_variant(self, variant: Variant) -> Estimate | None:
        """Its mean for a variant; None if the variant lacks it; without an interval if it is the same for all seeds."""

    def value(self, subject: Variant | RunResult) -> float | None:
        """The value for a run, or the mean over the seeds of a variant."""
        if isinstance(subject, RunResult):
            return self.of_run(subject)
        estimate = self.of_variant(subject)
        return None if estimate is None else estimate.mean

    def ratio(self, variant: Variant, baseline: Variant) -> float | None:
        """Ratio to the baseline's value: as the comparison recorded it, otherwise that of the means.

        None if one is missing, and for speeds if other processes used the machine meanwhile.
        """
        if self.is_speed and (variant.shares_machine or baseline.shares_machine):
            return None
        if self.name in variant.ratio:
            return variant.ratio[self.name]
        own, other = finite(self.value(variant)), finite(self.value(baseline))
        return own / other if other and own == own and other == other else None


class OfModel(Quantity):
    """A quantity counted from the config of the last model: `read` takes a CostSummary."""

    def of_cost(self, cost: CostSummary) -> Number:
        """Its value for a model whose costs were just counted, so that none is missing."""
        value = self.read(cost)
        assert value is not None
        return value

    def of_run(self, result: RunResult) -> Number | None:
        return self.read(result.cost)

    def of_variant(self, variant: Variant) -> Estimate | None:
        value = self.read(variant.cost)
        return None if value is None else Estimate(mean=value)


class OfRun(Quantity):
    """A quantity measured in training: `read` takes a RunResult."""

    def of_run(self, result: RunResult) -> Number | None:
        return self.read(result)

    def of_variant(self, variant: Variant) -> Estimate | None:
        return variant.measured_over_seeds(self.name)


@dataclass(frozen=True)
class OfHeldOut(OfRun):
    """A loss on held-out text."""

    depth: int = 0
    """The depth of multi-token prediction that it is of; 0: the model's own."""
    windows: Callable[[RunResult], Sequence[float]] = field(default=lambda run: (), repr=False)
    """The mean loss of every held-out window, by which differences are paired; empty if a result lacks them."""


class OfPair(Quantity):
    """A quantity that compares a variant with the baseline: `read` takes a Variant."""

    def of_run(self, result: RunResult) -> Number | None:
        return None

    def of_variant(self, variant: Variant) -> Estimate | None:
        return self.read(variant)  # pyright: ignore
