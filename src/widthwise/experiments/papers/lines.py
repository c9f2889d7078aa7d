"""An item with its numbers: printed, counted and measured."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from widthwise.experiments.papers.item import CHANGE, PAPERS, Item
from widthwise.experiments.papers.measured import DIFFERENCE, DIFFERENCES, Measured
from widthwise.experiments.papers.printed import Printed
from widthwise.experiments.papers.work import Work
from widthwise.records.estimate import Estimate
from widthwise.records.paper import PaperExperiment, PaperItem, PaperLine
from widthwise.records.quantities import QUANTITY, TITLES

SCALES = ("small", "tiny")
"""Those that are looked for among results, in this order."""


def item_record(name: str, item: Item, results: Path, scales: Sequence[str] = SCALES) -> PaperItem:
    """Return the numbers of an item, with those measured that are found in the folder of results. Raises UserError for
    a recipe or a file that is broken. scales: the experiments that are looked for; the first that is found counts."""
    experiment = measured = None
    for scale in scales:
        work = item.experiments.get(scale)
        if work is not None and (measured := work.measured(results / work.name)) is not None:
            experiment = _described(name, scale, work, measured)
            break
    lines = [
        _line(item, row, quantity, printed, measured)
        for row, own in item.statements.items()
        for quantity, printed in _with_others(own, (*item.also, *DIFFERENCES))
    ]
    return PaperItem(
        name=name,
        paper=PAPERS[item.paper],
        where=item.where,
        title=item.title,
        finds=item.finds,
        lines=[line for line in lines if line is not None],
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


def _described(name: str, scale: str, work: Work, measured: Measured) -> PaperExperiment:
    return PaperExperiment(
        scale=scale,
        recipe=work.recipe,
        folder=work.name,
        command=f"widthwise paper {name} --scale {scale}",
        n_seeds=measured.n_seeds,
        fewest_params=min(measured.params, default=None),
        most_params=max(measured.params, default=None),
        core_minutes=work.core_minutes,
    )


def _with_others(own: Mapping[str, Printed], also: Sequence[str]) -> Iterator[tuple[str, Printed]]:
    """Yield what a row prints, and what is shown besides; of a printed difference the quantity itself comes first."""
    for quantity, printed in own.items():
        if printed.is_difference and quantity in also:
            yield quantity, Printed()
        yield quantity, printed
    for quantity in dict.fromkeys(also):
        if quantity not in own:
            yield quantity, Printed()


def _line(item: Item, row: str, quantity: str, printed: Printed, measured: Measured | None) -> PaperLine | None:
    """Return None where there is nothing to say."""
    is_printed = bool(printed.text)
    counted = item.count(row, quantity) if is_printed else None
    value = printed.number if is_printed else _printed_difference(item, row, quantity)
    found = None if measured is None else _measured(item, row, quantity, printed, measured)
    if not is_printed and value is None and (found is None or quantity not in item.also):
        return None
    return PaperLine(
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


def _printed_difference(item: Item, row: str, quantity: str) -> float | None:
    """Return the printed loss of a row minus that of its baseline; None for what is no difference or not printed of
    both."""
    loss, base = DIFFERENCES.get(quantity), item.baseline_of(row)
    if loss is None or base is None:
        return None
    own, other = (item.statements[each].get(loss, Printed()).number for each in (row, base))
    return None if own is None or other is None else own - other


def _measured(item: Item, row: str, quantity: str, printed: Printed, measured: Measured) -> Estimate | None:
    """Return the quantity, or its difference to the baseline of the row. Of quantities of the size alone nothing is
    measured: those of a small model say nothing about the paper's."""
    if not (printed.is_difference or quantity.startswith(DIFFERENCE)):
        found = measured.value(row, quantity)
    elif (base := item.baseline_of(row)) is not None:
        found = measured.difference(row, base, quantity)
    else:
        return None  # it would be a difference to another model than those beside it
    return None if found is None or (found.low is None and not found.per_seed) else found


def _title(quantity: str) -> str:
    if quantity.endswith(CHANGE):
        return f"{_title(quantity.removesuffix(CHANGE))}, relative to the baseline"
    return TITLES[quantity] if quantity in QUANTITY else quantity.replace("_", " ")
