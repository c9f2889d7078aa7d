import pytest
import torch
from tiny_runs import tiny_recipe

from widthwise.config_io import UserError, parse
from widthwise.model.decoder import build
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.train_section import TrainConfig
from widthwise.reports.run.report import write_run_report
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training.objective import Objective
from widthwise.training.step import optimizer_step

PREFIX = ("model.shape={kind: uniform}", "model.residual={kind: learned_prefix, min_fraction: 0.2}")
CONST = "model.ffn={kind: dynamic, min_fraction: 0.1, score: {kind: const}}"
CPU = torch.device("cpu")


def uses(config, choices):
    """The mean share of the FLOPs of all matrices that is used, from the formula."""
    used = full = 0.0
    for layer, chosen in zip(config.layers, choices):
        prefix = chosen["prefix_fraction"].item()
        hidden = chosen["width_fraction"].mean().item() if "width_fraction" in chosen else 1.0
        attention, ffn = layer.attention.cost(16, 16).flops, layer.ffn.cost(16, 16).flops
        full += attention + ffn
        used += prefix * (attention + hidden * ffn)
    return used / full


@pytest.mark.hard
def test_a_price_brings_the_used_share_of_all_flops_to_its_target():
    config = tiny_recipe(*PREFIX, CONST).explicit_model
    model = build(config, seed=1)
    budget = {"kind": "lagrangian", "target": 0.45, "rate": 0.001}
    train_config = parse(TrainConfig, {"steps": 1, "batch_size": 4, "precision": "fp32", "width_budget": budget})
    objective, optimizer = Objective(train_config, config, CPU), AdamWConfig(lr=0.04).build(model)
    batch, prices = torch.randint(0, 257, (4, 14), generator=torch.Generator().manual_seed(3)), []
    for _ in range(150):
        optimizer_step(model, optimizer, batch, objective, train_config)
        prices += objective.state()
    choices = model.loss(batch[:, :-1], batch[:, 1:]).choices
    assert max(prices) > 0
    assert uses(config, choices) == pytest.approx(0.45, abs=0.05)


def test_a_run_and_its_page_tell_what_its_layers_learned(tmp_path):
    run = RunDir(tmp_path / "run")
    train(tiny_recipe(*PREFIX, CONST, "train.width_budget={kind: lagrangian, target: 0.3, rate: 0.1}"), run.path)
    page = write_run_report(run.path, tmp_path).read_text()
    assert all(f">{width:.1f}<" in page for width in run.result().prefix_widths)
    result, records = run.result(), run.metrics()
    fractions = [each["prefix_fractions"] for each in records if each["event"] == "validation"][-1]
    assert result.prefix_widths == [16 * fraction for fraction in fractions]
    assert all(0.2 < fraction < 0.92 for fraction in fractions)
    trained = [each["prefix_fraction"] for each in records if each["event"] == "train"]
    assert all(len(each) == 3 for each in trained)
    assert trained[0] != trained[-1]
    assert result.token_widths is not None


def test_inspect_counts_what_widths_leave():
    recipe = tiny_recipe(*PREFIX, "train.width_budget={kind: lagrangian, target: 0.5}")
    layers = 3 * 2 * 16 * (4 * 16 + 3 * 64)
    found = inspect_recipe(recipe)["chosen_flops"]
    assert found["full"] - found["target"] == pytest.approx(layers * 0.5)
    assert found["full"] - found["narrowest"] == pytest.approx(layers * 0.8)
    with pytest.raises(UserError, match=r"train\.width_budget\.target: got 0.2; must be above 0.2, the narrowest"):
        tiny_recipe(*PREFIX, "train.width_budget={kind: lagrangian, target: 0.2}").check()
