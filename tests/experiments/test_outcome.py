"""The runs of a recipe as one variant, compared with those of a baseline."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from small_costs import small_cost

from widthwise.evaluation.estimate import paired_mean, seed_interval
from widthwise.experiments.outcome import SeedRuns, variant_of
from widthwise.records.evaluation import Score, TaskResult
from widthwise.records.quantities import QUANTITY
from widthwise.records.run import RunResult, TextResult
from widthwise.reports.main_table import settings_of

SEEDS = (1, 2, 5)
WINDOWS = 3 + np.random.default_rng(3).normal(0, 0.1, (2, 3, len(SEEDS), 7))
"""Held-out losses of two variants, of the first, second and third token ahead, by seed and window."""


def runs(of_tokens: np.ndarray, train_losses: Sequence[float], accuracies: Sequence[float]) -> SeedRuns:
    """With losses of a text `wiki` and accuracies in a task `piqa`.

    of_tokens: (n_places, n_seeds, n_windows) held-out losses of the next token and of those after it.
    """
    results = [
        RunResult(
            cost=small_cost(),
            train_loss=train_losses[seed],
            val_loss=of_tokens[0, seed].mean(),
            val_window_losses=of_tokens[0, seed].tolist(),
            val_mtp_losses=of_tokens[1:, seed].mean(axis=1).tolist(),
            val_mtp_window_losses=of_tokens[1:, seed].tolist(),
            val_texts={"wiki": TextResult(loss=of_tokens[1, seed].mean(), window_losses=of_tokens[1, seed].tolist())},
            val_tasks={"piqa": TaskResult(n_items=4, metrics={"acc": Score(value=accuracies[seed])})},
            training_flops=7e9,
        )
        for seed in range(len(SEEDS))
    ]
    return SeedRuns([f"runs/x-seed{seed}" for seed in SEEDS], results)


OWN = runs(WINDOWS[1], (2.25, 2.5, 3.25), (0.5, 0.75, 0.25))
BASELINE = runs(WINDOWS[0], (2.5, 2.75, 3.0), (0.25, 0.5, 0.5))


def test_losses_are_paired_by_seed_and_window_and_training_losses_and_tasks_by_seed() -> None:
    variant = variant_of("x", OWN, BASELINE)
    paired = [paired_mean(losses) for losses in WINDOWS[1] - WINDOWS[0]]
    means = [seed_interval(losses.mean(axis=1).tolist()) for losses in WINDOWS[1]]
    assert variant.difference == paired[0]
    for place in (2, 3):
        assert QUANTITY[f"difference_next_{place}"].of_variant(variant) == paired[place - 1]
        assert QUANTITY[f"val_loss_next_{place}"].of_variant(variant) == means[place - 1]
    assert QUANTITY["difference_next_4"].of_variant(variant) is QUANTITY["val_loss_next_4"].of_variant(variant) is None
    assert QUANTITY["difference_train_loss"].of_variant(variant) == seed_interval([-0.25, -0.25, 0.25])
    text, task = (variant.validated[name] for name in ("wiki.loss", "piqa.acc"))
    assert (text.value, text.difference) == (means[1], paired[1])
    assert (task.value, task.difference) == (seed_interval((0.5, 0.75, 0.25)), seed_interval([0.25, 0.25, -0.25]))


def test_settings_that_differ_from_the_baselines_are_kept_and_told_apart_from_equal_ones() -> None:
    """Also one that only the variant has."""
    settings = {"optimizer": {"betas": [0.9, 0.95]}, "train": {"steps": 7, "width_budget": None}}
    changed = {"optimizer": {"betas": [0.9, 0.99]}, "train": {"steps": 7, "width_budget": {"target": 0.6}}}
    own, baseline = replace(OWN, settings=changed), replace(BASELINE, settings=settings)
    variant = variant_of("x", own, baseline)
    expected = {"optimizer.betas.1": [0.99, 0.95], "train.width_budget": [{"target": 0.6}, None]}
    assert variant.differs_in == expected
    assert variant_of("x", baseline, baseline).differs_in == {}
    assert settings_of(variant) == ["optimizer.betas.1 0.99 rather than 0.95", "train.width_budget"]
