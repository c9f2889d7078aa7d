"""`widthwise analyze`: what happens inside trained models."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import progress_console, say, say_json, table_console
from widthwise.config_io import UserError


def analyze(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories or Hugging Face folders; several are overlaid."),
    ],
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text to read: .txt, .jsonl, .parquet, or a folder; default: the first run's held-out documents."
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Amount of text, in tokens of the first model; all models read the same text.")
    ] = 2**16,
    seq_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens per window; default: the first run's seq_len.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Windows per pass; default: 4096 tokens.")] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Step of each run's checkpoint; default: its newest good one.")
    ] = None,
    every_checkpoint: Annotated[
        bool, typer.Option("--every-checkpoint", help="All checkpoints of each run, as curves over tokens.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder; default: RUN/analysis, or runs/NAME-vs-NAME-analysis; behind it -step-N or -of-checkpoints."
        ),
    ] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also write analysis.parquet, one number per row.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the analysis as JSON.")] = False,
) -> None:
    """Look inside trained models as they read a text: activations, entropy of the stream, logit lens, attention sinks.

    Example: `widthwise analyze runs/quickstart/runs/uniform-seed1 runs/quickstart/runs/x-seed1`
    """
    from widthwise.analysis.rows import check_parquet, write_parquet
    from widthwise.cli.progress import shown_progress
    from widthwise.reports.analysis.report import write_analysis_report
    from widthwise.reports.analysis.tables import checkpoints_table, summary_table
    from widthwise.reports.writing import check_kind
    from widthwise.run_dir import RunDir
    from widthwise.runs.analyse import analyse, write_analysis

    if every_checkpoint and step is not None:
        raise UserError(f"--step: got {step} beside --every-checkpoint; give one of them")
    if parquet:
        check_parquet()
    if out is not None:
        check_kind(out, "analysis.json")
    with shown_progress(progress_console()) as observer:
        analysis = analyse(models, text, tokens, seq_len, batch_size, observer, step, every_checkpoint)
    if out is None:
        kind = "-of-checkpoints" if every_checkpoint else "" if step is None else f"-step-{step}"
        name = f"analysis{kind}"
        is_one_run = len(models) == 1 and RunDir(models[0]).exists
        out = models[0] / name if is_one_run else Path("runs") / f"{analysis.title.replace('/', '-')}-{name}"
    files = [write_analysis(analysis, out)]
    if parquet:
        files.append(write_parquet(analysis, out))
    files += write_analysis_report(out).values()
    if as_json:
        say_json(analysis)
        return
    say_tables(checkpoints_table(analysis) if every_checkpoint else summary_table(analysis))
    table_console().print(analysis.sentence)
    for file in files:
        say(f"wrote {file}")
