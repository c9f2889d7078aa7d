"""The benchmark of memory measures a step of a small recipe, and its recipes are as different as it says."""

import memory

SMALL = ("model.d_model=64", "model.n_layers=2", "model.vocab_size=300", "seq_len=32")


def test_a_small_recipe_is_measured() -> None:
    found = memory.measured(memory.recipe_of(*SMALL))
    assert found["measured_bytes"] > 0
    assert memory.memory_on_cpu(memory.recipe_of(*SMALL)).total_bytes > 0


def test_recipes_differ_in_what_needs_memory() -> None:
    recipes = {name: memory.recipe_of(*case) for name, case in memory.CASES.items()}
    assert len(recipes) >= 10
    assert {each.train.precision for each in recipes.values()} == {"fp32", "bf16"}
    assert {each.train.activation_checkpointing for each in recipes.values()} == {"none", "layer", "selective"}
    assert {each.optimizer.kind for each in recipes.values()} == {"adamw", "muon"}
    kinds = {layer.ffn.kind for each in recipes.values() for layer in each.final_model.layers}
    assert kinds == {"swiglu", "hourglass", "moe", "dynamic"}
    assert any(each.final_model.mtp for each in recipes.values())
    assert {each.final_model.residual.kind for each in recipes.values()} == {"plain", "hyper_connections"}
