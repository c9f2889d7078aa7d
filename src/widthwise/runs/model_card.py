"""README.md of an exported model: how to use it, its shape, what it costs, how it was trained, how good it is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from widthwise.files import read_json_mapping
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.dynamic_hourglass import DynamicHourglassConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.recipe.inspection import layer_rows
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import KEY, recorded_identity

LONGEST_BAR = 48
"""Letters that stand for the width of the stream."""

HEAD = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags: [widthwise]\n---\n"

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Folder:
    """What a card says of the folder that it lies in."""

    name: str
    """As a command that is called from the same place names it."""
    model_type: str
    has_code: bool
    """Whether the code of a `widthwise` model is in it."""
    has_tokenizer: bool


def model_card(run: RunDir, folder: Folder, config: ModelConfig, recipe: Recipe, step: int) -> str:
    """As Markdown. config: of the exported model; step: of its weights."""
    name = run.path.resolve().name
    sections = {
        "Use": _usage(folder),
        "Shape": ["```", *_picture(config), "```"],
        "Cost": [
            *_table(*_layers(config, recipe.seq_len)),
            "",
            *_table(("of the whole model", ""), *_whole(config, recipe)),
        ],
        "Training": _table(("", ""), *_training(run, recipe, step)),
        "Evaluation": _table(("on", "metric", "value", "standard error"), *_evaluations(run, step)),
    }
    body = [f"## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections.items()]
    return "\n".join(
        [
            HEAD,
            f"# {name}\n",
            f"A decoder, {profile_words(config.widths)}, with {'; '.join(_features(config))}.\n",
            *body,
        ]
    )


def _usage(folder: Folder) -> list[str]:
    """Python that runs as it stands where the model was exported."""
    needs_package = folder.model_type == "widthwise" and not folder.has_code
    trust = ", trust_remote_code=True" if folder.has_code else ""
    names = ["AutoModelForCausalLM", *(["AutoTokenizer"] if folder.has_tokenizer else [])]
    code = [
        f"from transformers import {', '.join(names)}",
        *(["import widthwise.hf  # needs widthwise to be installed"] if needs_package else []),
        "",
        f"folder = {json.dumps(folder.name)}",
        f"model = AutoModelForCausalLM.from_pretrained(folder{trust})",
    ]
    if folder.has_tokenizer:
        code += [
            f"tokenizer = AutoTokenizer.from_pretrained(folder{trust})",
            'prompt = tokenizer("Once upon a time", return_tensors="pt")',
            "tokens = model.generate(**prompt, max_new_tokens=20)",
            "print(tokenizer.decode(tokens[0]))",
        ]
    return ["```python", *code, "```"]


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
    """What the run itself found, and what `widthwise eval` did."""
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


def _table(head: Row, *rows: Row) -> list[str]:
    if not rows:
        return ["Nothing is recorded."]
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(map(_cell, line)) + " |" for line in lines]


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
    """What the widths of the layers do from the first to the last."""
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
