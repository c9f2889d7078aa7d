"""The table of several comparisons: which belong together, and when an effect changes sign."""

import csv
import itertools
from pathlib import Path
from typing import Any

import pytest
from boxes import refusal
from fake_comparison import cost, estimate
from fake_sweep import write_sweep
from page_section import write

from widthwise.records.estimate import Estimate
from widthwise.reports.effects import read_effects, sign_over_scales
from widthwise.reports.formats import MISSING, signed
from widthwise.reports.writing import write_report

HALF_WIDTH, BASE_TOKENS, SEEDS = 0.01, 5_000_000, (1, 2, 3)
SCALES = [(width, doublings) for width in (64, 192) for doublings in (0, 2)]
"""Width, and how often the tokens were doubled, from small to large."""
EFFECTS = {"turns": (-0.03, 0.03), "helps": (-0.05, 0.01), "noise": (0.0, 0.002)}
"""Difference to the baseline at BASE_TOKENS, and its change with each doubling of the tokens."""
SIGNS = {"turns": "changes sign", "helps": "same sign everywhere", "noise": "cannot tell"}


def effect(name: str, doublings: int) -> float:
    at_base, slope = EFFECTS[name]
    return at_base + slope * doublings


def comparison_data(width: int, doublings: int, names: tuple[str, ...] = tuple(EFFECTS)) -> dict[str, Any]:
    """A comparison of five layers of this width, without runs, which the table does not need."""
    tokens = float(BASE_TOKENS * 2**doublings)
    common = {"state": "finished", "cost": cost([width] * 5), "ratio": {"params": 1.0}, "runs": ["runs/x-seed1"]}
    common["measured"] = {"tokens": {"mean": tokens, "per_seed": [tokens] * len(SEEDS)}}
    variants = [{**common, "name": "uniform", "val_loss": estimate(3, HALF_WIDTH, len(SEEDS))}]
    for name in names:
        difference = estimate(effect(name, doublings), HALF_WIDTH, len(SEEDS))
        variants.append({**variants[0], "name": name, "difference": difference})
    about = {"title": f"width {width}", "command": "widthwise compare", "created": "2026-11-23T03:00:00+00:00"}
    about |= {"confidence": 0.95, "seeds": list(SEEDS), "baseline": "uniform", "environment": {}}
    return {**about, "points": variants}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A comparison at every scale; the last lacks `noise`."""
    folder = tmp_path_factory.mktemp("scales")
    names = [tuple(EFFECTS)] * (len(SCALES) - 1) + [("turns", "helps")]
    return [
        write(folder / f"w{width}-d{doublings}/outcome.json", comparison_data(width, doublings, of_scale))
        for (width, doublings), of_scale in zip(SCALES, names)
    ]


def test_the_table_has_every_difference_from_small_to_large_and_its_sign(folders: list[Path]) -> None:
    table = read_effects(folders[::-1]).table()
    sizes = {width: cost([width] * 5)["params"]["total"] for width in (64, 192)}
    titles = [f"{sizes[width]:,} parameters\n{BASE_TOKENS * 2**n:,} tokens\n3 seeds" for width, n in SCALES]
    assert table.header == ["Variant", *titles, "sign"]
    for name, *cells, sign in table.rows:
        assert sign == SIGNS[name]
        for cell, (width, doublings) in zip(cells, SCALES, strict=True):
            mean = effect(name, doublings)
            star = "*" if abs(mean) > HALF_WIDTH else ""
            shown = f"{signed(mean, 4)}{star}\n{signed(mean - HALF_WIDTH, 4)} to {signed(mean + HALF_WIDTH, 4)}"
            assert cell == (MISSING if (name, width, doublings) == ("noise", 192, 2) else shown)


def test_the_csv_has_every_variant_at_every_scale(folders: list[Path], tmp_path: Path) -> None:
    (path,) = write_report(folders, tmp_path)
    assert path == tmp_path / "table.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    for row, (name, (_, doublings)) in zip(rows, itertools.product(EFFECTS, SCALES), strict=True):
        mean = "" if (name, row["comparison"]) == ("noise", str(folders[-1])) else str(effect(name, doublings))
        tokens = str(BASE_TOKENS * 2**doublings)
        assert (row["variant"], row["tokens"], row["difference_mean"], row["sign"]) == (name, tokens, mean, SIGNS[name])


LOWER, HIGHER, UNCLEAR, TOUCHING = (Estimate(**estimate(mean, 0.01, 3)) for mean in (-0.02, 0.02, 0.009, -0.01))
OF_TWO_SEEDS = Estimate(**estimate(-0.5, 0.01, 2))
WITHOUT_INTERVAL = Estimate(mean=-0.5, per_seed=[-0.5] * 3)


@pytest.mark.parametrize(
    ("sign", "differences"),
    [
        ("same sign everywhere", [LOWER, LOWER]),
        ("same sign everywhere", [HIGHER, None, HIGHER]),
        ("changes sign", [LOWER, HIGHER]),
        ("changes sign", [LOWER, UNCLEAR, HIGHER]),
        ("cannot tell", [LOWER, UNCLEAR]),
        ("cannot tell", [LOWER, TOUCHING]),
        ("cannot tell", [LOWER, None]),
        ("cannot tell", [OF_TWO_SEEDS, HIGHER]),
        ("cannot tell", [LOWER, WITHOUT_INTERVAL]),
        ("cannot tell", []),
    ],
)
def test_an_effect_changes_sign_or_not_in_whatever_order_the_comparisons_come(
    sign: str, differences: list[Estimate | None]
) -> None:
    for order in itertools.permutations(differences):
        assert sign_over_scales(order) == sign


def test_comparisons_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "good/outcome.json", comparison_data(64, 0, ("turns", "helps")))
    renamed, without_tokens = comparison_data(192, 0), comparison_data(192, 0)
    renamed["points"][0]["name"] = renamed["baseline"] = "plain"
    del without_tokens["points"][0]["measured"]
    others: dict[str, dict[str, Any]] = {
        f"other: baseline: got 'plain'; {good} has 'uniform'": renamed,
        f"other: confidence: got 0.9; {good} has 0.95": comparison_data(192, 0) | {"confidence": 0.9},
        "outcome.json: has no tokens of the baseline": without_tokens,
    }
    for message, other in others.items():
        assert message in refusal(read_effects, [good, write(tmp_path / "other/outcome.json", other)])


def test_several_comparisons_need_a_folder_and_only_comparisons(folders: list[Path], tmp_path: Path) -> None:
    fit = write(tmp_path / "fit/scaling.json", {})
    planned = write(tmp_path / "planned/planned.json", {"title": "t", "command": "c", "baseline": "a", "runs": []})
    sweep, out = write_sweep(tmp_path / "grid"), tmp_path / "out"
    for message, arguments in {
        "got 4 comparisons; pass the folder of their common report with --out": (folders,),
        "holds outcome.json, whose report would be replaced": (folders, folders[0]),
        "several comparisons have one table": (folders, out, "svg"),
        "grid: holds a sweep; effects need comparisons": ([folders[0], sweep], out),
        "one with scaling.json; pass that one alone": ([folders[0], fit], out),
        "has not finished; pass it alone": ([folders[0], planned], out),
    }.items():
        assert message in refusal(write_report, *arguments)
    assert [path.name for path in folders[0].iterdir()] == ["outcome.json"]
