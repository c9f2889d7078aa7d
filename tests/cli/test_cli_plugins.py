"""A feed-forward and a residual from outside the package, found by an entry point as an installed plugin is."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from boxes import refusal

from widthwise.model import kinds
from widthwise.model.ffn.interface import FEED_FORWARDS
from widthwise.model.ffn.swiglu import SwiGLUConfig, SwiGLUTemplate
from widthwise.model.residual.interface import RESIDUALS

TESTS = Path(__file__).parents[1]
INSTALLED = TESTS.parent / "examples" / "plugin"
MODULE = "gated_components"


def uninstall() -> None:
    """As in a process that never saw the plugin."""
    for found, kind in ((FEED_FORWARDS, "leaky"), (RESIDUALS, "gated")):
        for each in (found.configs, found.templates):
            each._classes.pop(kind, None)
    sys.modules.pop(MODULE, None)
    kinds.load_plugins.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(INSTALLED)
    kinds.load_plugins.cache_clear()
    yield
    uninstall()


@pytest.fixture
def run(installed: None, recipe: Path, monkeypatch: pytest.MonkeyPatch, succeeds: Callable) -> str:
    """A finished run of both components, in the working folder."""
    monkeypatch.chdir(recipe.parent)
    changes = {"n_layers": 2, "ffn": {"kind": "leaky", "ratio": 1.5}, "residual": {"kind": "gated"}}
    Path("gated.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "model": changes}))
    succeeds("train", "gated.yaml", "--out", "small")
    return "small"


def test_it_is_counted_trained_grown_and_resumed(run: str, succeeds, answer, refused) -> None:
    params = answer("inspect", "gated.yaml")["params"]
    assert (params["ffn"], params["residual"]) == (2 * 3 * 32 * 48, 2 * 2)
    sizes = ("--d-model", 48, "--d-ff", 50, "--add-layers", 1, "train.steps=5")
    found = answer("grow", run, *sizes, "--out", "large")
    assert found["certificate"]["is_preserved"]
    assert "layers 1, 3: feed-forward 48 -> 50 hidden units (MLP expansion)" in found["expansions"]
    assert sum(each["n_dead"] for each in found["certificate"]["liveness"].values()) == 0
    succeeds("resume", "large")
    err = refused("export", run, "exported")
    assert "residual.kind: got gated, which the exported model lacks; " in err
    assert "(modeling_widthwise.py) supports plain, hyper_connections, manifold, and no plugins" in err
    assert not Path("exported").exists()


def test_a_run_is_refused_where_its_plugin_is_missing(run: str, refused, monkeypatch) -> None:
    uninstall()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(INSTALLED)])
    before = sorted(Path().rglob("*"))
    message = "ffn.kind: got 'leaky', which is not registered; allowed: dynamic, hourglass, "
    for arguments in (("resume", run), ("train", "gated.yaml", "--out", "other")):
        assert message in refused(*arguments)
    assert sorted(Path().rglob("*")) == before


def test_a_component_that_says_nothing_of_growth_is_refused_by_name(run: str, refused, monkeypatch) -> None:
    for component, message, arguments in (
        ("LeakyConfig", "layers.0.ffn: growth does not know `leaky`", ("grow", run, "--add-layers", 1)),
        ("GatedResidualConfig", "residual: growth does not know `gated`", ("grow", run, "--d-model", 64)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(getattr(importlib.import_module(MODULE), component), "constant_fields", None)
            assert message in refused(*arguments, "--out", "large")
    assert not Path("large").exists()


@pytest.mark.hard
def test_it_keeps_the_contracts() -> None:
    """In a process of their own, as the author of a plugin would run them."""
    contracts = [TESTS / "model" / f"test_{name}_contract.py" for name in ("ffn", "residual")]
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "leaky or gated", *map(str, contracts)]
    path = os.pathsep.join([str(INSTALLED), *sys.path])
    command, surroundings = [sys.executable, "-m", "pytest", *arguments], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=surroundings, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_plugin_that_cannot_be_loaded_is_named(installed: None, recipe: Path, refused, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    message = "plugin gated (gated_components): cannot be loaded (ModuleNotFoundError"
    assert message in refused("inspect", recipe, "model.ffn.kind=leaky")


def test_what_is_no_new_kind_is_refused_and_registering_twice_is_registering_once(installed: None) -> None:
    plugin = importlib.import_module(MODULE)
    other = type("Other", (SwiGLUConfig,), {"__module__": "elsewhere"})
    for config, template, message in (
        (SwiGLUConfig, plugin.LeakyTemplate, "SwiGLUConfig: is of kind 'swiglu', and LeakyTemplate"),
        (other, SwiGLUTemplate, "Other: kind 'swiglu' is already registered by widthwise.model.ffn.swiglu"),
    ):
        assert refusal(FEED_FORWARDS.register, config, template).startswith(message)
    FEED_FORWARDS.register(plugin.LeakyConfig, plugin.LeakyTemplate)
    assert list(FEED_FORWARDS.configs).count(plugin.LeakyConfig) == 1
