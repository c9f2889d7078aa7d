"""The answer of an analysis in words."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from widthwise.records.analysis import Activations, AnalysedModel
from widthwise.records.record import finite

MIDDLE = (0.25, 0.75)
"""Depths that count as the middle, as fractions of the layers."""
RESERVATION = (
    "These numbers describe the trained models named here on this text. They have no interval: models of other seeds "
    "would give others, and a difference between two models is not yet one between their shapes."
)


def sentence(models: Sequence[AnalysedModel], threshold: float) -> str:
    """A line for the first model, or one for each further one beside it; and what none of them says."""
    first, *others = models
    lines = [_line(model, first, threshold) for model in others] or [_line(first, None, threshold)]
    return "".join(f"{line}\n" for line in (*lines, RESERVATION))


def _line(model: AnalysedModel, beside: AnalysedModel | None, threshold: float) -> str:
    measures: dict[str, Callable[[AnalysedModel], float | None]] = {
        "the normalised matrix entropy of the stream": _entropy,
        "the participation ratio over d_ff": _participation_share,
        f"the share of activations beyond {threshold:g}": _density,
    }
    clauses = [
        f"{name} is {own:.3f}{_compared(own, None if beside is None else value(beside))}"
        for name, value in measures.items()
        if (own := value(model)) is not None
    ]
    against = "" if beside is None else f", beside {beside.name}"
    valleys = [f"{each.name} {_valley(each)}" for each in (model, beside) if each is not None]
    measured = f"In the middle half of the layers of {model.name}{against}: {'; '.join(clauses)}."
    return f"{measured} Over all layers the stream of {', that of '.join(valleys)}."


def _compared(own: float, other: float | None) -> str:
    """Whether it is higher than another, as far as three decimals show."""
    if other is None:
        return ""
    own, other = round(own, 3), round(other, 3)
    relation = "as" if own == other else "higher than" if own > other else "lower than"
    return f", {relation} {other:.3f}"


def _valley(model: AnalysedModel) -> str:
    valley = model.valley
    if valley is None:
        return "has no compression valley"
    drop, rise = valley.drop, valley.rise
    return f"falls by {drop:.3f} of that entropy into a valley after layer {valley.depth} and rises by {rise:.3f}"


def _entropy(model: AnalysedModel) -> float | None:
    return _of_middle({entry.depth: entry.entropy for entry in model.stream}, model)


def _participation_share(model: AnalysedModel) -> float | None:
    """The blocks of a layer count together."""

    def of_layer(entries: Sequence[Activations]) -> float | None:
        if any(entry.participation is None for entry in entries):
            return None
        return sum(finite(entry.participation) for entry in entries) / sum(entry.d_ff for entry in entries)

    return _of_middle({layer: of_layer(entries) for layer, entries in _layers(model).items()}, model)


def _density(model: AnalysedModel) -> float | None:
    """Beyond the threshold of utilisation."""
    return _of_middle(
        {
            layer: float(np.mean([finite(share) for entry in entries for share in entry.utilisation]))
            for layer, entries in _layers(model).items()
        },
        model,
    )


def _layers(model: AnalysedModel) -> dict[int, list[Activations]]:
    """The feed-forward blocks of each layer."""
    layers: dict[int, list[Activations]] = {}
    for entry in model.activations:
        layers.setdefault(entry.layer, []).append(entry)
    return layers


def _of_middle(by_layer: Mapping[int, float | None], model: AnalysedModel) -> float | None:
    """Mean over the middle layers, of which one layer alone is one; None where nothing is known of them."""
    low, high = (fraction * len(model.widths) for fraction in MIDDLE)
    known = [value for layer, value in by_layer.items() if low <= layer <= max(1, high) and value is not None]
    return float(np.mean(known)) if known else None
