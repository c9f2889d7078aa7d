"""Tables and sentences of a discovery, for the page and the terminal."""

from collections.abc import Iterator

from widthwise.records.comparison import Comparison, Variant
from widthwise.records.discovery import DISCOVERED, Discovery, LayerSizes
from widthwise.records.quantities import QUANTITY
from widthwise.reports.page.formats import clean, counted, fixed, interval, ratio, shown, si, signed
from widthwise.reports.page.table import Table

LOSS, FLOPS = QUANTITY["val_loss"], QUANTITY["training_flops"]
METHODS = {
    "growing": "grown where it gained most",
    "learned": "learned under a price on width",
    "surrogate": "searched with small models",
}


def sizes_table(discovery: Discovery) -> Table:
    """The layers that were found, in channels."""
    layers = discovery.found.stages[-1].layers
    rows = [[str(number), *_sizes(layer)] for number, layer in enumerate(layers, start=1)]
    return Table("sizes of the layers at the end of the search", ["layer", "width", "attention", "hidden"], rows)


def _sizes(layer: LayerSizes) -> list[str]:
    return [fixed(layer.width, 0), fixed(layer.attention, 0), fixed(layer.hidden, 0)]


def cost_table(discovery: Discovery, comparison: Comparison) -> Table:
    """Every rival with its loss and what it cost, the search included in what was found."""
    rows = []
    for variant in comparison.variants:
        flops, search = _flops(variant), discovery.found.flops if variant.name == DISCOVERED else 0.0
        own = [si(flops), si(search) if search else "", si(None if flops is None else flops + search)]
        difference = variant.difference
        apart = (
            "" if difference is None else f"{signed(difference.mean, 4)} ({interval(difference, 4, with_sign=True)})"
        )
        rows.append([clean(variant.name), shown(variant.val_loss.mean, LOSS), apart, variant.verdict or "", *own])
    header = ["", LOSS.title, f"minus {clean(comparison.baseline)}", "verdict", FLOPS.brief_title, "search", "together"]
    return Table("retrained from scratch, FLOPs of one seed", header, rows, words={"verdict"})


def _flops(variant: Variant) -> float | None:
    """Training FLOPs of one of its runs."""
    found = variant.measured_over_seeds("training_flops")
    return None if found is None else found.mean


def growth_table(discovery: Discovery) -> Table | None:
    """How often each part of each layer was chosen to grow; None for a search without growth."""
    taken = [each for stage in discovery.found.stages for each in stage.candidates if each.is_taken]
    if not taken:
        return None
    parts = list(dict.fromkeys(each.part for stage in discovery.found.stages for each in stage.candidates))
    n_layers = len(discovery.found.stages[-1].layers)
    rows = [
        [part, *(str(sum(each.part == part and each.layer == layer for each in taken)) for layer in range(n_layers))]
        for part in parts
    ]
    return Table("stages in which a part was grown, by layer", ["", *(str(n) for n in range(1, n_layers + 1))], rows)


def sentences(discovery: Discovery, comparison: Comparison | None) -> Iterator[str]:
    """What was found, at what cost, and whether it wins."""
    found = discovery.found
    widths, how = found.curve.widths, METHODS.get(discovery.method, discovery.method)
    yield (
        f"{counted(len(found.stages[-1].layers), 'layer')}, {how}: the widest is {ratio(max(widths) / min(widths))} "
        f"the narrowest. The search took {si(found.tokens)} tokens and {si(found.flops)} training FLOPs"
        f"{_in_trainings(found.flops, comparison)}."
    )
    if comparison:
        told = {line.split()[0]: line for line in comparison.sentence.splitlines() if line}
        yield from (told[name] for name in (DISCOVERED,) if name in told)


def _in_trainings(flops: float, comparison: Comparison | None) -> str:
    own = None if comparison is None else _flops(comparison.baseline_variant)
    return f", {flops / own:.2f} times those of training one of its rivals" if own else ""
