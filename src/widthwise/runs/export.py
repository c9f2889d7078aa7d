"""Exporting the model of a run as a Hugging Face folder."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from widthwise.config_io import UserError
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.data.tokenizer import Tokenizer
from widthwise.growth.bake import bake_plan
from widthwise.growth.pad import pad_heads_plan
from widthwise.growth.plan import GrowthPlan
from widthwise.interop.hf_export import Surroundings, export_hf, hf_config
from widthwise.interop.hf_import import TOKEN_IDS, token_named
from widthwise.interop.widthwise_code import AUTO_MAP, model_code
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.decoder import blueprint
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.environment import shown_path
from widthwise.runs.import_ import IMPORTED
from widthwise.runs.model_card import Folder, model_card
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
    leaving = _leaving(model if padding is None else padding.new, n_positions)
    weights = checkpoint.read_weights(found, blueprint(model))
    for plan in (padding, leaving.plan):
        weights = weights if plan is None else dict(plan.weights(weights))
    tokenizer = _tokenizer_if_any(run)
    surroundings = _surroundings(tokenizer, n_positions, origin.get("token_ids"))
    is_own = leaving.reason is not None
    has_code = is_own and standalone
    folder = Folder(str(shown_path(Path(out))), leaving.model_type, has_code, surroundings.tokenizer is not None)
    card = model_card(run, folder, leaving.config, recipe, step)
    surroundings = replace(surroundings, texts={CARD: card})
    if has_code:
        surroundings = replace(surroundings, model_keys=AUTO_MAP, texts={CARD: card, **model_code()})
    export_hf(leaving.config, weights, out, surroundings, DTYPES[dtype], is_own)
    return {
        "folder": str(out),
        "model_type": leaving.model_type,
        "reason": leaving.reason,
        "step": step,
        "dtype": dtype,
        "n_positions": n_positions,
        "tokenizer": surroundings.tokenizer is not None,
        "standalone": has_code,
        "padded": None if padding is None else _padding(padding, recipe.seq_len),
        "damages": [str(damage) for damage in damages],
    }


@dataclass(frozen=True)
class Leaving:
    """How a model leaves."""

    model_type: str
    config: ModelConfig
    plan: GrowthPlan | None
    """What makes its weights those of another format; None for our own."""
    reason: str | None
    """Why no other format says all of it; None where one does."""


def _leaving(config: ModelConfig, n_positions: int) -> Leaving:
    """Raises UserError where no format says all of the model, before gigabytes are read."""
    try:
        plan = bake_plan(config, one_eps=True)
        architecture, _ = hf_config(plan.new, n_positions)
        return Leaving(architecture.model_type, plan.new, plan, None)
    except UserError as error:
        architecture, _ = hf_config(config, n_positions, own=True)
        return Leaving(architecture.model_type, config, None, str(error))


def _padding(plan: GrowthPlan, seq_len: int) -> dict[str, float]:
    """The head size of all layers, and what a token takes in the cache, before and after."""
    before, after = (cost_summary(model, seq_len).kv_bytes_per_token for model in (plan.old, plan.new))
    head_dim = plan.new.layers[0].attention.head_dim
    return {"head_dim": head_dim, "kv_bytes_per_token": after, "kv_bytes_per_token_before": before}


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
