"""A student learns the predictions of a teacher beside its targets: `train.distill`."""

from pathlib import Path

import pytest
import torch
from tiny_runs import outcome, step_config, tiny_recipe, unfinished_copy

from widthwise.config_io import UserError
from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.recipe.train_section import DistillConfig
from widthwise.run_dir import RunDir
from widthwise.runs.plan import dry_run
from widthwise.runs.train import resume, train
from widthwise.runs.trained import load_trained
from widthwise.training.objective import Objective
from widthwise.training.train_state import StepOutcome, optimizer_step

BATCH = torch.randint(0, 257, (6, 14), generator=torch.Generator().manual_seed(5))
NARROW = ("model.shape={kind: uniform}", "model.d_model=8", "model.n_layers=2")


def step(
    model: Decoder, teacher: Path, boundaries: Boundaries = NO_BOUNDARIES, precision: str = "fp32", **distill: float
) -> StepOutcome:
    config = step_config(4, max_grad_norm=1e9, precision=precision)
    config = config.model_copy(update={"distill": DistillConfig(teacher=str(teacher), **distill)})
    objective = Objective(config, model.config, BATCH.device)
    optimizer = AdamWConfig(lr=0.01).build(model)
    return optimizer_step(model, optimizer, BATCH, objective, config, boundaries=boundaries)


def student(teacher: Path, *overrides: str) -> Recipe:
    return tiny_recipe(*NARROW, f"train.distill={{teacher: {teacher}}}", *overrides)


def test_the_gradient_is_that_of_the_divergence_over_any_micro_batches_and_the_loss_that_of_the_targets(
    float64: None, finished: Path
) -> None:
    model = build(tiny_recipe(*NARROW).explicit_model, seed=1, dtype=torch.float64)
    tokens, targets = BATCH[:, :-1], BATCH[:, 1:]
    with torch.no_grad():
        theirs = (load_trained(finished).model(tokens).double() / 2).softmax(dim=-1)
    logits = model(tokens)
    loss = -logits.log_softmax(dim=-1).gather(-1, targets[..., None]).mean()
    divergence = (theirs * (theirs.log() - (logits / 2).log_softmax(dim=-1))).sum(dim=-1).mean()
    expected = torch.autograd.grad(0.7 * loss + 0.3 * 4 * divergence, list(model.parameters()))
    found = step(model, finished, weight=0.3, temperature=2.0)
    torch.testing.assert_close(found.loss, loss.detach(), rtol=1e-12, atol=0)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-7)  # the teacher computes in fp32


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 3e-2)])
def test_of_itself_nothing_is_to_be_learned_whatever_the_boundaries(
    finished: Path, precision: str, tolerance: float
) -> None:
    told = Boundaries(7, masks=True, resets=True)
    rows = BATCH % 9
    assert (told.documents(rows) != 0).any()
    norms = []
    for weight in (0.0, 1.0):
        model = build(saved_recipe(RunDir(finished)).final_model, seed=1)
        model.set_weights(load_trained(finished, "cpu").model.named_parameters())
        norms.append(step(model, finished, told, precision, weight=weight).grad_norm)
    assert norms[1] < tolerance * norms[0]


def test_without_weight_a_teacher_changes_no_bit(finished: Path, tmp_path: Path) -> None:
    train(tiny_recipe(*NARROW), tmp_path / "alone")
    train(student(finished, "train.distill.weight=0"), tmp_path / "taught")
    assert outcome(tmp_path / "taught")["model"] == outcome(tmp_path / "alone")["model"]


def test_a_resumed_run_is_bitwise_the_uninterrupted_one(finished: Path, tmp_path: Path) -> None:
    growing = "growth=[{at_step: 4, model: {n_layers: 3}, rewarmup_steps: 0}]"
    train(student(finished, growing), tmp_path / "whole")
    for at in (1, 6):
        run = unfinished_copy(tmp_path / "whole", tmp_path / str(at), at)
        resume(run)
        assert outcome(run) == outcome(tmp_path / "whole"), at
    config = saved_recipe(RunDir(tmp_path / "whole")).train.distill
    assert config is not None
    assert config.teacher == str(finished)


def test_compute_and_memory_count_the_teacher(finished: Path, tmp_path: Path) -> None:
    teacher = saved_recipe(RunDir(finished)).final_model
    alone, taught = tiny_recipe(*NARROW), student(finished)
    of_teacher = teacher.inference_cost().forward_flops(17)
    expected = alone.training_flops + 9 * 4 * 17 * of_teacher
    assert taught.training_flops == pytest.approx(expected, rel=1e-12)
    assert train(taught, tmp_path / "run")["training_flops"] == pytest.approx(expected, rel=1e-12)
    memories = [dry_run(recipe, [1]).deployments[0].memory.total_bytes for recipe in (alone, taught)]
    assert memories[1] >= memories[0] + 4 * teacher.cost().params
    sizes = "{teacher: big, seq_len: 17, vocab_size: 257, params: 8000000000, flops_per_token: 1.6e10}"
    large = tiny_recipe(*NARROW, f"train.distill={{teacher: big, sizes: {sizes}}}", "train.precision=bf16")
    assert dry_run(large, [1]).deployments[0].memory.total_bytes == pytest.approx(2 * 8e9, rel=0.01)
    budgeted = student(finished, f"train.steps={{training_flops: {expected!r}}}")
    assert budgeted.train.steps == 9


def test_the_costs_of_a_student_are_known_without_its_teacher(finished: Path, tmp_path: Path) -> None:
    teacher = unfinished_copy(finished, tmp_path / "teacher", 9)
    train(student(teacher), tmp_path / "run")
    flops = student(teacher).training_flops
    teacher.rename(tmp_path / "gone")
    assert saved_recipe(RunDir(tmp_path / "run")).training_flops == flops
    assert load_trained(tmp_path / "run").tokens == 9 * 4 * 17


def test_what_is_no_teacher_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.distill\.teacher: .*nowhere: is not a run directory"):
        student(tmp_path / "nowhere")
    with pytest.raises(
        UserError, match=r"train\.distill\.teacher: .* has vocab_size 257; must be model.vocab_size = 4"
    ):
        train(student(finished, "model.vocab_size=400"), tmp_path / "run")
    with pytest.raises(UserError, match=r"data.tokenizer: got bpe-257; must be that of the model"):
        train(student(finished, "data.tokenizer=bpe-257"), tmp_path / "run")
    with pytest.raises(UserError, match=r"distill: cannot be combined with nested"):
        student(finished, "model.ffn={kind: dynamic, min_fraction: 0.25}", "train.nested={}")
    bare = unfinished_copy(finished, tmp_path / "bare", 0)
    with pytest.raises(UserError, match=r"train\.distill\.teacher: .*no checkpoint to load \(nothing was saved yet\)"):
        train(student(bare), tmp_path / "run")
    assert not RunDir(tmp_path / "run").exists


def test_a_teacher_that_was_trained_on_is_refused_by_a_resume(finished: Path, tmp_path: Path) -> None:
    teacher = unfinished_copy(finished, tmp_path / "teacher", 5)
    train(student(teacher), tmp_path / "whole")
    run = unfinished_copy(tmp_path / "whole", tmp_path / "run", 4)
    resume(teacher)
    with pytest.raises(UserError, match=r"train\.distill\.teacher: was at step 5 when the run was begun; is at step 9"):
        resume(run)
