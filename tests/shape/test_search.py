"""The search finds the shapes of the hourglass paper, and all that meet a budget within limits."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from widthwise.config_io import parse
from widthwise.mistakes import UserError
from widthwise.shape.search import pareto_front, search
from widthwise.shape.search_space import SearchSpace
from widthwise.shape.template import ModelTemplate

VOCAB = 100352


@dataclass(frozen=True)
class Baseline:
    """A conventional model of Table 3: attention of as many key-value heads, a SwiGLU of 4 d_model."""

    d_model: int
    n_layers: int
    n_heads: int
    seq_len: int

    @property
    def layer_params(self) -> int:
        return 16 * self.n_layers * self.d_model**2

    def template(self) -> ModelTemplate:
        sizes = {"vocab_size": VOCAB, "d_model": self.d_model, "n_layers": self.n_layers}
        return parse(ModelTemplate, {**sizes, "attention": {"n_heads": self.n_heads}}, "model")


BASELINES = {
    "113M": Baseline(768, 12, 12, 2048),
    "403M": Baseline(1024, 24, 16, 2048),
    "906M": Baseline(1536, 24, 16, 2048),
    "1074M": Baseline(2048, 16, 16, 4096),
}

SEARCHED = [
    # baseline, n_blocks, n_layers, target ratio, d_model, d_hidden
    ("113M", 4, 12, 0.4, 1032, 418),
    ("113M", 2, 12, 0.45, 1176, 553),
    ("113M", 2, 6, 0.75, 1488, 1122),
    ("113M", 4, 6, 0.5, 1368, 694),
    ("403M", 4, 24, 0.4, 1376, 557),
    ("403M", 4, 24, 0.55, 1248, 704),  # what Table 3 prints the parts of
    ("906M", 4, 24, 0.4, 2080, 819),
    ("1074M", 1, 20, 0.875, 2848, 2486),
    ("113M", 5, 12, 0.8, 768, 614),
    ("113M", 6, 12, 2 / 3, 768, 512),
    ("113M", 8, 12, 0.5, 768, 384),
    ("113M", 10, 12, 0.4, 768, 307),
]
"""Tables 1 to 3."""


def layer_params(n_blocks, n_layers, d_model, d_hidden):
    """Parameters of the layers' matrices."""
    return n_layers * d_model * (4 * d_model + 3 * n_blocks * d_hidden)


def params(n_blocks, n_layers, d_model, d_hidden):
    gains = (n_layers * (1 + n_blocks) + 1) * d_model
    return layer_params(n_blocks, n_layers, d_model, d_hidden) + gains + 2 * VOCAB * d_model


def flops(n_blocks, n_layers, d_model, d_hidden, context):
    """Forward, per token, with so many tokens attended to."""
    scores, head = 4 * n_layers * d_model * context, 2 * VOCAB * d_model
    return 2 * layer_params(n_blocks, n_layers, d_model, d_hidden) + scores + head


def paper_sizes(budget, n_blocks, n_layers, ratio, n_heads):
    """(d_model, d_hidden) by the rule behind the paper's tables, see docs/shape.md; budget: layer_params."""
    quantum = 2 * n_heads
    d_model = quantum * round(math.sqrt(budget / (n_layers * (4 + 3 * n_blocks * ratio))) / quantum)
    return d_model, round((budget - 4 * n_layers * d_model**2) / (3 * n_blocks * n_layers * d_model))


def found_at(scale: str, **space):
    baseline = BASELINES[scale]
    return search(baseline.template(), baseline.seq_len, parse(SearchSpace, space))


def sizes_of(result) -> list[tuple[int, ...]]:
    """Blocks, layers, d_model and d_hidden of each."""
    return [tuple(map(int, sizes)) for sizes in zip(*result.sizes[:4])]


def test_every_shape_of_the_paper_is_found_and_its_rule_gives_it() -> None:
    for scale, baseline in BASELINES.items():
        rows = [row[1:] for row in SEARCHED if row[0] == scale]
        n_blocks, n_layers, ratio = ([*dict.fromkeys(axis)] for axis in list(zip(*rows))[:3])
        found = sizes_of(found_at(scale, n_blocks=n_blocks, n_layers=n_layers, ratio=ratio))
        for k, n, aim, d_model, d_hidden in rows:
            assert (k, n, d_model, d_hidden) in found
            assert paper_sizes(baseline.layer_params, k, n, aim, baseline.n_heads) == (d_model, d_hidden)


