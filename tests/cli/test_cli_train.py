import json
from pathlib import Path

import pytest

SIX_STEPS = ("model.n_layers=2", "train.steps=6", "train.log_every=2")


@pytest.fixture(autouse=True)
def _here(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)


def test_train_prints_lines_while_it_goes_and_the_result_at_the_end(succeeds) -> None:
    out, err = succeeds("train", "base.yaml", *SIX_STEPS, "train.seed=5")
    assert "base: step 4/6  train loss" in err
    assert "validation loss" in out
    assert json.loads(Path("runs/base/result.json").read_text())["seed"] == 5


def test_a_mixture_is_told_at_the_start_and_by_source_at_the_end(succeeds) -> None:
    sources = [
        f"{name}: {{corpus: synthetic, tokenizer: bytes, weight: {weight}}}" for name, weight in (("a", 3), ("b", 1))
    ]
    out, err = succeeds("train", "base.yaml", f"data={{mixture: {{{', '.join(sources)}}}}}")
    assert "data: a 75.0% of the windows, each read " in err
    losses = json.loads(Path("runs/base/result.json").read_text())["val_losses"]
    assert f"by source     a {losses['a']:.4f}, b {losses['b']:.4f}\n" in out


def test_json_alone_is_on_standard_output_and_finished_runs_are_told(succeeds) -> None:
    out, _ = succeeds("train", "base.yaml", "--out", "there", "--json")
    assert json.loads(out)["steps"] == 3
    again, err = succeeds("resume", "there", "--json")
    assert json.loads(again) == json.loads(out)
    assert err == "there: has finished already\n"


def test_a_diverging_run_is_one_line_and_exit_code_1(widthwise) -> None:
    code, _, err = widthwise("train", "base.yaml", "optimizer.lr=1e38", "train.log_every=1")
    assert code == 1
    assert "stopped at step 2 of 3" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_what_else_was_validated_and_which_checkpoint_is_best_is_said(succeeds) -> None:
    Path("text.txt").write_text("a text that is longer than one window of the recipe\n")
    Path("quiz.jsonl").write_text('{"context": "one two", "continuation": "three"}\n')
    kept = ("train.checkpoint_every=1", "train.validate_every=1", "train.keep_best=true", "model.n_layers=2")
    validation = "validation={texts: {prose: {source: text.txt}}, tasks: {quiz: {file: quiz.jsonl}}}"
    out, _ = succeeds("train", "base.yaml", "--out", "run", *kept, validation)
    result = json.loads(Path("run/result.json").read_text())
    assert f"  on prose: loss {result['val_texts']['prose']['loss']:.4f}, " in out
    assert "  on quiz: accuracy 0.00% of 1 items" in out
    assert f"best checkpoint step {result['best_step']}, by the held-out loss" in out
