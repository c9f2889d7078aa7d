"""Discoveries on models that train in a fraction of a second."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from thinned import hard_but
from tiny_sweeps import RECIPE, recipe_file

from widthwise.config_io import UserError, to_data
from widthwise.experiments.compare import read_plan
from widthwise.experiments.discover import discover, plan_discovery, rivals
from widthwise.experiments.matching import matched_quantity
from widthwise.recipe.recipe import load_recipe, parse_recipe
from widthwise.records.discovery import Curve, DiscoveredShape, Discovery
from widthwise.reports.tables import text_key, text_words
from widthwise.run_dir import RunDir
from widthwise.shape.profile import sizes_of
from widthwise.training.observer import SilentObserver
from widthwise.yaml_io import merge

SEQ_LEN = 24
SIZES = {"d_model": 24, "n_layers": 3, "attention": {"head_dim": 4}, "ffn": {"kind": "swiglu", "ratio": 3}}
TRAIN = {"steps": 6, "validation_tokens": 96, "validate_every": 2, "checkpoint_every": None, "seed": 5}
BASE = merge(RECIPE, {"model": SIZES, "seq_len": SEQ_LEN, "train": TRAIN})
GROWING = {"kind": "growing", "n_stages": 3, "n_batches": 2, "step": 0.3, "division": "free", "spend": 1.0}
UNEVEN = {**GROWING, "step": 0.25}  # in steps of 0.3 the budget ends where all layers are alike
KEPT = {"kind": "growing", "n_stages": 4, "n_batches": 2, "step": 0.125}


def plan(folder: Path, method: dict[str, Any], **model: Any):
    return plan_discovery(recipe_file(folder, base=BASE, model=model, discover={"method": method, "seeds": [1, 2]}))


def found(tmp_path: Path, method: dict[str, Any]) -> Discovery:
    return discover(plan(tmp_path, method), tmp_path / "out", SilentObserver())


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> tuple[Path, Discovery]:
    """The folder of a discovery by growth, and what it found."""
    folder = tmp_path_factory.mktemp("growing")
    return folder, found(folder, UNEVEN)


class TestGrowing:
    def test_every_stage_keeps_to_its_part_of_the_budget_and_the_last_spends_it(self, grown):
        _, discovery = grown
        stages, budget = discovery.found.stages, discovery.budget
        assert [stage.step for stage in stages] == [2, 4, 6, 6]
        first = stages[0].cost
        for number, stage in enumerate(stages[1:], start=1):
            smallest = min(each.cost for each in stages[number - 1].candidates)
            allowed = first + (budget - first) * number / 3
            assert stages[number - 1].cost <= stage.cost <= allowed
            assert allowed - stage.cost < 2 * smallest
        assert {layer.width for layer in stages[0].layers} == {12}

    def test_what_gains_most_for_its_cost_is_taken_and_gains_are_averages_over_draws_of_what_is_drawn(self, grown):
        candidates = grown[1].found.stages[0].candidates
        assert len(candidates) == 9
        assert max(candidates, key=lambda each: each.gain / each.cost).is_taken
        assert all(bool(each.gain_error) == (each.part != "width") for each in candidates)

    def test_the_search_costs_what_its_models_and_measurements_cost(self, grown):
        folder, discovery = grown
        assert discovery.found.tokens == 6 * 3 * SEQ_LEN
        trained = 0.0
        for number in (1, 2, 3):
            model = load_recipe(folder / "out" / "search" / f"stage-{number}" / "config.yaml").model
            trained += model.cost().training_flops(SEQ_LEN) * 2 * 3 * SEQ_LEN
        measured = discovery.found.flops - trained
        # Three parts, in three stages, on two batches each, by models one step larger than those that are trained.
        assert trained < measured < 2 * 3 * trained

    def test_the_record_names_the_text_so_that_searches_on_one_text_can_be_told(self, grown):
        environment = grown[1].environment
        assert text_words(environment) == "synthetic, bytes"
        last = RunDir(grown[0] / "out" / "search" / "stage-3").environment()
        assert text_key(environment) == text_key(last)

    def test_the_same_command_goes_on_and_finds_the_same_and_another_search_is_refused(self, grown):
        folder, discovery = grown
        assert found(folder, UNEVEN) == discovery
        with pytest.raises(UserError, match=r"out: holds another search \(method.order from 'gain' to 'random'\); cho"):
            found(folder, UNEVEN | {"order": "random"})

    def test_rivals_have_the_budget_of_what_was_found(self, grown):
        rivals = read_plan(grown[0] / "out" / "rivals.yaml")
        names = "uniform x diamond discovered even reversed permuted_1 permuted_2"
        assert list(rivals.recipes) == names.split()
        budget = matched_quantity(rivals.recipes["uniform"], "params")
        for recipe in rivals.recipes.values():
            assert matched_quantity(recipe, "params") == pytest.approx(budget, rel=0.01)
        widths = {name: recipe.explicit_model.widths for name, recipe in rivals.recipes.items()}
        # Balanced rounding may move a layer by a channel, to either side.
        assert max(widths["even"]) - min(widths["even"]) <= 2
        assert np.abs(np.subtract(widths["discovered"], widths["reversed"][::-1])).max() <= 1


def test_a_search_that_had_grown_with_one_draw_is_not_mixed_with_five(tmp_path):
    method = KEPT | {"n_stages": 2}
    found(tmp_path, method | {"n_draws": 1})
    path = tmp_path / "out" / "search.yaml"
    asked = yaml.safe_load(path.read_text())
    del asked["method"]["n_draws"]
    path.write_text(yaml.safe_dump(asked))
    with pytest.raises(UserError, match=r"stage-\d: was grown by a version that grows it differently"):
        found(tmp_path, method)


def test_kinds_of_parts_grow_alike_and_in_each_what_gains_most_is_taken_first(tmp_path):
    discovery = found(tmp_path, KEPT)
    uniform = {"width": 24, "attention": 24, "hidden": 72}
    for stage in discovery.found.stages[1:]:
        sizes = {key: np.mean([layer[key] for layer in stage.layers]) / uniform[key] for key in uniform}
        # A step of one layer is at most a third (of 3 layers) of 4 of 24 channels: heads of 4.
        assert max(sizes.values()) - min(sizes.values()) <= 2 / 3 * 4 / 24
    first, last = discovery.found.stages[0], discovery.found.stages[-1]
    allowed = first.cost + 0.6 * (discovery.budget - first.cost)
    assert 0.9 * allowed < last.cost <= allowed
    for part in uniform:
        own = [each for each in first.candidates if each.part == part]
        assert len({each.cost for each in own}) == 1  # all layers are as wide
        taken, left = ([each.gain for each in own if each.is_taken is is_taken] for is_taken in (True, False))
        assert min(taken, default=np.inf) >= max(left, default=-np.inf)
    assert any(each.is_taken for each in first.candidates)


class TestRivals:
    CURVE = Curve(widths=[1.0, 0.5, 0.75], attention=[0.5, 2.0, 1.0], hidden=[1.0, 3.0, 2.0])

    def test_even_has_the_mean_of_each_size(self):
        even = self.CURVE.even()
        width = 2.25 / 3
        assert even.widths == pytest.approx([width] * 3)
        assert even.attention == pytest.approx([(0.5 + 1.0 + 0.75) / 3 / width] * 3)
        assert even.hidden == pytest.approx([(1.0 + 1.5 + 1.5) / 3 / width] * 3)

    @pytest.mark.parametrize("points", hard_but([3], [8, 3]))
    def test_permuted_layers_are_those_that_were_found_and_so_divide_the_budget_alike(self, tmp_path, points):
        """None is wider than the embedding here, so that the order costs nothing."""
        search = plan(tmp_path, KEPT, n_layers=8).search
        sizes = [np.linspace(*ends, points) for ends in ((1, 0.55), (1, 2.5), (1.2, 1.9))]
        curve = Curve(**dict(zip(("widths", "attention", "hidden"), map(list, sizes))))
        found = DiscoveredShape(curve=curve, stages=[], tokens=1, flops=1.0)
        layers = {}
        for name, change in rivals(found, search).items():
            model = parse_recipe(merge(to_data(search.base), change), name).explicit_model
            assert search.cost(model) == pytest.approx(search.budget, rel=0.01)
            layers[name] = [sizes_of(layer) for layer in model.layers]
        permuted = {name: each for name, each in layers.items() if name.startswith("permuted")}
        assert list(permuted) == ["permuted_1", "permuted_2"]
        for own in permuted.values():
            assert sorted(own, key=str) == sorted(layers["discovered"], key=str)
            assert own not in (layers["discovered"], layers["discovered"][::-1])
        assert len({str(each) for each in permuted.values()}) == 2


def test_what_cannot_be_searched_is_refused_before_anything_is_trained(tmp_path):
    moe = {"kind": "moe", "n_experts": 4, "top_k": 2}
    for method, change, message in (
        (GROWING, {"shape": {"kind": "x"}}, "model.shape.kind: got 'x'; a discovery starts from the uniform model"),
        (GROWING, {"layers": {1: {"ffn": {"d_ff": 5}}}}, "leave changes to single layers out"),
        (GROWING | {"start_width": 0.99}, {}, "discover.method.start_width: got 0.99; leaves nothing to grow by"),
        (GROWING | {"n_stages": 7}, {}, "discover.steps: got 6; must be at least one for each of 7 stages"),
        (GROWING, {"ffn": moe}, "parts: got 'hidden', which this model does not have; allowed: width, attention"),
        (GROWING, {"ffn": {"ratio": None, "d_ff": 50}}, "model.shape.hidden: needs ffn.ratio, not ffn.d_ff"),
        (GROWING | {"parts": ["width", "width"]}, {}, "parts: got 'width' twice"),
        (GROWING, {"residual": {"kind": "hyper_connections", "n_fractions": 2, "n_slots": 3}}, "need plain"),
    ):
        with pytest.raises(UserError, match=message.replace("(", r"\(")):
            plan(tmp_path, method, **change)


def test_mistakes_in_the_section_are_named(tmp_path):
    for section, message in (
        ([3], r"tiny.yaml: discover: the recipe: got \[3\]"),
        ({"method": {"kind": "growing", "parts": ["layer"]}}, r"method.parts.0: got 'layer'; input should be 'width'"),
        ({"method": {"kind": "guess"}}, r"tiny.yaml: discover: method.kind: got 'guess'"),
    ):
        with pytest.raises(UserError, match=message):
            plan_discovery(recipe_file(tmp_path, base=BASE, discover=section))
