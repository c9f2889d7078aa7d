"""Which checkpoints of a run are kept, and that the rules hold after a kill."""

from pathlib import Path

import pytest
from tiny_runs import Listener, outcome, records, tiny_recipe

from widthwise.mistakes import UserError
from widthwise.runs.train import resume, train
from widthwise.training.checkpoint_folder import Retention, checkpoint_paths, step_of

RULES = ("train.keep_last=1", "train.keep_every=4", "train.keep_best=true")
JUMPY = ("optimizer.lr=0.2", "schedule={kind: constant, warmup_steps: 1}", "train.steps=11", *RULES)
"""A rate at which the held-out loss goes up and down."""
EVERY_STEP = ("train.checkpoint_every=1", "train.validate_every=1")


def kept_steps(path: Path) -> list[int]:
    return sorted(map(step_of, checkpoint_paths(path / "checkpoints")))


def best_of(path: Path, among: set[int]) -> int:
    losses = {each["step"]: each["loss"] for each in records(path, "validation")}
    return min(among & losses.keys(), key=lambda step: losses[step])


def test_a_checkpoint_stays_if_any_rule_keeps_it() -> None:
    """The best by its loss: the first of equals, of those still there, and none that is not finite."""
    for rules, kept in (
        (Retention(1), {9}),
        (Retention(2), {9, 8}),
        (Retention(1, every=3), {9, 6, 3}),
        (Retention(2, every=4), {9, 8, 4}),
        (Retention(1, losses={3: 2.0, 4: 1.5, 6: 1.5}), {9, 4}),
        (Retention(1, losses={3: 2.0, 5: 1.0}), {9, 3}),
        (Retention(1, losses={3: float("nan"), 4: float("inf")}), {9}),
        (Retention(1, every=3, losses={4: 1.0}), {9, 6, 4, 3}),
    ):
        assert rules.kept([9, 8, 6, 4, 3]) == kept


@pytest.mark.parametrize(("checkpoint_every", "validate_every", "in_background"), [(2, 1, "false"), (1, 2, "true")])
def test_a_run_keeps_the_last_the_multiples_and_the_best(
    tmp_path: Path, checkpoint_every: int, validate_every: int, in_background: str
) -> None:
    each = (f"train.checkpoint_every={checkpoint_every}", f"train.validate_every={validate_every}")
    result = train(tiny_recipe(*JUMPY, *each, f"train.checkpoint_in_background={in_background}"), tmp_path / "run")
    best = best_of(tmp_path / "run", {*range(checkpoint_every, 11, checkpoint_every), 11})
    assert best not in (4, 8, 11)  # kept for no other reason
    assert kept_steps(tmp_path / "run") == sorted({4, 8, 11, best})
    assert result.best_step == best


class Killed(BaseException):
    """Ends a run as a kill would."""


def test_a_killed_run_keeps_what_one_that_was_not_does(tmp_path: Path) -> None:
    recipe = tiny_recipe(*JUMPY, *EVERY_STEP)
    whole = train(recipe, tmp_path / "whole")
    for step in (5, 11):

        def kill(now: int, last: int = step) -> None:
            if now == last:
                raise Killed

        run = tmp_path / str(step)
        with pytest.raises(Killed):
            train(recipe, run, Listener(kill))
        assert resume(run).best_step == whole.best_step
        assert outcome(run) == outcome(tmp_path / "whole")
        assert kept_steps(run) == kept_steps(tmp_path / "whole")


def test_rules_that_could_never_keep_anything_are_refused() -> None:
    for options, message in (
        (["train.checkpoint_every=2", "train.keep_every=5"], "keep_every: got 5; must be a multiple of .* = 2$"),
        (["train.checkpoint_every=null", "train.keep_every=5"], "keep_every: got 5; must be a multiple of .* = None$"),
        (["train.checkpoint_every=2", "train.keep_best=true"], "keep_best: got true with checkpoint_every = 2 and"),
        (["train.validate_every=null", "train.keep_best=true"], "keep_best: got true .* validate_every = None"),
    ):
        with pytest.raises(UserError, match=message):
            tiny_recipe(*options)
