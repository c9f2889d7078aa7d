"""Growth and cuts on the command line: `grow`, `shrink`, and events of growth in `inspect` and `train`."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from widthwise.recipe.recipe import load_recipe
from widthwise.training import checkpoint


def test_grow_to_a_recipe_and_resume(small: str, succeeds) -> None:
    out, _ = succeeds("grow", small, "--to", "wide.yaml", "--out", "large")
    for line in (
        "  embedding and head: width 32 -> 48 (hidden dimension expansion)",
        "  layers 1-3, 5-7: attention queries and keys 8 -> 12 a head (attention expansion)",
        "  layers 1-3, 5-7: attention.scale stays 0.353553 (the recipe would have 0.288675)",
        "function preserved (2 x 32 random tokens, float64)",
        "next: widthwise resume large",
    ):
        assert line in out.splitlines()
    assert "layer 4: added, width 48, 4 heads of 12, swiglu feed-forward of 192 hidden units, silent at first (" in out
    kept = {"config.yaml", "environment.json", "metrics.jsonl", "certificate.json", "checkpoints", "tokenizer"}
    assert {path.name for path in Path("large").iterdir()} == kept
    environment = json.loads(Path("large/environment.json").read_text())
    assert environment["command"] == "widthwise grow small --to wide.yaml --out large"
    out, err = succeeds("resume", "large", "--json")
    assert "large: resuming after step 3 of 5" in err
    assert json.loads(out)["steps"] == 5


def test_grow_by_changes_to_the_own_recipe(small: str, answer) -> None:
    found = answer("grow", small, "model.layers.1.ffn.d_ff=160", "--out", "large")
    assert found["expansions"] == ["layer 2: feed-forward 128 -> 160 hidden units (MLP expansion)"]
    assert any("train.steps = 3 is the current step" in note for note in found["notes"])


def test_a_plan_writes_nothing_and_sizes_grow_the_recipe_as_one_with_these_sizes_would(small, succeeds, answer):
    before = sorted(Path().rglob("*"))
    out, _ = succeeds("grow", small, "--to", "wide.yaml", "--plan-only")
    assert "layer 4: added" in out
    assert "nothing was written" in out
    sizes = ("--d-model", 48, "--head-dim", 12, "--d-ff", 192, "--add-layers", 1, "train.steps=5")
    plans = [answer("grow", small, *way, "--plan-only") for way in (("--to", "wide.yaml"), sizes)]
    assert plans[0] == plans[1]
    assert sorted(Path().rglob("*")) == before


OTHER = {"ffn": {"kind": "hourglass", "n_blocks": 2, "ratio": 4}, "mtp": {}}
HOURGLASS = "  layers 1-6: feed-forward swiglu -> hourglass, whose first block it becomes (conversion)"
HEADS = "  MTP heads: 1 added, which do not affect the logits (multi-token prediction)"
FORMS = {
    "--to other.yaml": (HEADS, HOURGLASS),
    "--to-shape x --turn-width 0.7": ("  embedding and head: width 32 -> 40 (hidden dimension expansion)",),
    "--virtual-width 1.5": ("  residual: plain -> 3 slots of 16 (virtual width)",),
    "--ffn hourglass": (HOURGLASS,),
}


def test_every_other_form_is_planned_and_a_change_of_the_function_is_certified(small, succeeds, next_command) -> None:
    Path("other.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "model": OTHER, "train": {"steps": 5}}))
    for form, lines in FORMS.items():
        out, _ = succeeds("grow", small, *form.split(), "--plan-only")
        assert all(f"\n{line}" in f"\n{out}" for line in lines), out
    out, _ = succeeds("grow", small, "--to", "wide.yaml", "--allow-change", "--out", "large")
    assert "constants that change:" in out
    assert "function CHANGED" in out
    assert not json.loads(Path("large/certificate.json").read_text())["is_preserved"]
    _, err = succeeds(*next_command(out, **{"train.steps=STEPS": "train.steps=4"}))
    assert "resuming after step 3 of" in err


def test_options_say_where_layers_go(small: str, succeeds) -> None:
    out, _ = succeeds("grow", small, "--add-layers", 1, "--layers", "0,1,2,3,4,5,new", "--plan-only")
    assert "  layer 7: added" in out


def test_a_signal_leaves_nothing_half_written(small: str, widthwise, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(Path().rglob("*"))
    monkeypatch.setattr(checkpoint, "write", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, out, err = widthwise("grow", small, "--to", "wide.yaml", "--out", "large")
    assert (code, out, "error: stopped by a signal" in err) == (143, "", True)
    assert sorted(Path().rglob("*")) == before


DEEPER = "growth=[{at_step: 2, model: {n_layers: 8}}]"


def test_inspect_shows_what_every_phase_costs_and_train_the_losses_on_both_sides(recipe, tmp_path, succeeds) -> None:
    models = [load_recipe(recipe, [DEEPER]).model_at(step) for step in (2, 3)]
    shown = " ".join(succeeds("inspect", recipe, DEEPER)[0].split())
    for step, model, n_tokens in ((0, models[0], 2 * 4 * 24), (2, models[1], 4 * 24)):
        assert f"after step {step}: {model.cost().params:,} parameters for {n_tokens} tokens" in shown
    _, err = succeeds("train", recipe, DEEPER, "--out", tmp_path / "run")
    sizes, losses = r"from ([\d,]+) to ([\d,]+) parameters", r"validation loss (\S+) to (\S+)"
    found = re.search(f"run: step 2/3  growth {sizes}, {losses}", err)
    assert [int(found[i].replace(",", "")) for i in (1, 2)] == [model.cost().params for model in models]
    assert abs(float(found[3]) - float(found[4])) < 2e-6


def test_a_cut_is_planned_and_a_cut_run_trains_on_and_leaves(small: str, succeeds: Callable, answer: Callable) -> None:
    before = sorted(Path().iterdir())
    plan = answer("shrink", small, "--params", 0.9, "--shape", "x", "--plan-only")
    assert plan["request"]["shape"] == "x"
    assert plan["before"]["params"] > plan["after"]["params"]
    assert sorted(Path().iterdir()) == before
    words = ("shrink", small, "--flops", 0.8, "--calibration-batches", 2, "--out", "cut", "train.steps=3")
    out, _ = succeeds(*words)
    lines = out.splitlines()
    assert any("before any healing" in line for line in lines[:2])
    assert lines[-2:] == ["wrote cut", "next: widthwise resume cut"]
    record = json.loads(Path("cut/shrunk.json").read_text())
    assert record["after"]["flops_per_token"] <= 0.8 * record["before"]["flops_per_token"]
    succeeds("resume", "cut")
    succeeds("export", "cut", "exported")
