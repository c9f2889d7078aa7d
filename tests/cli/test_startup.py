"""What a verb imports before it answers: importing torch takes longer than the answer of those that only count."""

import json
import subprocess
import sys

import pytest

from widthwise.yaml_io import recipes_folder

HEAVY = ("torch", "scipy", "altair", "vl_convert", "transformers")
LATE = ("torch._dynamo", "scipy", "altair", "vl_convert", "transformers")
"""What is imported only when something is compiled, analysed, drawn or exported: each takes about as long as torch."""
FEW = (
    "train --help",
    "inspect x_virtual_width_200m --json",
    "inspect qwen_134m_guess_dynamic",
    "inspect x_moe_3b",
    "runs {recipes}",
    "eval /nowhere",
    "generate /nowhere",
    "analyze /nowhere",
)
MORE = (
    "--help",
    "inspect x_2b",
    "inspect quickstart",
    "design uniform_200m --kind x --turn-layer 0.75 --turn-width 0.3",
    "search conventional_113m --json",
    "schema",
    "sweep ladder_small --dry-run",
    "compare compare_ffn --dry-run",
)
"""Verbs that need sizes and costs alone: of a solved shape, of every component, of several variants."""

IMPORTED_BY = """
import json, sys
from widthwise.cli.main import main
from widthwise.explorer.server import Answers
from widthwise.explorer.server import ExplorerServer
from widthwise.explorer.setting import Setting

*verbs, path = sys.argv[1:]
Answers("x_200m").costs(Setting(d_model=704))
found = {"explore": [name for name in HEAVY if name in sys.modules]}
for verb in verbs:
    sys.argv = ["widthwise", *verb.split()]
    try:
        main()
    except SystemExit as end:
        assert (end.code or 0) == (2 if "/nowhere" in verb else 0), (verb, end.code)
    found[verb] = [name for name in HEAVY if name in sys.modules]
import widthwise.runs.train
found["to train"] = [name for name in LATE if name in sys.modules]
with open(path, "w") as file:
    json.dump(found, file)
"""


@pytest.mark.parametrize("verbs", [FEW, pytest.param(MORE, marks=pytest.mark.hard)], ids=["few", "more"])
def test_what_only_counts_imports_nothing_heavy(tmp_path, verbs):
    """In one process, so that of several culprits the first is named with the verbs behind it."""
    path = tmp_path / "imported.json"
    verbs = [verb.format(recipes=recipes_folder()) for verb in verbs]
    script = f"HEAVY, LATE = {HEAVY}, {LATE}\n{IMPORTED_BY}"
    subprocess.run([sys.executable, "-c", script, *verbs, path], check=True, stdout=subprocess.DEVNULL, timeout=300)
    assert json.loads(path.read_text()) == {verb: [] for verb in ("explore", *verbs, "to train")}
