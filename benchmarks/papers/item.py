"""An item: a table or figure of a paper, as a file of `items/` describes it, with its numbers: printed, counted
and measured.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from papers import ITEMS
from papers.numbers import DIFFERENCE, DIFFERENCES, Measurements, PrintedPoints, count
from papers.record import Answer, PaperExperiment, PaperItem, PaperLine
from papers.work import AnyWork, Work
from widthwise.config_io import Config, check_one_of, nearest_hint, parse
from widthwise.experiments.recipes import describes_several, read_all
from widthwise.mistakes import UserError
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.records.quantities import TITLES
from widthwise.records.record import Number, finite
from widthwise.yaml_io import read_mapping, read_recipe, recipe_path

UNITS = {"": 1, "%": Decimal("0.01"), "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
ROUNDING = 1e-12
"""The largest change that counts as none."""
DIRECTIONS, UNCHANGED = {"higher": 1, "lower": -1}, "unchanged"
"""Words for what a figure shows without a number: the sign of the difference to the baseline, and a change that is 0
with every seed."""
_FORM = re.compile(r"([+-]?\d+(?:\.\d+)?)([%KMBT]?)")


@dataclass(frozen=True)
class PrintedNumber:
    """A number ("113M", "3.430", "-3.2%") or a word; without text nothing, so that the quantity is only measured."""

    text: str = ""
    number: float | None = None
    half_unit: float = 0.0
    """Half a unit of the last printed digit: the largest error of rounding."""

    @property
    def is_difference(self) -> bool:
        """True if it is about the difference to the baseline."""
        return self.text in DIRECTIONS

    def agrees_with(self, counted: float) -> bool | None:
        """Return whether a number counted at the paper's size, rounded to the printed digits, is the printed one; a tie
        may be rounded either way. None for a word."""
        if self.number is None:
            return None
        slack = 1e-9 * max(abs(self.number), self.half_unit)
        return abs(counted - self.number) <= self.half_unit + slack

    def reproduced_by(self, measured: Estimate) -> Answer | None:
        """Return whether a measurement at another size agrees with a word, a direction by its interval if there are
        enough seeds; None for numbers: they depend on size."""
        if self.text == UNCHANGED:
            return "yes" if all(abs(finite(change)) <= ROUNDING for change in measured.per_seed) else "no"
        if not self.is_difference:
            return None
        if len(measured.per_seed) < FEWEST_SEEDS:
            return "cannot tell"
        low, high = sorted(DIRECTIONS[self.text] * finite(end) for end in (measured.low, measured.high))
        return "yes" if low > 0 else "no" if high < 0 else "cannot tell"


def parse_printed(text: Any) -> PrintedNumber:
    """Return a word, or a number with an optional unit of UNITS. Raises ValueError for anything else."""
    words = (*DIRECTIONS, UNCHANGED)
    if text in words:
        return PrintedNumber(text)
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(
            f"got {text!r}; expected a number as it is printed, in quotes, such as '3.430', '113M' or '-3.2%', or one "
            f"of {', '.join(words)}"
        )
    number, unit = Decimal(found[1]), UNITS[found[2]]
    n_decimals = len(found[1].partition(".")[2])
    return PrintedNumber(text, float(number * unit), float(Decimal(10) ** -n_decimals * unit / 2))


PaperName = Literal["variable-width", "hourglass", "expansions", "dynamic-width", "virtual-width"]
PAPERS: Mapping[PaperName, str] = {
    "variable-width": "Variable-Width Transformers, arXiv:2606.18246",
    "hourglass": "Revisiting the Shape Convention of Transformer Language Models, arXiv:2602.06471",
    "expansions": "Composable Function-preserving Expansions for Transformer Architectures, arXiv:2308.06103",
    "dynamic-width": "Dynamic Width Feedforward Networks",
    "virtual-width": "Virtual Width Networks, arXiv:2511.11238",
}
"""In the order in which items are listed."""
CHANGE = "_change"
"""Ending of a quantity that is counted relative to the baseline: its ratio minus 1."""


class Item(Config):
    """The printed numbers of a table or figure, and the recipes and experiments that reproduce them."""

    paper: PaperName
    where: str
    """Its number in the paper, such as "Table 2"."""
    title: str
    finds: str
    """The paper's conclusion from it, in a sentence."""
    printed: dict[str, dict[str, Annotated[PrintedNumber, BeforeValidator(parse_printed)]]]
    """Row -> quantity -> the number as it is printed, or a word. A row is a recipe of `sizes`, a group of a law, or a
    name in the experiment."""
    baselines: dict[str, str] = Field(default_factory=dict)
    """Row -> the row from which its losses are subtracted; default: the first row of `printed`."""
    also: tuple[str, ...] = ("difference",)
    """Quantities that are shown of every row where they were measured, printed or not."""
    sizes: tuple[str, ...] = ()
    """Names of the bundled recipes at the paper's size, of single models, or of one that describes several; then the
    rows are its variants or points."""
    points: PrintedPoints | None = None
    """Points that the paper prints, and the law through them."""
    small: AnyWork | None = None
    """An experiment for two CPU cores; it has a tiny form, too."""
    remarks: tuple[str, ...] = ()
    """Differences and their reasons, a sentence each."""

    @model_validator(mode="after")
    def _rows_exist(self) -> "Item":
        for row, base in self.baselines.items():
            for name in (row, base):
                check_one_of("baselines", name, self.printed)
        for row, own in self.printed.items():
            if self.baseline_of(row) is None and any(each.is_difference for each in own.values()):
                raise ValueError(f"printed.{row}: is the baseline, so it cannot be higher or lower")
        return self

    def baseline_of(self, row: str) -> str | None:
        """Return the row whose losses are subtracted from a row's; None for a baseline itself."""
        base = self.baselines.get(row, next(iter(self.printed)))
        is_baseline = row not in self.baselines and row in self.baselines.values()
        return None if is_baseline or base == row else base

    @property
    def experiments(self) -> Mapping[str, Work]:
        """Scale -> its experiment."""
        return {} if self.small is None else {"small": self.small, "tiny": self.small.tiny}

    @cached_property
    def _recipes(self) -> Mapping[str, Recipe]:
        """The recipes of `sizes` by name, or the variants or points of a single one by theirs. Raises UserError."""
        paths = {name: recipe_path(name) for name in self.sizes}
        if len(paths) == 1 and describes_several(read_recipe(only := next(iter(paths.values())))):
            return read_all(only).recipes
        return {name: load_recipe(path) for name, path in paths.items()}

    def count(self, row: str, quantity: str) -> Number | None:
        """Return the quantity of a row at the paper's size, or of the law through the printed points. Raises
        UserError for a recipe or a file that is broken."""
        base = self.baseline_of(row)
        if quantity.endswith(CHANGE) and base is not None:
            own, other = (self.count(name, quantity.removesuffix(CHANGE)) for name in (row, base))
            return None if own is None or other is None else own / other - 1
        if row in self._recipes and (counted := count(self._recipes[row], quantity)) is not None:
            return counted
        fitted = None if self.points is None else self.points.laws.value(row, quantity)
        return None if fitted is None else fitted.mean


