"""Exporting the model of a run as a Hugging Face folder."""

from pathlib import Path
from typing import Any, Literal

import torch

from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.data.tokenizer import Tokenizer
from widthwise.growth.bake.baked import bake_plan
from widthwise.interop.hf_export import Surroundings, export_hf, hf_config
from widthwise.interop.hf_import import TOKEN_IDS, token_named
from widthwise.model.decoder import blueprint
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.import_ import IMPORTED
from widthwise.runs.trained import newest_checkpoint, tokenizer_of
from widthwise.training import checkpoint, checkpoint_folder

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def export_run(
    path: Path | str, out: Path | str, dtype: Literal["fp32", "bf16"] = "fp32", n_positions: int | None = None
) -> dict[str, Any]:
    """Writes the newest model of a run as a Hugging Face folder, and returns a summary.

    A grown model gets the format's own parametrisation first. n_positions: tokens of the longest text, what an imported
    model was made for or else the recipe's seq_len where not given. Raises UserError with the reason where no format
    says all of the model.
    """
    run = RunDir(path)
    recipe = saved_recipe(run)
    found, damages = newest_checkpoint(run)
    step = checkpoint_folder.step_of(found)
    origin = run.environment().get(IMPORTED) or {}
    n_positions = n_positions or max(recipe.seq_len, origin.get("n_positions", 0))
    plan = bake_plan(recipe.model_at(step), one_eps=True)
    hf_config(plan.new, n_positions)  # before gigabytes are read
    weights = dict(plan.weights(checkpoint.read_weights(found, blueprint(plan.old))))
    tokenizer = _tokenizer_if_any(run)
    surroundings = _surroundings(tokenizer, n_positions, origin.get("token_ids"))
    model_type = export_hf(plan.new, weights, out, surroundings, DTYPES[dtype])
    return {
        "folder": str(out),
        "model_type": model_type,
        "step": step,
        "dtype": dtype,
        "n_positions": n_positions,
        "tokenizer": surroundings.tokenizer is not None,
        "damages": [str(damage) for damage in damages],
    }


def _tokenizer_if_any(run: RunDir) -> Tokenizer | None:
    return tokenizer_of(run) if any(run.tokenizer_folder.glob("*.json")) else None


def _surroundings(
    tokenizer: Tokenizer | None, n_positions: int, token_ids: dict[str, int | list[int]] | None
) -> Surroundings:
    """A text of ours begins behind the end of another, so that one token is both."""
    if token_ids is None:
        token_ids = {} if tokenizer is None else dict.fromkeys(TOKEN_IDS[:2], tokenizer.eos_id)
    if not isinstance(tokenizer, JsonTokenizer):
        return Surroundings(n_positions, token_ids)
    definition = tokenizer.definition()
    return Surroundings(n_positions, token_ids, definition, token_named(definition, tokenizer.eos_id, tokenizer.spec))
