"""The page of a discovery, with the comparison with its rivals where it has been made.

Its tables and sentences are also for the terminal.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import altair as alt
import numpy as np

from widthwise.experiments.statistics import seed_interval, verdict
from widthwise.records.discovery import DISCOVERED, Candidate, DiscoveredShape, Discovery, LayerSizes, Stage
from widthwise.records.estimate import Estimate, Verdict
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import QUANTITY, TITLES
from widthwise.records.record import finite
from widthwise.reports import answers, charts
from widthwise.reports.charts import Figure, Style, styles
from widthwise.reports.formats import capital, clean, counted, fixed, ratio, sequence, shown, si, with_interval
from widthwise.reports.page import Code, Link, Page, in_words, note, section
from widthwise.reports.shapes import layer_ticks
from widthwise.reports.table import Table
from widthwise.reports.tables import environment_table, settings_table

N_LINES = 4
"""Moments of the search that a figure shows."""


class Size(NamedTuple):
    """A size of layers that a figure shows."""

    key: str
    """The field of `LayerSizes` that is drawn."""
    title: str
    unit: str = "channels"


SIZES = [
    Size("width", "width in the stream"),
    Size("attention", "width of attention"),
    Size("hidden", "hidden units"),
    Size("blocks", "blocks", "of the hourglass"),
]


class Moment(NamedTuple):
    """A stage, and which layers of the last one its layers became, from 0."""

    stage: Stage
    places: Sequence[int]


def discovery_page(folder: Path, discovery: Discovery) -> Page:
    """Return the page of a search for a profile. Raises UserError where the comparison it names is broken."""
    compared = folder / (discovery.comparison or "")
    has_comparison = discovery.comparison is not None and (compared / Outcome.file_name).is_file()
    comparison = Outcome.read(compared) if has_comparison else None
    moments = _moments(discovery.found)
    looks = styles(list(moments))
    sizes = SIZES if has_blocks(discovery.found.stages) else [size for size in SIZES if size.key != "blocks"]
    recipe, matched = folder / f"{DISCOVERED}.yaml", TITLES.get(discovery.match, clean(discovery.match))
    told = list(sentences(discovery, comparison))
    return Page(
        "discovery",
        f"Discovery for {clean(discovery.title)}",
        [answer(discovery), *_beside_baseline(comparison)],
        lead=f"Which layers should be wide, at {si(discovery.budget)} {matched}?",
        first=[_profile_figure(size, moments, looks) for size in sizes],
        sections=(
            section(
                "The profile",
                sizes_table(discovery),
                growth_table(discovery),
                gains_table(discovery),
                note("added-layers" * bool(discovery.found.added()), "retrained"),
                in_words(told),
            ),
            section(
                "Against its rivals",
                cost_table(discovery, comparison),
                rivals_table(comparison),
                note("rivals", matched=matched),
                Link("The whole comparison", f"{discovery.comparison}/report.html"),
            )
            if comparison
            else None,
            section(
                "Environment", environment_table(discovery.environment) if discovery.environment is not None else None
            ),
            section(
                "How to reproduce",
                settings_table("Method", discovery.options) if discovery.options is not None else None,
                Code(discovery.command) if discovery.command else None,
                Code(recipe.read_text(), f"The recipe of what was found, {recipe.name}") if recipe.is_file() else None,
            ),
        ),
        made_from=Discovery.file_name,
    )


def answer(discovery: Discovery) -> str:
    """Return which layers are wide and which are narrow, in each size that was searched."""
    layers, parts = discovery.found.stages[-1].layers, []
    for size in SIZES[:3]:
        values = [finite(layer[size.key]) for layer in layers]
        if min(values) > 0 and max(values) / min(values) >= 1.1:
            wide, narrow = values.index(max(values)) + 1, values.index(min(values)) + 1
            parts.append(f"{size.title}: most in layer {wide}, least in layer {narrow}")
    return f"Of {len(layers)} layers, {'; '.join(parts)}." if parts else f"All {len(layers)} layers are about alike."


def _beside_baseline(comparison: Outcome | None) -> list[str]:
    if comparison is None:
        return []
    own = next((each for each in comparison.variants if each.name == DISCOVERED and each.difference), None)
    if own is None or own.difference is None:
        return []
    said = BESIDE.get(own.verdict or "cannot tell", "has no verdict beside")
    return [f"Retrained, it {said} {clean(str(comparison.baseline))} ({_apart(own.difference)} nats)."]


def _moments(found: DiscoveredShape) -> dict[str, Moment]:
    """A few stages from the first to the last, by the words of their step."""
    stages, places = found.stages, found.places()
    numbers = np.unique(np.linspace(0, len(stages) - 1, min(N_LINES, len(stages))).round().astype(int))
    last = len(stages) - 1
    return {
        "found" if number == last else f"after step {stages[number].step:,}": Moment(stages[number], places[number])
        for number in numbers
    }


def _profile_figure(size: Size, moments: dict[str, Moment], looks: dict[str, Style]) -> Figure:
    """Return layers where they are in the model that was found, so that one which was added later leaves a gap."""
    n_layers = max(len(moment.places) for moment in moments.values())
    rows = [
        {"name": name, "layer": float(place + 1), "size": float(layer[size.key])}
        for name, (stage, places) in moments.items()
        for place, layer in zip(places, stage.layers)
    ]
    highest = max(float(row["size"]) for row in rows)
    across = charts.x("layer", "layer (1 reads the tokens)", values=layer_ticks(n_layers), format="d")
    up = charts.y("size", f"{size.title}, {size.unit}", (0, 1.06 * highest))
    base = charts.chart(rows).encode(x=across, y=up, tooltip=charts.tips(name="|moment", layer=".0f", size=".1f"))
    layers = alt.layer(
        base.mark_line().encode(**charts.coloured(looks, "color", "strokeDash")),
        base.mark_point(size=40).encode(**charts.coloured(looks, "color", "shape")),
    )
    label = f"{capital(size.title)} of each layer at {len(moments)} moments of the search."
    return Figure(f"profile-{size.key}", capital(size.title), label, layers, looks)


LOSS, FLOPS = QUANTITY["val_loss"], QUANTITY["training_flops"]
BESIDE: Mapping[Verdict, str] = {
    "better": "has a lower held-out loss than",
    "worse": "has a higher held-out loss than",
    "tie": "ties with",
    "cannot tell": "cannot be told apart from",
}
"""What a verdict says of what was found beside rivals."""


def sizes_table(discovery: Discovery) -> Table:
    """The layers that were found, in channels; and which of them were added, where some were."""
    layers, added = discovery.found.stages[-1].layers, discovery.found.added()
    header = ["layer", "width", "attention", "hidden"]
    rows = [[str(number), *_size_cells(layer)] for number, layer in enumerate(layers, start=1)]
    if has_blocks(discovery.found.stages):
        header, rows = [*header, "blocks"], [[*row, fixed(layer.blocks, 0)] for row, layer in zip(rows, layers)]
    if added:
        words = [f"step {added[place]:,}" if place in added else "" for place in range(len(layers))]
        header, rows = [*header, "added after"], [[*row, word] for row, word in zip(rows, words)]
    return Table("Sizes of the layers at the end of the search", header, rows, words={"added after"})


def has_blocks(stages: Sequence[Stage]) -> bool:
    """Return True if the search varied the blocks of hourglasses."""
    return stages[-1].layers[0].blocks is not None


def _size_cells(layer: LayerSizes) -> list[str]:
    return [fixed(layer.width, 0), fixed(layer.attention, 0), fixed(layer.hidden, 0)]


def cost_table(discovery: Discovery, comparison: Outcome) -> Table:
    """Every rival with its loss and what it cost, the search included in what was found."""
    rows = []
    for variant in comparison.variants:
        flops, search = _flops(variant), discovery.found.flops if variant.name == DISCOVERED else 0.0
        own = [si(flops), si(search) if search else "", si(None if flops is None else flops + search)]
        name, loss = clean(variant.name), shown(variant.val_loss.mean, LOSS)
        rows.append([name, loss, _apart(variant.difference), variant.verdict or "", *own])
    header = [
        "",
        LOSS.title,
        f"minus {clean(str(comparison.baseline))}",
        "verdict",
        FLOPS.brief_title,
        "search",
        "together",
    ]
    return Table("Retrained from scratch, FLOPs of one seed", header, rows, words={"verdict"})


def rivals_table(comparison: Outcome) -> Table | None:
    """Return the found shape minus each rival but the baseline, with a verdict; None where there is none."""
    rows = [[name, _apart(difference), verdict(difference)] for name, difference in _minus_rivals(comparison).items()]
    caption = f"{capital(LOSS.title)} of {DISCOVERED} minus that of its other rivals, paired by seed"
    return Table(caption, ["", f"{DISCOVERED} minus it", "verdict"], rows, words={"verdict"}) if rows else None


def _minus_rivals(comparison: Outcome) -> dict[str, Estimate]:
    """Rival -> held-out loss of what was found minus its own; the comparison itself has that of the baseline."""
    losses = {clean(each.name): each.difference.per_seed for each in comparison.variants if each.difference is not None}
    own = losses.pop(DISCOVERED, ())
    pairs = {name: zip(map(finite, own), map(finite, other)) for name, other in losses.items() if own and other}
    return {name: seed_interval([a - b for a, b in each], comparison.confidence) for name, each in pairs.items()}


def _apart(difference: Estimate | None) -> str:
    return "" if difference is None else with_interval(difference, 4)


def _flops(variant: Variant) -> float | None:
    """Training FLOPs of one of its runs."""
    found = variant.measured_over_seeds("training_flops")
    return None if found is None else found.mean


def growth_table(discovery: Discovery) -> Table | None:
    """Count how often each part of each layer was chosen to grow; None for a search without growth.

    Layers are those that were found; of a part that adds layers, these are the added ones.
    """
    found = discovery.found
    numbered = [(each, places) for stage, places in zip(found.stages, found.places()) for each in stage.candidates]
    taken = [(each.part, places[each.layer]) for each, places in numbered if each.is_taken and not each.is_gap]
    taken += [(part, place) for part in {each.part for each, _ in numbered if each.is_gap} for place in found.added()]
    if not taken:
        return None
    n_layers = len(found.stages[-1].layers)
    rows = [
        [part, *(str(taken.count((part, place))) for place in range(n_layers))]
        for part in dict.fromkeys(each.part for each, _ in numbered)
    ]
    return Table("Stages in which a part was grown, by layer", ["", *(str(n) for n in range(1, n_layers + 1))], rows)


def gains_table(discovery: Discovery) -> Table | None:
    """Return the gain of a step of each part of each layer, a mean over the stages; None without growth.

    Columns are the layers that were found; a step of a part that adds layers comes before them, or behind all.
    """
    found, gains = discovery.found, dict[tuple[str, int], list[Candidate]]()
    n_layers = len(found.stages[-1].layers)
    for stage, places in zip(found.stages, found.places()):
        for each in stage.candidates:
            gains.setdefault((each.part, [*places, n_layers][each.layer]), []).append(each)
    if not gains:
        return None
    header = [*map(str, range(1, n_layers + 1)), *["end"][: (max(place for _, place in gains) == n_layers)]]
    rows = [
        [part, *(_gain(gains.get((part, place), [])) for place in range(len(header)))]
        for part in dict.fromkeys(part for part, _ in gains)
    ]
    caption = "Gain of a step in each layer, mean over stages: thousandths of a nat at a rate of 1"
    errors = any(each.gain_error is not None for several in gains.values() for each in several)
    note = "Below a gain: its standard error over draws of the new weights." if errors else ""
    return Table(caption, ["", *header], rows, note=note)


def _gain(candidates: Sequence[Candidate]) -> str:
    """Their mean, and below it the standard error of that."""
    if not candidates:
        return ""
    errors = [each.gain_error for each in candidates if each.gain_error is not None]
    error = f"\n±{fixed(1e3 * math.hypot(*errors) / len(errors), 2)}" if errors else ""
    return fixed(1e3 * fmean(each.gain for each in candidates), 2) + error


def sentences(discovery: Discovery, comparison: Outcome | None) -> Iterator[str]:
    """Yield sentences on the found shape, its cost, and its rivals."""
    found = discovery.found
    widths, how = found.curve.widths, clean(discovery.how)
    n_layers, n_added = len(found.stages[-1].layers), len(found.added())
    layers = counted(n_layers, "layer") + (f", {n_added:,} of them added" if n_added else "")
    yield (
        f"{layers}, {how}: the widest is {ratio(max(widths) / min(widths))} "
        f"the narrowest. The search took {si(found.tokens)} tokens and {si(found.flops)} training FLOPs"
        f"{_in_trainings(found.flops, comparison)}."
    )
    if comparison:
        yield from answers.answer(comparison)
        yield from _beside_rivals(comparison)


def _beside_rivals(comparison: Outcome) -> Iterator[str]:
    """One sentence that sorts the other rivals by what the seeds say; none where they are too few to say anything."""
    verdicts = {name: verdict(difference) for name, difference in _minus_rivals(comparison).items()}
    groups = ((words, [name for name, own in verdicts.items() if own == said]) for said, words in BESIDE.items())
    found = [f"{words} {sequence(names)}" for words, names in groups if names]
    if found:
        yield f"Paired by seed with its other rivals, it {'; it '.join(found)}."


def _in_trainings(flops: float, comparison: Outcome | None) -> str:
    own = None if comparison is None else _flops(comparison.variants[0])
    return f", {flops / own:.2f} times those of training one of its rivals" if own else ""
