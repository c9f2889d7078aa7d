"""An item with its numbers: printed, counted and measured."""

from collections.abc import Sequence
from pathlib import Path

from widthwise.experiments.papers.experiment import Experiment, Measured
from widthwise.experiments.papers.item import PAPERS, Item
from widthwise.experiments.papers.printed import Printed
from widthwise.experiments.papers.sizes import CHANGE
from widthwise.records.estimate import Estimate
from widthwise.records.paper import PaperExperiment, PaperItem, PaperLine
from widthwise.records.quantities import QUANTITY, TITLES
from widthwise.records.record import Number, finite

DIFFERENCE = "difference"
LOSSES = ("val_loss", "train_loss")
"""Of which a paper prints one or the other."""
SCALES = ("small", "tiny")
"""Those that are looked for among results, in this order."""


def item_record(name: str, item: Item, results: Path, scales: Sequence[str] = SCALES) -> PaperItem:
    """The numbers of an item, with those measured that are found in the folder of results. Raises UserError for a
    recipe or a file that is broken. scales: the experiments that are looked for; the first that is found counts."""
    scale, experiment, measured = _found(item, results, scales)
    lines = [
        _line(item, row, quantity, printed, experiment, measured)
        for row, numbers in item.printed_numbers.items()
        for quantity, printed in {**numbers, **dict.fromkeys(item.also)}.items()
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


def _line(
    item: Item,
    row: str,
    quantity: str,
    printed: Printed | None,
    experiment: Experiment | None,
    measured: Measured | None,
) -> PaperLine | None:
    """None where there is nothing to say."""
    counted = None if quantity in item.also else _count(item, row, quantity)
    found = _measured(experiment, measured, row, quantity)
    value = _difference(item, row) if printed is None and quantity == DIFFERENCE else printed and printed.value
    if value is None and counted is None and found is None:
        return None
    return PaperLine(
        row=row,
        quantity=quantity,
        title=_title(quantity),
        printed=printed and printed.text,
        printed_value=value,
        counted=counted,
        agrees=None if printed is None or counted is None else printed.agrees_with(counted),
        measured=found,
        is_share=printed is not None and printed.text.endswith("%"),
    )


def _difference(item: Item, row: str) -> float | None:
    """Of two printed losses."""
    if (base := item.baseline_of(row)) is None:
        return None
    own, other = item.printed_numbers[row], item.printed_numbers[base]
    return next((own[loss].value - other[loss].value for loss in LOSSES if loss in own and loss in other), None)


def _count(item: Item, row: str, quantity: str) -> Number | None:
    if item.sizes is not None and (counted := item.sizes.count(row, quantity, item.baseline_of(row))) is not None:
        return counted
    fitted = item.points.found.value(row, quantity) if item.points is not None else None
    return None if fitted is None else fitted.mean


def _measured(experiment: Experiment | None, measured: Measured | None, row: str, quantity: str) -> Estimate | None:
    """Of quantities of the size alone nothing is measured: those of a small model say nothing about the paper's."""
    if experiment is None or measured is None:
        return None
    name = experiment.rows.get(row, row)
    found = measured.value(name, quantity)
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
