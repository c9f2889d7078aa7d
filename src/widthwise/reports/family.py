"""Tables and sentences of a family, for its page and the terminal."""

from collections.abc import Iterator
from pathlib import Path

from widthwise.records.comparison import Alone, Family
from widthwise.records.estimate import NO_VERDICT, Estimate
from widthwise.records.quantities import QUANTITY
from widthwise.records.run import Run
from widthwise.reports.formats import MISSING, clean, fixed, shown, si, with_interval
from widthwise.reports.reading import read_run
from widthwise.reports.table import Table


def family_runs(folder: Path, family: Family) -> dict[str, dict[str, list[Run]]]:
    """Return size -> grown or alone -> its runs, which lie beside family.json wherever the folder was moved."""
    found: dict[str, dict[str, list[Run]]] = {}
    for kind, entries in (("grown", family.members), ("alone", family.controls)):
        for each in entries:
            run = read_run(folder / Path(each.run).name, each.run)
            found.setdefault(each.name, {}).setdefault(kind, []).append(run)
    return found


def family_tables(family: Family) -> list[Table]:
    """Return all tables of a family, the most telling first."""
    tables = [size_table(family), member_table(family), control_table(family)]
    return [table for table in tables if table is not None]


PARAMS, TOKENS, FLOPS, LOSS = (QUANTITY[name] for name in ("params", "tokens", "training_flops", "val_loss"))
COLUMNS = (
    ("params", PARAMS.brief_title, PARAMS),
    ("start", "branched after step", QUANTITY["steps"]),
    ("tokens", TOKENS.brief_title, TOKENS),
    ("flops", FLOPS.brief_title, FLOPS),
    ("flops_alone", "FLOPs alone", FLOPS),
    ("val_loss", LOSS.title, LOSS),
)
"""Key of a member, title, and the quantity as which it is shown."""
AS_MANY: dict[Alone, str] = {"tokens": "on as many tokens", "flops": "with as many training FLOPs"}


def member_table(family: Family) -> Table:
    """Return one row for each model that was grown."""
    has_seeds = len(family.sources) > 1
    rows = [
        [_named(each.name, each.seed, has_seeds), *(shown(each[key], quantity) for key, _, quantity in COLUMNS)]
        for each in family.members
    ]
    return Table(f"branched from {clean(family.source)}", ["", *(title for _, title, _ in COLUMNS)], rows)


def control_table(family: Family) -> Table | None:
    """Return one row for each model that was trained alone; None without any."""
    if family.alone is None:
        return None
    has_seeds = len(family.sources) > 1
    rows = [
        [
            _named(each.name, each.seed, has_seeds),
            shown(each.tokens, TOKENS),
            shown(each.flops, FLOPS),
            shown(each.val_loss, LOSS),
        ]
        for each in family.controls
    ]
    caption = f"trained alone, {AS_MANY[family.alone]}"
    return Table(caption, ["", TOKENS.brief_title, FLOPS.brief_title, LOSS.title], rows)


def _named(name: str, seed: int | None, has_seeds: bool) -> str:
    return f"{clean(name)}, seed {seed}" if has_seeds else clean(name)


def size_table(family: Family) -> Table | None:
    """Return grown against alone, one row for each recipe; None without controls."""
    if family.alone is None:
        return None
    rows = [
        [clean(size.name), _loss(size.grown), _loss(size.alone), _difference(size.difference), size.verdict or MISSING]
        for size in family.sizes
    ]
    header = ["", "held-out loss, grown", f"alone, {AS_MANY[family.alone]}", "grown minus alone", "verdict"]
    return Table(f"{LOSS.title}, mean over seeds", header, rows, words={"verdict"})


def _loss(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else fixed(estimate.mean, 4)


def _difference(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else with_interval(estimate, 4)


def family_sentences(family: Family) -> Iterator[str]:
    """Return what the family cost, and how each size compares with the model trained alone."""
    together, alone = family.family_flops, family.flops_alone
    yield (
        f"Together {si(together)} training FLOPs, the shared {si(family.shared_flops)} counted once; runs of the same "
        f"models over as many tokens, each from the start, take {si(alone)}, {alone / together:.2f} times as many."
    )
    if family.sentence:
        yield from family.sentence.splitlines()
        return
    for size in family.sizes:
        if family.alone is not None and size.difference is not None:
            told = NO_VERDICT if size.verdict == "no verdict" else size.verdict
            yield (
                f"{clean(size.name)}, grown: {_difference(size.difference)} nats against the same model trained alone "
                f"{AS_MANY[family.alone]} ({told})."
            )