@pytest.mark.parametrize(
    ("scale", "depth", "ratio", "widths"),
    [
        ("113M", (4, 12), 418 / 1032, (1032, 936, 912)),
        ("403M", (4, 24), 557 / 1376, (1376, 1312, 1280)),
        ("1074M", (1, 20), 2486 / 2848, (2848, 2656, 2688)),
    ],
)
def test_what_is_matched_decides_the_width(scale, depth, ratio, widths) -> None:
    """The headline models are searched at the same blocks and layers and ratio; the budget is in closed form."""
    baseline, (n_blocks, n_layers) = BASELINES[scale], depth
    conventional = (1, baseline.n_layers, baseline.d_model, 4 * baseline.d_model)
    budgets = {
        "layer_params": layer_params(*conventional),
        "flops_causal": flops(*conventional, context=baseline.seq_len / 2),
        "params": params(*conventional),
    }
    for (match, budget), d_model in zip(budgets.items(), widths, strict=True):
        space = {"match": match, "n_blocks": [n_blocks], "n_layers": [n_layers], "ratio": [ratio]}
        result, by_number = found_at(scale, **space), found_at(scale, **space, budget=float(budget))
        quantum = 2 * baseline.n_heads
        assert sorted(result.sizes.d_model) == [d_model - quantum, d_model, d_model + quantum]
        assert result.budget == budget
        assert sizes_of(by_number) == sizes_of(result)


def test_the_cache_alone_leaves_the_hidden_width_to_the_ratio() -> None:
    result = found_at("113M", match="kv_bytes", n_layers=[6, 12, 24], ratio=[0.4, 0.5])
    for _, n_layers, d_model, d_hidden in sizes_of(result):
        assert n_layers * d_model == 12 * 768
        assert d_hidden in (round(0.4 * d_model), round(0.5 * d_model))
    assert "kv_bytes" not in result.space.costs


WIDE = {"n_blocks": [1, 2, 3, 4], "n_layers": [*range(4, 20)], "ratio": [0.3, 0.5, 0.8]}


def test_candidates_are_distinct_ordered_and_the_same_every_time() -> None:
    result = found_at("113M", **WIDE, rank_by="kv_bytes")
    found = sizes_of(result)
    assert len(set(found)) == len(found) == len(result) > 300
    cache = [4 * n_layers * d_model for _, n_layers, d_model, _ in found]
    n_pareto = int(result.is_pareto.sum())
    assert result.is_pareto[:n_pareto].all()
    assert 0 < n_pareto < len(found)
    assert cache[:n_pareto] == sorted(cache[:n_pareto])
    assert cache[n_pareto:] == sorted(cache[n_pareto:])
    assert sizes_of(found_at("113M", **WIDE, rank_by="kv_bytes")) == found


@pytest.mark.parametrize("tolerance", [None, 2e-3])
def test_no_candidate_misses_the_budget_by_more_than_the_tolerance(tolerance) -> None:
    result = found_at("113M", **WIDE, tolerance=tolerance)
    misses = [abs(layer_params(*sizes) / BASELINES["113M"].layer_params - 1) for sizes in sizes_of(result)]
    assert max(misses) <= (tolerance or 1e-3)
    assert result.n_examined == len(result) + sum(result.rejected.values())
    for row, sizes in zip(result.best(3), sizes_of(result)):
        assert row["miss"] == pytest.approx(layer_params(*sizes) / BASELINES["113M"].layer_params - 1)


def test_a_search_without_a_depth_keeps_to_the_aspect() -> None:
    for space, (low, high) in (({}, (100, 250)), ({"aspect": [40.0, 60.0]}, (40, 60))):
        result = found_at("113M", **space)
        ratios = result.sizes.d_model / result.sizes.n_layers
        assert low <= ratios.min() < 1.1 * low
        assert 0.9 * high < ratios.max() <= high


