"""`widthwise discover` from argument to page, on a tiny model."""

import json
from pathlib import Path

import pytest

from widthwise.recipe.recipe import load_recipe
from widthwise.records.discovery import Discovery
from widthwise.records.outcome import Outcome

SEARCH = ("discover.method.n_stages=2", "discover.method.n_batches=2", "train.steps=2", "train.validation_tokens=50")


@pytest.mark.hard
def test_what_is_found_is_retrained_beside_its_rivals_and_shown_on_a_page(recipe, succeeds, answer, tmp_path) -> None:
    out = tmp_path / "found"
    asked = ("discover", recipe, *SEARCH, "--seed", 1, "--seed", 2, "--out", out)
    printed, _ = succeeds(*asked)
    discovery, comparison = Discovery.read(out), Outcome.read(out / "comparison")
    assert discovery.method == "growing"
    assert [variant.name for variant in comparison.variants][3] == "discovered"
    assert all(len(variant.runs) == 2 for variant in comparison.variants)
    shape = load_recipe(out / "discovered.yaml").model.shape
    assert shape.kind == "curve"
    page = (out / "report.html").read_text()
    assert 'href="comparison/report.html"' in page
    for text in ("permuted_2", "times those of training one of its rivals"):
        assert text in page
    assert "search" in printed
    assert "Gain of a step" in printed
    assert answer(*asked)["found"] == json.loads(discovery.to_json())["found"]


def test_a_dry_run_trains_nothing(recipe: Path, succeeds, tmp_path) -> None:
    printed, _ = succeeds("discover", recipe, *SEARCH, "--dry-run", "--out", tmp_path / "new")
    assert printed.startswith("growing: ")
    assert not (tmp_path / "new").exists()
