"""Further texts and tasks of a comparison: paired like the held-out loss, as far as all runs have them."""

import numpy as np
from small_costs import small_cost

from widthwise.experiments.runs import Trained, variant_of
from widthwise.experiments.statistics import paired_difference, seed_interval
from widthwise.records.evaluation import Score
from widthwise.records.run import RunResult, TaskResult, TextResult

COST = small_cost()
PATHS = [f"runs/x-seed{seed}" for seed in (1, 2, 5)]
RANDOM = np.random.default_rng(4)
WINDOWS = 3 + RANDOM.normal(0, 0.1, (2, 3, 7))
"""Held-out losses of two variants, by seed and window."""
ACCURACIES = ((0.25, 0.5, 0.5), (0.5, 0.75, 0.25))


def runs(variant: int, tasks: tuple[str, ...] = ("piqa",)) -> list[RunResult]:
    return [
        RunResult(
            cost=COST,
            val_loss=3.0,
            val_window_losses=[3.0, 3.5],
            training_flops=7e9,
            val_texts={"wiki": TextResult(loss=losses.mean(), window_losses=losses.tolist())},
            val_tasks={name: TaskResult(n_items=4, metrics={"acc": Score(value=accuracy)}) for name in tasks},
        )
        for losses, accuracy in zip(WINDOWS[variant], ACCURACIES[variant])
    ]


def trained(results: list[RunResult]) -> Trained:
    return Trained(PATHS, results)


def test_texts_are_paired_by_seed_and_window_and_tasks_by_seed() -> None:
    found = variant_of("x", trained(runs(1)), trained(runs(0))).validated
    assert set(found) == {"wiki.loss", "piqa.acc"}
    assert found["wiki.loss"].value == seed_interval(WINDOWS[1].mean(axis=1).tolist())
    assert found["wiki.loss"].difference == paired_difference(WINDOWS[1], WINDOWS[0])
    assert found["piqa.acc"].value == seed_interval(ACCURACIES[1])
    assert found["piqa.acc"].difference == seed_interval([0.25, 0.25, -0.25])


def test_a_baseline_has_no_difference() -> None:
    baseline = trained(runs(0))
    found = variant_of("uniform", baseline, baseline).validated
    assert [each.difference for each in found.values()] == [None, None]


def test_what_not_all_runs_have_is_left_out() -> None:
    more = trained(runs(1, ("piqa", "copa")))
    assert set(variant_of("x", more, trained(runs(0))).validated) == {"wiki.loss", "piqa.acc"}
    without = [run.with_changes(val_texts=None, val_tasks=None) for run in runs(0)]
    assert variant_of("x", trained(runs(1)), trained(without)).validated == {}
