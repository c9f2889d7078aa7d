"""Verbs that change the size of a model, `grow` and `shrink`, and verbs that write and read Hugging Face folders."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field, PositiveInt

from widthwise.cli.options import Changes, JsonOption, RunArgument, StepOption
from widthwise.cli.progress import shown_progress
from widthwise.cli.terminal import progress_console, remark, say, say_json, say_next, say_next_with_out, say_result
from widthwise.config_io import Config
from widthwise.growth.choices import GrowOptions, NewSizes, ShrinkOptions
from widthwise.mistakes import UserError
from widthwise.reports.formats import hidden_widths, joined


def grow(
    run: RunArgument,
    sizes: NewSizes,
    options: Annotated[GrowOptions, "Advanced"],
    overrides: Changes = None,
    to: Annotated[Path | None, typer.Option(help="Recipe of the larger model; default: the recipe of the run.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.")] = None,
    step: StepOption = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Show the planned growth; read no weights.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the model of a run larger without changing its function; `resume` continues training.

    Changes apply to the recipe of the run, or of --to.

    Example: `widthwise grow runs/small --d-model 96 --n-heads 6 --d-ff 264 --add-layers 2 train.steps=4000 --out
    runs/large`. In place of the sizes: `--to configs/large.yaml`, `--to-shape x --turn-width 0.5`, `--virtual-width
    1.5`, or `--ffn hourglass`.
    """
    from widthwise.runs.grow import grow_run

    target = _target(out, plan_only)
    with shown_progress(progress_console()) as observer:
        growth = grow_run(run, target, to, sizes, overrides or (), options, step, observer)
    if as_json:
        say_json(growth)
        return
    for key, title in (("expansions", "expansions"), ("constants", "constants"), ("changes", "constants that change")):
        if growth[key]:
            say(f"{title}:", *(f"  {line}" for line in growth[key]))
    params = f"parameters {growth['before']['params']:,} -> {growth['after']['params']:,}; nothing was written"
    say(*growth.get("lines", [params]), *(f"note: {note}" for note in growth["notes"]))
    if "out" in growth:
        say(f"wrote {growth['out']}, step {growth['step']}")
        more_steps = () if growth["steps"] > growth["step"] else ("train.steps=STEPS",)
        say_next("widthwise", "resume", growth["out"], *more_steps)
    else:
        say_next_with_out("RUN")


