import pytest
import torch
from one_step import DYNAMIC, INPUTS, TARGETS
from tiny_runs import Listener, records, tiny_recipe

from widthwise.model.decoder import build
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training.objective import Objective
from widthwise.training.step_statistics import ChoiceMeans, choice_record, dead_scores

MIXTURE = "0: {ffn: {kind: moe, n_experts: 5, top_k: 2, d_expert: 7}}"


def mixed_model():
    """A mixture, a dynamic width, and a layer that has nothing to choose."""
    layers = f"model.layers={{{MIXTURE}, 2: {{ffn: {{kind: swiglu, d_ff: 9}}}}}}"
    return build(tiny_recipe(DYNAMIC, layers).explicit_model, seed=1)


def test_a_record_holds_one_number_a_layer_averaged_over_micro_batches():
    model, means = mixed_model(), ChoiceMeans()
    found = []
    for rows in (slice(4), slice(4, 6)):
        found.append(model.loss(INPUTS[rows], TARGETS[rows]).choices)
        means.add(found[-1], len(INPUTS[rows]))
    record = means.record()
    first, second = found
    for key in ("balance_loss", "router_z_loss"):
        expected = (4 * first[0][key] + 2 * second[0][key]) / 6
        assert record[key] == [pytest.approx(expected.item()), None, None]
    load = (4 * first[0]["expert_load"] + 2 * second[0]["expert_load"]) / 6
    assert record["expert_load_max"] == [pytest.approx(load.max().item()), None, None]
    width = torch.cat([each[1]["width_fraction"] for each in found]).mean()
    assert record["width_fraction"] == [None, pytest.approx(width.item()), None]


def test_the_norm_of_a_scores_gradient_is_that_of_its_parameters_and_bias():
    model = mixed_model()
    found = model.loss(INPUTS, TARGETS)
    found.objective.backward()
    means = ChoiceMeans()
    means.add(found.choices, 6)
    norms = choice_record(model, means)["score_grad_norm"]
    ffn = model.layers[1].ffn
    gradients = [ffn.score.v.weight.grad, ffn.bias.weight.grad]
    assert norms == [None, pytest.approx(torch.cat([each.flatten() for each in gradients]).norm().item()), None]
    assert norms[1] > 0


def test_a_dead_score_is_named_once(tmp_path):
    listener = Listener()
    recipe = tiny_recipe("model.ffn={kind: dynamic, mask: {kind: hard}}", "train.log_every=1")
    result = train(recipe, tmp_path / "run", listener)
    warnings = [f"layer {number}: the gradient of its width score is 0" for number in (1, 2, 3)]
    assert [text[: len(warning)] for text, warning in zip(result["notes"], warnings)] == warnings
    assert len(result["notes"]) == 3
    assert listener.messages.count(result["notes"][0]) == 1
    assert dead_scores({"score_grad_norm": [None, 0.1]}) == []


def test_training_records_and_result_of_a_mixture(tmp_path):
    train(tiny_recipe(f"model.layers={{{MIXTURE}}}"), tmp_path / "run")
    for record in records(tmp_path / "run", "train"):
        assert 1 / 5 <= record["expert_load_max"][0] <= 1
        assert record["expert_load_max"][1:] == [None, None]
    loads = RunDir(tmp_path / "run").result()["expert_loads"]
    assert sum(loads[0]) == pytest.approx(1)
    assert loads[1:] == [None, None]
    assert len(loads[0]) == 5


def test_progress_runs_to_one_with_the_steps(tmp_path, monkeypatch):
    seen, backward = [], Objective.backward

    def watched(objective, model, *arguments):
        seen.append(model.progress.item())
        return backward(objective, model, *arguments)

    monkeypatch.setattr(Objective, "backward", watched)
    train(tiny_recipe(), tmp_path / "run")
    assert seen == pytest.approx([number / 9 for number in range(1, 10)])
