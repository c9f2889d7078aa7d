"""`widthwise train`, `resume` and `plan` from argument to output."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from widthwise.recipe.recipe import load_recipe
from widthwise.reports.formats import amount

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
    source = {"corpus": "synthetic", "tokenizer": "bytes"}
    mixture = {"a": {**source, "weight": 3}, "b": {**source, "weight": 1}}
    out, err = succeeds("train", "base.yaml", f"data={json.dumps({'mixture': mixture})}")
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


def test_what_else_was_validated_is_said(succeeds) -> None:
    Path("text.txt").write_text("a text that is longer than one window of the recipe\n")
    Path("quiz.jsonl").write_text('{"context": "one two", "continuation": "three"}\n')
    validation = "validation={texts: {prose: {source: text.txt}}, tasks: {quiz: {file: quiz.jsonl}}}"
    out, _ = succeeds("train", "base.yaml", "--out", "run", "model.n_layers=2", validation)
    result = json.loads(Path("run/result.json").read_text())
    assert f"  on prose: loss {result['val_texts']['prose']['loss']:.4f}, " in out
    assert "  on quiz: accuracy 0.00% of 1 items" in out


SHAPE = ("train.batch_size=64", "train.micro_batch_size=2")
SMALL = ("seq_len=512", "model.vocab_size=512", "data.tokenizer=bpe-512")


def test_it_says_whether_a_recipe_fits(recipe: Path, succeeds, answer) -> None:
    plan = answer("plan", recipe, "--device", "rtx4090")
    tokens = amount(240 / plan["deployments"][0]["run_hours"] * plan["tokens"])
    out, _ = succeeds("plan", recipe, "--device", "rtx4090", "--days", "10")
    assert out.startswith("fits on 1 device: a model of ")
    words = " ".join(out.split())
    for part in ("RTX 4090 has 24.0GB", "largest pass, checkpointing none", f"tokens that 10 d allow {tokens}"):
        assert part in words


def test_what_would_fit_is_named(recipe: Path, succeeds, answer, next_command) -> None:
    sizes = ("train.batch_size=64", "model.vocab_size=8192", "seq_len=128")
    needed = answer("plan", recipe, *sizes, "--device", "1GB")["deployments"][0]["memory"]["total_bytes"]
    out, _ = succeeds("plan", recipe, *sizes, "--memory", f"{needed / 1e6 - 1:.3f}MB")
    assert out.startswith("does not fit on 1 device: ")
    assert out.splitlines()[0].endswith("; train.micro_batch_size=32 would fit")
    assert next_command(out)[-1] == "train.micro_batch_size=32"


def test_where_nothing_fits_the_exit_code_says_so_and_shards_are_tried(recipe: Path, widthwise) -> None:
    code, out, error = widthwise("plan", recipe, "--device", "10kB")
    assert code == 2
    assert out.startswith("does not fit on 1 device: ")
    assert error == "error: --device: not even one sequence fits into the 10.0kB of the device\n"


def test_json_is_the_record(recipe: Path, answer) -> None:
    rates = ("--tflops", "82", "--memory-bandwidth", "1TB/s", "--mfu", "0.5")
    plan = answer("plan", recipe, *SHAPE, "train.shards=2", "--devices", "8", "--memory", "24GB", *rates)
    (run,) = plan["deployments"]
    assert (plan["device_memory_bytes"], plan["mfu"], run["fits"]) == (24e9, 0.5, True)
    assert (run["n_devices"], run["n_shards"], run["n_passes"]) == (8, 2, 4)
    assert run["communication_seconds"] is None


def test_a_proposal_can_be_written_and_planned(succeeds, refused, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    asked = ("--params", "3M", "--shape", "x", "--device", "rtx3060")
    text, _ = succeeds("plan", *SMALL, *asked, "--out", out)
    assert text.startswith("proposed: the size nearest to 3,000,000 parameters, ")
    proposed = [int(each.replace(",", "")) for each in re.findall(r"parameters, ([\d,]+) \(", text)]
    assert f" ({proposed[0] / 3e6 - 1:+.1%}); 20 tokens per parameter" in text
    assert f"wrote {out}" in text
    written = load_recipe(out)
    assert len(set(written.explicit_model.widths)) > 1
    assert proposed == [written.explicit_model.cost().params]
    assert written.model.vocab_size == 512  # type: ignore
    written.check()
    assert (written.data.path, written.data.corpus) == ("FILL_IN", None)  # type: ignore
    assert text.endswith("next: widthwise data prepare TEXT --tokenizer bpe-512 --out FILL_IN\n")
    again, _ = succeeds("plan", out, "--device", "rtx3060")
    assert again.splitlines()[0] in text
    assert refused("plan", *asked, "--out", out) == f"{out}: exists already; choose another --out"


def test_one_variant_is_planned(recipe: Path, tmp_path: Path, answer) -> None:
    path = tmp_path / "d_model=64.yaml"
    path.write_text("extends: base.yaml\ncompare: {match: none, variants: {base: {}, wide: {model: {d_model: 64}}}}\n")
    alone = answer("plan", recipe, "model.d_model=64", "--device", "24GB")
    assert answer("plan", path, "--variant", "wide", "--device", "24GB") == alone


def test_a_dry_run_of_train_is_the_plan_for_this_machine(recipe: Path, succeeds, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(total_memory=85_000_000_000))
    dry, _ = succeeds("train", recipe, *SHAPE, "--dry-run")
    plan, _ = succeeds("plan", recipe, *SHAPE, "--device", "H100")
    assert plan.startswith(dry)
    assert not (tmp_path / "runs").exists()
