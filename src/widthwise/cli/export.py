"""`widthwise export`: a run directory -> a Hugging Face folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from widthwise.cli.step_option import StepOption
from widthwise.cli.terminal import remark, say, say_json, say_next


def export(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="Type of the weights.")] = "fp32",
    n_positions: Annotated[
        int | None,
        typer.Option(min=1, help="Longest text in tokens; default: the imported model's, else seq_len."),
    ] = None,
    standalone: Annotated[
        bool,
        typer.Option("--standalone", help="Also write the code of a `widthwise` model, for use without this package."),
    ] = False,
    pad_heads: Annotated[
        int | None,
        typer.Option(
            min=8,
            metavar="MULTIPLE",
            help="One head size for all layers: the smallest multiple of this that holds the largest, such as 8 or 64.",
        ),
    ] = None,
    step: StepOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the model of a run as a folder that transformers loads.

    It becomes a llama, qwen2, qwen3, olmo2 or gpt2 if it is one. Any other model becomes a `widthwise`, which
    transformers loads after `import widthwise.hf`, or without this package if written with --standalone.

    Example: `widthwise export runs/grown models/grown`
    """
    from widthwise.runs.export import export_run

    summary = export_run(run, folder, dtype, n_positions, standalone, pad_heads, step)
    for damage in summary.pop("damages"):
        remark(damage)
    if as_json:
        say_json(summary)
        return
    if summary["reason"] is not None:
        remark(f"a widthwise model, because no other format says all of it: {summary['reason']}")
    elif standalone:
        remark(f"no code is written, because transformers has its own for a {summary['model_type']}")
    if (padded := summary["padded"]) is not None:
        before, after = (f"{padded[key]:,}" for key in ("kv_bytes_per_token_before", "kv_bytes_per_token"))
        remark(f"all heads have {padded['head_dim']} coordinates; the cache takes {after} bytes a token, not {before}")
    tokenizer = "with tokenizer.json" if summary["tokenizer"] else "without tokenizer.json, because the run has none"
    say(f"{folder}: {summary['model_type']} of step {summary['step']} in {summary['dtype']}, {tokenizer}")
    if summary["tokenizer"]:
        say_next("widthwise", "eval", folder, "--text", "FILE")
