"""The line of a trend against independent references, its interval, and what a comparison makes of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxes import refusal
from scipy import stats
from small_costs import small_cost
from tiny_sweeps import recipe_file

from widthwise.config_io import UserError
from widthwise.experiments import findings
from widthwise.experiments.compare import read_plan, trend_values
from widthwise.experiments.experiment import Experiment, run_path
from widthwise.experiments.statistics import TrendConfig, fit_trend, paired_mean
from widthwise.model.config import cost_summary
from widthwise.records.outcome import Outcome, Trend
from widthwise.records.run import RunResult
from widthwise.reports.answers import answer
from widthwise.run_dir import RunDir

VALUES = (1.0, 1.5, 2.0, 5.0, 8.0)


def noisy(seed: int, n_seeds: int = 3, n_windows: int = 17) -> np.ndarray:
    """(n_values, n_seeds, n_windows) losses near a falling line."""
    random = np.random.default_rng(seed)
    return 3 - 0.02 * np.log2(VALUES)[:, None, None] + 0.03 * random.normal(size=(len(VALUES), n_seeds, n_windows))


def test_a_known_line_is_found_whatever_seeds_and_windows_share() -> None:
    random = np.random.default_rng(0)
    heights = 3 + random.normal(size=(4, 1)) + random.normal(size=(1, 19))
    fit = fit_log_linear(VALUES, heights - 0.0125 * np.log2(VALUES)[:, None, None])
    assert (fit.slope.low, fit.slope.mean, fit.slope.high) == pytest.approx((-0.0125,) * 3)
    assert fit.slope.per_seed == pytest.approx([-0.0125] * 4)
    assert fit.intercept.per_seed == pytest.approx(heights.mean(axis=1))
    assert [point.line for point in fit.points] == pytest.approx(heights.mean() - 0.0125 * np.log2(VALUES))
    assert fit.r_squared == pytest.approx(1)
    assert fit.verdict == "better"


def fit_log_linear(values: Sequence[float] | np.ndarray, losses: np.ndarray) -> Trend:
    names = [str(i) for i in range(len(values))]
    return fit_trend("d_model", dict(zip(names, map(float, values))), dict(zip(names, losses)))


def test_every_seed_has_its_least_squares_line() -> None:
    losses = noisy(1)
    fit, doublings = fit_log_linear(VALUES, losses), np.log2(VALUES)
    expected = [stats.linregress(doublings, each) for each in losses.mean(axis=2).T]
    assert fit.slope.per_seed == pytest.approx([line.slope for line in expected])
    assert fit.intercept.per_seed == pytest.approx([line.intercept for line in expected])
    means = losses.mean(axis=(1, 2))
    overall = stats.linregress(doublings, means)
    assert (fit.slope.mean, fit.intercept.mean) == pytest.approx((overall.slope, overall.intercept))
    assert fit.r_squared == pytest.approx(overall.rvalue**2)
    line = overall.intercept + overall.slope * doublings
    assert [point.residual for point in fit.points] == pytest.approx(means - line)


def test_between_two_values_the_slope_is_the_paired_difference() -> None:
    """One doubling apart: estimate and interval are those of the difference."""
    losses = noisy(2)[:2]
    slope, expected = fit_log_linear((3, 6), losses).slope, paired_mean(losses[1] - losses[0])
    assert slope.per_seed == pytest.approx(expected.per_seed)
    assert (slope.mean, slope.low, slope.high) == pytest.approx((expected.mean, expected.low, expected.high))


def test_the_interval_covers_the_slope_about_as_often_as_it_says() -> None:
    """Seeds with slopes and heights of their own, and noise in every window of every run."""
    random = np.random.default_rng(8)
    n_trials, covered = 150, 0
    for _ in range(n_trials):
        slopes = -0.01 + 0.01 * random.normal(size=(1, 3, 1))
        noise = random.normal(size=(1, 3, 1)) + 0.05 * random.normal(size=(len(VALUES), 3, 11))
        slope = fit_log_linear(VALUES, 3 + slopes * np.log2(VALUES)[:, None, None] + noise).slope
        covered += slope.low <= -0.01 <= slope.high
    assert covered / n_trials > 0.89  # 0.95 less three standard errors of 150 trials


def test_verdict() -> None:
    """0 +- 0.0075 is within the tie margin for one doubling, but three lie between the values."""
    for slopes, expected in (
        ([-0.02, -0.021, -0.022], "better"),
        ([0.02, 0.021, 0.022], "worse"),
        ([-0.001, 0.0, 0.001], "tie"),
        ([-0.003, 0.0, 0.003], "cannot tell"),
        ([-0.02, -0.021], "no verdict"),
    ):
        losses = 3 + np.log2(VALUES)[:, None, None] * np.array(slopes)[None, :, None]
        assert fit_log_linear(VALUES, losses).verdict == expected


def test_values_without_a_line_are_refused() -> None:
    for values, message in (
        ((1.0, 1.5, 1.5), "virtual_width is a 1, b 1.5, c 1.5; a trend needs at least 3 different"),
        ((0.0, 1.0, 2.0), "is a 0, b 1, c 2; a logarithm needs values above 0"),
    ):
        costs = {name: small_cost(virtual_width=value) for name, value in zip("abc", values)}
        assert message in refusal(TrendConfig(over="virtual_width").values, costs)


def slots(n_slots: int) -> dict[str, Any]:
    return {"model": {"residual": {"kind": "hyper_connections", "n_fractions": 2, "n_slots": n_slots}}}


VARIANTS = {"plain": {}, "r1": slots(2), "r1.5": slots(3), "r4": slots(8)}


def plan_of(tmp_path: Path, trend: dict[str, Any], **arguments: Any) -> Experiment:
    compare = {"match": "none", "seeds": [3, 5, 8], "variants": VARIANTS, "trend": trend}
    return read_plan([recipe_file(tmp_path, model={"d_model": 48}, compare=compare)], **arguments)


def test_a_quantity_is_that_of_the_variants_that_take_part(tmp_path: Path) -> None:
    """All take part where none is named. The virtual width is n_slots / n_fractions, and 1 for a plain residual."""
    expected = {"plain": 1.0, "r1": 1.0, "r1.5": 1.5, "r4": 4.0}
    assert trend_values(plan_of(tmp_path, {"over": "virtual_width"})) == expected
    named = {"over": "params", "variants": ["r4", "plain", "r1"]}
    plan = plan_of(tmp_path, named)
    costs = {name: cost_summary(recipe.explicit_model, 17) for name, recipe in plan.recipes.items()}
    assert trend_values(plan) == {name: costs[name]["params"]["total"] for name in ("r4", "plain", "r1")}


def test_mistakes_are_named_before_anything_is_trained(tmp_path: Path) -> None:
    for trend, named in (
        ({"over": "virtual_widht"}, r"compare: trend: over: got 'virtual_widht'; did you mean 'virtual_width'"),
        ({"over": "params", "variants": ["r1", "r2", "r4"]}, r"variants: got 'r2'; allowed: plain, r1, r1\.5, r4"),
        ({"over": "params", "variants": ["r1", "r1", "r4"]}, "each variant may be given once"),
        ({"over": "params", "variants": []}, r"trend\.variants: got \(\)"),
        ({"over": "virtual_width", "variants": ["plain", "r1", "r4"]}, "plain 1, r1 1, r4 4; a trend needs at least 3"),
        ({"over": "virtual_width", "of": "val_los"}, r"trend: of: got 'val_los'; did you mean 'val_loss'"),
        ({"over": "virtual_width", "of": "val_loss_next_2"}, r"trend\.of: got 'val_loss_next_2'; plain has no depth 1"),
    ):
        with pytest.raises(UserError, match=named):
            plan_of(tmp_path, trend)


def compared(tmp_path: Path, slopes: list[float], of: str = "val_loss") -> Outcome:
    """The comparison of made-up runs whose losses, the same in each of two windows, rise by the slope of their seed at
    each doubling of the virtual width, and of the second token ahead by 1 more."""
    trend = {"over": "virtual_width", "of": of, "variants": ["r1", "r1.5", "r4"]}
    seeds = list(range(len(slopes)))
    plan = plan_of(tmp_path, trend, seeds=seeds, overrides=["model.mtp={n_depths: 1}"])
    folder = tmp_path / f"{of}-{slopes}"
    for name, recipe in plan.recipes.items():
        cost = cost_summary(recipe.explicit_model, recipe.seq_len)
        more = float(np.log2(cost["virtual_width"]))
        for seed, loss in zip(seeds, (3 + slope * more for slope in slopes)):
            run = RunDir(folder / run_path(name, seed))
            run.begin("{optimizer: {}, schedule: {}, train: {}, data: {}}\n", {})
            run.write_result(
                RunResult(
                    **{"val_loss": loss, "val_window_losses": [loss, loss], "val_mtp_losses": [loss + more]},
                    **{"val_mtp_window_losses": [[loss + more] * 2], "training_flops": 1.0, "cost": cost},
                )
            )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(findings, "check_same_data", lambda *_: None)  # they have read none
        return findings.Findings(plan, folder, "widthwise compare widths.yaml").outcome({})


def test_the_answer_says_which_way_the_line_goes(tmp_path: Path) -> None:
    whole = "From its smallest to its largest value"
    for slopes, said in (
        ([-0.25, -0.25, -0.25], "Each doubling of virtual_width lowers the held-out loss by 0.2500 nats."),
        ([0.25, 0.25, 0.25], "Each doubling of virtual_width raises the held-out loss by 0.2500 nats."),
        ([-0.25, 0.25, 0.75], "3 seeds cannot tell whether the held-out loss changes with virtual_width."),
        ([-0.00025, 0, 0.00025], f"{whole} virtual_width changes the held-out loss by less than 0.01 nats."),
        ([0.25], "1 seed cannot tell whether the held-out loss changes with virtual_width."),
    ):
        assert answer(compared(tmp_path, slopes))[-1] == said
    second = compared(tmp_path, [-0.25, -0.25, -0.25], of="val_loss_next_2").trend
    assert second.slope.mean == pytest.approx(1 - 0.25)
