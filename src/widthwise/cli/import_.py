"""`widthwise import`: a Hugging Face folder -> a run directory."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.terminal import say, say_json, say_next


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Hugging Face folder with config.json and safetensors.")
    ],
    run: Annotated[Path, typer.Argument(help="Run directory to write.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe, such as train.steps=2000.")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="Recipe for further training; its model section is replaced by the imported model."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
