"""The comparison of what a search found with its base."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widthwise.experiments.matching import LARGEST_MISMATCH
from widthwise.experiments.plan import ComparisonPlan, read_plan


def plan_of_search(summary: Mapping[str, Any], recipes: Sequence[Path], seeds: Sequence[int] = ()) -> ComparisonPlan:
    """summary: of a `shape.search.SearchResult`. recipes: the base, and some of those written for its candidates.

    They are matched in what the search matched, as closely as it was asked to, or within the one percent of other
    comparisons. Where its budget is not the base's, nothing is: the candidates match each other alone.
    """
    match, tolerance = summary["match"], max(summary["tolerance"], LARGEST_MISMATCH)
    miss_of_base = abs(summary["baseline"][match] / summary["budget"] - 1)
    if miss_of_base > LARGEST_MISMATCH:
        return read_plan(recipes, seeds=seeds, match="none")
    return read_plan(recipes, seeds=seeds, match=match, tolerance=tolerance + miss_of_base)
