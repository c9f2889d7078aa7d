"""`widthwise analyze`: what trained models do inside."""

import json
from pathlib import Path
from typing import Annotated

import typer


def analyze(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run directories, or Hugging Face folders to compare with; one is first."
        ),
    ],
    text: Annotated[
        Path | None,
        typer.Option(help="Text to read: .txt, .jsonl, .parquet, a folder. Of the first run its held-out documents."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the first model; the others read as much text.")] = 2
    ** 16,
    seq_len: Annotated[int | None, typer.Option(min=2, help="Tokens of a window; of the first run its own.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Windows of a pass; 4096 tokens if not given.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; RUN/analysis, or runs/NAME-vs-NAME-analysis, where not given.")
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write analysis.parquet too, a number a row.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the analysis as JSON.")] = False,
) -> None:
    """Look into trained models while they read: feed-forward activations, the stream's entropy, logit lens, sinks.

    Example: `widthwise analyze runs/quickstart/runs/uniform-seed1 runs/quickstart/runs/x-seed1`
    """
    from rich.console import Console

    from widthwise.analysis.rows import check_parquet, write_parquet
    from widthwise.cli.analysis_table import analysis_table
    from widthwise.cli.progress import shown_progress
    from widthwise.cli.tables import table_console
    from widthwise.reports.analysis.report import write_analysis_report
    from widthwise.reports.writing import check_kind
    from widthwise.run_dir import RunDir
    from widthwise.runs.analyse import analyse, write_analysis

    if parquet:
        check_parquet()
    if out is not None:
        check_kind(out, "analysis.json")
    with shown_progress(Console(stderr=True)) as observer:
        analysis = analyse(models, text, tokens, seq_len, batch_size, observer)
    if out is None:
        is_one_run = len(models) == 1 and RunDir(models[0]).exists
        out = models[0] / "analysis" if is_one_run else Path("runs") / f"{analysis['title'].replace('/', '-')}-analysis"
    files = [write_analysis(analysis, out)]
    if parquet:
        files.append(write_parquet(analysis, out))
    files += write_analysis_report(out).values()
    if as_json:
        print(json.dumps(analysis, indent=2))
        return
    console = table_console()
    console.print(analysis_table(analysis))
    console.print(analysis["sentence"], highlight=False, markup=False)
    for file in files:
        console.print(f"wrote {file}", highlight=False, markup=False, soft_wrap=True)
