"""A student learns the predictions of a teacher beside its targets: `train.distill`."""

from pathlib import Path
from typing import Any

import one_step
import pytest
import torch
from boxes import refusal
from file_operations import forge
from growing_runs import UNIFORM
from one_step import BATCH, CPU, INPUTS, TARGETS, UNCLIPPED
from tiny_runs import resumed_alike, step_config, tiny_recipe, unfinished_copy
from torch import Tensor

from widthwise.data.config import open_data
from widthwise.data.loader import NO_BOUNDARIES, Boundaries, Loader
from widthwise.growth.choices import ShrinkOptions
from widthwise.kernels.linear_cross_entropy import Head, Teacher, relative_distance
from widthwise.model.compiling import compile_layers
from widthwise.model.decoder import Decoder, build
from widthwise.model.recompute import RECOMPUTE
from widthwise.recipe.objective import DistillConfig
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model
from widthwise.runs.plan import plan
from widthwise.runs.shrink import shrink_run
from widthwise.runs.train import resume, train
from widthwise.training.objective import Objective
from widthwise.training.teacher import LoadedTeacher, Origin
from widthwise.training.train_state import StepOutcome

NARROW = (UNIFORM, "model.d_model=8", "model.n_layers=2")
WIDE = ("model.d_model=16",)
ALL_LAYERS = "train.distill.layers=all"


