"""The page of a discovery, with the comparison with its rivals where it has been made.

Its tables and sentences are also for the terminal.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

import numpy as np

from widthwise.experiments.statistics import seed_interval, verdict
from widthwise.files import read_text
from widthwise.records.discovery import DISCOVERED, Candidate, Discovery
from widthwise.records.estimate import Estimate, Verdict
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import QUANTITY, TITLES
from widthwise.records.record import finite
from widthwise.reports.charts import Figure, styles
from widthwise.reports.comparison_page import comparison_answer
from widthwise.reports.curves import profile_figures
from widthwise.reports.formats import amount, clean, counted, fixed, ratio, sequence, shown, si, with_interval
from widthwise.reports.page import Code, Link, Page, in_words, note, section
from widthwise.reports.table import Table
from widthwise.reports.tables import environment_table, settings_table

N_LINES = 4
"""Moments of the search that a figure shows."""
SIZES = {"width": "width in the stream", "attention": "width of attention", "hidden": "hidden units"}
"""Field of `LayerSizes` -> its title."""
LOSS, FLOPS = QUANTITY["val_loss"], QUANTITY["training_flops"]
BESIDE: Mapping[Verdict, str] = {
    "better": "has a lower held-out loss than",
    "worse": "has a higher held-out loss than",
    "tie": "ties with",
    "cannot tell": "cannot be told apart from",
}
"""Verdict on what was found beside a rival -> words."""


def discovery_page(folder: Path, discovery: Discovery) -> Page:
    """Return the page of a search for a profile. Raises UserError where the comparison it names is broken."""
    compared = folder / (discovery.comparison or "")
    has_comparison = discovery.comparison is not None and (compared / Outcome.file_name).is_file()
    comparison = Outcome.read(compared) if has_comparison else None
    recipe, matched = folder / f"{DISCOVERED}.yaml", TITLES.get(discovery.match, clean(discovery.match))
    rivals = comparison and section(
        "Against its rivals",
        rivals_table(discovery, comparison),
        note("rivals", matched=matched),
        Link("The whole comparison", f"{discovery.comparison}/report.html"),
    )
    environment, options, command = discovery.environment, discovery.options, discovery.command
    return Page(
        "discovery",
        f"Discovery for {clean(discovery.title)}",
        [answer(discovery), *(comparison_answer(comparison)[:1] if comparison else ())],
        lead=f"Which layers should be wide, at {si(discovery.budget)} {matched}?",
        first=_profile_figures(discovery),
        sections=(
            section(
                "The profile",
                sizes_table(discovery),
                growth_table(discovery),
                gains_table(discovery),
                note("retrained"),
                in_words(sentences(discovery, comparison)),
            ),
            rivals,
            section("Environment", None if environment is None else environment_table(environment)),
            section(
                "How to reproduce",
                None if options is None else settings_table("Method", options),
                Code(command) if command else None,
                Code(read_text(recipe), f"The recipe of what was found, {recipe.name}") if recipe.is_file() else None,
            ),
        ),
        made_from=Discovery.file_name,
    )


def answer(discovery: Discovery) -> str:
    """Return which layers are wide and which are narrow, in each size that was searched."""
    layers, parts = discovery.found.stages[-1].layers, []
    for key, title in SIZES.items():
        values = [finite(layer[key]) for layer in layers]
        if min(values) > 0 and max(values) / min(values) >= 1.1:
            wide, narrow = values.index(max(values)) + 1, values.index(min(values)) + 1
            parts.append(f"{title}: most in layer {wide}, least in layer {narrow}")
    return f"Of {len(layers)} layers, {'; '.join(parts)}." if parts else f"All {len(layers)} layers are about alike."


def _profile_figures(discovery: Discovery) -> list[Figure]:
    """Return a figure of each size: layers at a few moments of the search, from the first to the last."""
    stages = discovery.found.stages
    last = len(stages) - 1
    numbers = np.unique(np.linspace(0, last, min(N_LINES, last + 1)).round().astype(int))
    names = {number: "found" if number == last else f"after step {stages[number].step:,}" for number in numbers}
    profiles = {
        name: {size: [layer[size] for layer in stages[number].layers] for size in SIZES}
        for number, name in names.items()
    }
    return profile_figures("profile", SIZES, profiles, styles(profiles), "channels")


def sizes_table(discovery: Discovery) -> Table:
    """Return the layers that were found, in channels."""
    layers = enumerate(discovery.found.stages[-1].layers, start=1)
    rows = [[str(place), *(fixed(layer[size], 0) for size in SIZES)] for place, layer in layers]
    return Table("Sizes of the layers at the end of the search", ["layer", *SIZES], rows)


def rivals_table(discovery: Discovery, comparison: Outcome) -> Table:
    """Return each rival: its loss, its differences, and its cost, with that of the search for what was found."""
    rows, differences = [], _minus_rivals(comparison)
    for variant in comparison.variants:
        flops, search = _flops(variant), discovery.found.flops if variant.name == DISCOVERED else 0.0
        name, loss, own = clean(variant.name), shown(variant.val_loss.mean, LOSS), differences.get(clean(variant.name))
        beside = [_apart(variant.difference), variant.verdict or "", _apart(own), verdict(own) if own else ""]
        together = None if flops is None else flops + search
        rows.append([name, loss, *beside, si(flops), si(search) if search else "", si(together)])
    verdicts = ("verdict", "its verdict")
    beside = (f"minus {clean(str(comparison.baseline))}", verdicts[0], f"{DISCOVERED} minus it", verdicts[1])
    header = ["", LOSS.title, *beside, FLOPS.brief_title, "search", "together"]
    return Table("Retrained from scratch, paired by seed; FLOPs of one seed", header, rows, words=verdicts)


def _minus_rivals(comparison: Outcome) -> dict[str, Estimate]:
    """Return rival -> held-out loss of what was found minus its own; the comparison has that of the baseline."""
    losses = {clean(each.name): each.difference.per_seed for each in comparison.variants if each.difference is not None}
    own = losses.pop(DISCOVERED, ())
    pairs = {name: zip(map(finite, own), map(finite, other)) for name, other in losses.items() if own and other}
    return {name: seed_interval([a - b for a, b in each], comparison.confidence) for name, each in pairs.items()}


def _apart(difference: Estimate | None) -> str:
    return "" if difference is None else with_interval(difference, 4)


def _flops(variant: Variant) -> float | None:
    """Return the training FLOPs of one of its runs."""
    found = variant.measured_over_seeds("training_flops")
    return None if found is None else found.mean


def growth_table(discovery: Discovery) -> Table | None:
    """Count how often each part of each layer was chosen to grow; None for a search without growth."""
    candidates = [each for stage in discovery.found.stages for each in stage.candidates]
    taken = [(each.part, each.layer) for each in candidates if each.is_taken]
    if not taken:
        return None
    layers, parts = range(len(discovery.found.stages[-1].layers)), dict.fromkeys(each.part for each in candidates)
    rows = [[part, *(str(taken.count((part, place))) for place in layers)] for part in parts]
    return Table("Stages in which a part was grown, by layer", ["", *(str(place + 1) for place in layers)], rows)


def gains_table(discovery: Discovery) -> Table | None:
    """Return the gain of a step of each part of each layer, a mean over the stages; None without growth.

    Below a gain stands the standard error of the mean.
    """
    found, gains = discovery.found, dict[str, dict[int, list[Candidate]]]()
    for stage in found.stages:
        for each in stage.candidates:
            gains.setdefault(each.part, {}).setdefault(each.layer, []).append(each)
    if not gains:
        return None
    header = [str(layer + 1) for layer in range(len(found.stages[-1].layers))]
    rows, has_errors = [], False
    for part, own in gains.items():
        cells = []
        for candidates in (own.get(place) for place in range(len(header))):
            errors = [each.gain_error for each in candidates or () if each.gain_error is not None]
            error = f"\n±{fixed(1e3 * math.hypot(*errors) / len(errors), 2)}" if errors else ""
            mean = fixed(1e3 * fmean(each.gain for each in candidates), 2) if candidates else ""
            cells.append(mean + error)
            has_errors |= bool(errors)
        rows.append([part, *cells])
    caption = "Gain of a step in each layer, mean over stages: thousandths of a nat at a rate of 1"
    note = "Below a gain: its standard error over draws of the new weights." * has_errors
    return Table(caption, ["", *header], rows, note=note)


def sentences(discovery: Discovery, comparison: Outcome | None) -> Iterator[str]:
    """Yield sentences on the found shape, its cost, and its rivals."""
    found = discovery.found
    widths, layers = found.curve.widths, counted(len(found.stages[-1].layers), "layer")
    baseline = comparison and comparison.baseline_variant
    of_rival = baseline and _flops(baseline)
    trainings = f", {found.flops / of_rival:.2f} times those of training one of its rivals" if of_rival else ""
    yield (
        f"{layers}, {clean(discovery.how)}: the widest is {ratio(max(widths) / min(widths))} the narrowest. The search "
        f"took {amount(found.tokens)} tokens and {si(found.flops)} training FLOPs{trainings}."
    )
    if comparison is None:
        return
    yield from comparison_answer(comparison)
    verdicts = {name: verdict(difference) for name, difference in _minus_rivals(comparison).items()}
    groups = ((words, [name for name, own in verdicts.items() if own == said]) for said, words in BESIDE.items())
    if sorted_rivals := [f"{words} {sequence(names)}" for words, names in groups if names]:
        yield f"Paired by seed with its other rivals, it {'; it '.join(sorted_rivals)}."
