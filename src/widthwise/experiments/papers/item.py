"""An item: a table or figure of a paper, as a file of `configs/papers` describes it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from widthwise.bundled import papers_folder
from widthwise.config_io import Config, UserError, nearest_hint, parse
from widthwise.experiments.papers.counted import PrintedPoints, count, read_sizes
from widthwise.experiments.papers.printed import Printed, printed
from widthwise.experiments.papers.work import AnyWork, Work
from widthwise.recipe.recipe import Recipe
from widthwise.records.record import Number
from widthwise.yaml_io import read_mapping

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


def _as_printed(text: str) -> str:
    printed(text)
    return text


class Item(Config):
    """What one table or figure prints, and what makes its numbers here."""

    paper: PaperName
    where: str
    """Its number in the paper, such as "Table 2"."""
    title: str
    finds: str
    """What the paper concludes from it, in a sentence."""
    printed: dict[str, dict[str, Annotated[str, pydantic.AfterValidator(_as_printed)]]]
    """Row -> quantity -> the number as it is printed, or a word of `printed.WORDS`. A row is a recipe of `sizes`, a
    group of a law, or a name in the experiment."""
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
    """What differs and why, a sentence each."""

    @pydantic.model_validator(mode="after")
    def _rows_exist(self) -> "Item":
        for row, base in self.baselines.items():
            for name in (row, base):
                if name not in self.printed:
                    raise ValueError(f"baselines: got {name!r}; {nearest_hint(name, self.printed)}")
        for row, own in self.statements.items():
            if self.baseline_of(row) is None and any(each.is_difference for each in own.values()):
                raise ValueError(f"printed.{row}: is a baseline, and cannot be higher or lower than itself")
        return self

    def baseline_of(self, row: str) -> str | None:
        """The row from which its losses are subtracted; None for a baseline itself."""
        base = self.baselines.get(row, next(iter(self.printed)))
        is_baseline = row not in self.baselines and row in self.baselines.values()
        return None if is_baseline or base == row else base

    @property
    def experiments(self) -> Mapping[str, Work]:
        """Scale -> what it trains."""
        return {} if self.small is None else {"small": self.small, "tiny": self.small.tiny}

    @cached_property
    def _recipes(self) -> Mapping[str, Recipe]:
        return read_sizes(self.sizes) if self.sizes else {}

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

    @cached_property
    def statements(self) -> Mapping[str, Mapping[str, Printed]]:
        """`printed`, understood."""
        return {row: {name: printed(text) for name, text in own.items()} for row, own in self.printed.items()}


def read_items() -> dict[str, Item]:
    """All items, paper by paper. Raises UserError where the file of one is not as it should be."""
    papers = list(PAPERS)
    items = {path.stem: read_item(path.stem) for path in papers_folder().glob("*.yaml")}
    ordered = sorted(items, key=lambda name: (papers.index(items[name].paper), _with_numbers(name)))
    return {name: items[name] for name in ordered}


def read_item(name: str) -> Item:
    """Raises UserError where there is no such item, or its file is not as it should be."""
    path = papers_folder() / f"{name}.yaml"
    if not path.is_file():
        known = [each.stem for each in papers_folder().glob("*.yaml")]
        raise UserError(f"paper: got {name!r}; {nearest_hint(name, known)} (`widthwise paper list` shows all)")
    return parse(Item, read_mapping(path), str(path))


def _with_numbers(name: str) -> list[tuple[int, str]]:
    """table_10 comes after table_2."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in name.split("_")]
