"""README.md of an exported model: how to use it, its shape, what it costs, how it was trained, how good it is."""

from collections.abc import Iterator
from typing import Any

from widthwise.files import read_json_mapping
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.shape.breakdown import layer_rows

LONGEST_BAR = 48
"""Letters that stand for the width of the stream."""

HEAD = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags: [widthwise]\n---\n"

Row = tuple[Any, ...]


def model_card(run: RunDir, model_type: str, config: ModelConfig, recipe: Recipe, step: int) -> str:
    """As Markdown. config: of the exported model; step: of its weights."""
    name = run.path.resolve().name
    sections = {
        "Use": _usage(model_type),
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
    return "\n".join([HEAD, f"# {name}\n", *body])


def _usage(model_type: str) -> list[str]:
    own = "import widthwise.hf  # or trust_remote_code=True, where modeling_widthwise.py is in the folder"
    code = ["from transformers import AutoModelForCausalLM", *([own] if model_type == "widthwise" else [])]
    return ["```python", *code, "", 'model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER")', "```"]


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
        yield "held-out text", "nats_per_token", result.val_loss, None
        yield "held-out text", "bits_per_byte", result.val_bits_per_byte, None
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
