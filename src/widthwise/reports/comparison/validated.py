"""The further texts and tasks of a comparison as a table."""

from widthwise.records.comparison import Compared, Variant
from widthwise.reports.page.formats import MISSING, clean, fixed, interval, percentage, signed
from widthwise.reports.page.table import Table


def validated_names(comparison: Compared) -> list[str]:
    """TEXT.loss, TASK.acc and so on, of all variants."""
    return list(dict.fromkeys(name for variant in comparison.variants for name in variant.validated))


def validated_table(comparison: Compared) -> Table | None:
    """One row per variant; differences to the baseline with their intervals stand behind the means."""
    names = validated_names(comparison)
    rows = [[clean(variant.name), *(_cell(variant, name) for name in names)] for variant in comparison.variants]
    caption = f"Further texts and tasks: mean over seeds (difference, its {percentage(comparison.confidence)} interval)"
    return Table(caption, ["Variant", *names], rows) if names else None


def _cell(variant: Variant, name: str) -> str:
    found = variant.validated.get(name)
    if found is None:
        return MISSING
    difference = found.difference
    if difference is None:
        return fixed(found.value.mean, 4)
    shown = interval(difference, 4, True)
    return f"{fixed(found.value.mean, 4)} ({signed(difference.mean, 4)}{f', {shown}' if shown else ''})"
