"""Verbs at the border to other programs: Hugging Face folders, and checkpoints in one file."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field, PositiveInt

from widthwise.cli.options import Changes, JsonOption, RunArgument, StepOption
from widthwise.cli.terminal import remark, say, say_json, say_next
from widthwise.config_io import Config

checkpoint_app = typer.Typer(
    name="checkpoint", help="Work on the checkpoints of a run.", no_args_is_help=True, rich_markup_mode="markdown"
)


class ExportOptions(Config):
    """The options of writing a model for transformers."""

    dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of the weights."""
    n_positions: PositiveInt | None = None
    """Longest text in tokens; default: the imported model's, else seq_len."""
    standalone: bool = False
    """Also write the code of a `widthwise` model, for use without this package."""
    pad_heads: int | None = Field(default=None, ge=8)
    """One head size for all layers: the smallest multiple of this that holds the largest, such as 8 or 64."""


def export(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    options: ExportOptions,
    step: StepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the model of a run as a folder that transformers loads.

    It becomes a llama, qwen2, qwen3, olmo2 or gpt2 if it is one. Any other model becomes a `widthwise`, which
    transformers loads after `import widthwise.hf`, or without this package if written with --standalone.

    Example: `widthwise export runs/grown models/grown`
    """
    from widthwise.runs.export import export_run

    summary = export_run(run, folder, **dict(options), step=step)
    for damage in summary.pop("damages"):
        remark(damage)
    if as_json:
        say_json(summary)
        return
    if summary["reason"] is not None:
        remark(f"a widthwise model, because no other format says all of it: {summary['reason']}")
    elif options.standalone:
        remark(f"no code is written, because transformers has its own for a {summary['model_type']}")
    if (padded := summary["padded"]) is not None:
        before, after = (f"{padded[key]:,}" for key in ("kv_bytes_per_token_before", "kv_bytes_per_token"))
        remark(f"all heads have {padded['head_dim']} coordinates; the cache takes {after} bytes a token, not {before}")
    tokenizer = "with tokenizer.json" if summary["tokenizer"] else "without tokenizer.json, because the run has none"
    say(f"{folder}: {summary['model_type']} of step {summary['step']} in {summary['dtype']}, {tokenizer}")
    if summary["tokenizer"]:
        say_next("widthwise", "eval", folder, "--text", "FILE")


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Hugging Face folder with config.json and safetensors.")
    ],
    run: Annotated[Path, typer.Argument(help="Run directory to write.")],
    overrides: Changes = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="Recipe for further training; its model section is replaced by the imported model."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a llama, qwen2, qwen3, olmo2 or gpt2 into a run at step 0, to generate from, grow, train further or export.

    Example: `widthwise import models/Llama-3.2-1B runs/llama && widthwise generate runs/llama --prompt "Once"`
    """
    from widthwise.runs.save import import_run

    summary = import_run(source, run, recipe, overrides or ())
    if as_json:
        say_json(summary)
        return
    tokenizer = "with its tokenizer" if summary["tokenizer"] else "without a tokenizer, as there is no tokenizer.json"
    say(f"{run}: {summary['model_type']} of {summary['params']:,} parameters, {tokenizer}")
    is_to_be_trained = recipe is not None or not summary["tokenizer"]
    say_next("widthwise", *(("resume", run) if is_to_be_trained else ("generate", run, "--prompt", "TEXT")))


@checkpoint_app.callback()
def _checkpoint() -> None:
    """Work on the checkpoints of a run."""


@checkpoint_app.command()
def merge(run: RunArgument) -> None:
    """Put checkpoints that several processes wrote into one file of weights and one of optimizer state.

    widthwise reads both forms; other programs may want one file.

    Example: `widthwise checkpoint merge runs/x_2b`
    """
    from widthwise.runs.trained import merge as merge_checkpoints

    merged = merge_checkpoints(run)
    say(*(f"{path}: merged" for path in merged))
    if not merged:
        say(f"{run}: every checkpoint has its weights in one file already")
