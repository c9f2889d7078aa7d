"""Export of a run as a Hugging Face folder, with its model card."""

import json
from pathlib import Path
from typing import Any, Literal

import jinja2
import torch

from widthwise.data.identity import DATA_KEY, recorded_identity, recorded_import
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.growth.bake import bake_plan, pad_heads_plan
from widthwise.growth.plan import GrowthPlan
from widthwise.interop.families import FAMILIES
from widthwise.interop.hf_export import FolderExtras, export_hf, hf_config
from widthwise.interop.hf_import import TOKEN_IDS, TOKENIZER_CONFIG, WIDTHWISE
from widthwise.interop.widthwise_format import AUTO_MAP, model_code
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.decoder import blueprint
from widthwise.recipe.inspection import layer_rows
from widthwise.records.evaluation import Evaluation
from widthwise.runs.environment import shown_path
from widthwise.runs.open import RunCheckpoint, tokenizer_of
from widthwise.training import checkpoint

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def export_run(
    path: Path | str,
    out: Path | str,
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32",
    n_positions: int | None = None,
    standalone: bool = False,
    pad_heads: int | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    """Write the model of a run as a Hugging Face folder, and return a summary.

    The folder has a format that is built into transformers if it describes the whole model; a grown model is converted
    to the parametrisation of the format first. Otherwise it is a `widthwise` model. n_positions: tokens of the longest
    text; default: the length of an imported model, or the recipe's seq_len. standalone: include the code of a
    `widthwise` model, so that transformers runs it without this package. pad_heads: pad all heads with zeros to the
    smallest multiple of this number that holds the largest head. step: of the checkpoint; default: the newest undamaged
    one. Raises UserError with the reason if the model cannot be exported.
    """
    source = RunCheckpoint.of(path, step)
    run = source.run
    recipe = source.recipe
    model = source.model
    origin = recorded_import(run)
    longest_text = n_positions or max(recipe.seq_len, origin.n_positions if origin else 0)
    padding = None if pad_heads is None else pad_heads_plan(model, pad_heads)
    config = model if padding is None else padding.new
    reason = None
    try:  # before the weights are read
        model_type, plan = _family(config, longest_text, origin and origin.model_type, DTYPES[dtype])
    except UserError as error:
        reason = str(error)
        model_type = WIDTHWISE.model_type
        plan = None
        hf_config(config, longest_text, model_type)
    config = config if plan is None else plan.new
    weights = checkpoint.read_weights(source.saved, blueprint(model))
    for conversion in (padding, plan):
        if conversion is not None:
            weights = dict(conversion.weights(weights))
    tokenizer = tokenizer_of(run) if any(run.tokenizer_folder.glob("*.json")) else None
    definition = None
    if isinstance(tokenizer, JsonTokenizer):
        definition = tokenizer.definition() if origin else tokenizer.plain_definition()
    settings = origin.settings if origin else {}
    if n_positions is not None:
        settings.get(TOKENIZER_CONFIG, {}).pop("model_max_length", None)
    token_ids: dict[str, Any] = origin.token_ids if origin else {}
    if origin is None and tokenizer is not None:  # in training a text follows the end-of-text token of the previous one
        token_ids = dict.fromkeys(TOKEN_IDS[:2], tokenizer.eos_id)
    has_code = reason is not None and standalone
    card = _card(
        source,
        config,
        folder=json.dumps(shown_path(Path(out))),
        model_type=model_type,
        has_code=has_code,
        has_tokenizer=definition is not None,
    )
    texts = {"README.md": card}
    config_token_ids = origin.config_token_ids if origin else None
    entries = dict.fromkeys(TOKEN_IDS) | (token_ids if config_token_ids is None else config_token_ids)
    if has_code:
        texts |= model_code()
        entries = AUTO_MAP | entries
    eos = tokenizer.eos if tokenizer and definition else None
    extras = FolderExtras(longest_text, token_ids, definition, eos, settings, entries, texts)
    export_hf(config, weights, out, extras, DTYPES[dtype], model_type)
    return {
        "folder": str(out),
        "model_type": model_type,
        "reason": reason,
        "step": source.step,
        "dtype": dtype,
        "n_positions": longest_text,
        "tokenizer": definition is not None,
        "standalone": has_code,
        "damages": [str(damage) for damage in source.damages],
    }


def _family(
    config: ModelConfig, n_positions: int, origin: str | None, dtype: torch.dtype
) -> tuple[str, GrowthPlan | None]:
    """Return a `model_type` of transformers that can express a model, and the plan that gives it standard constants.

    The plan is None for a model that fits as it is. origin: the `model_type` of an imported model, which is preferred.
    Raises UserError with the reason if there is none.
    """
    plan = bake_plan(config, one_eps=True)
    reason = None
    model_types = (origin, None) if origin in FAMILIES else (None,)  # None: any that fits
    for model_type in model_types:
        for candidate, conversion in ((config, None), (plan.new, plan)):
            try:
                return hf_config(candidate, n_positions, model_type, dtype)[0].model_type, conversion
            except UserError as error:
                reason = error
    assert reason is not None
    raise reason


def _card(source: RunCheckpoint, config: ModelConfig, **folder_fields: Any) -> str:
    """Return the model card as Markdown. config: of the exported model.

    folder_fields: `folder`, quoted for use in a command from the same working folder, `model_type`, `has_code` (the
    code of a `widthwise` model is included) and `has_tokenizer`.
    """
    run = source.run
    recipe = source.recipe
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["cell"] = _cell
    result = run.result()
    environment = run.environment()
    evaluations = [
        (name, metric, score.value, score.stderr)
        for evaluation in Evaluation.read_all(run.path, f"{source.step:08d}")
        for name, answers in (*evaluation.texts.items(), *evaluation.tasks.items())
        for metric, score in answers.metrics.items()
    ]
    return templates.get_template("model_card.md.jinja").render(
        folder_fields,
        name=run.path.resolve().name,
        layers=layer_rows(config, recipe.seq_len),
        cost=cost_summary(config, recipe.seq_len),
        vocab_size=config.vocab_size,
        recipe=recipe,
        step=source.step,
        data=recorded_identity(run) if environment.get(DATA_KEY) else None,
        result=result if result is not None and result.steps == source.step else None,
        version=environment.get("widthwise"),
        evaluations=evaluations,
    )


def _cell(value: Any) -> str:
    """Return a cell of a table: "" for None, a whole number with thousands separators, others with 5 digits."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.5g}"
