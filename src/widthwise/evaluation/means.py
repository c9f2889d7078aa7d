"""Means over several texts.

A mean of losses and a mean of perplexities rank models differently: the mean of perplexities is ruled by the text that
is hardest. The hourglass paper (arXiv:2602.06471) prints the means of both; the exponential of the mean loss, which is
the geometric mean of the perplexities, is a third number.
"""

from collections.abc import Mapping
from typing import Any

from widthwise.evaluation.estimate import Metrics, SampleEstimate, mean_of


def text_means(texts: Mapping[str, Metrics]) -> dict[str, Any] | None:
    """Return the `metrics` of the mean over texts as plain data; None for fewer than two texts."""
    if len(texts) < 2:
        return None

    def over_texts(metric: str) -> SampleEstimate:
        return mean_of([SampleEstimate.of_record(metrics[metric]) for metrics in texts.values()])

    loss = over_texts("nats_per_token")
    metrics = {
        "mean_nats_per_token": loss,
        "exp_mean_nats_per_token": loss.exponential(),
        "mean_token_perplexity": over_texts("token_perplexity"),
        "mean_bits_per_byte": over_texts("bits_per_byte"),
    }
    return {"metrics": {name: estimate.record() for name, estimate in metrics.items()}}
