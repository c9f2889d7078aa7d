"""`widthwise eval`: perplexity and tasks."""

import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from pydantic import NonNegativeInt

from widthwise.cli.progress import LineObserver, shown_progress
from widthwise.cli.terminal import progress_console, say, say_json, say_tables
from widthwise.config_io import Config, UserError
from widthwise.runs.scoring import EvaluationConfig


class EvalOptions(Config):
    """Which checkpoints are evaluated, what each is compared with, and where the answers go."""

    step: NonNegativeInt | None = None
    """Step of each run's checkpoint; default: its newest good one."""
    every_checkpoint: bool = False
    """All checkpoints of each run, first to last."""
    out: Path | None = None
    """One JSON file for all, instead of one in each run's evaluations/; of folders nothing else is kept."""
    report: Path | None = None
    """Folder for a page, CSV and LaTeX with a row for each run, and what is significantly better marked."""
    baselines: tuple[str, ...] = ()
    """What a run is compared with, as RUN=BASELINE; default: the first; repeat for several."""


def eval_(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Runs or Hugging Face folders; if several, each is compared with the first, or with --baseline.",
        ),
    ],
    config: Annotated[EvaluationConfig, "Texts and tasks"],
    options: EvalOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, without blocks and items.")] = False,
) -> None:
    """Perplexity and bits per byte of texts, and accuracy on tasks; by default on the run's held-out text.

    Example: `widthwise eval runs/quickstart/runs/uniform-seed1 runs/quickstart/runs/x-seed1 --text README.md`
    """
    from widthwise.evaluation.differences import all_differences, baselines_of, without_items
    from widthwise.evaluation.models_table import models_table
    from widthwise.files import write_atomic
    from widthwise.records.evaluation import EvaluationTable
    from widthwise.reports.evaluation_tables import evaluation_tables, tables_by_checkpoint
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.environment import command_line
    from widthwise.runs.evaluate import evaluate_run, save_evaluation
    from widthwise.runs.trained import kept_steps

    step, every_checkpoint, out, report = options.step, options.every_checkpoint, options.out, options.report
    if every_checkpoint and step is not None:
        raise UserError(f"--step: got {step} beside --every-checkpoint; give one of them")
    beside = baselines_of([str(run) for run in runs], _baselines(options.baselines))
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


def _baselines(given: Iterable[str]) -> dict[str, str]:
    """Run -> baseline, which stands behind the last equals sign."""
    pairs = {}
    for each in given:
        name, _, value = each.rpartition("=")
        if not (name and value):
            raise UserError(f"--baseline: got {each!r}; expected RUN=BASELINE")
        pairs[name] = value
    return pairs
