"""The recipes of virtual width, what they cost, and what the documents say of that."""

import re
import shlex
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxes import refusal
from test_template import SLOTS
from test_template import small as small_template
from thinned import in_turn

from widthwise.config_io import to_data
from widthwise.model.cost import Cost
from widthwise.model.residual.slots import HyperConnectionOptions
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.shape.search import search
from widthwise.shape.search_space import SearchSpace
from widthwise.shape.template import QUANTITIES, ModelTemplate, TemplateCost
from widthwise.yaml_io import merge

TOTALS = {(2, 3): 48, (1, 4): 112, (2, 4): 72, (4, 8): 136, (4, 16): 400, (8, 32): 784, (8, 64): 2592}
"""(m, n) -> the sum of a site's FLOPs, worked out by hand."""


ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "virtual_width.md").read_text()
SERIES = {"1.5": (2, 3), "2": (4, 8), "4": (4, 16), "8": (4, 32)}
"""Virtual width -> (m, n) of its recipe."""
NAMES = [*(f"virtual_width_{r}x{mtp}" for r in SERIES for mtp in ("", "_mtp")), "x_virtual_width_200m"]


def recipe(command: str) -> Recipe:
    """The name of a recipe and overrides, as on a command line."""
    name, *overrides = shlex.split(command)
    return load_recipe(name, overrides)


def inspected(command: str) -> dict[str, Any]:
    return inspect_recipe(recipe(command))


def site_cost(slot_width: float, n_slots: int, n_blocks: int, dynamic: bool) -> Cost:
    """What a site counts that reads and writes so many blocks."""
    return HyperConnectionOptions(dynamic=dynamic).site_cost(slot_width, n_slots, n_blocks, n_blocks)


def test_flops_are_the_papers_but_for_the_norm():
    """Section 3.5 of the paper, worked out by hand, and what the library counts."""
    for ((m, n), total), slot_width in zip(TOTALS.items(), cycle([1, 5, 80])):
        d_model = m * slot_width
        norm, coefficients = 4 * n / m, 2 * (2 * m + n) * n / m
        read_and_carry, write = 2 * (m + n) * n / m, 2 * n
        assert norm + coefficients + read_and_carry + write == total
        dynamic, static = (site_cost(slot_width, n, m, dynamic=dynamic).flops for dynamic in (True, False))
        assert dynamic == (total - norm) * d_model
        assert static == (read_and_carry + write) * d_model


