"""`grow`, `bake` and `pad`, from a run to a run that trains on."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import yaml

from widthwise.recipe.recipe import load_recipe
from widthwise.runs.train import train
from widthwise.training import checkpoint


@pytest.fixture
def small(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A finished run, and wide.yaml, in the working folder."""
    monkeypatch.chdir(recipe.parent)
    train(load_recipe(recipe), "small")
    wide = {
        "extends": "base.yaml",
        "model": {"d_model": 48, "n_layers": 7, "attention": {"head_dim": 12}},
        "train": {"steps": 5},
    }
    Path("wide.yaml").write_text(yaml.safe_dump(wide))
    return "small"


def test_grow_to_a_recipe_then_bake_and_resume(small: str, widthwise: Callable) -> None:
    code, out, err = widthwise("grow", small, "--to", "wide.yaml", "--out", "large")
    assert code == 0, err
    for line in (
        "  embedding and head: width 32 -> 48 (hidden dimension expansion)",
        "  layers 0-2, 4-6: attention queries and keys 8 -> 12 a head (attention expansion)",
        "  layer 3: added, width 48, 4 heads of 12, swiglu feed-forward of 192 hidden units, silent at first (layer "
        "addition)",
        "  layers 0-2, 4-6: attention.scale stays 0.353553 (the recipe would have 0.288675)",
        "function preserved (2 x 32 random tokens, float64)",
        "wrote large, step 3",
        "next: widthwise resume large",
    ):
        assert line in out.splitlines()
    assert "0 do not" in out
    assert {path.name for path in Path("large").iterdir()} == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "certificate.json",
        "checkpoints",
        "tokenizer",
    }
    environment = json.loads(Path("large/environment.json").read_text())
    assert environment["command"] == "widthwise grow small --to wide.yaml --out large"
    code, out, err = widthwise("bake", "large", "--out", "baked", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["certificate"]["is_preserved"]
    assert "final_norm.norm_dim 32 -> 48" in found["changes"]
    losses = []
    for run in ("large", "baked"):
        code, out, err = widthwise("resume", run, "--json")
        assert code == 0, err
        assert f"{run}: going on after step 3 of 5" in err
        losses.append(json.loads(out)["val_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=0.01)
    assert widthwise("generate", "baked", "--prompt", "a", "--max-new-tokens", 3)[0] == 0


def test_grow_by_changes_to_the_own_recipe(small: str, widthwise: Callable) -> None:
    code, out, err = widthwise("grow", small, "model.layers.1.ffn.d_ff=160", "--out", "large", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["expansions"] == ["layer 1: feed-forward 128 -> 160 hidden units (MLP expansion)"]
    assert found["after"]["params"] - found["before"]["params"] == 3 * 32 * 32
    assert found["certificate"]["liveness"]["layers.1.ffn.w_up.weight"]["n_alive"] == 32 * 32
    assert any("train.steps = 3 is the step reached" in note for note in found["notes"])
    code, out, err = widthwise("resume", "large")
    assert code == 0, err
    assert "3 steps" in out


def test_plan_only_writes_nothing(small: str, widthwise: Callable) -> None:
    before = sorted(Path().rglob("*"))
    code, out, _ = widthwise("grow", small, "--to", "wide.yaml", "--plan-only")
    assert code == 0
    assert "layer 3: added" in out
    assert "nothing was written" in out
    code, out, _ = widthwise("grow", small, "--to", "wide.yaml", "--plan-only", "--json")
    assert json.loads(out)["bake_helps"]
    assert sorted(Path().rglob("*")) == before


def test_sizes_grow_the_recipe_of_the_run_as_a_recipe_with_these_sizes_would(small: str, widthwise: Callable) -> None:
    sizes = ("--d-model", 48, "--head-dim", 12, "--d-ff", 192, "--add-layers", 1, "train.steps=5")
    outputs = [
        widthwise("grow", small, *arguments, "--plan-only", "--json") for arguments in (("--to", "wide.yaml"), sizes)
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == 0
    code, out, err = widthwise("grow", small, *sizes, "--out", "large")
    assert code == 0, err
    assert "0 do not" in out


def test_a_run_becomes_one_of_other_kinds_that_computes_the_same(small: str, widthwise: Callable) -> None:
    ffn = {"kind": "hourglass", "n_blocks": 2, "ratio": 4}
    other = {
        "extends": "base.yaml",
        "model": {"ffn": ffn, "attention": {"bias": True}, "mtp": {}},
        "train": {"steps": 5},
    }
    Path("other.yaml").write_text(yaml.safe_dump(other))
    code, out, err = widthwise("grow", small, "--to", "other.yaml", "--out", "converted")
    assert code == 0, err
    for line in (
        "  further heads: 1 added, which the model does not read (multi-token prediction)",
        "  layers 0-5: feed-forward swiglu -> hourglass, whose first block it becomes (conversion)",
        "function preserved (2 x 32 random tokens, float64)",
    ):
        assert line in out.splitlines()
    assert "0 do not" in out
    assert widthwise("resume", "converted")[0] == 0


@pytest.mark.parametrize(
    "residual",
    [
        {"kind": "virtual", "width": 1.5, "embedding": "expand"},
        {"kind": "hyper_connections", "slot_width": 8, "n_slots": 7, "reduce": "slot"},
        {"kind": "hyper_connections", "n_slots": 2},
    ],
)
def test_another_residual_is_said_as_in_a_recipe(small: str, residual: dict, widthwise: Callable) -> None:
    """Whatever the order of the changes."""
    d_ff = "model.layers.1.ffn.d_ff=160"
    other = {"extends": "base.yaml", "model": {"residual": {**residual, "state_every": 3}}}
    Path("other.yaml").write_text(yaml.safe_dump(other))
    said = (f"model.residual={json.dumps(residual)}", "model.residual.state_every=3")
    ways = (("--to", "other.yaml", d_ff), (*said, d_ff), (d_ff, *said))
    plans = [widthwise("grow", small, *way, "--plan-only", "--json") for way in ways]
    assert plans[0][0] == 0, plans[0]
    assert plans[0] == plans[1] == plans[2]
    code, out, err = widthwise("grow", small, *said, "train.steps=4", "--out", "large")
    assert code == 0, err
    assert "function preserved" in out
    assert widthwise("resume", "large")[0] == 0


def test_layers_say_where_added_ones_go(small: str, widthwise: Callable) -> None:
    arguments = ("--layers", "0,1,2,3,4,5,new", "--new-layers", "copied", "--seed", 7, "--reset", "new")
    code, out, err = widthwise("grow", small, "--to", "wide.yaml", *arguments, "--out", "large")
    assert code == 0, err
    assert "  layer 6: added" in out
    assert "  layers 0-5: feed-forward 128 -> 192 hidden units (MLP expansion)" in out


def test_the_side_that_is_zero_and_the_size_of_the_other_can_be_chosen(small: str, widthwise: Callable) -> None:
    arguments = ("--d-ff", 192, "--zero-side", "inputs", "--new-std", 0.03)
    code, out, err = widthwise("grow", small, *arguments, "--out", "large")
    assert code == 0, err
    assert "0 do not" in out
    checkpoint_folder = Path("large/checkpoints/step_00000003")
    weights = safetensors.torch.load_file(checkpoint_folder / "model.safetensors")
    assert not weights["layers.2.ffn.w_up.weight"][128:].any()
    assert weights["layers.2.ffn.w_down.weight"][:, 128:].std().item() == pytest.approx(0.03, rel=0.1)


def test_new_units_can_be_chosen_by_the_gradient_of_the_next_batch(small: str, widthwise: Callable) -> None:
    arguments = ("--d-ff", 192, "train.steps=4")
    for name in ("drawn", "gradmax"):
        code, out, err = widthwise("grow", small, *arguments, "--new-weights", name, "--out", name)
        assert code == 0, err
        assert "function preserved" in out
        assert "0 do not" in out
        assert widthwise("resume", name)[0] == 0
    records = [map(json.loads, Path(name, "metrics.jsonl").read_text().splitlines()) for name in ("drawn", "gradmax")]
    norms = [[each["grad_norm"] for each in run if each["event"] == "train"][-1] for run in records]
    assert norms[1] > norms[0]


def test_layers_are_stacked_and_the_certificate_says_that_the_function_changed(small: str, widthwise: Callable) -> None:
    arguments = ("--add-layers", 6, "--new-layers", "stacked", "--allow-change", "train.steps=5")
    code, out, err = widthwise("grow", small, *arguments, "--out", "stacked")
    assert code == 0, err
    assert "layers 6-11: added" in out
    assert "a whole copy, which changes the function (layer stacking)" in out
    assert "function CHANGED" in out
    assert widthwise("resume", "stacked")[0] == 0


def test_allow_change_takes_constants_from_the_recipe(small: str, widthwise: Callable) -> None:
    code, out, err = widthwise("grow", small, "--to", "wide.yaml", "--allow-change", "--out", "large")
    assert code == 0, err
    assert "constants that change:" in out
    assert "function CHANGED" in out
    assert not json.loads(Path("large/certificate.json").read_text())["is_preserved"]
    assert widthwise("resume", "large")[0] == 0


def test_pad_says_that_it_pads(small: str, widthwise: Callable) -> None:
    code, out, err = widthwise("pad", small, "--d-ff-multiple", 96, "--heads-multiple", 3, "--out", "padded")
    assert code == 0, err
    assert "layers 0-5: feed-forward 128 -> 192 hidden units (MLP expansion)" in out
    assert "attention 4 -> 6 heads" in out
    assert "new entries, all 0: padding, of which 0 would learn" in out
    assert widthwise("resume", "padded")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "wide.yaml"), "--out: is required"),
        (("--out", "large"), "got nothing to grow to"),
        (("--to", "wide.yaml", "model.vocab_size=300", "--out", "large"), "vocab_size: got 300 where it was 257"),
        (("--to", "wide.yaml", "model.n_layers=2", "--out", "large"), "n_layers: got 2 where there were 6"),
        (("--to", "wide.yaml", "train.steps=2", "--out", "large"), "train.steps: got 2"),
        (("--to", "wide.yaml", "--layers", "0,1,neu", "--out", "large"), "--layers: got '0,1,neu'"),
        (("--to", "wide.yaml", "--layers", "0,1,new", "--out", "large"), "layers: got [0, 1, null]"),
        (
            ("--add-layers", 6, "--new-layers", "stacked", "--out", "large"),
            "--new-layers: got stacked, which changes the function; it needs --allow-change",
        ),
        (
            ("--d-ff", 256, "train.steps=9", "--new-weights", "copied", "--freeze-steps", 2, "--out", "large"),
            "--new-weights: got copied; copies and old entries are told apart in a recipe that grows only",
        ),
        (
            ("--d-ff", 192, "--new-std", "0", "--out", "large"),
            "--new-std: got '0'; must be a number above 0, or initial",
        ),
        (("--to", "wide.yaml", "--reset", "some", "--out", "large"), "--reset"),
        (
            ("--to", "wide.yaml", "--rewarmup-steps", "9", "--out", "large"),
            "--rewarmup-steps: got 9; the run has only 2",
        ),
        (("model.n_layers=7", "--out", "large"), "model.n_layers: small has every layer written out"),
        (
            ("model.shape={kind: x}", "--out", "large"),
            "give the recipe that it was trained from, as --to RECIPE 'model.shape={kind: x}'",
        ),
        (("model.residual={kind: virtual, width: 1.51}", "--out", "large"), "model.residual.width: got 1.51; must be"),
        (("model.residual={kind: virtual, width: 1.2}", "--out", "large"), "model.residual.n_fractions: got 5; must"),
        (("model.d_model=48", "--out", "large"), "or use --d-model"),
        (("--to", "wide.yaml", "--out", "small"), "small: exists already"),
        (("--to", "nowhere.yaml", "--out", "large"), "nowhere.yaml: cannot be read"),
        (("--to", "wide.yaml", "--d-ff", 192, "--out", "large"), "--to: conflicts with --d-ff"),
        (("--d-ff", 96, "--out", "large"), "got 96 hidden units where there were 128"),
        (
            ("--d-ff", 10**12, "--out", "large"),
            "d_ff: got 1000000000000; input should be less than or equal to 1048576",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    small: str, widthwise: Callable, arguments: tuple[str, ...], message: str
) -> None:
    before = sorted(Path().rglob("*"))
    code, out, err = widthwise("grow", small, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
    assert sorted(Path().rglob("*")) == before


def test_a_signal_leaves_nothing_half_written(small: str, widthwise: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(Path().rglob("*"))
    monkeypatch.setattr(checkpoint, "save", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, out, err = widthwise("grow", small, "--to", "wide.yaml", "--out", "large")
    assert (code, out) == (143, "")
    assert "error: stopped by a signal" in err
    assert sorted(Path().rglob("*")) == before


def test_nothing_to_bake_or_pad_is_said(small: str, widthwise: Callable) -> None:
    assert "nothing to bake" in widthwise("bake", small, "--out", "baked")[2]
    assert "nothing to pad" in widthwise("pad", small, "--d-ff-multiple", 64, "--out", "padded")[2]
    assert not Path("baked").exists()
