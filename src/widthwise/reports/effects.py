"""The table of several comparisons of the same variants, which shows whether effects change sign."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from widthwise.mistakes import UserError
from widthwise.records.estimate import FEWEST_SEEDS, UNCLEAR, Estimate
from widthwise.records.outcome import Outcome
from widthwise.records.quantities import QUANTITY
from widthwise.reports.formats import MISSING, clean, counted, interval, percentage, signed
from widthwise.reports.table import Table, csv_estimate, csv_rows


@dataclass(frozen=True)
class Scale:
    """A comparison, with the parameters and training tokens of its baseline."""

    folder: Path
    comparison: Outcome
    params: int
    tokens: int


@dataclass(frozen=True)
class Effects:
    """The effects of variants at several scales, ordered by size and tokens."""

    scales: Sequence[Scale]

    @cached_property
    def differences(self) -> dict[str, list[Estimate | None]]:
        """Variant -> held-out loss minus the baseline's at each scale; None if a comparison lacks the variant."""
        measured = [{point.name: point.difference for point in scale.comparison.variants} for scale in self.scales]
        names = dict.fromkeys(name for points in measured for name in points if points[name] is not None)
        return {name: [points.get(name) for points in measured] for name in names}

    @cached_property
    def signs(self) -> dict[str, str]:
        """Variant -> sign of its differences, as `sign_over_scales` returns it."""
        return {name: sign_over_scales(differences) for name, differences in self.differences.items()}

    def table(self) -> Table:
        """Return the difference of every variant at every scale, with its interval, and its sign."""
        first = self.scales[0].comparison
        header = ["Variant"]
        for scale in self.scales:
            n_seeds = counted(len(scale.comparison.seeds), "seed")
            header.append(f"{scale.params:,} parameters\n{scale.tokens:,} tokens\n{n_seeds}")
        rows = []
        for name, differences in self.differences.items():
            cells = []
            for difference in differences:
                if difference is None:
                    cells.append(MISSING)
                    continue
                star = "*" if _sign(difference) else ""
                ends = interval(difference, 4, with_sign=True)
                cells.append("\n".join(filter(None, [signed(difference.mean, 4) + star, ends])))
            rows.append([clean(name), *cells, self.signs[name]])
        level = f"{percentage(first.confidence)} interval; *: it excludes 0, with three seeds or more"
        caption = f"Held-out loss minus the loss of {clean(str(first.baseline))} in nats, with its {level}"
        return Table(caption, [*header, "sign"], rows, text_columns={"sign"})

    def csv_text(self) -> str:
        """Return a row for each variant at each scale. Numbers of missing variants are empty."""
        rows: list[Mapping[str, object]] = []
        for name, sign in self.signs.items():
            for scale in self.scales:
                variant = next((point for point in scale.comparison.variants if point.name == name), None)
                needed = variant and variant.at_equal_loss.get("val_loss")
                rows.append(
                    {
                        "variant": name,
                        "comparison": str(scale.folder),
                        "baseline": scale.comparison.baseline,
                        "params": scale.params,
                        "tokens": scale.tokens,
                        "n_seeds": len(scale.comparison.seeds),
                        **csv_estimate("difference", variant and variant.difference),
                        **csv_estimate("tokens_at_equal_loss", needed and needed.tokens_ratio),
                        **csv_estimate("training_flops_at_equal_loss", needed and needed.training_flops_ratio),
                        "sign": sign,
                    }
                )
        return csv_rows(rows[0], (row.values() for row in rows))


def are_comparisons(folders: Sequence[Path]) -> bool:
    """Return whether these are several folders with an `outcome.json` each."""
    return len(folders) > 1 and all((folder / Outcome.file_name).is_file() for folder in folders)


def read_effects(folders: Sequence[Path]) -> Effects:
    """Read `outcome.json` of each folder.

    Raises UserError if a folder has no comparison or no tokens, or if baselines or confidence levels differ.
    """
    effects = Effects(sorted(map(_read, folders), key=lambda scale: (scale.params, scale.tokens)))
    first = effects.scales[0]
    for scale in effects.scales:
        for key in ("baseline", "confidence"):
            expected = getattr(first.comparison, key)
            value = getattr(scale.comparison, key)
            if value != expected:
                raise UserError(f"{scale.folder}: {key}: got {value!r}; {first.folder} has {expected!r}")
    return effects


def _read(folder: Path) -> Scale:
    comparison = Outcome.read(folder)
    if comparison.kind != "comparison":
        raise UserError(f"{folder}: holds a {comparison.kind}; effects need comparisons")
    baseline = comparison.baseline_variant
    tokens = baseline and QUANTITY["tokens"].of_variant(baseline)
    if baseline is None or tokens is None or tokens.mean is None:
        raise UserError(f"{folder / Outcome.file_name}: has no tokens of the baseline; its command writes them")
    return Scale(folder, comparison, round(baseline.cost.params["total"]), round(tokens.mean))


def sign_over_scales(differences: Sequence[Estimate | None]) -> str:
    """Return `changes sign`, `same sign everywhere` or UNCLEAR.

    An effect changes sign if two intervals exclude 0 on different sides. It has the same sign everywhere if there are
    at least two intervals and all exclude 0 on the same side.
    """
    signs = [_sign(difference) for difference in differences if difference is not None]
    if {-1, 1} <= set(signs):
        return "changes sign"
    return "same sign everywhere" if len(signs) > 1 and 0 not in signs else UNCLEAR


def _sign(difference: Estimate) -> int:
    """Return -1 or 1 if the interval is below or above 0; otherwise, and with too few seeds for a verdict, 0."""
    return 0 if len(difference.per_seed) < FEWEST_SEEDS else difference.side()
