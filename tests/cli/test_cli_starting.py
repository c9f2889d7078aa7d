"""What a new user meets first: `init`, bundled recipes by name, `schema`, `--version`, completion in a shell, the page
of `explore`; and Ctrl-C, which at any moment is one line and an exit code."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from recipes import RECIPES, recipe_data
from typer.testing import CliRunner

from widthwise import __version__
from widthwise.cli.main import PATHS, app
from widthwise.yaml_io import read_mapping, recipes_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_init_says_commands_that_work(succeeds, refused) -> None:
    assert succeeds("--version")[0] == f"widthwise {__version__}\n"
    out, _ = succeeds("init", "recipes")
    inspected, trained, compared = re.findall(r"widthwise (\S+) (recipes/\S+)", out)
    succeeds(*inspected)
    succeeds(*trained, "train.steps=3")
    assert compared[0] == "compare"
    assert "compare" in read_mapping(Path(compared[1]))
    assert "exists already" in refused("init", "recipes")
    originals = {path.name: path.read_bytes() for path in recipes_folder().glob("*.yaml")}
    assert {path.name: path.read_bytes() for path in Path("recipes").iterdir()} == originals


def test_every_verb_takes_a_bundled_recipe_by_name(succeeds, refused) -> None:
    assert "training:" in succeeds("inspect", "x_200m")[0]
    succeeds("train", "smoke", "train.steps=3")
    assert Path("runs/smoke/result.json").is_file()
    succeeds("design", "uniform_200m", "--out", "mine.yaml")
    assert read_mapping(Path("mine.yaml"))["extends"] == "uniform_200m"
    succeeds("inspect", "mine.yaml")
    assert refused("inspect", "nothing") == "nothing: cannot be read (No such file or directory)"


@pytest.fixture(scope="module")
def schema() -> Any:
    """Checks plain data against what `widthwise schema` prints."""
    return jsonschema.Draft202012Validator(json.loads(CliRunner().invoke(app, ["schema"]).stdout))


@pytest.mark.hard
def test_the_schema_accepts_every_recipe(schema: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.schema)
    for path in RECIPES:
        for data in (read_mapping(path), *recipe_data(path)):
            schema.validate(data)


def test_the_schema_refuses_unknown_keys_anywhere_and_other_types_and_explains_keys(schema: Any) -> None:
    nodes = [schema.schema]
    for node in nodes:
        children = node.values() if isinstance(node, dict) else node
        nodes += [child for child in children if isinstance(child, dict | list)]
        assert "properties" not in node or node["additionalProperties"] is False, node
    mappings = [node for node in nodes if isinstance(node, dict) and node.get("type") == "object"]
    any_keys = [node for node in mappings if not node.keys() & {"properties", "patternProperties"}]
    # Only the changes of a layer and of a growth have keys that the schema does not know.
    assert sum(node.get("additionalProperties", True) is True for node in any_keys) == 2
    for text in (
        *("seq_len: long", "model: {ffn: {kind: swiglo}}", "model: {n_layers: 0}", "train: {steps: 1.5}", "witdh: 1"),
        *("compare: {variants: {x: {modle: {}}}}", "sweep: {rungs: {x: {train: {step: 1}}}}"),
    ):
        assert not schema.is_valid(yaml.safe_load(text)), text
    steps = schema.schema["$defs"]["TrainConfig"]["properties"]["steps"]
    assert steps["description"].startswith("Optimizer steps of the run, or a budget for them: `{training_flops: 1e15}`")


def test_a_shell_completes_verbs(tmp_path: Path) -> None:
    script = tmp_path / "widthwise"  # the name by which a shell asks
    script.write_text("from widthwise.__main__ import main\nmain()\n")
    variables = {"COMP_WORDS": "widthwise s", "COMP_CWORD": "1", "_WIDTHWISE_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, script], env={**os.environ, **variables}, capture_output=True, text=True)
    assert {verb for verb in PATHS if re.search(rf"\b{verb}\b", done.stdout)} == {
        "schema",
        "search",
        "shrink",
        "sweep",
    }


def test_it_serves_until_ctrl_c_and_its_recipe_inspects_alike(recipe: Path, tmp_path: Path, answer) -> None:
    command = [sys.executable, "-m", "widthwise", "explore", recipe, "train.steps=5", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = re.match(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        query = "?shape=x&turn_width=0.5&d_model=48"
        with urllib.request.urlopen(f"{url[0]}costs{query}", timeout=60) as reply:
            found = json.load(reply)["inspection"]
        with urllib.request.urlopen(f"{url[0]}recipe.yaml{query}", timeout=60) as reply:
            (tmp_path / "explored.yaml").write_bytes(reply.read())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert answer("inspect", tmp_path / "explored.yaml") == found


SIGNAL_AT_IMPORT = """
import runpy, signal, sys
from importlib.abc import MetaPathFinder

module, number = sys.argv[1:]

class SignalAtImport(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
            signal.raise_signal(int(number))

sys.meta_path.insert(0, SignalAtImport())
sys.argv[:] = ["widthwise", "resume", "absent"]
runpy.run_module("widthwise", run_name="__main__")
"""


@pytest.mark.parametrize(("module", "number"), [("typer", signal.SIGINT), ("torch.nn", signal.SIGTERM)])
def test_a_signal_during_an_import_is_one_line(module: str, number: int) -> None:
    command = [sys.executable, "-c", SIGNAL_AT_IMPORT, module, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (128 + number, 1)
    assert done.stderr.startswith("error: stopped by a signal")
