"""Readers of run directories for reports, and the progress of unfinished runs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from widthwise.config_io import parse
from widthwise.records.certificate import Certificate
from widthwise.records.evaluation import Evaluation
from widthwise.records.run import GrowthRecord, ListedRun, Run
from widthwise.records.shrinking import Shrinking
from widthwise.reports.formats import MISSING, clean, duration, fixed, si
from widthwise.reports.table import Table
from widthwise.run_dir import RunDir


def read_run(path: Path, shown_as: str | None = None) -> Run:
    """Read a run directory, finished or not. shown_as: path in the report. Raises UserError if it is broken."""
    folder = RunDir(path)
    config_yaml = folder.config_yaml()
    result = folder.result()
    metrics = folder.metrics()
    # A result lists the growths during the run; the metrics list all growths, also of an unfinished run.
    events = ("grown",) if result else ("grown", "growth")
    growths = [
        parse(GrowthRecord, record, f"{path}/metrics.jsonl") for record in metrics if record.get("event") in events
    ]
    if result:
        growths = [*result.growth, *growths]
    return Run(
        path=shown_as or str(path),
        config_yaml=config_yaml,
        environment=folder.environment(),
        metrics=metrics,
        result=result,
        growths=sorted(growths, key=lambda growth: growth.step),
        certificate=Certificate.read(folder.path) if (folder.path / Certificate.file_name).is_file() else None,
        shrinking=Shrinking.read(folder.path) if (folder.path / Shrinking.file_name).is_file() else None,
        evaluations=Evaluation.read_all(folder.path),
        samples=folder.samples_file.records(),
    )


def progress_table(listed: Mapping[str, ListedRun], caption: str | None = None) -> Table | None:
    """Return a table with the last records of each run; None without runs and caption."""
    rows = [
        [
            clean(name),
            run.state,
            (MISSING if run.step is None else f"{run.step:,}") + (f"/{run.n_steps:,}" if run.n_steps else ""),
            fixed(run.loss, 4),
            fixed(run.val_loss, 4),
            si(run.tokens_per_second),
            duration(None if run.age_seconds is None else run.age_seconds / 3600),
            MISSING if run.n_bytes is None else f"{si(run.n_bytes)}B",
        ]
        for name, run in listed.items()
    ]
    header = ["Run", "State", "Step", "Loss", "Held-out loss", "Tokens/s", "Age", "Size"]
    if not rows and caption is None:
        return None
    so_far = f"So far, as of {datetime.now():%Y-%m-%d %H:%M:%S}; age: of the last record"
    return Table(caption or so_far, header, rows, text_columns=["State"])


def state_sentence(run: ListedRun) -> str:
    """Return the state of a run as `It is running, at step 120 of 400.`"""
    where = f", at step {run.step or 0:,}" + ("" if run.n_steps is None else f" of {run.n_steps:,}")
    if run.state == "ready":
        return "It has no step yet; start it with widthwise resume."
    if run.state == "stopped":
        return f"It has stopped{where}; continue it with widthwise resume."
    reason = f": {clean(run.reason)}" if run.reason else ""
    return f"It {'is running' if run.state == 'running' else 'has failed'}{where}{reason}."


def reload_sentence(refresh_seconds: int | None) -> str:
    """Return a sentence on the reloading of a page; "" if it does not reload."""
    if refresh_seconds is None:
        return ""
    return f" This page reloads itself every {refresh_seconds} s until training ends."


def counted_states(runs: Sequence[ListedRun]) -> str:
    """Return the number of runs in each state as `3 finished, 1 running, 4 waiting`."""
    states = [run.state for run in runs]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