@pytest.mark.parametrize("r", SERIES)
def test_the_name_is_the_virtual_width_by_which_alone_it_differs_from_the_baseline(r):
    (m, n), summary = SERIES[r], inspected(f"virtual_width_{r}x")
    assert summary["virtual_width"] == float(r) == n / m
    assert (summary["n_slots"], summary["slot_width"], summary["stream_width"]) == (n, 640 // m, n * 640 // m)
    virtual, uniform = (to_data(recipe(name)) for name in (f"virtual_width_{r}x", "uniform_200m"))
    assert virtual["model"]["residual"]["multiplier"] == uniform["model"]["residual"]["multiplier"]
    virtual["model"]["residual"] = uniform["model"]["residual"]
    assert virtual == uniform


def test_flops_of_the_parts_are_those_of_training():
    summary = inspected("virtual_width_4x_mtp")
    by_part, flops = summary["flops_by_part"], summary["flops_per_token"]
    assert by_part["residual"] == 16 * 2 * (400 - 16) * 640 + 2 * 4 * 640**2
    assert by_part["embedding"] == 2 * 4 * 640**2
    assert flops["forward"] == sum(by_part.values()) - by_part["mtp"]
    assert flops["training"] == 3 * sum(by_part.values())
    assert flops["training_mtp"] == 3 * by_part["mtp"]


def small(residual: dict, **changes) -> ModelTemplate:
    data = {"d_model": 512, "attention": {"head_dim": 8}, "residual": {"kind": "hyper_connections", **residual}}
    return small_template(**merge(data, changes))


@in_turn(("residual", SLOTS), ("match", ["params", "flops"]), ("endpoints", ["slim", "full"]))
def test_what_is_matched_is_the_cost_of_the_layers(residual, match, endpoints):
    widths = [832, 512, 256, 96, 128, 512, 640, 768]
    template = small(residual, shape={"kind": "explicit", "widths": widths, "endpoints": endpoints})
    layers = template.resolve(33).layer_costs()
    expected = sum((cost for layer in layers for part, cost in layer.items() if part != "norm"), Cost())
    solved = small(residual, shape={"kind": "x", "endpoints": {"full": "full_matched"}.get(endpoints, "slim")})
    assert TemplateCost(solved, match, 33).total(np.array(widths)) == QUANTITIES[match](expected, 33)


def test_a_search_needs_streams_that_grow_with_d_model():
    template = small({"slot_width": 16, "n_slots": 64})
    message = "model.residual.slot_width: conflicts with n_slots; a search changes"
    assert refusal(search, template, 33, SearchSpace()).startswith(message)


def cells(document: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of every line of a table."""
    return re.findall(rf"^\| {pattern} \|$", document, re.MULTILINE)


def test_recipes_of_the_page_cost_what_it_says():
    lines = cells(GUIDE, r"`((?:x_)?virtual_width.+)` \| (\d+), (\d+) \| (.+)")
    assert {command.split()[0] for command, *_ in lines} >= {name for name in NAMES if "mtp" not in name}
    for command, m, n, costs in lines:
        summary = inspected(command)
        ratio, baseline = summary["ratio"], summary["baseline"]
        assert (summary["d_model"], summary["n_slots"]) == (int(m) * summary["slot_width"], int(n))
        training = summary["flops_per_token"]["training"] / baseline["flops_per_token"]["training"]
        shown = [f"{ratio['params']:.3f}", f"{ratio['flops']:.3f}", f"{training:.3f}"]
        assert costs.split(" | ") == [*shown, f"{ratio['activation_bytes']:.2f}"], command


def test_sites_of_the_page_cost_what_it_says():
    lines = cells(GUIDE, r"(\d+), (\d+) \| ([\d.]+ \| .+)")
    assert {(int(m), int(n)) for m, n, _ in lines} >= set(SERIES.values())
    for m, n, costs in ((int(m), int(n), costs) for m, n, costs in lines):
        sites = {d_model: site_cost(d_model / m, n, m, dynamic=True) for d_model in (640, 2048, 4096)}
        shares = [f"{2 * site.flops / (24 * d_model**2):.1%}" for d_model, site in sites.items()]
        assert costs.split(" | ") == [f"{n / m:g}", *shares], (m, n)


def test_a_site_keeps_what_the_page_says():
    """The paper computes again what is read and written, and one of two states: 2 sites keep 2 n / m bytes."""
    plain = sum(recipe("uniform_200m").explicit_model.layer_costs()[0].values(), Cost()).activation_bytes()
    assert round(plain / 640) == 36
    for m, n, sentence in (
        (2, 3, "{here:g} D at (2, 3), {of_layer:.1%} of the layer, where the paper has {paper:g} D;"),
        (8, 64, "at (8, 64) it is {here:g} D, {of_layer:.1%}, where the paper has {paper:g} D."),
    ):
        slots = f"kind: hyper_connections, n_fractions: {m}, n_slots: {n}, state_every: 2"
        layer = recipe(f"uniform_200m 'model.residual={{{slots}}}'").explicit_model.layer_costs()[0]
        kept = layer["residual"].activation_bytes()
        assert sentence.format(here=kept / 640, of_layer=kept / plain, paper=2 * n / m) in GUIDE


def test_the_law_is_the_line_through_the_printed_points():
    points = [(float(r), float(loss)) for loss, r in re.findall(r"(1\.\d+) at r = (\d)", GUIDE)]
    log_r, losses = np.log2([r for r, _ in points]), np.array([loss for _, loss in points])
    slope, intercept = np.polyfit(log_r, losses, 1)
    r_squared = 1 - np.sum((losses - slope * log_r - intercept) ** 2) / np.sum((losses - losses.mean()) ** 2)
    assert (len(points), round(slope, 5), round(intercept, 4)) == (3, -0.00685, 1.6212)
    assert f"R^2 {r_squared:.4f}" in GUIDE
