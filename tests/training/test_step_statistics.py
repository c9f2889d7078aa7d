"""Choices of layers and norms of layers, compared with sums over parameters and outputs."""

from functools import partial
from pathlib import Path

import pytest
import torch
from growing_runs import SLOTS, UNIFORM
from one_step import DYNAMIC, INPUTS, TARGETS, UNCLIPPED, step
from thinned import every_pair
from tiny_runs import Listener, outcome, records, tiny_recipe
from torch._dynamo.utils import counters

from widthwise.model.decoder import build
from widthwise.model.execution import compile_layers
from widthwise.model.recompute import RECOMPUTE
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training import train_state as train_state_module
from widthwise.training.step_statistics import ChoiceMeans, choice_record, norms_record

MIXTURE = "0: {ffn: {kind: moe, n_experts: 5, top_k: 2, d_expert: 7}}"


def mixed_model():
    """Return a model of a mixture of experts, a dynamic-width layer, and a layer without choices."""
    layers = f"model.layers={{{MIXTURE}, 2: {{ffn: {{kind: swiglu, d_ff: 9}}}}}}"
    return build(tiny_recipe(DYNAMIC, layers).explicit_model, seed=1)


def norm(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat([tensor.detach().flatten() for tensor in tensors]).norm())


def test_a_record_holds_one_number_a_layer_averaged_over_micro_batches_and_the_norm_of_a_scores_gradient():
    model, means = mixed_model(), ChoiceMeans()
    found = []
    for rows in (slice(4), slice(4, 6)):
        loss = model.loss(INPUTS[rows], TARGETS[rows])
        loss.objective.backward()
        found.append(loss.choices)
        means.add(loss.choices, len(INPUTS[rows]))
    record = choice_record(model, means)
    first, second = found
    for key in ("balance_loss", "router_z_loss"):
        expected = (4 * first[0][key] + 2 * second[0][key]) / 6
        assert record[key] == [pytest.approx(expected.item()), None, None]
    load = (4 * first[0]["expert_load"] + 2 * second[0]["expert_load"]) / 6
    assert record["expert_load_max"] == [pytest.approx(load.max().item()), None, None]
    width = torch.cat([each[1]["width_fraction"] for each in found]).mean()
    assert record["width_fraction"] == [None, pytest.approx(width.item()), None]
    ffn = model.layers[1].ffn
    norm_of_score = norm([ffn.score.v.weight.grad, ffn.bias.weight.grad])
    assert record["score_grad_norm"] == [None, pytest.approx(norm_of_score), None]
    assert norm_of_score > 0


def test_a_dead_score_is_named_once_and_no_other(tmp_path):
    """The dead score is in layer 2, between a layer whose score learns and a layer without a choice."""
    layers = "model.layers={1: {ffn: {mask: {kind: hard}}}, 2: {ffn: {kind: swiglu, d_ff: 9}}}"
    recipe = tiny_recipe(DYNAMIC, layers, "train.log_every=1")
    listener = Listener()
    (note,) = train(recipe, tmp_path / "run", listener)["notes"]
    assert note.startswith("layer 2: the gradient of its width score is 0")
    assert listener.messages.count(note) == 1


def test_training_records_and_result_of_a_mixture(tmp_path):
    train(tiny_recipe(f"model.layers={{{MIXTURE}}}"), tmp_path / "run")
    for record in records(tmp_path / "run", "train"):
        load, *others = record["expert_load_max"]
        assert 1 / 5 <= load <= 1
        assert others == [None, None]
    loads, *others = RunDir(tmp_path / "run").result()["expert_loads"]
    assert (sum(loads), len(loads), others) == (pytest.approx(1), 5, [None, None])


MODELS = {
    "x": (),
    "slots": (UNIFORM, SLOTS),
    "experts": ("model.ffn={kind: moe, n_experts: 4, top_k: 2, d_expert: 16}",),
    "further heads": ("model.mtp={}",),
    "more heads than layers": ("model.mtp={n_depths: 4}",),
}


@every_pair(("micro_batch_size", [2, 6]), ("again", ["none", "layer"]), ("name", MODELS))
def test_norms_are_those_of_parameters_and_outputs(float64, name: str, again: str, micro_batch_size: int) -> None:
    """Expected outputs come from hooks, in one pass of the whole batch without gradients."""
    model = build(tiny_recipe(*MODELS[name]).explicit_model, seed=1, dtype=torch.float64)
    model.recompute = RECOMPUTE[again]
    outputs: list[float] = []

    def see(layer, arguments, found) -> None:
        stream = model.config.residual.to_slots(found[0], model.config.widths[len(outputs)])
        outputs.append(float(stream.square().mean().sqrt()))

    hooks = [layer.register_forward_hook(see) for layer in model.layers]
    with torch.no_grad():
        model.loss(INPUTS, TARGETS)
    for hook in hooks:
        hook.remove()
    weights = [norm(list(layer.parameters())) for layer in model.layers]
    before = [[parameter.detach().clone() for parameter in layer.parameters()] for layer in model.layers]
    usual = model.recompute
    found = step(model, micro_batch_size, norms_every=1, batch_size=6, max_grad_norm=UNCLIPPED)
    assert model.recompute is usual
    assert found.norms is not None
    record = norms_record(found.norms)
    gradients = [[each.grad for each in layer.parameters() if each.grad is not None] for layer in model.layers]
    assert record["grad_norms"] == pytest.approx(list(map(norm, gradients)), rel=1e-12)
    assert record["weight_norms"] == pytest.approx(weights, rel=1e-12)
    moved = [
        norm([now - then for now, then in zip(layer.parameters(), own, strict=True)])
        for layer, own in zip(model.layers, before, strict=True)
    ]
    assert min(moved) > 0
    assert record["update_norms"] == pytest.approx(moved, rel=1e-12)
    assert record["output_rms"] == pytest.approx(outputs, rel=1e-12)


@pytest.mark.hard
def test_compiled_layers_stay_compiled_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(train_state_module, "compile_layers", partial(compile_layers, backend="eager"))
    compiled = ("train.compile=true", "train.checkpoint_every=null", "train.validate_every=null")
    n_graphs = []
    for every in ("null", "2"):
        counters.clear()
        train(tiny_recipe(*compiled, f"train.norms_every={every}"), tmp_path / every)
        n_graphs.append(counters["stats"]["unique_graphs"])
    assert n_graphs[0] == n_graphs[1] > 0
    assert outcome(tmp_path / "2")["model"] == outcome(tmp_path / "null")["model"]


def test_what_is_not_finite_is_none_and_is_recorded_before_the_run_stops(tmp_path: Path) -> None:
    values = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0], [0.0, 5.0], [3.0, 4.0]])
    assert list(norms_record(values).values()) == [[1, None], [None, 2], [0, 5], [3, 4]]
    wild = ("optimizer.lr=1e38", "schedule.warmup_steps=0", "train.log_every=1", "train.norms_every=1")
    with pytest.raises(RuntimeError, match="stopped at step"):
        train(tiny_recipe(*wild), tmp_path / "run")
    *_, norms, stopped = RunDir(tmp_path / "run").metrics()
    assert (norms["event"], stopped["event"]) == ("norms", "stopped")
    assert norms["step"] == stopped["step"]
