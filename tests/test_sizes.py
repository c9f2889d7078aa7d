"""No size of a recipe is without an upper bound, and what is within bounds can be inspected."""

from collections.abc import Iterator
from typing import Any

from boxes import refusal
from tiny_runs import tiny_recipe

from widthwise.config_io import parse, to_data
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import Recipe, parse_recipe

NO_SIZES = {
    *("norm_dim", "q_norm_dim", "k_norm_dim", "slot_norm_dim", "group_norm_dim"),  # divisors
    *("steps", "log_every", "validate_every", "checkpoint_every", "keep_last", "keep_every", "loss_window_steps"),
    *("warmup_steps", "decay_steps", "rewarmup_steps", "freeze_steps", "at_step", "after_step"),
    *("state_every", "validation_tokens", "validation_skip", "c", "max_skipped", "norms_every"),
    *("max_tokens", "layers", "seed"),  # layers: numbers of existing ones; seed: checked against 2^63
    *("params", "root_params", "layer_params", "pass_elements"),  # of a teacher, as its config counts them
}
"""Fields of whole numbers of which nothing is allocated."""


def integers(name: str, schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All integer types in a JSON schema, with the field each belongs to."""
    if isinstance(schema, list):
        for each in schema:
            yield from integers(name, each)
    elif isinstance(schema, dict):
        if schema.get("type") == "integer":
            yield name, schema
        for key, value in schema.items():
            for field, each in value.items() if key in ("properties", "$defs") else ((name, value),):
                yield from integers(field, each)


def test_every_size_has_an_upper_bound() -> None:
    found = list(integers("", Recipe.model_json_schema()))
    assert {"d_model", "d_ff", "d_hidden", "n_experts", "n_slots", "vocab_size", "seq_len"} <= {
        name for name, _ in found
    }
    unbounded = {name for name, schema in found if "maximum" not in schema and "exclusiveMaximum" not in schema}
    assert unbounded <= NO_SIZES


def recipe(**model: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 257, "d_model": 48, "n_layers": 2, "attention": {"n_heads": 3}}
    return {**to_data(tiny_recipe()), "model": sizes | model}


def test_what_lies_beyond_is_refused_with_its_path() -> None:
    for model, path in (
        ({"ffn": {"kind": "swiglu", "d_ff": 999_999_999_999}}, "model.ffn.d_ff: got 999999999999"),
        ({"layers": {1: {"ffn": {"d_ff": 10**9}}}}, "model.layers.1: ffn.d_ff: got 1000000000"),
        ({"ffn": {"kind": "swiglu", "ratio": 1000.0}, "d_model": 2**20 - 16}, "model.layers.0.ffn.d_ff: got "),
    ):
        said = refusal(lambda model: inspect_recipe(parse_recipe(recipe(**model), "recipe")), model)
        assert path in said
        assert "1048576" in said


def test_a_model_at_the_bounds_is_counted_though_no_machine_holds_it() -> None:
    ffn = {"kind": "swiglu", "d_ff": 2**20}
    model = {"vocab_size": 2**24, "d_model": 2**20, "attention": {"n_heads": 2**16}, "ffn": ffn}
    found = inspect_recipe(parse(Recipe, recipe(**model), "recipe"))
    assert found["params"]["total"] > 2**45