def shrink(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Run, Hugging Face folder, or org/name of the hub.")],
    options: ShrinkOptions,
    overrides: Changes = None,
    to: Annotated[
        Path | None, typer.Option(help="Recipe whose model has the target sizes, in place of a budget.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.")] = None,
    step: StepOption = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Measure, and show what would be cut.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Cut the least important parts of a model, down to a budget; `resume` then recovers the loss by training.

    Changes apply to the recipe of the run or of the import, such as the data and steps of recovery.

    Example: `widthwise shrink runs/small --flops 0.7 --out runs/smaller train.steps=200`, or `widthwise shrink
    models/Llama-3.2-1B --flops 0.7 --out runs/smaller data.path=data/mine`
    """
    from widthwise.recipe.recipe import load_recipe
    from widthwise.reports.resizing import cut_table, shrinking_answer, shrinking_table
    from widthwise.runs.shrink import shrink_run

    target = _target(out, plan_only)
    target_model = None if to is None else load_recipe(to).explicit_model
    cut = shrink_run(source, target, options, overrides or (), step, target_model, remark)
    written = [] if target is None else [target]
    say_result(cut, as_json, shrinking_answer(cut), [cut_table(cut), shrinking_table(cut)], written)
    if target is not None and not as_json:
        say_next("widthwise", "resume", target)
    elif not as_json:
        say_next_with_out("RUN")


def _target(out: Path | None, plan_only: bool) -> Path | None:
    """Return the folder to write, or None with --plan-only. Raises UserError if neither option is given."""
    if out is None and not plan_only:
        raise UserError("--out: is required, unless --plan-only is given")
    return None if plan_only else out


class ExportOptions(Config):
    """Options of `export`."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type of the weights."""
    n_positions: PositiveInt | None = None
    """Longest text in tokens; default: the value of the imported model, or seq_len."""
    standalone: bool = False
    """Also write the code of the model, for use without this package."""
    pad_heads: int | None = Field(default=None, ge=8)
    """Pad all heads to the size of the largest, rounded up to a multiple of this number, such as 8 or 64."""


def export(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    options: ExportOptions,
    step: StepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the model of a run as a folder that transformers loads.

    A model with an architecture of transformers, such as llama or qwen3, is written as one. Any other model becomes a
    `widthwise`, which transformers loads after `import widthwise.hf`, or without this package if written with
    --standalone.

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
        remark(f"no code is written, because transformers includes the code of a {summary['model_type']}")
    tokenizer = "with tokenizer.json" if summary["tokenizer"] else "without tokenizer.json, because the run has none"
    say(f"{folder}: {summary['model_type']} of step {summary['step']} in {summary['dtype']}, {tokenizer}")
    if summary["tokenizer"]:
        say_next("widthwise", "eval", folder, "--text", "FILE")


def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder with config.json, or org/name of the hub.")],
    run: Annotated[Path | None, typer.Argument(help="Run directory to write.")] = None,
    overrides: Changes = None,
    recipe: Annotated[Path | None, typer.Option(help="Recipe for further training; its model is ignored.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub; default: main.")] = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Describe the model; read only config.json.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Import a model of Hugging Face as a run, to generate, grow, train or export.

    Architectures: gemma2, gemma3_text, gpt2, granite, llama, ministral, mistral, mixtral, olmo2, olmo3, olmoe, phi3,
    qwen2, qwen2_moe, qwen3, qwen3_moe, smollm3, widthwise.

    From the hub, as `org/name` or `hf://org/name`, only JSON, safetensors and the chat template are downloaded, and the
    run records the commit.

    Example: `widthwise import Qwen/Qwen3-0.6B runs/qwen && widthwise generate runs/qwen --prompt "Once"`
    """
    from widthwise.runs.save import import_plan, import_run

    if plan_only:
        if run or overrides or recipe:
            raise UserError("--plan-only: reads only config.json; give SOURCE and --revision alone")
        plan = import_plan(source, revision)
        say_json(plan) if as_json else _say_plan(plan)
        return
    if run is None:
        raise UserError("RUN: is required, except with --plan-only")
    summary = import_run(source, run, recipe, overrides or (), revision)
    if as_json:
        say_json(summary)
        return
    tokenizer = "with its tokenizer" if summary["tokenizer"] else "without a tokenizer (no tokenizer.json)"
    commit = f", commit {summary['commit']}" if "commit" in summary else ""
    say(f"{run}: {summary['model_type']} of {summary['params']:,} parameters, {tokenizer}{commit}")
    if ignored := summary["ignored_tokens"]:
        remark(f"ignored {len(ignored)} special tokens past the vocabulary of the model, such as {ignored[0]}")
    if recipe is not None:
        say_next("widthwise", "resume", run)
    elif summary["tokenizer"]:
        say_next("widthwise", "generate", run, "--prompt", "TEXT")
    else:
        say_next("widthwise", "resume", run, "data.path=DATA")


def _say_plan(plan: dict[str, Any]) -> None:
    """Print the sizes of a model to import, and ignored keys of config.json. plan: result of `import_plan`."""
    cost = plan["cost"]
    commit = f", commit {plan['commit']}" if "commit" in plan else ""
    say(f"{plan['folder']}{commit}: {plan['model_type']} of {cost['params']['total']:,} parameters")
    names = {"d_model": "widths", "n_heads": "n_heads", "n_kv_heads": "n_kv_heads", "head_dim": "head_dim"}
    sizes = {name: joined([str(size) for size in sorted(set(cost[key]))]) for name, key in names.items()}
    sizes["d_ff"] = joined(sorted({hidden_widths(widths) for widths in cost["hidden_widths"]}))
    say(f"{cost['n_layers']} layers: {', '.join(f'{name} {size}' for name, size in sizes.items())}")
    if windows := [window for window in plan["windows"] if window is not None]:
        tokens = joined([f"{window:,}" for window in sorted(set(windows))])
        say(f"attention with a window of {tokens} tokens in {len(windows)} of {cost['n_layers']} layers")
    say(f"vocab_size {cost['vocab_size']:,}, contexts of up to {plan['n_positions']:,} tokens")
    for key, value in plan["not_imported"].items():
        remark(f"not imported: {key} = {value}")
