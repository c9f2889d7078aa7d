"""The page of several searches for a profile: the layers in which they agree; with `consensus.json` and a recipe."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError
from widthwise.experiments.consensus import consensus
from widthwise.records.discovery import DISCOVERED, Consensus, Discovery
from widthwise.records.estimate import CONFIDENCE, FEWEST_SEEDS
from widthwise.records.quantities import TITLES
from widthwise.records.record import finite
from widthwise.reports.charts import Figure, styles
from widthwise.reports.curves import Bundle, Curve, curve_figure
from widthwise.reports.discovery import SIZES
from widthwise.reports.formats import capital, clean, fixed, interval, percentage, sequence, si
from widthwise.reports.page import Code, Page, note, section
from widthwise.reports.table import Table
from widthwise.reports.tables import text_key, text_words
from widthwise.yaml_io import dump_yaml, merge, read_mapping

WORDS = {1: "above the mean", -1: "below the mean", 0: "noise"}
"""Side of 1 on which the interval of a layer lies, 0 if it holds 1 -> words."""


@dataclass(frozen=True)
class Search:
    """One of several searches."""

    folder: Path
    discovery: Discovery

    @property
    def text(self) -> str:
        """Equal where two searches read the same text; of records that do not say which, the name of the recipe."""
        environment = self.discovery.environment or {}
        return text_key(environment) if environment.get("data") else self.text_name

    @property
    def text_name(self) -> str:
        return text_words(self.discovery.environment or {}) or clean(self.discovery.title)


def read_searches(folders: Sequence[Path]) -> list[Search]:
    """Read `discovery.json` of each folder; their runs are not needed.

    Raises UserError where they are fewer than FEWEST_SEEDS, or one is broken, named twice, or was matched in another
    quantity than the first.
    """
    if len(folders) < FEWEST_SEEDS:
        raise UserError(f"report: got {len(folders)} searches; their mean takes at least {FEWEST_SEEDS}")
    found = [Search(folder, Discovery.read(folder)) for folder in folders]
    for place, each in enumerate(found):
        if each.folder.resolve() in [other.folder.resolve() for other in found[:place]]:
            raise UserError(f"{each.folder}: is named twice; a mean has every search once")
        if each.discovery.match != found[0].discovery.match:
            first = f"{found[0].folder} in {found[0].discovery.match}"
            raise UserError(f"{each.folder}: was matched in {each.discovery.match}, {first}; a mean takes one quantity")
    return found


def consensus_page(searches: Sequence[Search]) -> Page:
    """Return the page of several searches."""
    found = consensus({str(each.folder): each.discovery for each in searches}, [each.text for each in searches])

    def record(out: Path) -> Consensus:
        folders = [Path(os.path.relpath(each.folder, out)).as_posix() for each in searches]
        command = shlex.join(["widthwise", "report", *folders, "--out", "."])
        return found.with_changes(searches=folders, command=command)

    shape = {"model": {"shape": found.curve.section(found.match)}}
    recipes = [path for each in searches if (path := each.folder / f"{DISCOVERED}.yaml").is_file()]
    n_intervals = sum(map(len, found.profiles.values()))
    by_luck = fixed(n_intervals * (1 - CONFIDENCE), 1)
    return Page(
        "consensus",
        f"The mean of {len(searches)} searches",
        list(sentences(found)),
        lead="Which layers should be wide, and in what do searches differ?",
        first=_figures(searches, found),
        sections=(
            section("The mean profile", profile_table(found), note("consensus", n=n_intervals, by_luck=by_luck)),
            section("The searches", searches_table(searches)),
            section(
                "How to reproduce",
                *(Code(command) for each in searches if (command := each.discovery.command)),
                Code(dump_yaml(shape), "The mean profile, as a recipe has it"),
            ),
        ),
        made_from=f"{Discovery.file_name} of each folder",
        files={f"{DISCOVERED}.yaml": dump_yaml(merge(read_mapping(path), shape)) for path in recipes[:1]},
        record=record,
    )


def sentences(found: Consensus) -> Iterator[str]:
    """Yield for each size the layers above and below the mean, and how alike the searches are."""
    for size, title in SIZES.items():
        layers: dict[int, list[str]] = {own: [] for own in WORDS}
        for layer, each in enumerate(found.profiles[size], start=1):
            layers[each.side(1.0)].append(str(layer))
        named = {own: f"layer{'s' * (len(names) > 1)} {sequence(names)}" for own, names in layers.items() if names}
        parts = [f"{WORDS[own]} in {names}" for own, names in named.items()]
        alike = [f"{fixed(value, 2)} ({pair})" for pair, value in found.correlations[size].items()]
        correlation = f" Two searches correlate by {sequence(alike)}." if alike else ""
        yield f"{capital(title)}: {'; '.join(parts)}.{correlation}"


def _figures(searches: Sequence[Search], found: Consensus) -> list[Figure | None]:
    """Return a figure for each size: a thin line for each search, a strong one for each text and the mean of all."""
    names, mean_of_all = [each.text_name for each in searches], f"mean of {len(searches)}"
    looks, figures = styles([*dict.fromkeys(names), mean_of_all]), []
    axes = "layer (1 reads the tokens)", "over the mean of all layers"
    for size, title in SIZES.items():
        means = found.profiles[size]
        layers = np.arange(1.0, 1 + len(means))
        lines = {name: dict[str, Curve]() for name in names}
        for search, name, *values in zip(searches, names, *(map(finite, each.per_seed) for each in means)):
            lines[name][clean(str(search.folder))] = Curve(layers, np.array(values))
        mean, *ends = np.array([[finite(each[key]) for each in means] for key in ("mean", "low", "high")])
        drawn = {name: Bundle(own) for name, own in lines.items()} | {mean_of_all: Curve(layers, mean, np.array(ends))}
        figures.append(curve_figure(f"profile-{size}", capital(title), drawn, looks, *axes, level=1.0))
    return figures


def profile_table(found: Consensus) -> Table:
    """Return the mean profile with its interval."""
    rows = [
        [str(layer), *(f"{fixed(each.mean, 3)}{'*' * abs(each.side(1.0))}\n{interval(each, 3)}" for each in own)]
        for layer, own in enumerate(zip(*found.profiles.values()), start=1)
    ]
    level = f"with its {percentage(CONFIDENCE)} interval over searches; *: it excludes 1"
    return Table(f"Size of each layer over the mean of all layers, {level}", ["layer", *SIZES.values()], rows)


def searches_table(searches: Sequence[Search]) -> Table:
    """Return what was searched, and at what cost."""
    rows = []
    for each in searches:
        own = each.discovery
        counts = [str(own.seed), str(len(own.found.curve.widths))]
        costs = map(si, (own.budget, own.found.tokens, own.found.flops))
        rows.append([clean(str(each.folder)), each.text_name, clean(own.how), *counts, *costs])
    matched = searches[0].discovery.match
    header = ["Folder", "text, tokenizer", "method", "seed", "layers", "budget", "tokens", "training FLOPs"]
    caption = f"Budgets are of {TITLES.get(matched, clean(matched))}"
    return Table(caption, header, rows, words={"text, tokenizer", "method"})