@pytest.mark.parametrize(("heads", "head_dim"), [({}, 64), ({"head_dim": 128}, 128)])
def test_the_hardware_grid_has_whole_tiles(heads, head_dim) -> None:
    result = found_at("1074M", grid="hardware", **heads)
    for row in result.best(1000):
        assert row["d_model"] % 128 == row["d_hidden"] % 64 == 0
        assert row["head_dim"] == head_dim
        assert row["n_heads"] * row["head_dim"] == row["d_model"]
        assert abs(row["miss"]) <= 0.01


def test_limits_leave_out_what_exceeds_them() -> None:
    free = found_at("113M", **WIDE)
    limits = {"max_flops": 5.9e8, "max_kv_bytes": 4.9e4, "max_residual_additions": 40, "ratio_range": [0.4, 0.7]}
    bound = found_at("113M", **WIDE, **limits)
    expected = {
        sizes
        for sizes in sizes_of(free)
        if flops(*sizes, context=2048) <= 5.9e8
        and 4 * sizes[1] * sizes[2] <= 4.9e4
        and sizes[1] * (1 + sizes[0]) <= 40
        and 0.4 <= sizes[3] / sizes[2] <= 0.7
    }
    assert set(sizes_of(bound)) == expected
    assert 0 < len(expected) < len(free)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"n_layers": [12], "ratio": [0.001], "n_blocks": [1], "grid": "hardware"}, "no room for a feed-forward"),
        ({"n_layers": [12], "tolerance": 1e-9}, r"20 miss the budget by more than 1e-07% \(the nearest by 0\.00\d+%\)"),
        ({"n_layers": [12], "aspect": [300.0, 301.0]}, "d_model / n_layers not 300 to 301"),
        ({"n_layers": [12], "max_kv_bytes": 9}, "have kv_bytes above 9"),
        ({"budget": 10.0}, "at no depth up to 256"),
        ({"head_dim": 63}, "head_dim: got 63; .* must be even"),
        ({"n_heads": 8, "head_dim": 64}, "n_heads: conflicts with head_dim"),
        ({"grid": "hardware", "head_dim": 96}, "head_dim: got 96; the hardware grid has heads of 64 or 128"),
        ({"grid": "hardware", "n_heads": 12}, "n_heads: got 12; the hardware grid has heads of 64 or 128"),
        ({"n_layers": [*range(1, 2_000)], "n_blocks": [*range(1, 499)]}, "too many to examine"),
        ({"aspect": [2.0, 1.0]}, "aspect: got 2 to 1; the smaller one comes first"),
    ],
)
def test_a_search_that_finds_nothing_says_why(space, message) -> None:
    with pytest.raises(UserError, match=message):
        found_at("113M", **space)


def test_the_one_nearest_to_each_ratio_is_kept() -> None:
    """So that the paper's own sizes are, for the ratios behind its tables."""
    asked = {"n_blocks": [2, 4], "n_layers": [6, 12], "ratio": [0.4, 0.5, 0.75]}
    every, kept = found_at("113M", **asked), found_at("113M", **asked, per=["n_blocks", "n_layers", "ratio"])
    assert (kept.n_found, len(kept)) == (len(every), 12)
    assert {(4, 12, 1032, 418), (2, 6, 1488, 1122), (4, 6, 1368, 694)} <= set(sizes_of(kept))
    for *depth, d_model, d_hidden in sizes_of(kept):
        ratio = d_hidden / d_model
        aim = min(asked["ratio"], key=lambda aim: abs(ratio - aim))
        rivals = (hidden / width for *other, width, hidden in sizes_of(every) if other == depth)
        assert abs(ratio - aim) == min(abs(rival - aim) for rival in rivals)
    first: dict[tuple[int, ...], tuple[int, ...]] = {}
    for sizes in sizes_of(every):
        first.setdefault(sizes[:2], sizes)
    assert sizes_of(found_at("113M", **asked, per=["n_blocks", "n_layers"])) == [*first.values()]


@settings(deadline=None)
@given(arrays(np.int64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.integers(0, 4)))
def test_the_pareto_front_is_what_nothing_dominates(costs) -> None:
    dominated = [any((other <= row).all() and (other < row).any() for other in costs) for row in costs]
    assert list(pareto_front(costs)) == [not each for each in dominated]
