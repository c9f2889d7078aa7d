"""The questions behind the items that flipped between two models."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from widthwise.evaluation.local_tasks import LocalTask, load_task
from widthwise.runs.evaluate import EvaluationConfig, suite_plan_of


class Flipped(NamedTuple):
    """An item that one of two models has right."""

    on: str
    """The task."""
    metric: str
    is_gained: bool
    """Whether the other model has it right, not the baseline."""
    place: str
    """File and line."""
    question: str
    answer: str
    """The right one."""


def flipped_items(config: EvaluationConfig, differences: Iterable[dict[str, Any]], n_items: int) -> Iterator[Flipped]:
    """The first n_items gained and the first n_items lost of each task and metric.

    config: of both evaluations, whose files are read again; differences: of `evaluation_differences`. Tasks of
    lm-evaluation-harness are left out, whose questions are not in a file.
    """
    tasks = _tasks(config)
    for entry in differences:
        if entry["on"] in tasks and entry.get("flips"):
            task = tasks[entry["on"]]
            for kind in ("gained", "lost"):
                for number in entry["flips"][kind][:n_items]:
                    pair = task.items[number - 1].right_pair(task.delimiter)
                    yield Flipped(entry["on"], entry["metric"], kind == "gained", task.where[number - 1], *pair)


def _tasks(config: EvaluationConfig) -> dict[str, LocalTask]:
    """By the name that an evaluation gives their answers."""
    loaded = (load_task(Path(file), limit=config.limit) for file in config.task_files)
    tasks = {task.name: task for task in loaded}
    plan = suite_plan_of(config)
    return tasks if plan is None else tasks | {plan.suite.answers(task.name): task for task in plan.files}
