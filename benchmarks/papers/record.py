"""`paper.json`, a table or figure of a paper as it is printed, counted and measured, and `demonstration.json`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from widthwise.records.estimate import Estimate
from widthwise.records.record import FiniteOrNone, Number, Record, StoredRecord

Answer = Literal["yes", "no", "cannot tell"]


class PaperLine(Record):
    """One number of one row."""

    row: str
    quantity: str
    title: str
    """The quantity in words."""
    printed: str | None = None
    """As the paper prints it, in digits or in a word; None where it does not."""
    printed_value: FiniteOrNone = None
    """The printed number, or the difference of two printed losses."""
    counted: Number | None = None
    """Counted from the recipe at the paper's size, or from the points that the paper prints."""
    agrees: bool | None = None
    """True if the counted number, rounded to the printed digits, is the printed one."""
    measured: Estimate | None = None
    """Measurement of the experiment at another size, with its interval over seeds."""
    reproduces: Answer | None = None
    """Answer whether the measurement agrees with the paper's word."""
    is_difference: bool = False
    """True if the measured number is a difference to the baseline's."""
    is_share: bool = False
    """True if the number is a share or a change, shown in percent."""


class PaperExperiment(Record):
    """The experiment behind the measured numbers."""

    scale: str
    recipe: str
    folder: str
    command: str
    """The one that repeats it."""
    n_seeds: int | None = None
    fewest_params: FiniteOrNone = None
    """Parameters of its smallest model."""
    most_params: FiniteOrNone = None
    core_minutes: float | None = None


class PaperItem(StoredRecord):
    """One table or figure."""

    file_name: ClassVar[str] = "paper.json"

    name: str
    paper: str
    where: str
    title: str
    finds: str
    """The paper's conclusion."""
    lines: Sequence[PaperLine]
    experiment: PaperExperiment | None = None
    """None where nothing was measured."""
    other_scales: Sequence[str] = ()
    """Experiments that have not been run, in words."""
    small_core_minutes: FiniteOrNone = None
    """Duration of the experiment for two CPU cores, in minutes of one of them."""
    remarks: Sequence[str] = ()

    @property
    def n_printed(self) -> int:
        return sum(line.printed is not None for line in self.lines)

    @property
    def n_judged(self) -> int:
        """Number of lines that can be compared with the paper: counted numbers, and measurements of words."""
        return sum(line.agrees is not None or line.reproduces is not None for line in self.lines)

    @property
    def n_agreeing(self) -> int:
        return sum(line.agrees is True or line.reproduces == "yes" for line in self.lines)

    @property
    def n_measured(self) -> int:
        return sum(line.measured is not None for line in self.lines)


class MeasuredExpansion(Record):
    """One expansion of a model, drawn once for each seed."""

    does: Sequence[str]
    """The expansion in words, a line each."""
    params: Number
    """Parameters of the larger model."""
    quantities: Mapping[str, Sequence[float]]
    """Quantity -> one value per seed, in the order of the seeds."""


class Demonstration(StoredRecord):
    """Several expansions of the same model."""

    file_name: ClassVar[str] = "demonstration.json"

    command: str
    created: str
    environment: Mapping[str, Any]
    seeds: Sequence[int]
    params: Number
    """Parameters of the model before it grows."""
    expansions: Mapping[str, MeasuredExpansion]
