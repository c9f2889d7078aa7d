"""An item with its numbers: printed, counted and measured."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from widthwise.experiments.papers.experiment import Experiment, Measured
from widthwise.experiments.papers.item import PAPERS, Item
from widthwise.experiments.papers.printed import Statement
from widthwise.experiments.papers.sizes import CHANGE
from widthwise.records.estimate import Estimate
from widthwise.records.paper import PaperExperiment, PaperItem, PaperLine
from widthwise.records.quantities import QUANTITY, TITLES
from widthwise.records.record import Number, finite

DIFFERENCE = "difference"
DIFFERENCES = {DIFFERENCE: "val_loss", "difference_train_loss": "train_loss"}
"""Difference -> the loss whose printed values it is compared with: each with its like."""
SCALES = ("small", "tiny")
"""Those that are looked for among results, in this order."""


def item_record(name: str, item: Item, results: Path, scales: Sequence[str] = SCALES) -> PaperItem:
    """The numbers of an item, with those measured that are found in the folder of results. Raises UserError for a
    recipe or a file that is broken. scales: the experiments that are looked for; the first that is found counts."""
    scale, experiment, measured = _found(item, results, scales)
    lines = [
        _line(item, row, quantity, statement, experiment, measured)
        for row, own in item.statements.items()
        for quantity, statement in _with_others(own, (*item.also, *DIFFERENCES))
    ]
    return PaperItem(
        name=name,
        paper=PAPERS[item.paper],
        where=item.where,
        title=item.title,
        finds=item.finds,
        lines=[line for line in lines if line is not None],
        experiment=experiment and _described(name, scale, experiment, measured),
        other_scales=[_waiting(each, other) for each, other in item.experiments.items() if each != scale],
        small_core_minutes=None if item.small is None else item.small.core_minutes,
        remarks=item.remarks,
    )


def _found(item: Item, results: Path, scales: Sequence[str]) -> tuple[str, Experiment | None, Measured | None]:
    for scale in scales:
        experiment = item.experiments.get(scale)
        if experiment is not None and (measured := experiment.measured(results / experiment.name)) is not None:
            return scale, experiment, measured
    return "", None, None


def _with_others(own: Mapping[str, Statement], also: Sequence[str]) -> Iterator[tuple[str, Statement]]:
    """What a row prints, and what is shown besides; of a printed difference the quantity itself comes first."""
    for quantity, statement in own.items():
        if statement.is_difference and quantity in also:
            yield quantity, Statement()
        yield quantity, statement
    for quantity in dict.fromkeys(also):
        if quantity not in own:
            yield quantity, Statement()


def _line(
    item: Item,
    row: str,
    quantity: str,
    statement: Statement,
    experiment: Experiment | None,
    measured: Measured | None,
) -> PaperLine | None:
    """None where there is nothing to say."""
    is_printed = bool(statement.text)
    baseline = item.baseline_of(row) if statement.is_difference or quantity.startswith(DIFFERENCE) else None
    counted = _count(item, row, quantity) if is_printed else None
    # The difference of a row without a baseline would be to another model than those beside it.
    is_apart = quantity.startswith(DIFFERENCE) and baseline is None
    found = None if is_apart else _measured(experiment, measured, row, baseline, quantity)
    value = statement.number if is_printed else _difference(item, row, quantity)
    if not is_printed and value is None and (found is None or quantity not in item.also):
        return None
    return PaperLine(
        row=row,
        quantity=quantity,
        title=f"{_title(quantity)}, difference" if statement.is_difference else _title(quantity),
        printed=statement.text or None,
        printed_value=value,
        counted=counted,
        agrees=None if counted is None else statement.agrees_with(counted),
        measured=found,
        reproduces=None if found is None else statement.reproduced_by(found),
        is_difference=statement.is_difference,
        is_share=statement.text.endswith("%"),
    )


def _difference(item: Item, row: str, quantity: str) -> float | None:
    """The printed loss of a row minus that of its baseline; None for what is no difference or not printed of both."""
    loss, base = DIFFERENCES.get(quantity), item.baseline_of(row)
    if loss is None or base is None:
        return None
    own, other = (item.statements[each].get(loss, Statement()).number for each in (row, base))
    return None if own is None or other is None else own - other


def _count(item: Item, row: str, quantity: str) -> Number | None:
    if item.sizes is not None and (counted := item.sizes.count(row, quantity, item.baseline_of(row))) is not None:
        return counted
    fitted = item.points.found.value(row, quantity) if item.points is not None else None
    return None if fitted is None else fitted.mean


def _measured(
    experiment: Experiment | None, measured: Measured | None, row: str, baseline: str | None, quantity: str
) -> Estimate | None:
    """The quantity, or its difference to a baseline. Of quantities of the size alone nothing is measured: those of a
    small model say nothing about the paper's."""
    if experiment is None or measured is None:
        return None
    name = experiment.name_of(row)
    base = None if baseline is None else experiment.name_of(baseline)
    own = next((key for key, loss in DIFFERENCES.items() if loss == quantity), "")
    if base is not None and measured.value(base, own) is None and (found := measured.value(name, own)) is not None:
        return found  # to the experiment's own baseline: one interval for one difference
    if base is not None and measured.value(base, quantity) is not None:  # else it is the experiment's own baseline
        return measured.difference(name, base, quantity)
    found = measured.value(name, quantity)
    if found is None and base is not None and quantity in DIFFERENCES:  # of a record that holds no such difference
        found = measured.difference(name, base, DIFFERENCES[quantity])
    return None if found is None or (found.low is None and not found.per_seed) else found


def _described(name: str, scale: str, experiment: Experiment, measured: Measured | None) -> PaperExperiment:
    params = [finite(each) for each in measured.models.values()] if measured is not None else []
    return PaperExperiment(
        scale=scale,
        recipe=experiment.recipe,
        folder=experiment.name,
        command=f"widthwise paper {name} --scale {scale}",
        n_seeds=None if measured is None else measured.n_seeds,
        fewest_params=min(params, default=None),
        most_params=max(params, default=None),
        core_minutes=experiment.core_minutes,
    )


def _waiting(scale: str, experiment: Experiment) -> str:
    time = "" if experiment.core_minutes is None else f", about {experiment.core_minutes:g} minutes of a CPU core"
    return f"--scale {scale}: {experiment.recipe}{time}"


def _title(quantity: str) -> str:
    if quantity.endswith(CHANGE):
        return f"{_title(quantity.removesuffix(CHANGE))}, relative to the baseline"
    if quantity in QUANTITY:
        return TITLES[quantity]
    return quantity.replace("_", " ")
