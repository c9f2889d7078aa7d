"""Means over texts: of losses, and of perplexities."""

import math

import pytest

from widthwise.evaluation.estimate import text_means

LOSSES = [2.9, 3.8, 3.3, 3.6]


def _text(loss: float) -> dict:
    perplexity = math.exp(loss)
    return {
        "nats_per_token": {"value": loss, "stderr": 0.01},
        "token_perplexity": {"value": perplexity, "stderr": 0.01 * perplexity},
        "bits_per_byte": {"value": loss / 3, "stderr": None},
    }


def _means() -> dict:
    found = text_means({f"text{i}": _text(loss) for i, loss in enumerate(LOSSES)})
    assert found is not None
    return found


def test_the_mean_perplexity_is_above_the_perplexity_of_the_mean_loss() -> None:
    metrics = _means()["metrics"]
    assert metrics["mean_nats_per_token"] == pytest.approx({"value": 3.4, "stderr": 0.005})
    assert metrics["exp_mean_nats_per_token"] == pytest.approx(
        {"value": math.prod(map(math.exp, LOSSES)) ** 0.25, "stderr": 0.005 * math.exp(3.4)}
    )
    assert metrics["mean_token_perplexity"]["value"] == pytest.approx(sum(map(math.exp, LOSSES)) / 4)
    assert metrics["mean_token_perplexity"]["stderr"] == pytest.approx(0.01 / 4 * math.hypot(*map(math.exp, LOSSES)))
    assert metrics["mean_bits_per_byte"] == {"value": pytest.approx(3.4 / 3), "stderr": None}


def test_one_text_has_no_mean() -> None:
    assert text_means({"alone": _text(3.0)}) is None
