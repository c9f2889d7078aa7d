"""What runs were validated on beside the held-out part of their data: texts and tasks that the recipe names."""

from collections.abc import Mapping

from widthwise.records.evaluation import Score
from widthwise.records.run import RunResult
from widthwise.reports.page.formats import MISSING, clean, fixed
from widthwise.reports.page.table import Table


def text_table(results: Mapping[str, RunResult]) -> Table | None:
    """One row for each text of each run; None where no recipe names any."""
    rows = [
        [clean(run), clean(name), fixed(text.loss, 4), fixed(text.perplexity, 2), fixed(text.bits_per_byte, 4)]
        for run, result in results.items()
        for name, text in (result.val_texts or {}).items()
    ]
    header = ["Run", "text", "loss", "perplexity", "bits per byte"]
    return Table("Loss on further texts", header, rows, words=("text",)) if rows else None


def task_table(results: Mapping[str, RunResult]) -> Table | None:
    """One row for each task of each run, with standard errors; None where no recipe names any."""
    tasks = [(run, name, task) for run, result in results.items() for name, task in (result.val_tasks or {}).items()]
    metrics = list(dict.fromkeys(metric for *_, task in tasks for metric in task.metrics))
    rows = [
        [
            clean(run),
            clean(name),
            f"{task.n_items:,}",
            fixed(task.chance, 3),
            *(score_cell(task.metrics.get(m)) for m in metrics),
        ]
        for run, name, task in tasks
    ]
    header = ["Run", "task", "items", "chance", *metrics]
    return Table("Tasks at the end of training (standard error)", header, rows, words=("task",)) if rows else None


def score_cell(score: Score | None) -> str:
    """A metric with its standard error behind it, if it has one."""
    if score is None or score.value is None:
        return MISSING
    return fixed(score.value, 4) + ("" if score.stderr is None else f" ({fixed(score.stderr, 4)})")
