"""Distillation: a student learns the predictions of a teacher in addition to its targets (`train.distill`)."""

from pathlib import Path

import pytest
import torch
from boxes import refusal
from growing_runs import UNIFORM
from one_step import CPU, INPUTS, TARGETS, UNCLIPPED, step
from tiny_runs import resumed_alike, step_config, tiny_recipe, unfinished_copy

from widthwise.growth.choices import ShrinkOptions
from widthwise.model.decoder import build
from widthwise.recipe.objective import DistillConfig
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model
from widthwise.runs.shrink import shrink_run
from widthwise.runs.train import resume, train
from widthwise.training.objective import TEACHER_KEY, LoadedTeacher, Objective

NARROW = (UNIFORM, "model.d_model=8", "model.n_layers=2")


def student(teacher: Path, *overrides: str) -> Recipe:
    return tiny_recipe(*NARROW, f"train.distill={{teacher: {teacher}}}", *overrides)


def test_the_divergence_is_part_of_the_gradient_but_not_of_the_loss(float64: None, finished: Path) -> None:
    model = build(tiny_recipe(*NARROW).explicit_model, seed=1, dtype=torch.float64)
    with torch.no_grad():
        theirs = (open_model(finished).model.double()(INPUTS) / 2).softmax(dim=-1)
    logits = model(INPUTS)
    loss = -logits.log_softmax(dim=-1).gather(-1, TARGETS[..., None]).mean()
    divergence = (theirs * (theirs.log() - (logits / 2).log_softmax(dim=-1))).sum(dim=-1).mean()
    expected = torch.autograd.grad(0.7 * loss + 0.3 * 4 * divergence, list(model.parameters()))
    changes = {"max_grad_norm": UNCLIPPED, "precision": "fp32"}
    distill = DistillConfig(teacher=str(finished), weight=0.3, temperature=2.0)
    config = step_config(4, **changes, distill=distill)
    teacher = LoadedTeacher(student(finished).model_copy(update={"train": config}))
    found = step(model, 4, objective=Objective(config, model.config, CPU, teacher), **changes)
    torch.testing.assert_close(found.loss, loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close([each.grad for each in model.parameters()], list(expected), rtol=1e-10, atol=1e-14)


def test_a_resumed_run_is_bitwise_the_uninterrupted_one(finished: Path, tmp_path: Path) -> None:
    growing = "growth=[{at_step: 4, model: {n_layers: 3}, rewarmup_steps: 0}]"
    train(student(finished, growing), tmp_path / "whole")
    resumed_alike(tmp_path / "whole", tmp_path, 1, 6)
    assert saved_recipe(RunDir(tmp_path / "whole")).train.distill.teacher == str(finished)


def test_compute_counts_the_teacher(finished: Path, tmp_path: Path) -> None:
    of_teacher = saved_recipe(RunDir(finished)).final_model.inference_cost().forward_flops(17)
    expected = tiny_recipe(*NARROW).training_flops + 9 * 4 * 17 * of_teacher
    taught = student(finished)
    assert taught.training_flops == pytest.approx(expected, rel=1e-12)
    assert train(taught, tmp_path / "run")["training_flops"] == pytest.approx(expected, rel=1e-12)
    assert student(finished, f"train.steps={{training_flops: {expected!r}}}").train.steps == 9


def test_what_is_no_teacher_is_refused(finished: Path, tmp_path: Path) -> None:
    run, bare = tmp_path / "run", unfinished_copy(finished, tmp_path / "bare", 0)
    assert "nowhere: is not a run directory" in refusal(student, tmp_path / "nowhere")
    for recipe, message in (
        (student(finished, "model.vocab_size=400"), " has vocab_size 257; must be model.vocab_size = 4"),
        (student(finished, "data.tokenizer=bpe-257"), "data.tokenizer: got bpe-257; must be the model's"),
        (student(bare), "no checkpoint to load (nothing was saved yet)"),
    ):
        assert message in refusal(train, recipe, run)
    assert not RunDir(run).exists
    nested = "model.ffn={kind: dynamic, min_fraction: 0.25}", "train.nested={}"
    assert "distill: cannot be combined with nested" in refusal(student, finished, *nested)


def test_a_teacher_that_was_trained_on_is_refused_by_a_resume_but_costs_are_known_without_it(
    finished: Path, tmp_path: Path
) -> None:
    teacher = unfinished_copy(finished, tmp_path / "teacher", 5)
    train(student(teacher), tmp_path / "whole")
    run = unfinished_copy(tmp_path / "whole", tmp_path / "run", 4)
    flops = student(teacher).training_flops
    resume(teacher)
    assert "train.distill.teacher: is at step 9; must be at step 5" in refusal(resume, run)
    teacher.rename(tmp_path / "gone")
    assert saved_recipe(RunDir(run)).training_flops == flops
    assert open_model(run).tokens == 4 * 4 * 17


def test_a_cut_model_is_bound_to_its_teacher_when_it_is_first_trained(tmp_path: Path) -> None:
    parent, run = tmp_path / "parent", tmp_path / "run"
    train(tiny_recipe(UNIFORM, "model.d_model=24"), parent)
    options = ShrinkOptions(flops=0.6, calibration_batches=1, multiple=4)
    loss = shrink_run(parent, run, options, [f"train.distill={{teacher: {parent}}}"]).loss_after
    assert TEACHER_KEY not in RunDir(run).environment()
    assert resume(run)["val_loss"] < loss
    assert RunDir(run).environment()[TEACHER_KEY] == 9
