"""Tables and sentences of a family, for the page and the terminal."""

from collections.abc import Iterator, Sequence

from widthwise.records.estimate import NO_VERDICT, Estimate
from widthwise.records.family import Alone, Family, FamilySize
from widthwise.records.quantities import QUANTITY
from widthwise.reports.page.formats import MISSING, clean, fixed, interval, shown, si, signed
from widthwise.reports.page.table import Table

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
    """One row for each model that was grown."""
    has_seeds = len(family.sources) > 1
    rows = [
        [_named(each.name, each.seed, has_seeds), *(shown(each[key], quantity) for key, _, quantity in COLUMNS)]
        for each in family.members
    ]
    return Table(f"branched from {clean(family.source)}", ["", *(title for _, title, _ in COLUMNS)], rows)


def control_table(family: Family) -> Table | None:
    """One row for each model that was trained alone; None without any."""
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
    """Grown against alone, one row for each recipe; None without controls."""
    if family.alone is None:
        return None
    rows = [[clean(size.name), *_cells(size)] for size in family.sizes]
    header = ["", "held-out loss, grown", f"alone, {AS_MANY[family.alone]}", "grown minus alone", "verdict on grown"]
    return Table(f"{LOSS.title}, mean over seeds", header, rows, words={"verdict on grown"})


def _cells(size: FamilySize) -> Sequence[str]:
    return _loss(size.grown), _loss(size.alone), _difference(size.difference), size.verdict or MISSING


def _loss(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else fixed(estimate.mean, 4)


def _difference(estimate: Estimate | None) -> str:
    if estimate is None:
        return MISSING
    between = f" ({interval(estimate, 4, with_sign=True)})" if estimate.low is not None else ""
    return f"{signed(estimate.mean, 4)}{between}"


def sentences(family: Family) -> Iterator[str]:
    """What the family cost, and how each size compares with the model trained alone."""
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
