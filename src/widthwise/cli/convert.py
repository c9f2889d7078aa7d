"""Verbs that change the size of a model, `grow` and `shrink`, and those that write and read Hugging Face folders."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field, PositiveInt

from widthwise.cli.options import Changes, JsonOption, RunArgument, StepOption
from widthwise.cli.progress import shown_progress
from widthwise.cli.terminal import progress_console, remark, say, say_json, say_next, say_next_with_out, say_result
from widthwise.config_io import Config, UserError
from widthwise.growth.choices import GrowOptions, NewSizes, ShrinkOptions


def grow(
    run: RunArgument,
    sizes: NewSizes,
    options: Annotated[GrowOptions, "Advanced"],
    overrides: Changes = None,
    to: Annotated[Path | None, typer.Option(help="Recipe of the larger model; default: the run's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.")] = None,
    step: StepOption = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Say what would be done; read no weights.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a run's model larger without changing what it computes; `resume` continues training from there.

    Changes are made in the recipe of the run, or of --to.

    Example: `widthwise grow runs/small --d-model 96 --n-heads 6 --d-ff 264 --add-layers 2 train.steps=4000 --out
    runs/large`. In place of the sizes: `--to configs/large.yaml`, `--to-shape x --turn-width 0.5`, `--virtual-width
    1.5`, or `--ffn hourglass`.
    """
    from widthwise.runs.grow import grow_run

    target = _target(out, plan_only)
    with shown_progress(progress_console()) as observer:
        found = grow_run(run, target, to, sizes, overrides or (), options, step, observer)
    _show(found, as_json)


def shrink(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Run, Hugging Face folder, or org/name of the hub.")],
    options: ShrinkOptions,
    overrides: Changes = None,
    to: Annotated[Path | None, typer.Option(help="Recipe whose model has the sizes, in place of a budget.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.")] = None,
    step: StepOption = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Measure and say what would be cut.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Cut the parts of a model that it needs least, down to a budget; `resume` heals what is left by training.

    Changes are made in the recipe of the run, or in that of an import: data and steps of healing, say.

    Example: `widthwise shrink runs/small --flops 0.7 --out runs/smaller train.steps=200`, or `widthwise shrink
    models/Llama-3.2-1B --flops 0.7 --out runs/smaller data.path=data/mine`
    """
    from widthwise.recipe.recipe import load_recipe
    from widthwise.reports.shrinking import cut_table, shrinking_answer, shrinking_table
    from widthwise.runs.shrink import shrink_run

    target, wanted = _target(out, plan_only), None if to is None else load_recipe(to).explicit_model
    found = shrink_run(source, target, options, overrides or (), step, wanted, remark)
    written = [] if target is None else [target]
    say_result(found, as_json, shrinking_answer(found), [cut_table(found), shrinking_table(found)], written)
    if target is not None and not as_json:
        say_next("widthwise", "resume", target)
    elif not as_json:
        say_next_with_out("RUN")


def _target(out: Path | None, plan_only: bool) -> Path | None:
    """The folder to write; None to write nothing. Raises UserError where neither is asked for."""
    if out is None and not plan_only:
        raise UserError("--out: is required, unless --plan-only is given")
    return None if plan_only else out


def _show(found: dict[str, Any], as_json: bool) -> None:
    """Prints how the model changes, and of a run that was written its certificate and the folder."""
    if as_json:
        say_json(found)
        return
    for key in ("expansions", "constants", "changes"):
        if found[key]:
            say("constants that change:" if key == "changes" else f"{key}:", *(f"  {line}" for line in found[key]))
    before, after = found["before"], found["after"]
    unwritten = [f"parameters {before['params']:,} -> {after['params']:,}; nothing was written"]
    say(*found.get("lines", unwritten), *(f"note: {note}" for note in found["notes"]))
    if "out" in found:
        say(f"wrote {found['out']}, step {found['step']}")
        more = () if found["steps"] > found["step"] else ("train.steps=STEPS",)
        say_next("widthwise", "resume", found["out"], *more)
    else:
        say_next_with_out("RUN")


class ExportOptions(Config):
    """The options of writing a model for transformers."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
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
        remark(f"exported in widthwise format: {summary['reason']}")
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
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder with config.json, or org/name of the hub.")],
    run: Annotated[Path, typer.Argument(help="Run directory to write.")],
    overrides: Changes = None,
    recipe: Annotated[Path | None, typer.Option(help="Recipe for further training, but for its model.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub; default: main.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a llama, qwen2, qwen3, olmo2 or gpt2 of Hugging Face into a run at step 0, to generate from, grow, train
    further or export.

    From the hub, `org/name` or `hf://org/name`, only JSON, safetensors and the chat template are fetched, and
    the run records the commit.

    Example: `widthwise import Qwen/Qwen3-0.6B runs/qwen && widthwise generate runs/qwen --prompt "Once"`
    """
    from widthwise.runs.save import import_run

    summary = import_run(source, run, recipe, overrides or (), revision)
    if as_json:
        say_json(summary)
        return
    tokenizer = "with its tokenizer" if summary["tokenizer"] else "without a tokenizer, as there is no tokenizer.json"
    commit = f", commit {summary['commit']}" if "commit" in summary else ""
    say(f"{run}: {summary['model_type']} of {summary['params']:,} parameters, {tokenizer}{commit}")
    if ignored := summary["ignored_tokens"]:
        shown = f"{len(ignored)} special tokens past the model's vocabulary, such as {ignored[0]}"
        remark(f"{shown}, are ignored: encoding a text never gives them")
    if recipe is not None:
        say_next("widthwise", "resume", run)
    elif summary["tokenizer"]:
        say_next("widthwise", "generate", run, "--prompt", "TEXT")
    else:
        say_next("widthwise", "resume", run, "data.path=DATA")
