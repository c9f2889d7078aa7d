"""A run that has diverged goes back to a checkpoint and on with other data; nothing of it is lost by a kill."""

import shutil
from pathlib import Path

import pytest
from spoilt_batches import spoil
from tiny_runs import Listener, outcome, tiny_recipe, unfinished_copy

from widthwise.config_io import UserError
from widthwise.run_dir import RunDir, RunFailed
from widthwise.runs.source import Source
from widthwise.runs.train import resume, train
from widthwise.training import checkpoint_folder
from widthwise.training.checkpoint_folder import checkpoint_paths, step_of
from widthwise.training.keeping import KeepRules, prune
from widthwise.training.spikes import last_rewind

NAN = float("nan")
REWIND = "train.on_spike={kind: rewind, margin_steps: 2, max_rewinds: 2}"
STEPS = (REWIND, "train.steps=14", "train.checkpoint_every=3", "train.log_every=2")
RECIPE = tiny_recipe(*STEPS)
DYNAMIC = (
    "model.ffn={kind: dynamic, ratio: 4}",
    "train.width_budget={kind: lagrangian, target: 0.6}",
    "train.nested={}",
)
TOKENS_PER_STEP = 4 * 17


class Killed(BaseException):
    """Ends a run as a kill would: nothing is tidied up by the run itself."""


def rewinds(path: Path) -> list[dict]:
    return [record for record in RunDir(path).metrics() if record["event"] == "rewound"]


def test_it_goes_on_from_the_checkpoint_with_the_batches_behind_the_spike(tmp_path: Path, monkeypatch) -> None:
    """Batch 8 makes step 9; the newest checkpoint 2 steps before is that of step 6, so batches 6 to 8 are left out.

    The same weights come from a run to which those batches are never given.
    """
    with monkeypatch.context() as patch:
        spoil(patch, {8: NAN})
        train(RECIPE, tmp_path / "run")
    spoil(monkeypatch, {}, moved={step: step + 3 for step in range(6, 14)})
    train(RECIPE, tmp_path / "without")
    found, expected = outcome(tmp_path / "run"), outcome(tmp_path / "without")
    assert (found["model"], found["optimizer"]) == (expected["model"], expected["optimizer"])
    (record,) = rewinds(tmp_path / "run")
    assert (record["step"], record["from_step"], record["n_batches_left_out"]) == (6, 9, 3)
    assert record["reason"].endswith("gradient norm nan")


def test_what_was_spent_in_vain_is_counted(tmp_path: Path, monkeypatch) -> None:
    """Steps 7 to 9 are made twice. Batch 10 then fails too, as step 8: steps 7 and 8 a third time."""
    spoil(monkeypatch, {8: NAN, 10: NAN})
    train(RECIPE, tmp_path / "run")
    result = RunDir(tmp_path / "run").result()
    assert result is not None
    assert result.tokens == (14 + 3 + 2) * TOKENS_PER_STEP
    assert result.training_flops == pytest.approx(RECIPE.training_flops * 19 / 14, rel=1e-12)
    first, second = rewinds(tmp_path / "run")
    assert (first["tokens"], second["tokens"]) == (9 * TOKENS_PER_STEP, 11 * TOKENS_PER_STEP)
    assert (second["n_rewinds"], second["n_batches_left_out"]) == (2, 5)
    assert result.notes == [f"went back 2 times, the last time from step 8 to 6: {second['reason']}"]
    assert Source.of(tmp_path / "run").spent.tokens == result.tokens
    tokens = [(each["step"], each["tokens"]) for each in RunDir(tmp_path / "run").metrics() if each["event"] == "train"]
    assert tokens == [(step, TOKENS_PER_STEP * (step + 5 * (step > 6))) for step in range(2, 15, 2)]


