"""A paper's set of tasks and texts, its table, and what of it cannot be had."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from widthwise.evaluation.estimate import Metrics, SampleEstimate, mean_of

UNITS = ("acc", "acc_norm", "exact_match", "f1", "pass@1", "pass_at_1")
"""Metrics from 0 to 1 that are averaged over tasks; a filter of lm-evaluation-harness may follow behind a comma."""


def is_share(metric: str) -> bool:
    """Whether it is one of UNITS, or an average of them: the higher, the better. All others are losses."""
    return metric.partition(",")[0] in (*UNITS, "average")


@dataclass(frozen=True)
class LocalFile:
    """The same questions as a file of llm-foundry's `local_data`."""

    stem: str
    """Name of the file without `.jsonl`."""
    delimiter: str = " "
    """Between question and answer, so that the text is that of lm-evaluation-harness as nearly as the file allows."""

    @property
    def name(self) -> str:
        return f"{self.stem}.jsonl"


@dataclass(frozen=True)
class PaperTask:
    """A column of a paper's table."""

    name: str
    metric: str
    lm_eval: str | None
    """The task of lm-evaluation-harness; None: it has none with this metric."""
    local: LocalFile | None = None
    n_items: int | None = None
    """Questions of the task, as the paper counts them."""
    absence: str = ""
    """Why the harness cannot be asked, where it cannot."""

    @property
    def is_out_of_reach(self) -> bool:
        """Whether neither a file nor lm-evaluation-harness can give it."""
        return self.local is None and self.lm_eval is None

    @property
    def is_averaged(self) -> bool:
        return self.metric.partition(",")[0] in UNITS


@dataclass(frozen=True)
class Suite:
    """What a paper evaluates."""

    name: str
    tasks: tuple[PaperTask, ...]
    texts: Mapping[str, str] = field(default_factory=dict)
    """The paper's name of each text -> the stem of its file."""
    text_rows: Mapping[str, str] = field(default_factory=dict)
    """Row of the table -> its metric among the means over all texts."""
    prints_average: bool = True
    """Whether the paper prints the average over tasks."""
    has_unknown_weights: bool = False
    """Whether the paper weights its average and does not say how; here all tasks count the same."""

    def answers(self, stem: str) -> str:
        """What the answers to one of its files are called in an evaluation."""
        return f"{self.name}/{stem}"


def harness_answers(task: str) -> str:
    """What the answers to a task of lm-evaluation-harness are called where differences are listed."""
    return f"lm-eval {task}"


def suite_table(
    suite: Suite,
    local: Mapping[str, Metrics],
    lm_eval: Mapping[str, Metrics],
    text_means: Metrics | None = None,
) -> dict[str, Any]:
    """`rows`, one for each column of the paper's table, and `average`, over the tasks with a result.

    local: by the stem of the file; lm_eval: by task; text_means: over the suite's texts, None where one is missing.
    The source of a row without a result is "not evaluated"; `answers` is what its answers are called among differences.
    The average names the `tasks` it is over and those that are `missing`; it is None where no task has a result.
    """
    rows = [_row(suite, task, local, lm_eval) for task in suite.tasks]
    averaged = [row for row, task in zip(rows, suite.tasks) if task.is_averaged]
    means = text_means or {}
    for name, metric in suite.text_rows.items():
        source = f"mean of {len(suite.texts)} texts" if metric in means else "not evaluated"
        row = {"name": name, "metric": metric, "source": source, "answers": None, "paper_items": None}
        rows.append(_filled(row, means))
    return {"name": suite.name, "rows": rows, "average": _average(suite, averaged)}


def _row(suite: Suite, task: PaperTask, local: Mapping[str, Metrics], lm_eval: Mapping[str, Metrics]) -> dict[str, Any]:
    found, source, answers = {}, "not evaluated", None
    if task.local is not None and task.local.stem in local:
        found, source = local[task.local.stem], task.local.name
        answers = suite.answers(task.local.stem)
    elif task.lm_eval is not None and task.lm_eval in lm_eval:
        found = lm_eval[task.lm_eval]
        source = answers = harness_answers(task.lm_eval)
    row = {"name": task.name, "metric": task.metric, "source": source, "answers": answers, "paper_items": task.n_items}
    return _filled(row, found)


def _filled(row: dict[str, Any], found: Metrics) -> dict[str, Any]:
    return row | dict(found.get(row["metric"], {"value": None, "stderr": None}))


def _average(suite: Suite, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    answered = [row for row in rows if row["value"] is not None]
    if not answered:
        return None
    return {
        **mean_of([SampleEstimate.of_record(row) for row in answered]).record(),
        "n_tasks": len(answered),
        "n_tasks_of_suite": len(rows),
        "missing": [row["name"] for row in rows if row["value"] is None],
        "tasks": [row["name"] for row in answered],
        "is_printed": suite.prints_average,
        "has_unknown_weights": suite.has_unknown_weights,
    }


def missing_parts(
    suite: Suite, files: Sequence[str] | None, texts: Sequence[str], asked: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """What of the suite cannot be had, and why.

    files: the stems of the task files at hand, None: the harness is asked for whatever it has; texts: the stems of
    the texts at hand; asked: tasks of the harness that are asked for anyway.
    """
    for task in suite.tasks:
        is_asked = task.lm_eval is not None and (files is None or task.lm_eval in asked)
        if is_asked or (task.local is not None and task.local.stem in (files or ())):
            continue
        reasons = []
        if files is not None:
            reasons.append("no file of it is known" if task.local is None else f"no {task.local.name}")
        reasons.append(task.absence if task.lm_eval is None else f"--tasks {task.lm_eval} is not asked for")
        yield task.name, " and ".join(reasons)
    for name, stem in suite.texts.items():
        if stem not in texts:
            yield name, f"no text {stem}"