def read_items() -> dict[str, Item]:
    """Return all items, paper by paper. Raises UserError for a broken file."""
    items = {path.stem: read_item(path.stem) for path in ITEMS.glob("*.yaml")}

    def place(name: str) -> tuple[int, list[tuple[int, str]]]:
        """Return a sorting key by which table_10 comes after table_2."""
        words = [(int(word), "") if word.isdigit() else (-1, word) for word in name.split("_")]
        return list(PAPERS).index(items[name].paper), words

    return {name: items[name] for name in sorted(items, key=place)}


def read_item(name: str) -> Item:
    """Return one item. Raises UserError if there is none, or its file is broken."""
    path = ITEMS / f"{name}.yaml"
    if not path.is_file():
        known = [each.stem for each in ITEMS.glob("*.yaml")]
        raise UserError(f"item: got {name!r}; {nearest_hint(name, known)}; `python benchmarks/paper.py list` has all")
    return parse(Item, read_mapping(path), str(path))


SCALES = ("small", "tiny")
"""Scales that are looked for among results, in this order."""


def item_record(name: str, item: Item, results: Path, scales: Sequence[str] = SCALES) -> PaperItem:
    """Return the numbers of an item, with those measured that are found in the folder of results. Raises UserError for
    a recipe or a file that is broken. scales: the experiments that are looked for; the first that is found counts."""
    experiment = measured = None
    for scale in scales:
        work = item.experiments.get(scale)
        if work is not None and (measured := work.measured(results / work.name)) is not None:
            experiment = PaperExperiment(
                scale=scale,
                recipe=work.recipe,
                folder=work.name,
                command=f"python benchmarks/paper.py {name} --scale {scale}",
                n_seeds=measured.n_seeds,
                fewest_params=min(measured.params, default=None),
                most_params=max(measured.params, default=None),
                core_minutes=work.core_minutes,
            )
            break
    return PaperItem(
        name=name,
        paper=PAPERS[item.paper],
        where=item.where,
        title=item.title,
        finds=item.finds,
        lines=list(_lines(item, measured)),
        experiment=experiment,
        other_scales=[
            f"--scale {scale}: {work.recipe}"
            + ("" if work.core_minutes is None else f", about {work.core_minutes:g} minutes of a CPU core")
            for scale, work in item.experiments.items()
            if experiment is None or scale != experiment.scale
        ],
        small_core_minutes=None if item.small is None else item.small.core_minutes,
        remarks=item.remarks,
    )


