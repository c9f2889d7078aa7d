"""Export of a run as a Hugging Face folder, with its model card."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import jinja2
import torch

from widthwise.config_io import UserError
from widthwise.data.identity import IMPORTED, KEY, recorded_identity
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.growth.bake import bake_plan
from widthwise.growth.pad import pad_heads_plan
from widthwise.interop.hf_export import Surroundings, export_hf, hf_config
from widthwise.interop.hf_import import TOKEN_IDS, TOKENIZER_CONFIG
from widthwise.interop.widthwise_format import AUTO_MAP, model_code
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.decoder import blueprint
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.recipe.inspection import layer_rows
from widthwise.recipe.recipe import Recipe
from widthwise.records.evaluation import Evaluation
from widthwise.run_dir import RunDir
from widthwise.runs.environment import shown_path
from widthwise.runs.trained import RunCheckpoint, tokenizer_of
from widthwise.training import checkpoint

LONGEST_BAR = 48
"""Letters for the width of the stream."""
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
    """Writes the model of a run as a Hugging Face folder, and returns a summary.

    Where one of the formats that transformers always knows says all of the model, the folder has it; a grown model gets
    the format's own parametrisation first. Otherwise it is a `widthwise` model. n_positions: tokens of the longest
    text, what an imported model was made for or else the recipe's seq_len where not given. standalone: with the code of
    a `widthwise` model in the folder, so that transformers runs it where this package is not installed. pad_heads:
    all heads get the smallest multiple of this that holds the largest, with zeros. step: of the checkpoint; the newest
    good one where not given. Raises UserError with the reason where the model cannot be written.
    """
    source = RunCheckpoint.of(path, step)
    run, recipe, model, step = source.run, source.recipe, source.model, source.step
    origin = run.environment().get(IMPORTED) or {}
    has_limit = n_positions is not None
    n_positions = n_positions or max(recipe.seq_len, origin.get("n_positions", 0))
    padding = None if pad_heads is None else pad_heads_plan(model, pad_heads)
    config, plan, reason = model if padding is None else padding.new, None, None
    try:  # before gigabytes are read
        plan = bake_plan(config, one_eps=True)
        architecture, _ = hf_config(plan.new, n_positions)
        config = plan.new
    except UserError as error:
        plan, reason = None, str(error)
        architecture, _ = hf_config(config, n_positions, as_widthwise=True)
    weights = checkpoint.read_weights(source.saved, blueprint(model))
    for each in (padding, plan):
        weights = weights if each is None else dict(each.weights(weights))
    tokenizer = tokenizer_of(run) if any(run.tokenizer_folder.glob("*.json")) else None
    definition = None
    if isinstance(tokenizer, JsonTokenizer):
        definition = tokenizer.definition() if origin else tokenizer.plain_definition()
    settings = {name: dict(found) for name, found in origin.get("settings", {}).items()}
    if has_limit:
        settings.get(TOKENIZER_CONFIG, {}).pop("model_max_length", None)
    token_ids: dict[str, Any] | None = origin.get("token_ids")
    if token_ids is None:  # a text of ours begins behind the end of another, so that one token is both
        token_ids = {} if tokenizer is None else dict.fromkeys(TOKEN_IDS[:2], tokenizer.eos_id)
    has_code = reason is not None and standalone
    card = _card(
        run,
        config,
        recipe,
        step,
        folder=json.dumps(shown_path(Path(out))),
        model_type=architecture.model_type,
        has_code=has_code,
        has_tokenizer=definition is not None,
    )
    texts = {"README.md": card}
    surroundings = Surroundings(
        n_positions,
        token_ids,
        definition,
        tokenizer.eos if tokenizer and definition else None,
        settings,
        (AUTO_MAP if has_code else {}) | dict.fromkeys(TOKEN_IDS) | origin.get("config_token_ids", token_ids),
        texts | model_code() if has_code else texts,
    )
    export_hf(config, weights, out, surroundings, DTYPES[dtype], as_widthwise=reason is not None)
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
        "damages": [str(damage) for damage in source.damages],
    }


def _card(run: RunDir, config: ModelConfig, recipe: Recipe, step: int, **folder_fields: Any) -> str:
    """Return the model card as Markdown. config: of the exported model; step: of its weights.

    folder_fields: `folder`, quoted as a command that is called from the same place names it, `model_type`, `has_code`
    (that of a `widthwise` model is in it) and `has_tokenizer`.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["cell"] = _cell
    result, environment = run.result(), run.environment()
    # A bar for each layer, as long as the layer is wide.
    bars = ["█" * max(1, round(LONGEST_BAR * width / config.stream_width)) for width in config.widths]
    picture = [
        f"{number:3}  {bar.center(LONGEST_BAR).rstrip():{LONGEST_BAR}}  {width}"
        for number, (bar, width) in enumerate(zip(bars, config.widths), start=1)
    ]
    return templates.get_template("model_card.md.jinja").render(
        folder_fields,
        name=run.path.resolve().name,
        profile=profile_words(config.widths),
        features=list(_features(config)),
        picture="\n".join(picture),
        layers=layer_rows(config, recipe.seq_len),
        cost=cost_summary(config, recipe.seq_len),
        vocab_size=config.vocab_size,
        recipe=recipe,
        step=step,
        data=recorded_identity(run) if environment.get(KEY) else None,
        result=result if result is not None and result.steps == step else None,
        version=environment.get("widthwise"),
        evaluations=list(_evaluations(run, step)),
    )


def _evaluations(run: RunDir, step: int) -> Iterator[tuple[Any, ...]]:
    """Rows of `widthwise eval`: text or task, metric, value, standard error."""
    for evaluation in Evaluation.read_all(run.path, f"{step:08d}"):
        for name, answers in (*evaluation.texts.items(), *evaluation.tasks.items()):
            for metric, score in answers.metrics.items():
                yield name, metric, score.value, score.stderr


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}" if isinstance(value, float) else str(value)


FEED_FORWARDS: Mapping[type[FFNConfig], str] = {
    SwiGLUConfig: "SwiGLU feed-forwards",
    MLPConfig: "plain feed-forwards",
    HourglassConfig: "hourglass feed-forwards",
    DynamicConfig: "dynamic-width feed-forwards, which choose for each token how much of their width it uses",
    MoEConfig: "mixtures of experts as feed-forwards (MoE)",
}


def profile_words(widths: Sequence[int]) -> str:
    """Describe the widths from the first layer to the last."""
    changes = [after - before for before, after in pairwise(widths) if after != before]
    falls = [change < 0 for change in changes]
    n_turns = sum(before != after for before, after in pairwise(falls))
    if not changes:
        return "uniform in width"
    if n_turns == 0:
        return "narrowing from layer to layer" if falls[0] else "growing wider from layer to layer"
    if n_turns == 1:
        x, diamond = "x-shaped (wide at both ends, narrow within)", "diamond-shaped (narrow at both ends, wide within)"
        return x if falls[0] else diamond
    return "of several widths"


def _features(config: ModelConfig) -> Iterator[str]:
    """A plugin's feed-forward is called by its kind."""
    yield from dict.fromkeys(
        FEED_FORWARDS.get(type(layer.ffn), f"{layer.ffn.kind} feed-forwards") for layer in config.layers
    )
    residual = config.residual
    if isinstance(residual, HyperConnectionsConfig):
        yield f"virtual width (hyper-connections over {residual.n_slots} slots of {residual.slot_width})"
    if config.mtp is not None:
        yield f"multi-token prediction (MTP) of {config.mtp.n_depths} further tokens"
