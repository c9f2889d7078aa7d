"""The runs of a recipe as one variant, compared with those of a baseline."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from small_costs import small_cost

from widthwise.evaluation.estimate import paired_mean, seed_interval
from widthwise.experiments.outcome import SeedRuns, variant_of
from widthwise.records.evaluation import Score, TaskResult
from widthwise.records.quantities import OF_HELD_OUT, QUANTITY
from widthwise.records.run import RunResult, TextResult
from widthwise.reports.main_table import settings_of

COST = small_cost()
RANDOM = np.random.default_rng(3)
SEEDS = (1, 2, 5)
WINDOWS = 3 + RANDOM.normal(0, 0.1, (2, 3, len(SEEDS), 7))
"""Held-out losses of two variants, of the first, second and third token ahead, by seed and window."""


def runs(of_tokens: np.ndarray, train_losses: Sequence[float] = (2.5, 2.75, 3.0)) -> list[RunResult]:
    """Results. of_tokens: (n_places, n_seeds, n_windows) held-out losses of the next token and of those after it."""
    return [
        RunResult(
            cost=COST,
            train_loss=train_losses[seed],
            val_loss=of_tokens[0, seed].mean(),
            val_window_losses=of_tokens[0, seed].tolist(),
            val_mtp_losses=of_tokens[1:, seed].mean(axis=1).tolist(),
            val_mtp_window_losses=of_tokens[1:, seed].tolist(),
            training_flops=7e9,
        )
        for seed in range(len(SEEDS))
    ]


def trained(results: Sequence[RunResult]) -> SeedRuns:
    return SeedRuns([f"runs/x-seed{seed}" for seed in SEEDS], results)


def test_further_heads_are_paired_by_seed_and_window_like_the_loss_itself() -> None:
    baseline, own = (runs(of_tokens) for of_tokens in WINDOWS)
    variant = variant_of("x", trained(own), trained(baseline))
    assert variant.difference == paired_mean(WINDOWS[1, 0] - WINDOWS[0, 0])
    for place in (2, 3):
        estimate = paired_mean(WINDOWS[1, place - 1] - WINDOWS[0, place - 1])
        assert QUANTITY[f"difference_next_{place}"].of_variant(variant) == estimate
        losses = OF_HELD_OUT[f"val_loss_next_{place}"].of_variant(variant)
        assert losses == seed_interval(WINDOWS[1, place - 1].mean(axis=1).tolist())
    assert QUANTITY["difference_next_4"].of_variant(variant) is None
    assert OF_HELD_OUT["val_loss_next_4"].of_variant(variant) is None


def test_the_training_loss_is_paired_by_seed() -> None:
    baseline, own = runs(WINDOWS[0], (2.5, 2.75, 3.0)), runs(WINDOWS[1], (2.25, 2.5, 3.25))
    difference = QUANTITY["difference_train_loss"].of_variant(variant_of("x", trained(own), trained(baseline)))
    assert difference == seed_interval([-0.25, -0.25, 0.25])


def test_settings_that_differ_from_the_baselines_are_kept_and_told_apart_from_equal_ones() -> None:
    """Also one that only the variant has."""
    settings = {"optimizer": {"lr": 0.004, "betas": [0.9, 0.95]}, "train": {"steps": 7, "width_budget": None}}
    changed = {"optimizer": {"lr": 0.002, "betas": [0.9, 0.99]}, "train": {"steps": 7, "width_budget": {"target": 0.6}}}
    own, baseline = (replace(trained(runs(WINDOWS[0])), settings=each) for each in (changed, settings))
    found = variant_of("x", own, baseline)
    assert found.differs_in == {
        "optimizer.lr": [0.002, 0.004],
        "optimizer.betas.1": [0.99, 0.95],
        "train.width_budget": [{"target": 0.6}, None],
    }
    assert variant_of("x", baseline, baseline).differs_in == {}
    words = ["optimizer.lr 0.002 rather than 0.004", "optimizer.betas.1 0.99 rather than 0.95", "train.width_budget"]
    assert settings_of(found) == words


def validated(of_tokens: np.ndarray, accuracies: Sequence[float]) -> SeedRuns:
    """With losses of a text `wiki` and accuracies in a task `piqa`."""
    return trained(
        [
            result.with_changes(
                val_texts={"wiki": TextResult(loss=losses.mean(), window_losses=losses.tolist())},
                val_tasks={"piqa": TaskResult(n_items=4, metrics={"acc": Score(value=accuracy)})},
            )
            for result, losses, accuracy in zip(runs(of_tokens), of_tokens[1], accuracies)
        ]
    )


def test_texts_are_paired_by_seed_and_window_and_tasks_by_seed() -> None:
    own, baseline = validated(WINDOWS[1], (0.5, 0.75, 0.25)), validated(WINDOWS[0], (0.25, 0.5, 0.5))
    found = variant_of("x", own, baseline).validated
    assert set(found) == {"wiki.loss", "piqa.acc"}
    assert found["wiki.loss"].value == seed_interval(WINDOWS[1, 1].mean(axis=1).tolist())
    assert found["wiki.loss"].difference == paired_mean(WINDOWS[1, 1] - WINDOWS[0, 1])
    assert found["piqa.acc"].value == seed_interval((0.5, 0.75, 0.25))
    assert found["piqa.acc"].difference == seed_interval([0.25, 0.25, -0.25])
