"""Means over several texts.

A mean of losses and a mean of perplexities rank models differently: the mean of perplexities is ruled by the text that
is hardest. The hourglass paper (arXiv:2602.06471) prints the means of both; the exponential of the mean loss, which is
the geometric mean of the perplexities, is a third number.
"""

from collections.abc import Mapping
from typing import Any

from widthwise.evaluation.estimate import Metrics, SampleEstimate, weighted_mean


def text_means(texts: Mapping[str, Metrics], weights: Mapping[str, float]) -> dict[str, Any] | None:
    """The `weights` and `metrics` of the mean over texts as plain data; None for fewer than two texts.

    weights: of texts by name, 1 where not given.
    """
    if len(texts) < 2:
        return None
    of_texts = {name: weights.get(name, 1.0) for name in texts}

    def over_texts(metric: str) -> SampleEstimate:
        estimates = [SampleEstimate.of_record(metrics[metric]) for metrics in texts.values()]
        return weighted_mean(estimates, list(of_texts.values()))

    loss = over_texts("nats_per_token")
    metrics = {
        "mean_nats_per_token": loss,
        "exp_mean_nats_per_token": loss.exponential(),
        "mean_token_perplexity": over_texts("token_perplexity"),
        "mean_bits_per_byte": over_texts("bits_per_byte"),
    }
    return {"weights": of_texts, "metrics": {name: estimate.record() for name, estimate in metrics.items()}}
