"""`widthwise eval`: perplexity and tasks."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import progress_console, say, say_json
from widthwise.config_io import UserError

TEXT, TASKS, HOW = "Texts", "Tasks", "How"


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Runs or Hugging Face folders; if several, each is compared with the first, or with --baseline.",
        ),
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=TEXT, help="Raw text: .txt .md .py .jsonl .parquet, or a folder."),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(rich_help_panel=TEXT, help="Prepared folder; its held-out part is read.")
    ] = None,
    field: Annotated[
        str, typer.Option(rich_help_panel=TEXT, help="Field of a JSONL or Parquet row that holds the text.")
    ] = "text",
    max_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=TEXT, min=1, help="Read only this many tokens of each text.")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=TEXT,
            min=1,
            help="Tokens that each window predicts; fewer give more context and take longer.",
        ),
    ] = None,
    task_file: Annotated[
        list[str] | None, typer.Option(rich_help_panel=TASKS, help="JSONL file of questions and answers.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(rich_help_panel=TASKS, help="Tasks of lm-evaluation-harness, such as piqa,arc_easy.")
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(rich_help_panel=TASKS, min=0, help="Examples before each question of --tasks.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=TASKS,
            help="A paper's table: variable-width, hourglass, virtual-width-a or virtual-width-b.",
        ),
    ] = None,
    local: Annotated[
        str | None, typer.Option(rich_help_panel=TASKS, help="Folder of JSONL files to run the suite from.")
    ] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", rich_help_panel=TASKS, help="Evaluate what can be had of a suite, and say the rest."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(rich_help_panel=TASKS, min=1, help="Use only this many items of each task.")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(rich_help_panel=HOW, min=1, help="Longest context in tokens; default: the recipe's seq_len."),
    ] = None,
    batch_size: Annotated[int, typer.Option(rich_help_panel=HOW, min=1, help="Texts per forward pass.")] = 16,
    precision: Annotated[
        str | None, typer.Option(rich_help_panel=HOW, help="fp32 or bf16; default: the recipe's.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(rich_help_panel=HOW, help="cpu, cuda or cuda:1; default: cuda, if there is one.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(rich_help_panel=HOW, min=0, help="Step of each run's checkpoint; default: its newest good one."),
    ] = None,
    every_checkpoint: Annotated[
        bool,
        typer.Option("--every-checkpoint", rich_help_panel=HOW, help="All checkpoints of each run, first to last."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=HOW,
            help="One JSON file for all, instead of one in each run's evaluations/; of folders nothing else is kept.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=HOW,
            metavar="FOLDER",
            help="A page, CSV and LaTeX with a row for each run, and what is significantly better marked.",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=HOW,
            metavar="RUN=BASELINE",
            help="What a run is compared with; default: the first. Repeat for several.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, without blocks and items.")] = False,
) -> None:
    """Perplexity and bits per byte of texts, and accuracy on tasks; by default on the run's held-out text.

    Example: `widthwise eval runs/quickstart/runs/uniform-seed1 runs/quickstart/runs/x-seed1 --text README.md`
    """
    from widthwise.cli.eval_checkpoints import tables_by_checkpoint
    from widthwise.cli.eval_table import evaluation_tables
    from widthwise.cli.progress import LineObserver, shown_progress
    from widthwise.config_io import parse
    from widthwise.evaluation.differences import all_differences, baselines_of, without_items
    from widthwise.evaluation.models_table import models_table
    from widthwise.files import write_atomic
    from widthwise.records.evaluation_table import EvaluationTable
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.environment import command_line
    from widthwise.runs.evaluate import EvaluationConfig, evaluate_run, save_evaluation
    from widthwise.runs.trained import kept_steps

    asked = {
        "texts": text or [],
        "data": data or [],
        "task_files": task_file or [],
        "tasks": _names(tasks),
        "num_fewshot": num_fewshot,
        "suite": suite,
        "local": local,
        "partial": partial,
        "field": field,
        "stride": stride,
        "max_length": max_length,
        "max_tokens": max_tokens,
        "limit": limit,
        "batch_size": batch_size,
        "precision": precision,
        "device": device,
    }
    config = parse(EvaluationConfig, asked, "eval")
    if every_checkpoint and step is not None:
        raise UserError(f"--step: got {step} beside --every-checkpoint; give one of them")
    beside = baselines_of([str(run) for run in runs], _named_pairs("--baseline", "RUN=BASELINE", baseline or []))
    if report is not None:
        check_kind(report, EvaluationTable.file_name)
    records, files, console = [], [], progress_console()
    # The harness has bars of its own, which would tear ours.
    with nullcontext(LineObserver(console)) if config.asks_harness else shown_progress(console) as observer:
        for run in runs:
            for each in kept_steps(run, observer.message) if every_checkpoint else (step,):
                records.append(evaluate_run(run, config, observer.message, each, observer.working))
                if out is None and report is None and records[-1]["step"] is not None:
                    files.append(save_evaluation(records[-1]))
    differences = all_differences(records, beside, by_step=every_checkpoint)
    whole = {"runs": records, "differences": differences}
    if out is not None:
        write_atomic(out, json.dumps(whole, indent=2) + "\n")
        files.append(out)
    if report is not None:
        table = models_table(records, differences, command_line())
        write_atomic(report / table.file_name, json.dumps(table.to_data() | whole, indent=2) + "\n")
        files += [report / table.file_name, *write_report(report)]
    if as_json:
        say_json({"runs": [without_items(each) for each in records], "differences": differences})
        return
    say_tables(*(tables_by_checkpoint if every_checkpoint else evaluation_tables)(records, differences))
    for file in files:
        say(f"wrote {file}")


def _named_pairs(option: str, form: str, given: list[str]) -> dict[str, str]:
    """What stands before and after the last equals sign."""
    pairs = {}
    for each in given:
        name, _, value = each.rpartition("=")
        if not (name and value):
            raise UserError(f"{option}: got {each!r}; expected {form}")
        pairs[name] = value
    return pairs


def _names(listed: str | None) -> list[str]:
    names = [] if listed is None else listed.split(",")
    if not all(names):
        raise UserError(f"--tasks: got {listed!r}; expected names with commas between them, as piqa,arc_easy")
    return names
