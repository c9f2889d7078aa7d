"""A run of a model with learned positions, from the recipe to the text."""

import pytest
from tiny_runs import tiny_recipe

from widthwise.config_io import UserError
from widthwise.model.generate import generate
from widthwise.recipe.inspection import inspect_recipe
from widthwise.runs.train import train
from widthwise.runs.trained import load_trained

GPT2 = (
    "model.positions={n_positions: 18}",
    "model.norm={kind: layer}",
    "model.ffn={kind: mlp, activation: gelu_tanh, bias: true}",
    "model.attention={head_dim: 8, rope_base: null, bias: true, out_bias: true}",
)


@pytest.mark.parametrize("resolved", [False, True])
def test_sequences_longer_than_the_positions_are_refused(resolved):
    recipe = tiny_recipe("model.positions={n_positions: 16}")
    recipe = recipe.resolved() if resolved else recipe
    for refused in (recipe.check, lambda: inspect_recipe(recipe)):
        with pytest.raises(UserError, match=r"seq_len: got 17; must be at most model\.positions\.n_positions = 16"):
            refused()
    tiny_recipe("model.positions={n_positions: 17}").check()


def test_a_gpt2_learns_is_loaded_and_writes(tmp_path):
    recipe = tiny_recipe(*GPT2)
    start = recipe.explicit_model
    train(recipe, tmp_path / "run")
    model = load_trained(tmp_path / "run").model
    assert model.config == start
    assert (model.positions.weight[:17].abs().sum(dim=1) > 0).all()
    assert (model.layers[0].attention.w_q.bias.weight != 0).any()
    assert len(generate(model, [[3, 4]], 17)[0]) == 17
    with pytest.raises(UserError, match="max_new_tokens: got 18 behind a prompt of 2"):
        generate(model, [[3, 4]], 18)
