"""Two models on the same texts and questions: differences block by block and item by item.

What both find hard cancels, so that the standard error of a difference is smaller than those of the two numbers.
"""

import math
from typing import Any

import numpy as np

from widthwise.evaluation.estimate import SampleEstimate, mean, ratio

LENGTHS = {
    "nats_per_token": ("n_tokens", 1.0),
    "bits_per_byte": ("n_bytes", 1 / math.log(2)),
    "nats_per_character": ("n_characters", 1.0),
}
"""Differences of a text: what they are per, and in what."""


def text_differences(baseline: dict[str, Any], other: dict[str, Any]) -> dict[str, SampleEstimate] | None:
    """other - baseline, both records of `TextScores`; None where they are of different texts.

    Per token only where both have the same tokens in every block.
    """
    if baseline["fingerprint"] != other["fingerprint"]:
        return None
    before, after = (
        {name: np.array(values) for name, values in record["blocks"].items()} for record in (baseline, other)
    )
    nats = after["nats"] - before["nats"]
    return {
        name: ratio(nats, before[length]).scaled(factor)
        for name, (length, factor) in LENGTHS.items()
        if np.array_equal(before[length], after[length])
    }


def task_differences(baseline: dict[str, Any], other: dict[str, Any]) -> dict[str, SampleEstimate] | None:
    """other - baseline, both records of `TaskScores`; None where they are of different questions."""
    if baseline["fingerprint"] != other["fingerprint"]:
        return None
    return {name: mean(np.array(values) - np.array(baseline["items"][name])) for name, values in other["items"].items()}
