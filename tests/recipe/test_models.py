"""Models in memory, from recipes."""

from pathlib import Path

import pytest
import torch
from boxes import refusal
from tiny_runs import tiny_recipe

from widthwise.growth.choices import NewSizes
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.recipe.models import build, grow_model, parameter_groups
from widthwise.recipe.recipe import Recipe
from widthwise.yaml_io import to_yaml

TOKENS = torch.arange(3, 16)[None]


def _weights(model: Decoder) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_recipe_its_file_and_its_config_give_one_model_if_it_can_be_trained(tmp_path: Path) -> None:
    recipe, path = tiny_recipe(), tmp_path / "recipe.yaml"
    path.write_text(to_yaml(recipe))
    expected = _weights(build(recipe))
    for source in (path, str(path)):
        assert torch.equal(_weights(build(source)), expected)
    assert torch.equal(_weights(build(recipe.explicit_model, seed=recipe.train.seed)), expected)
    assert not torch.equal(_weights(build(recipe, seed=recipe.train.seed + 1)), expected)
    broken = recipe.model_copy(update={"schedule": recipe.schedule.model_copy(update={"warmup_steps": 99})})
    assert "warmup_steps" in refusal(build, broken)


LARGER = tiny_recipe("model.shape.widths=[32, 16, 32]")


@pytest.mark.parametrize("to", [LARGER, LARGER.explicit_model, NewSizes(n_heads=5), NewSizes(add_layers=1)])
def test_a_grown_model_computes_the_same_and_leaves_the_old_one_alone(to: Recipe | ModelConfig | NewSizes) -> None:
    model = build(tiny_recipe("model.shape={kind: uniform}") if isinstance(to, NewSizes) else tiny_recipe())
    before = _weights(model)
    grown = grow_model(model, to)
    assert _weights(grown).numel() > before.numel()
    torch.testing.assert_close(grown(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)
    assert torch.equal(_weights(model), before)
    assert torch.equal(_weights(grow_model(torch.compile(model), to)), _weights(grown))
    refusal(grow_model, grown, tiny_recipe("model.n_layers=2", "model.shape.widths=[24, 24]"))


def test_the_groups_give_torch_the_rates_and_decays_of_the_recipe() -> None:
    recipe = tiny_recipe("model.init={width_multiplier: 4}", "optimizer.lr_follows_layer_width=true")
    model = build(recipe)
    groups = parameter_groups(model, lr=0.01, weight_decay=0.1, lr_follows_layer_width=True)
    ours = torch.optim.AdamW(groups).param_groups
    for group, expected in zip(ours, recipe.optimizer.build(model).param_groups, strict=True):
        assert group["params"] == expected["params"]
        assert group["lr"] == pytest.approx(0.01 * expected["lr_factor"])
        assert group["weight_decay"] == expected["weight_decay"]
    assert sum(len(group["params"]) for group in ours) == len([*model.parameters()])
    plain, compiled = (parameter_groups(m, 0.01, lr_follows_layer_width=True) for m in (model, torch.compile(model)))
    assert compiled == plain
