"""The runs of a recipe as one variant, compared with those of a baseline."""

from collections.abc import Sequence

import numpy as np
import pytest
from small_costs import small_cost

from widthwise.experiments.runs import Trained, variant_of
from widthwise.experiments.sentences import difference_sentence
from widthwise.experiments.statistics import paired_difference, seed_interval
from widthwise.records.quantities import OF_HELD_OUT, QUANTITY
from widthwise.records.run import RunResult

COST = small_cost()
RANDOM = np.random.default_rng(3)
SEEDS = (1, 2, 5)
WINDOWS = 3 + RANDOM.normal(0, 0.1, (2, 3, len(SEEDS), 7))
"""Held-out losses of two variants, of the first, second and third token ahead, by seed and window."""


def runs(of_tokens: np.ndarray, train_losses: Sequence[float] = (2.5, 2.75, 3.0), has_windows: bool = True):
    """Results. of_tokens: (n_places, n_seeds, n_windows) held-out losses of the next token and of those after it."""
    return [
        RunResult(
            cost=COST,
            train_loss=train_losses[seed],
            val_loss=of_tokens[0, seed].mean(),
            val_window_losses=of_tokens[0, seed].tolist(),
            val_mtp_losses=of_tokens[1:, seed].mean(axis=1).tolist(),
            val_mtp_window_losses=of_tokens[1:, seed].tolist() if has_windows else [],
            training_flops=7e9,
        )
        for seed in range(len(SEEDS))
    ]


def trained(results: Sequence[RunResult]) -> Trained:
    return Trained([f"runs/x-seed{seed}" for seed in SEEDS], results)


def test_further_heads_are_paired_by_seed_and_window_like_the_loss_itself() -> None:
    baseline, own = (runs(of_tokens) for of_tokens in WINDOWS)
    variant = variant_of("x", trained(own), trained(baseline))
    assert variant.difference == paired_difference(WINDOWS[1, 0], WINDOWS[0, 0])
    for place in (2, 3):
        estimate = paired_difference(WINDOWS[1, place - 1], WINDOWS[0, place - 1])
        assert QUANTITY[f"difference_next_{place}"].of_variant(variant) == estimate
        losses = OF_HELD_OUT[f"val_loss_next_{place}"].of_variant(variant)
        assert losses == seed_interval(WINDOWS[1, place - 1].mean(axis=1).tolist())
        sentence = difference_sentence(variant, variant.difference, "uniform")
        assert f"Its next-{place} held-out loss differs by {estimate.mean:+.4f} nats" in sentence
    assert QUANTITY["difference_next_4"].of_variant(variant) is None
    assert OF_HELD_OUT["val_loss_next_4"].of_variant(variant) is None


def test_the_training_loss_is_paired_by_seed() -> None:
    baseline, own = runs(WINDOWS[0], (2.5, 2.75, 3.0)), runs(WINDOWS[1], (2.25, 2.5, 3.25))
    difference = QUANTITY["difference_train_loss"].of_variant(variant_of("x", trained(own), trained(baseline)))
    assert difference == seed_interval([-0.25, -0.25, 0.25])


@pytest.mark.parametrize("lacks", ["heads", "windows"])
def test_a_baseline_without_further_heads_leaves_their_losses_alone(lacks: str) -> None:
    """Results of older versions have no windows of them."""
    baseline = runs(WINDOWS[0, :1]) if lacks == "heads" else runs(WINDOWS[0], has_windows=False)
    variant = variant_of("x", trained(runs(WINDOWS[1])), trained(baseline))
    assert set(variant.differences) == {"train_loss"}
    assert OF_HELD_OUT["val_loss_next_2"].of_variant(variant) is not None


def test_runs_without_windows_are_no_baseline() -> None:
    baseline = [each.with_changes(val_window_losses=[]) for each in runs(WINDOWS[0])]
    variant = variant_of("x", trained(runs(WINDOWS[1])), trained(baseline))
    assert (variant.difference, variant.verdict) == (None, "cannot tell")


def test_a_baseline_differs_from_nothing() -> None:
    baseline = trained(runs(WINDOWS[0]))
    variant = variant_of("uniform", baseline, baseline)
    assert (variant.difference, variant.differences, variant.verdict) == (None, {}, "baseline")
