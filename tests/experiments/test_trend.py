"""The line of a trend against independent references, its interval, and what a comparison makes of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats
from tiny_runs import TINY

from widthwise.config_io import UserError
from widthwise.experiments.compare import summarise
from widthwise.experiments.plan import ComparisonPlan, read_plan
from widthwise.experiments.statistics import Estimate, paired_difference
from widthwise.experiments.trend import check_values, fit_trend
from widthwise.model.config import cost_summary
from widthwise.records.comparison import Comparison, Trend
from widthwise.records.run import RunResult

VALUES = (1.0, 1.5, 2.0, 5.0, 8.0)


def noisy(seed: int, n_seeds: int = 3, n_windows: int = 17) -> np.ndarray:
    """(n_values, n_seeds, n_windows) losses near a falling line."""
    random = np.random.default_rng(seed)
    return 3 - 0.02 * np.log2(VALUES)[:, None, None] + 0.03 * random.normal(size=(len(VALUES), n_seeds, n_windows))


def on_lines(slopes: list[float], values: tuple[float, ...] = VALUES) -> np.ndarray:
    """Losses of one window exactly on a line a seed."""
    return 3 + np.log2(values)[:, None, None] * np.array(slopes)[None, :, None]


def numbers(estimate: Estimate) -> list[float]:
    return [estimate.mean, estimate.low, estimate.high, *estimate.per_seed]


def test_a_known_line_is_found_whatever_seeds_and_windows_share() -> None:
    random = np.random.default_rng(0)
    heights = 3 + random.normal(size=(4, 1)) + random.normal(size=(1, 19))
    fit = fit_log_linear(VALUES, heights - 0.0125 * np.log2(VALUES)[:, None, None])
    assert (fit.slope.low, fit.slope.mean, fit.slope.high) == pytest.approx((-0.0125,) * 3)
    assert fit.slope.per_seed == pytest.approx([-0.0125] * 4)
    assert fit.intercept.per_seed == pytest.approx(heights.mean(axis=1))
    assert line(fit) == pytest.approx(heights.mean() - 0.0125 * np.log2(VALUES))
    assert residuals(fit) == pytest.approx([0] * 5, abs=1e-12)
    assert fit.r_squared == pytest.approx(1)
    assert fit.verdict == "better"


def test_the_law_of_the_virtual_width_paper_comes_from_its_points() -> None:
    """arXiv:2511.11238, Fig. 8: loss = -0.0069 log2(r) + 1.6212, R^2 0.9986; the slope is -0.00685 before rounding."""
    fit = fit_log_linear((2, 4, 8), np.array([1.6145, 1.6072, 1.6008]).reshape(3, 1, 1))
    assert fit.slope.mean == pytest.approx(-0.00685, abs=1e-12)
    assert round(fit.intercept.mean, 4) == 1.6212
    assert round(fit.r_squared, 4) == 0.9986
    assert (fit.slope.low, fit.slope.high, fit.intercept.low) == (None, None, None)
    assert fit.verdict == "no verdict"


def fit_log_linear(values: Sequence[float] | np.ndarray, losses: np.ndarray) -> Trend:
    names = [str(i) for i in range(len(values))]
    return fit_trend("d_model", dict(zip(names, map(float, values))), dict(zip(names, losses)), 0.95)


def residuals(trend: Trend) -> list[float]:
    return [point.residual for point in trend.points]


def line(trend: Trend) -> list[float]:
    return [point.line for point in trend.points]


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
    assert residuals(fit) == pytest.approx(means - overall.intercept - overall.slope * doublings)


def test_between_two_values_the_slope_is_the_paired_difference() -> None:
    """One doubling apart: estimate and interval are those of the difference."""
    losses = noisy(2)[:2]
    slope, difference = fit_log_linear((3, 6), losses).slope, paired_difference(losses[1], losses[0])
    assert numbers(slope) == pytest.approx(numbers(difference))


def test_the_order_of_variants_does_not_matter() -> None:
    losses, order = noisy(3), [3, 0, 4, 1, 2]
    fit, permuted = fit_log_linear(VALUES, losses), fit_log_linear(np.array(VALUES)[order], losses[order])
    assert numbers(permuted.slope) == pytest.approx(numbers(fit.slope))
    assert residuals(permuted) == pytest.approx(np.array(residuals(fit))[order])


def test_the_order_of_seeds_does_not_matter_but_for_the_resampling() -> None:
    losses, order = noisy(4), [2, 0, 1]
    fit, permuted = fit_log_linear(VALUES, losses), fit_log_linear(VALUES, losses[:, order])
    assert permuted.slope.mean == pytest.approx(fit.slope.mean)
    assert permuted.slope.per_seed == pytest.approx(np.array(fit.slope.per_seed)[order])
    width = fit.slope.high - fit.slope.low
    assert permuted.slope.high - permuted.slope.low == pytest.approx(width, rel=0.05)


def test_what_all_variants_of_a_seed_and_window_share_cancels_in_the_slope() -> None:
    losses = noisy(5)
    shifted = losses + 10 * np.random.default_rng(6).normal(size=losses.shape[1:])
    fit, moved = fit_log_linear(VALUES, losses), fit_log_linear(VALUES, shifted)
    assert numbers(moved.slope) == pytest.approx(numbers(fit.slope))
    assert residuals(moved) == pytest.approx(residuals(fit), abs=1e-12)


def test_another_unit_of_the_quantity_moves_the_intercept_alone() -> None:
    losses = noisy(7)
    fit, scaled = fit_log_linear(VALUES, losses), fit_log_linear(7 * np.array(VALUES), losses)
    assert numbers(scaled.slope) == pytest.approx(numbers(fit.slope))
    assert line(scaled) == pytest.approx(line(fit))
    assert scaled.intercept.mean == pytest.approx(fit.intercept.mean - fit.slope.mean * np.log2(7))


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


@pytest.mark.parametrize(
    ("slopes", "expected"),
    [
        ([-0.02, -0.021, -0.022], "better"),
        ([0.02, 0.021, 0.022], "worse"),
        ([-0.001, 0.0, 0.001], "tie"),
        # 0 +- 0.0075 is within the tie margin for one doubling, but three lie between the values.
        ([-0.003, 0.0, 0.003], "cannot tell"),
        ([-0.02, -0.021], "no verdict"),
    ],
)
def test_verdict(slopes: list[float], expected: str) -> None:
    assert fit_log_linear(VALUES, on_lines(slopes)).verdict == expected


def test_equal_means_have_no_r_squared() -> None:
    assert fit_log_linear(VALUES, on_lines([0.0, 0.0, 0.0])).r_squared is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": 1.0, "b": 1.5, "c": 1.5}, r"virtual_width is a 1, b 1\.5, c 1\.5; a trend needs at least 3 different"),
        ({}, "given for no variant"),
        ({"a": 0.0, "b": 1.0, "c": 2.0}, r"is a 0, b 1, c 2; a logarithm needs values above 0"),
        ({"a": -1.0, "b": 1.0, "c": 2.0}, "a logarithm needs values above 0"),
    ],
)
def test_values_without_a_line_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_values(values, "virtual_width")


def slots(n_slots: int) -> dict[str, Any]:
    return {"model": {"residual": {"kind": "hyper_connections", "n_fractions": 2, "n_slots": n_slots}}}


RECIPE = {
    "model": {"vocab_size": 257, "d_model": 48, "n_layers": 3, "attention": {"head_dim": 8}},
    **TINY,
    "train": {"steps": 3, "batch_size": 4, "precision": "fp32"},
    "compare": {
        "match": "none",
        "seeds": [3, 5, 8],
        "variants": {"plain": {}, "r1": slots(2), "r1.5": slots(3), "r4": slots(8)},
    },
}


def plan_of(tmp_path: Path, trend: dict[str, Any] | None, **arguments: Any) -> ComparisonPlan:
    path = tmp_path / "widths.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "compare": {**RECIPE["compare"], "trend": trend}}, sort_keys=False))
    return read_plan([path], **arguments)


def test_a_quantity_is_that_of_the_variants_that_take_part(tmp_path: Path) -> None:
    """All take part where none is named. The virtual width is n_slots / n_fractions, and 1 for a plain residual."""
    assert plan_of(tmp_path, {"over": "virtual_width"}).trend_values() == {
        "plain": 1.0,
        "r1": 1.0,
        "r1.5": 1.5,
        "r4": 4.0,
    }
    named = {"over": "params", "variants": ["r4", "plain", "r1"]}
    plan = plan_of(tmp_path, named)
    costs = {name: cost_summary(recipe.explicit_model, 24) for name, recipe in plan.recipes.items()}
    assert plan.trend_values() == {name: costs[name]["params"]["total"] for name in ("r4", "plain", "r1")}


def test_no_trend_has_no_values(tmp_path: Path) -> None:
    assert plan_of(tmp_path, None).trend_values() == {}


def test_other_seeds_keep_the_trend(tmp_path: Path) -> None:
    trend = {"over": "virtual_width", "variants": ["r1", "r1.5", "r4"]}
    plan = plan_of(tmp_path, trend, seeds=[1])
    assert plan.seeds == (1,)
    assert plan.trend == plan_of(tmp_path, trend).trend


@pytest.mark.parametrize(
    ("trend", "named"),
    [
        ({"over": "virtual_widht"}, r"compare: trend: over: got 'virtual_widht'; did you mean 'virtual_width'"),
        (
            {"over": "params", "variants": ["r1", "r2", "r4"]},
            r"trend\.variants: got 'r2'; allowed: plain, r1, r1\.5, r4",
        ),
        ({"over": "params", "variants": ["r1", "r1", "r4"]}, "each variant may be given once"),
        ({"over": "virtual_width", "variants": ["plain", "r1", "r4"]}, "plain 1, r1 1, r4 4; a trend needs at least 3"),
        ({"over": "kv_bytes"}, "a trend needs at least 3 different values"),
        ({}, r"trend\.over: is required"),
        ({"over": "virtual_width", "of": "val_los"}, r"trend: of: got 'val_los'; did you mean 'val_loss'"),
        ({"over": "virtual_width", "of": "val_loss_next_2"}, r"trend\.of: got 'val_loss_next_2'; plain has no depth 1"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(tmp_path: Path, trend: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named) as error:
        plan_of(tmp_path, trend)
    assert "\n" not in str(error.value)


def compared(
    tmp_path: Path, losses: Callable[[float], list[float]], seeds: list[int], of: str = "val_loss"
) -> Comparison:
    """The comparison of made-up runs. losses: virtual width -> one loss a seed, the same in each of two windows, and of
    the second token ahead 1 more at each doubling."""
    trend = {"over": "virtual_width", "of": of, "variants": ["r1", "r1.5", "r4"]}
    plan = plan_of(tmp_path, trend, seeds=seeds, overrides=["model.mtp={n_depths: 1}"])
    results = {}
    for name, recipe in plan.recipes.items():
        cost = cost_summary(recipe.explicit_model, recipe.seq_len)
        results[name] = [
            RunResult(
                val_loss=loss,
                tokens_per_second=loss,
                training_flops=1.0,
                cost=cost,
                pflops_days=1.0,
                val_window_losses=[loss, loss],
                val_mtp_losses=[loss + float(np.log2(cost["virtual_width"]))],
                val_mtp_window_losses=[[loss + float(np.log2(cost["virtual_width"]))] * 2],
            )
            for loss in losses(cost["virtual_width"])
        ]
    return summarise(plan, results, {}, "widthwise compare widths.yaml")


@pytest.mark.parametrize(
    ("slopes", "said"),
    [
        ([-0.25, -0.25, -0.25], "lowers the held-out loss by 0.2500 nats (95% interval -0.2500 to -0.2500)"),
        ([0.25, 0.25, 0.25], "raises the held-out loss by 0.2500 nats (95% interval +0.2500 to +0.2500)"),
        ([-0.25, 0.25, 0.75], "changes the held-out loss by +0.2500 nats, but 3 seeds cannot tell that from luck"),
        ([-0.00025, 0.0, 0.00025], "and the whole range surely by less than 0.01"),
        ([0.25], "nats: fewer than three seeds, so no verdict (one seed gives no interval)"),
    ],
)
def test_the_answer_says_which_way_the_line_goes(tmp_path: Path, slopes: list[float], said: str) -> None:
    comparison = compared(
        tmp_path, lambda width: [3 + slope * float(np.log2(width)) for slope in slopes], list(range(len(slopes)))
    )
    *_, sentence = comparison["sentence"].splitlines()
    assert sentence.startswith("Each doubling of virtual_width, from 1 to 4, ")
    assert said in sentence
    assert "nan" not in sentence


def test_a_line_can_be_that_of_a_further_head(tmp_path: Path) -> None:
    comparison = compared(tmp_path, lambda width: [3.0, 3.25, 3.5], [1, 2, 3], "val_loss_next_2")
    assert comparison["trend"]["of"] == "val_loss_next_2"
    assert comparison["trend"]["slope"]["per_seed"] == pytest.approx([1, 1, 1])
    assert "raises the next-2 held-out loss by 1.0000 nats" in comparison["sentence"]


def test_the_answer_says_how_well_the_line_describes_the_means(tmp_path: Path) -> None:
    means = {1.0: 3.0, 1.5: 3.5, 4.0: 3.25}
    comparison = compared(tmp_path, lambda width: [means[width]] * 3, [1, 2, 3])
    line = stats.linregress(np.log2(list(means)), list(means.values()))
    off = 3.5 - line.intercept - line.slope * np.log2(1.5)
    assert f"R² is {line.rvalue**2:.4f}, and r1.5 lies {off:+.4f} nats off the line." in comparison["sentence"]
    trend = comparison["trend"]
    assert trend["over"] == "virtual_width"
    assert [(point["variant"], point["value"]) for point in trend["points"]] == [("r1", 1), ("r1.5", 1.5), ("r4", 4)]
    assert trend["points"][1]["residual"] == pytest.approx(off)
    assert [point["line"] + point["residual"] for point in trend["points"]] == pytest.approx(list(means.values()))


def test_equal_losses_are_said_to_be_equal(tmp_path: Path) -> None:
    assert compared(tmp_path, lambda width: [3.0] * 3, [1, 2, 3])["sentence"].endswith("all means are equal.")