def step(
    model: Decoder, teacher: Path, boundaries: Boundaries = NO_BOUNDARIES, precision: str = "fp32", **distill: Any
) -> StepOutcome:
    changes = {"max_grad_norm": UNCLIPPED, "precision": precision}
    config = step_config(4, **changes, distill=DistillConfig(teacher=str(teacher), **distill))
    loaded = LoadedTeacher(student(teacher).model_copy(update={"train": config}))
    objective = Objective(config, model.config, CPU, loaded)
    return one_step.step(model, 4, objective=objective, boundaries=boundaries, **changes)


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
    found = step(model, finished, weight=0.3, temperature=2.0)
    torch.testing.assert_close(found.loss, loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close([each.grad for each in model.parameters()], list(expected), rtol=1e-10, atol=1e-14)


def test_a_resumed_run_is_bitwise_the_uninterrupted_one(finished: Path, tmp_path: Path) -> None:
    growing = "growth=[{at_step: 4, model: {n_layers: 3}, rewarmup_steps: 0}]"
    train(student(finished, growing, *WIDE, "train.distill.layers=last"), tmp_path / "whole")
    resumed_alike(tmp_path / "whole", tmp_path, 1, 6)
    assert saved_recipe(RunDir(tmp_path / "whole")).train.distill.teacher == str(finished)


def test_compute_and_memory_count_the_teacher(finished: Path, tmp_path: Path) -> None:
    teacher = saved_recipe(RunDir(finished)).final_model
    alone, taught = tiny_recipe(*NARROW), student(finished)
    of_teacher = teacher.inference_cost().forward_flops(17)
    expected = alone.training_flops + 9 * 4 * 17 * of_teacher
    assert taught.training_flops == pytest.approx(expected, rel=1e-12)
    assert train(taught, tmp_path / "run")["training_flops"] == pytest.approx(expected, rel=1e-12)
    memories = [plan(recipe, [1]).deployments[0].memory.total_bytes for recipe in (alone, taught)]
    assert memories[1] >= memories[0] + 4 * teacher.cost().params
    sizes = "{teacher: big, seq_len: 17, vocab_size: 257, params: 8000000000, flops_per_token: 1.6e10, "
    sizes += "d_model: 1, root_params: 1, layer_params: 1, pass_elements: 1}"
    large = tiny_recipe(*NARROW, f"train.distill={{teacher: big, sizes: {sizes}}}", "train.precision=bf16")
    assert plan(large, [1]).deployments[0].memory.total_bytes == pytest.approx(2 * 8e9, rel=0.01)
    budgeted = student(finished, f"train.steps={{training_flops: {expected!r}}}")
    assert budgeted.train.steps == 9


def test_the_costs_of_a_student_are_known_without_its_teacher(finished: Path, tmp_path: Path) -> None:
    teacher = unfinished_copy(finished, tmp_path / "teacher", 9)
    train(student(teacher), tmp_path / "run")
    flops = student(teacher).training_flops
    teacher.rename(tmp_path / "gone")
    assert saved_recipe(RunDir(tmp_path / "run")).training_flops == flops
    assert open_model(tmp_path / "run").tokens == 9 * 4 * 17


def test_what_is_no_teacher_is_refused(finished: Path, tmp_path: Path) -> None:
    run, bare = tmp_path / "run", unfinished_copy(finished, tmp_path / "bare", 0)
    assert "nowhere: is not a run directory" in refusal(student, tmp_path / "nowhere")
    for recipe, message in (
        (student(finished, "model.vocab_size=400"), " has vocab_size 257; must be model.vocab_size = 4"),
        (student(finished, "data.tokenizer=bpe-257"), "data.tokenizer: got bpe-257; must be the model's"),
        (student(bare), "no checkpoint to load (nothing was saved yet)"),
        # States of layers that nothing relates to those of the model.
        (student(finished, "train.distill.layers=last"), "layers: got last; the model has 8 coordinates"),
        (student(finished, *WIDE, ALL_LAYERS), "layers: got all; the model has 2 layers, and 3 are known"),
        (
            student(finished, *WIDE, "model.n_layers=3", "growth=[{at_step: 4, model: {n_layers: 5}}]", ALL_LAYERS),
            "got all; the model has 5 layers, and 3 are known",
        ),
    ):
        assert message in refusal(train, recipe, run)
    assert not RunDir(run).exists
    nested = "model.ffn={kind: dynamic, min_fraction: 0.25}", "train.nested={}"
    assert "distill: cannot be combined with nested" in refusal(student, finished, *nested)
    assert "layers_weight: got 2.0; has nothing to" in refusal(student, finished, "train.distill.layers_weight=2")


def test_a_teacher_that_was_trained_on_is_refused_by_a_resume(finished: Path, tmp_path: Path) -> None:
    teacher = unfinished_copy(finished, tmp_path / "teacher", 5)
    train(student(teacher), tmp_path / "whole")
    run = unfinished_copy(tmp_path / "whole", tmp_path / "run", 4)
    resume(teacher)
    assert "train.distill.teacher: is at step 9; must be at step 5" in refusal(resume, run)


def coordinates(stream: Any, d_model: int) -> Tensor:
    """All coordinates of a plain stream: those in use, then what narrow layers have left, nearest last."""
    return torch.cat((stream.prefix, *reversed(stream.parked)), dim=-1)[..., :d_model]


@pytest.mark.parametrize(("n_states", "recompute", "compiled"), [(1, "none", False), (3, "selective", True)])
def test_layers_learn_states_by_the_gradient_of_the_relative_square(
    float64: None, n_states: int, recompute: str, compiled: bool
) -> None:
    """Of an x, whose narrow layer carries coordinates past it."""
    model = build(tiny_recipe().explicit_model, seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    states = [torch.randn(*INPUTS.shape, 16, generator=generator, dtype=torch.float64) for _ in range(n_states)]
    seen: list[Tensor] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda _, inputs, outputs: seen.append(coordinates(outputs[0], 16)))
    loss = model.loss(INPUTS, TARGETS).objective
    ratios = [((h - a) ** 2).sum(-1) / (a**2).sum(-1) for h, a in zip(seen[-n_states:], states, strict=True)]
    expected = torch.autograd.grad(loss + 0.3 * torch.stack(ratios).mean(), list(model.parameters()))
    model.recompute = RECOMPUTE[recompute]
    if compiled:
        compile_layers(model, backend="eager")
    nothing = torch.zeros(*INPUTS.shape, 1), torch.zeros(257, 1)
    found = model.loss(INPUTS, TARGETS, teacher=Teacher(nothing[0], Head(nothing[1]), 0.0, 1.0, states, 0.3))
    gradients = torch.autograd.grad(found.objective, list(model.parameters()))
    torch.testing.assert_close(gradients, expected, rtol=1e-10, atol=1e-14)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "parent"
    train(tiny_recipe(UNIFORM, "model.d_model=24"), path)
    return path


def cut_of(parent: Path, out: Path, *overrides: str, flops: float = 1.0, **options: Any) -> Path:
    options = {"calibration_batches": 1, "multiple": 4, **options}
    taught = f"train.distill={{teacher: {parent}, layers: all}}"
    shrink_run(parent, out, ShrinkOptions(flops=flops, **options), [taught, *overrides])
    return out


def states_of(run: Path, tokens: Tensor = BATCH) -> list[Tensor]:
    found: list[Tensor] = []
    model = open_model(run, "cpu").model
    with torch.no_grad():
        model.stream(tokens, see=lambda i, stream: found.append(coordinates(stream, model.config.d_model)))
    return found


def states_to_learn(run: Path, tokens: Tensor = BATCH) -> list[Tensor]:
    return list(LoadedTeacher(saved_recipe(RunDir(run)), RunDir(run)).read(tokens, None, None).states)


def distance_on_its_text(run: Path) -> float:
    recipe = saved_recipe(RunDir(run))
    sizes = {"seq_len": recipe.seq_len, "batch_size": recipe.train.batch_size}
    batch = Loader(open_data(recipe.data).train, **sizes, seed=recipe.train.seed).batch(0)
    pairs = zip(states_of(run, batch), states_to_learn(run, batch), strict=True)
    return sum(float(relative_distance(*pair)) for pair in pairs)


@pytest.mark.parametrize("stream", ["turned", "sorted"])
def test_a_model_that_was_not_cut_has_the_states_to_learn(parent: Path, tmp_path: Path, stream: str) -> None:
    run = cut_of(parent, tmp_path / "run", stream=stream)
    theirs, own = states_to_learn(run), states_of(run)
    assert len(theirs) == len(own) == 3
    assert max(float(relative_distance(*pair)) for pair in zip(own, theirs)) < 1e-12
    for layer, state in enumerate(states_of(parent)):
        assert float(relative_distance(own[layer], state)) > 0.1
        torch.testing.assert_close(state.norm(dim=-1), own[layer].norm(dim=-1))


def test_of_layers_and_coordinates_that_were_cut_off_the_rest_learns(parent: Path, tmp_path: Path) -> None:
    """The first layer what the third, the next one kept, has read; the last what the last has written."""
    run = cut_of(parent, tmp_path / "run")
    origin, theirs = Origin.read(RunDir(run)), states_of(parent)
    assert origin is not None
    record = origin._replace(stream=origin.stream[:, :16], layers=torch.tensor([0, 2])).write(run)
    RunDir(run).add_to_environment(record)
    smaller = tiny_recipe(UNIFORM, "model.n_layers=2", f"train.distill={{teacher: {parent}}}")
    recipe = smaller.model_copy(update={"train": saved_recipe(RunDir(run)).train})
    found = LoadedTeacher(recipe, RunDir(run)).read(BATCH, None, None).states
    for state, whole in zip(found, theirs[1:], strict=True):
        torch.testing.assert_close(state, whole @ origin.stream[:, :16])


def test_a_cut_run_that_learns_states_comes_nearer(parent: Path, tmp_path: Path) -> None:
    learning = ("optimizer.lr=0.001", "train.distill.weight=1", "train.distill.layers_weight=10")
    run = cut_of(parent, tmp_path / "run", *learning, "train.activation_checkpointing=layer", flops=0.6)
    before = distance_on_its_text(run)
    resume(run)
    assert distance_on_its_text(run) < before


def test_an_origin_of_odd_shapes_and_ranges_is_refused(parent: Path, tmp_path: Path) -> None:
    run = RunDir(cut_of(parent, tmp_path / "run"))
    origin, config = Origin.read(run), saved_recipe(RunDir(parent)).explicit_model
    assert origin is not None
    assert origin.is_of(config)
    n = config.n_coordinates
    for stream in (torch.arange(n), torch.eye(n)[:, :3]):
        assert origin._replace(stream=stream).is_of(config)
    for changes in (
        *({"stream": each} for each in (torch.tensor(1), torch.arange(n) + 1, torch.arange(n) - 1, torch.zeros(n))),
        *({"stream": each} for each in (torch.zeros(n - 1, n), torch.zeros(n, n, 1), torch.zeros(n, n).long())),
        *({"layers": torch.tensor(each)} for each in (1, [0, 1, 3], [-1, 0, 1], [1, 0, 2], [0.0, 1.0, 2.0], [[0]])),
        *({"first_rows": each} for each in (torch.tensor(1.0), torch.zeros(9), origin.first_rows.double())),
    ):
        assert not origin._replace(**changes).is_of(config), changes
    record = origin._replace(layers=torch.tensor([0, 103])).write(run.path)
    forge(run.path / "environment.json", lambda entries: entries.update(record))
    assert "origin.safetensors: does not fit a teacher of" in refusal(LoadedTeacher, saved_recipe(run), run)


def test_the_states_of_another_teacher_than_the_one_that_was_cut_are_refused(parent: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    train(tiny_recipe(UNIFORM, "model.d_model=24", "train.seed=4"), other)
    run = cut_of(parent, tmp_path / "run", f"train.distill.teacher={other}")
    assert f"run was not cut out of {other}" in refusal(resume, run)
    path = run / "origin.safetensors"
    content = path.read_bytes()
    for damaged in (content[:-1] + bytes([content[-1] ^ 1]), b"no tensors"):
        path.write_bytes(damaged)
        assert f"{path}: was changed after it was written" in refusal(resume, run)
    path.unlink()
    assert f"{path}: cannot be read" in refusal(resume, run)
    forge(run / "environment.json", lambda entries: entries.pop(path.name))  # as of an older version
    assert "run began with weights that were not cut out of the teacher" in refusal(resume, run)
    path.write_bytes(b"no tensors")
    assert f"{path}: cannot be read" in refusal(resume, run)