@pytest.mark.parametrize("moment", ["before", "deleting", "behind the record", "behind the next step"])
def test_a_kill_around_a_rewind_changes_nothing(tmp_path: Path, monkeypatch, moment: str) -> None:
    spoil(monkeypatch, {8: NAN})
    recipe = tiny_recipe(REWIND.replace("2,", "4,"), "train.steps=14", "train.checkpoint_every=2", "train.keep_last=3")
    train(recipe, tmp_path / "whole")
    assert rewinds(tmp_path / "whole")[0]["step"] == 4
    listener, remove = Listener(), shutil.rmtree
    seen = []

    def kill(*arguments, **options):
        raise Killed

    def kill_at_rewind(record):
        seen.append(record["event"])
        if moment == "behind the record" and record["event"] == "rewound":
            raise Killed

    def kill_at_step(step):
        if moment == "behind the next step" and "rewound" in seen:
            raise Killed

    def kill_while_deleting(path, **options):
        remove(path, **options)
        if Path(path).name == ".step_00000008.partial":
            raise Killed

    monkeypatch.setattr(listener, "record", kill_at_rewind)
    monkeypatch.setattr(listener, "step_done", kill_at_step)
    with monkeypatch.context() as patch:
        if moment == "before":
            patch.setattr(checkpoint_folder, "discard_after", kill)
        if moment == "deleting":
            patch.setattr(checkpoint_folder.shutil, "rmtree", kill_while_deleting)
        with pytest.raises(Killed):
            train(recipe, tmp_path / "run", listener)
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_without_a_rewind_or_a_checkpoint_left_it_stops(tmp_path: Path, monkeypatch) -> None:
    too_often = r"stopped at step 8 of 14: .* it went back 2 times before \(train.on_spike.max"
    with monkeypatch.context() as patch:
        spoil(patch, {8: NAN, 10: NAN, 12: NAN})
        with pytest.raises(RunFailed, match=too_often):
            train(RECIPE, tmp_path / "run")
    spoil(monkeypatch, {3: NAN})
    with pytest.raises(RunFailed, match=r"step 4 of 14: .*no good checkpoint to go back to lies train.on_spike.margin"):
        train(RECIPE, tmp_path / "early")
    with pytest.raises(UserError, match="checkpoint_every: got null; must be given where on_spike goes back"):
        tiny_recipe(REWIND, "train.checkpoint_every=null")


def test_checkpoints_written_in_the_background_are_awaited(tmp_path: Path, monkeypatch) -> None:
    """Batch 8 makes step 9, whose predecessor may still be on its way to the disk when it is to be deleted."""
    spoil(monkeypatch, {8: NAN})
    every_step = (*STEPS, "train.checkpoint_every=1", "train.keep_last=1")
    train(tiny_recipe(*every_step), tmp_path / "at once")
    train(tiny_recipe(*every_step, "train.checkpoint_in_background=true"), tmp_path / "later")
    assert outcome(tmp_path / "later") == outcome(tmp_path / "at once")
    kept = [
        [step_of(path) for path in checkpoint_paths(tmp_path / name / "checkpoints")] for name in ("later", "at once")
    ]
    assert kept == [[14, 13, 12]] * 2


def test_every_checkpoint_of_a_run_that_went_back_goes_on_bitwise(tmp_path: Path, monkeypatch) -> None:
    """It went back because its loss rose, and again at step 8."""
    spoil(monkeypatch, {8: 3.0, 10: NAN}, part="losses")
    train(tiny_recipe(*STEPS, *DYNAMIC), tmp_path / "whole")
    assert "train.max_loss_rise" in rewinds(tmp_path / "whole")[0]["reason"]
    for step in (3, 6, 12):
        resume(unfinished_copy(tmp_path / "whole", tmp_path / str(step), step))
        assert outcome(tmp_path / str(step)) == outcome(tmp_path / "whole")


def test_it_does_not_go_back_to_before_a_growth(tmp_path: Path, monkeypatch) -> None:
    spoil(monkeypatch, {7: NAN})
    growth = "growth=[{at_step: 6, model: {n_layers: 5}}]"
    recipe = tiny_recipe(REWIND, growth, "model.shape={kind: uniform}", "train.checkpoint_every=3", "train.log_every=1")
    with pytest.raises(RunFailed, match="the model has grown since the checkpoint of step 6, to which it cannot"):
        train(recipe, tmp_path / "run")


def test_as_many_checkpoints_are_kept_as_a_rewind_may_need(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8, 10):
        (tmp_path / f"step_{step:08d}").mkdir()
    prune(tmp_path, KeepRules(1, n_steps_back=5))
    assert sorted(map(step_of, checkpoint_paths(tmp_path))) == [4, 6, 8, 10]
    prune(tmp_path, KeepRules(1, n_steps_back=2))
    assert sorted(map(step_of, checkpoint_paths(tmp_path))) == [8, 10]


def test_a_rewind_of_the_run_that_this_one_comes_from_does_not_count() -> None:
    rewound, grown = {"event": "rewound", "step": 6}, {"event": "grown", "step": 9}
    assert last_rewind([rewound, grown]) is None
    assert last_rewind([grown, rewound]) is rewound
    assert last_rewind([]) is None