def _lines(item: Item, measured: Measurements | None) -> Iterator[PaperLine]:
    """Yield the lines of which anything is known."""
    for row, own in item.printed.items():
        for quantity, printed in _with_others(own, (*item.also, *DIFFERENCES)):
            counted = item.count(row, quantity) if printed.text else None
            value = printed.number if printed.text else _printed_difference(item, row, quantity)
            found = None if measured is None else _measured(item, row, quantity, printed, measured)
            if not printed.text and value is None and (found is None or quantity not in item.also):
                continue
            yield PaperLine(
                row=row,
                quantity=quantity,
                title=f"{_title(quantity)}, difference" if printed.is_difference else _title(quantity),
                printed=printed.text or None,
                printed_value=value,
                counted=counted,
                agrees=None if counted is None else printed.agrees_with(counted),
                measured=found,
                reproduces=None if found is None else printed.reproduced_by(found),
                is_difference=printed.is_difference,
                is_share=printed.text.endswith("%"),
            )


def _with_others(own: Mapping[str, PrintedNumber], also: Sequence[str]) -> Iterator[tuple[str, PrintedNumber]]:
    """Yield the printed quantities of a row and the others to show; before a printed difference the quantity itself."""
    for quantity, printed in own.items():
        if printed.is_difference and quantity in also:
            yield quantity, PrintedNumber()
        yield quantity, printed
    yield from ((quantity, PrintedNumber()) for quantity in dict.fromkeys(also) if quantity not in own)


def _printed_difference(item: Item, row: str, quantity: str) -> float | None:
    """Return the printed loss of a row minus that of its baseline; None if it is no difference, or not printed
    of both."""
    loss, base = DIFFERENCES.get(quantity), item.baseline_of(row)
    if loss is None or base is None:
        return None
    own, other = (item.printed[each].get(loss, PrintedNumber()).number for each in (row, base))
    return None if own is None or other is None else own - other


def _measured(item: Item, row: str, quantity: str, printed: PrintedNumber, measured: Measurements) -> Estimate | None:
    """Return the quantity, or its difference to the baseline of the row. Of quantities of the size alone nothing is
    measured: those of a small model say nothing about the paper's."""
    if not (printed.is_difference or quantity.startswith(DIFFERENCE)):
        found = measured.value(row, quantity)
    else:
        base = item.baseline_of(row)  # without one it would be a difference to another model than those beside it
        found = None if base is None else measured.difference(row, base, quantity)
    return None if found is None or (found.low is None and not found.per_seed) else found


def _title(quantity: str) -> str:
    if quantity.endswith(CHANGE):
        return f"{_title(quantity.removesuffix(CHANGE))}, relative to the baseline"
    return TITLES.get(quantity, quantity.replace("_", " "))
