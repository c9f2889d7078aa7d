"""Exporting the model of a run as a Hugging Face folder."""

from pathlib import Path
from typing import Any, Literal

import torch

from widthwise.config_io import UserError
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.growth.bake import bake_plan
from widthwise.growth.pad import pad_heads_plan
from widthwise.interop.hf_export import Surroundings, export_hf, hf_config
from widthwise.interop.hf_import import TOKEN_IDS, token_named
from widthwise.interop.widthwise_format import AUTO_MAP, model_code
from widthwise.model.config import cost_summary
from widthwise.model.decoder import blueprint
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.environment import shown_path
from widthwise.runs.model_card import Folder, model_card
from widthwise.runs.save import IMPORTED
from widthwise.runs.trained import chosen_checkpoint, tokenizer_of
from widthwise.training import checkpoint, checkpoint_folder

CARD = "README.md"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def export_run(
    path: Path | str,
    out: Path | str,
    dtype: Literal["fp32", "bf16"] = "fp32",
    n_positions: int | None = None,
    standalone: bool = False,
    pad_heads: int | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    """Writes the model of a run as a Hugging Face folder, and returns a summary.

    Where one of the formats that transformers always knows says all of the model, the folder has it; a grown model gets
    the format's own parametrisation first. Otherwise it is a `widthwise` model. n_positions: tokens of the longest
    text, what an imported model was made for or else the recipe's seq_len where not given. standalone: with the code of
    a `widthwise` model in the folder, so that transformers runs it where this package is not installed. pad_heads:
    all heads get the smallest multiple of this that holds the largest, with zeros. step: of the checkpoint; the newest
    good one where not given. Raises UserError with the reason where the model cannot be written.
    """
    run = RunDir(path)
    recipe = saved_recipe(run)
    found, damages = chosen_checkpoint(run, step)
    step = checkpoint_folder.step_of(found)
    origin = run.environment().get(IMPORTED) or {}
    n_positions = n_positions or max(recipe.seq_len, origin.get("n_positions", 0))
    model = recipe.model_at(step)
    padding = None if pad_heads is None else pad_heads_plan(model, pad_heads)
    config, plan, reason = model if padding is None else padding.new, None, None
    try:  # before gigabytes are read
        plan = bake_plan(config, one_eps=True)
        architecture, _ = hf_config(plan.new, n_positions)
        config = plan.new
    except UserError as error:
        plan, reason = None, str(error)
        architecture, _ = hf_config(config, n_positions, own=True)
    weights = checkpoint.read_weights(found, blueprint(model))
    for each in (padding, plan):
        weights = weights if each is None else dict(each.weights(weights))
    tokenizer = tokenizer_of(run) if any(run.tokenizer_folder.glob("*.json")) else None
    definition = tokenizer.definition() if isinstance(tokenizer, JsonTokenizer) else None
    token_ids: dict[str, Any] | None = origin.get("token_ids")
    if token_ids is None:  # a text of ours begins behind the end of another, so that one token is both
        token_ids = {} if tokenizer is None else dict.fromkeys(TOKEN_IDS[:2], tokenizer.eos_id)
    has_code = reason is not None and standalone
    folder = Folder(str(shown_path(Path(out))), architecture.model_type, has_code, definition is not None)
    texts = {CARD: model_card(run, folder, config, recipe, step)}
    surroundings = Surroundings(
        n_positions,
        token_ids,
        definition,
        token_named(definition, tokenizer.eos_id, tokenizer.spec) if tokenizer and definition else None,
        AUTO_MAP if has_code else {},
        texts | model_code() if has_code else texts,
    )
    export_hf(config, weights, out, surroundings, DTYPES[dtype], own=reason is not None)
    padded = None
    if padding is not None:  # the head size of all layers, and the bytes of a token in the cache
        before, after = (cost_summary(each, recipe.seq_len).kv_bytes_per_token for each in (model, padding.new))
        head_dim = padding.new.layers[0].attention.head_dim
        padded = {"head_dim": head_dim, "kv_bytes_per_token": after, "kv_bytes_per_token_before": before}
    return {
        "folder": str(out),
        "model_type": architecture.model_type,
        "reason": reason,
        "step": step,
        "dtype": dtype,
        "n_positions": n_positions,
        "tokenizer": definition is not None,
        "standalone": has_code,
        "padded": padded,
        "damages": [str(damage) for damage in damages],
    }
