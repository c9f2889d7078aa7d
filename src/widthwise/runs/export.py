"""Export of a run as a Hugging Face folder, with its model card."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import jinja2
import torch

from widthwise.config_io import UserError
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.files import read_json_mapping
from widthwise.growth.bake import bake_plan
from widthwise.growth.pad import pad_heads_plan
from widthwise.interop.hf_export import Surroundings, export_hf, hf_config
from widthwise.interop.hf_import import TOKEN_IDS, token_named
from widthwise.interop.widthwise_format import AUTO_MAP, model_code
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.decoder import blueprint
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.dynamic_hourglass import DynamicHourglassConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.recipe.inspection import layer_rows
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import KEY, recorded_identity
from widthwise.runs.environment import shown_path
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


LONGEST_BAR = 48
"""Letters that stand for the width of the stream."""

TEMPLATE = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True).from_string("""\
---
library_name: transformers
pipeline_tag: text-generation
tags: [widthwise]
---

# {{ name }}

A decoder, {{ profile }}, with {{ features }}.

## Use

```python
from transformers import AutoModelForCausalLM{{ ", AutoTokenizer" if folder.has_tokenizer }}
{% if folder.needs_package %}
import widthwise.hf  # needs widthwise to be installed
{% endif %}

folder = {{ quoted }}
model = AutoModelForCausalLM.from_pretrained(folder{{ trust }})
{% if folder.has_tokenizer %}
tokenizer = AutoTokenizer.from_pretrained(folder{{ trust }})
prompt = tokenizer("Once upon a time", return_tensors="pt")
tokens = model.generate(**prompt, max_new_tokens=20)
print(tokenizer.decode(tokens[0]))
{% endif %}
```

## Shape

```
{{ picture }}
```

## Cost

{{ layers }}

{{ whole }}

## Training

{{ training }}

## Evaluation

{{ evaluations }}
""")

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Folder:
    """The exported folder, as its model card describes it."""

    name: str
    """As a command that is called from the same place names it."""
    model_type: str
    has_code: bool
    """Whether the code of a `widthwise` model is in it."""
    has_tokenizer: bool

    @property
    def needs_package(self) -> bool:
        """True where transformers needs this package to read the folder."""
        return self.model_type == "widthwise" and not self.has_code


def model_card(run: RunDir, folder: Folder, config: ModelConfig, recipe: Recipe, step: int) -> str:
    """Return the card as Markdown. config: of the exported model; step: of its weights."""
    return TEMPLATE.render(
        name=run.path.resolve().name,
        profile=profile_words(config.widths),
        features="; ".join(_features(config)),
        folder=folder,
        quoted=json.dumps(folder.name),
        trust=", trust_remote_code=True" if folder.has_code else "",
        picture="\n".join(_picture(config)),
        layers=_table(*_layers(config, recipe.seq_len)),
        whole=_table(("of the whole model", ""), *_whole(config, recipe)),
        training=_table(("", ""), *_training(run, recipe, step)),
        evaluations=_table(("on", "metric", "value", "standard error"), *_evaluations(run, step)),
    )


def _picture(config: ModelConfig) -> Iterator[str]:
    """A bar for each layer, as long as the layer is wide."""
    for number, width in enumerate(config.widths, start=1):
        bar = "█" * max(1, round(LONGEST_BAR * width / config.stream_width))
        yield f"{number:3}  {bar.center(LONGEST_BAR).rstrip():{LONGEST_BAR}}  {width}"


def _layers(config: ModelConfig, seq_len: int) -> Iterator[Row]:
    costs = "parameters", "FLOPs per token", "KV bytes per token"
    yield "layer", "width", "heads", "KV heads", "head size", "hidden width", *costs
    for row in layer_rows(config, seq_len):
        heads = row.n_heads, row.n_kv_heads, row.head_dim
        hidden = " ".join(map(str, row.hidden_widths))
        yield row.layer, row.d_model, *heads, hidden, row.params, row.forward_flops, row.kv_bytes


def _whole(config: ModelConfig, recipe: Recipe) -> Iterator[Row]:
    cost = cost_summary(config, recipe.seq_len)
    yield "parameters", cost.params["total"]
    yield "parameters that a token uses", cost.params["active"]
    yield f"forward FLOPs per token, at {recipe.seq_len} tokens", cost.flops_per_token.forward
    yield "KV bytes per token, in bf16", cost.kv_bytes_per_token
    yield "vocabulary", config.vocab_size


def _training(run: RunDir, recipe: Recipe, step: int) -> Iterator[Row]:
    train, result = recipe.train, run.result()
    if run.environment().get(KEY):
        yield "data", str(recorded_identity(run))
    yield "steps", f"{step} of {train.steps}"
    yield "tokens per step", train.batch_size * recipe.seq_len
    yield "tokens per sequence", recipe.seq_len
    yield "optimizer", recipe.optimizer.kind
    yield "learning rate", recipe.optimizer.lr
    yield "schedule", recipe.schedule.kind
    yield "matrix products in", train.precision
    yield "seed", train.seed
    if result is not None and result.steps == step:
        yield "tokens", result.tokens
        yield "training FLOPs", result.training_flops
        yield "training loss", result.train_loss
    yield "widthwise", run.environment().get("widthwise")


def _evaluations(run: RunDir, step: int) -> Iterator[Row]:
    """Rows of the run's own validation and of `widthwise eval`."""
    result = run.result()
    if result is not None and result.steps == step:
        text = f"held-out text{f', {result.n_val_tokens:,} tokens' if result.n_val_tokens else ''}"
        yield text, "nats_per_token", result.val_loss, None
        yield text, "bits_per_byte", result.val_bits_per_byte, None
    for path in sorted((run.path / "evaluations").glob(f"step_{step:08d}-*.json")):
        record = read_json_mapping(path)
        for found in (record["texts"], record["tasks"]):
            for name, each in found.items():
                yield from (
                    (name, metric, estimate["value"], estimate["stderr"])
                    for metric, estimate in each["metrics"].items()
                )


def _table(head: Row, *rows: Row) -> str:
    if not rows:
        return "Nothing is recorded."
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


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
    DynamicHourglassConfig: "hourglass feed-forwards, which choose for each token how many of their blocks it passes",
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
