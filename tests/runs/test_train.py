import json
import re
import statistics
from unittest.mock import Mock

import pytest
import torch
from boxes import refusal
from tiny_runs import Listener, outcome, records, tiny_recipe

from widthwise.data.corpus import Corpus, Document
from widthwise.data.prepare import prepare
from widthwise.mistakes import RunFailed
from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train, train_or_resume
from widthwise.training.objective import Objective
from widthwise.yaml_io import dump_yaml, parse_yaml

NO_DATA = "data={path: nowhere}"


def test_record_loss_is_the_mean_since_the_last_record_and_train_loss_of_the_last_steps(finished, tmp_path):
    train(tiny_recipe("train.log_every=1"), tmp_path / "run")
    losses = [record["loss"] for record in records(tmp_path / "run", "train")]
    logged = [record["loss"] for record in records(finished, "train")]
    assert logged == pytest.approx([statistics.fmean(part) for part in (losses[:4], losses[4:8], losses[8:])])
    assert RunDir(finished).result()["train_loss"] == pytest.approx(statistics.fmean(losses[-5:]))


def test_result_holds_what_reports_and_comparisons_read(finished):
    result, recipe = RunDir(finished).result(), tiny_recipe()
    assert (result["status"], result["name"], result["notes"]) == ("finished", "run", [])
    assert (result["seed"], result["steps"], result["tokens"]) == (3, 9, 9 * 4 * 17)
    assert (result["loss_window_steps"], len(result["val_window_losses"])) == (5, 90 // 17)
    assert result.n_val_tokens == 90 // 17 * 17
    assert result.data.n_train_tokens > result.data.n_held_out_tokens >= result.n_val_tokens
    assert result["val_loss"] == pytest.approx(statistics.fmean(result["val_window_losses"]))
    seconds = [record["step_seconds"] for record in records(finished, "train")]
    assert result["tokens_per_second"] == pytest.approx(4 * 17 / statistics.median(seconds))
    flops = result["cost"]["flops_per_token"]["training"]
    assert flops == recipe.explicit_model.cost().training_flops(17)
    assert result["pflops_days"] == pytest.approx(flops * recipe.n_tokens / 8.64e19)


def test_finished_run_is_returned_and_not_trained_again(finished):
    for again in (lambda it: train(tiny_recipe(), finished, it), lambda it: resume(finished, it)):
        listener = Listener(at_step=pytest.fail)
        assert again(listener) == RunDir(finished).result()
        assert listener.messages == [f"{finished}: has finished already"]


def test_unfinished_run_is_resumed_only_on_request(finished, tmp_path):
    """Also one of a version without options that were added later, which count as their defaults."""
    run, data = RunDir(tmp_path / "run"), parse_yaml(RunDir(finished).config_yaml(), "config.yaml")
    del data["optimizer"]["decays_scales"], data["model"]["layers"][0]["attention"]["score_cap"]
    run.begin(dump_yaml(data), RunDir(finished).environment())
    assert f"unfinished run; `widthwise resume {run.path}` continues it" in refusal(train, tiny_recipe(), run.path)
    another = "holds a run of another recipe (train.seed from 3 to 4)"
    assert another in refusal(train, tiny_recipe("train.seed=4"), run.path)
    train_or_resume(tiny_recipe(), run.path)
    assert outcome(run.path) == outcome(finished)


def test_a_run_whose_record_of_its_data_is_lost_takes_up_no_other(finished, tmp_path):
    run = RunDir(tmp_path / "run")
    run.begin(RunDir(finished).config_yaml(), {k: v for k, v in RunDir(finished).environment().items() if k != "data"})
    assert "run/environment.json: data" in refusal(train_or_resume, tiny_recipe(), run.path)


def test_mistakes_are_found_before_anything_is_written(tmp_path, monkeypatch):
    mistakes = {
        "schedule.warmup_steps=9": "warmup_steps: got 9; must be less than train.steps = 9",
        "model.vocab_size=250": "model.vocab_size: got 250; must be at least 257",
        "train.validation_tokens=16": "validation_tokens: got 16",
        "seq_len=100000000": "seq_len",
        NO_DATA: "nowhere",
        "optimizer.lr_factors={nothing: 2.0}": "lr_factors",  # which only the built model shows
    }
    path = tmp_path / "runs" / "new" / "run"
    for override, message in mistakes.items():
        assert message in refusal(train, tiny_recipe(override), path)
        assert list(tmp_path.iterdir()) == [], override
    shared = tiny_recipe("train.batch_size=6", "train.shards=2")
    message = "train.shards: got 2; must divide the number of processes, which is {}; `train.shards=1` does"
    for n in (1, 3):
        monkeypatch.setenv("WORLD_SIZE", str(n))
        assert message.format(n) in refusal(train, shared, path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_begin_leaves_what_stood_there_before(tmp_path):
    for folder in ("runs", "mine", "noted"):
        (tmp_path / folder).mkdir()
    (tmp_path / "noted" / "note.txt").write_text("mine")
    for path in ("runs/run", "mine", "noted"):
        refusal(train, tiny_recipe(NO_DATA), tmp_path / path)
    assert list((tmp_path / "runs").iterdir()) == []
    assert (tmp_path / "mine").is_dir()
    assert (tmp_path / "noted" / "note.txt").read_text() == "mine"


def test_too_little_memory_names_the_key_to_change(tmp_path, monkeypatch):
    monkeypatch.setattr(Objective, "backward", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    said = refusal(train, tiny_recipe(), tmp_path / "run")
    assert "train.micro_batch_size: 2 sequences do not fit" in said
    assert "divisor of the 4 that a process has" in said


def test_data_that_changed_or_were_damaged_since_the_start_are_refused(tmp_path):
    def corpus(text: str) -> Corpus:
        return Corpus("test", lambda: (Document(str(index), f"{index} {text}" * 20) for index in range(60)))

    data = tmp_path / "data"
    prepare(corpus("one"), data, tokenizer="bytes", held_out=0.3)
    recipe = tiny_recipe(f"data={{path: {data}}}")
    train(recipe, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    whole = (data / "train.bin").read_bytes()
    (data / "train.bin").write_bytes(b"\xff" * len(whole))
    for again in ((train, recipe, tmp_path / "other"), (resume, tmp_path / "run")):
        assert "train.bin: its checksum differs from the manifest's" in refusal(*again)
    assert not RunDir(tmp_path / "other").exists
    data.rename(tmp_path / "old")
    prepare(corpus("two"), data, tokenizer="bytes", held_out=0.3)
    assert "was trained on other data" in refusal(resume, tmp_path / "run")


@pytest.mark.parametrize(
    ("wild", "message"),
    [
        (("optimizer.lr=30", "train.max_loss_rise=0.5"), r"of 9: loss .* above the lowest .* lower optimizer.lr"),
        (("optimizer.lr=1e38",), r"loss nan|loss inf|norm nan|norm inf"),
    ],
    ids=["rises", "is not finite"],
)
def test_a_loss_that_goes_wild_stops_the_run_before_a_checkpoint_of_it(tmp_path, monkeypatch, wild, message):
    """Who asks for it tries again; a launcher that starts the same command again does not."""
    run, recipe = RunDir(tmp_path / "run"), tiny_recipe("schedule.warmup_steps=0", "train.log_every=1", *wild)
    with pytest.raises(RunFailed, match=message):
        train(recipe, run.path)
    *_, last = run.metrics()
    assert last["event"] == "stopped"
    names = {path.name for path in run.checkpoints.iterdir()}
    assert names == {f"step_{step:08d}" for step in range(1, last["step"])}
    assert run.result() is None
    json.dumps(run.metrics(), allow_nan=False)
    with pytest.raises(RunFailed, match=message):
        train_or_resume(recipe, run.path)
    monkeypatch.setattr("widthwise.runs.train.is_launched", lambda: True)
    assert re.search(rf"stopped at step {last['step']}: .* tries again", refusal(train, recipe, run.path))
