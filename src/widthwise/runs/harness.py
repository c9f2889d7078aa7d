"""Tasks of lm-evaluation-harness (extra [eval]) for a scorer."""

import contextlib
import difflib
import hashlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widthwise.config_io import refusing, require
from widthwise.evaluation.local_tasks import SUFFIX, local_task
from widthwise.evaluation.scorer import Scorer
from widthwise.mistakes import UserError
from widthwise.records.evaluation import ItemAnswers, Score, Scores

N_RESAMPLES = 1000
"""Bootstrap resamples, for metrics that are not means."""


def run_lm_eval(
    scorer: Scorer, tasks: Sequence[str], num_fewshot: int | None = None, limit: int | None = None
) -> tuple[dict[str, Scores], dict[str, ItemAnswers]]:
    """Return the metrics of each task and group, and the items of metrics that are means, in the order of questions.

    tasks: names of the harness, and files of local questions (NAME.jsonl; see `evaluation.local_tasks`), which need no
    network. num_fewshot: examples before each question; default: set by the task. limit: number of first questions of
    each task to use.

    Raises UserError if the harness is not installed, does not know a task or cannot load its data, and for two tasks
    of the same name.
    """
    require("lm_eval", "eval")
    import lm_eval.evaluator
    from datasets.exceptions import DatasetsError
    from lm_eval.tasks import TaskManager

    from widthwise.evaluation.lm_eval_model import ScorerLM

    files = [task for task in tasks if task.endswith(SUFFIX)]
    names = [task for task in tasks if not task.endswith(SUFFIX)]
    _check_unique(tasks)
    configs = [local_task(Path(file)) for file in files]
    # Slow: the harness reads its list of tasks from thousands of files.
    manager = TaskManager(include_defaults=bool(names))
    for name in names:
        if name not in manager.all_tasks and not Path(name).is_file():
            matches = difflib.get_close_matches(name, manager.all_tasks, n=1)
            hint = f"did you mean {matches[0]!r}?" if matches else "`lm_eval ls tasks` lists them"
            raise UserError(f"tasks: got {name!r}; lm-evaluation-harness has no task of that name; {hint}")
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the bootstrap would start a process for every core
    unavailable = f"{' '.join(tasks)}: lm-evaluation-harness cannot load the data of a task; without network access, "
    unavailable += f"use files of questions, NAME{SUFFIX}"
    with refusing(unavailable, ConnectionError, DatasetsError), contextlib.redirect_stdout(sys.stderr):
        evaluated = lm_eval.evaluator.simple_evaluate(
            model=ScorerLM(scorer),
            tasks=[*configs, *names],
            num_fewshot=num_fewshot,
            limit=limit,
            bootstrap_iters=N_RESAMPLES,
            task_manager=manager,
        )
    assert evaluated is not None  # None only on other ranks
    results: dict[str, Any] = dict(evaluated)
    metrics = metrics_of(results)
    tasks_of = results["group_subtasks"]
    items = {task: _items(samples, metrics[task]) for task, samples in results["samples"].items()}
    groups = [group for group in tasks_of if group in metrics]
    pooled = {group: _pooled([items[task] for task in _leaves(group, tasks_of)], metrics[group]) for group in groups}
    return metrics, items | pooled


def _leaves(name: str, tasks_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the tasks of a group, including the tasks of its groups."""
    return [leaf for part in tasks_of[name] for leaf in _leaves(part, tasks_of)] if name in tasks_of else [name]


def _pooled(tasks: Sequence[ItemAnswers], metrics: Scores) -> ItemAnswers:
    """Return the items of a group, for metrics that are means over all items of its tasks."""
    items = {
        metric: [value for task in tasks for value in task.items[metric]]
        for metric in sorted(set.intersection(*(set(task.items) for task in tasks)))
    }
    fingerprint = hashlib.sha256("".join(task.fingerprint for task in tasks).encode()).hexdigest()
    means = {metric: values for metric, values in items.items() if _is_mean(values, _value(metrics, metric))}
    return ItemAnswers(fingerprint=fingerprint, items=means)


def _items(samples: Sequence[dict[str, Any]], metrics: Scores) -> ItemAnswers:
    """Return the items of each metric that is a mean, and `nats`, the negative log-likelihoods of a perplexity.

    samples: one for each question and filter of answers.
    """
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    questions = {sample["doc_id"]: sample["doc_hash"] + sample["prompt_hash"] for sample in ordered}
    values_by_metric: dict[str, list[Any]] = {}
    for sample in ordered:
        for metric in sample["metrics"]:
            values_by_metric.setdefault(_shown(metric, sample["filter"]), []).append(sample[metric])
    items = {}
    for metric, values in values_by_metric.items():
        value = _value(metrics, metric)
        if _is_mean(values, value):
            items[metric] = [float(item) for item in values]
        elif value is not None and value > 0 and _is_mean(values, -math.log(value)):
            items["nats"] = [-float(item) for item in values]
    return ItemAnswers(fingerprint=hashlib.sha256("".join(questions.values()).encode()).hexdigest(), items=items)


def _value(metrics: Scores, metric: str) -> float | None:
    return metrics[metric].value if metric in metrics else None


def _is_mean(values: Sequence[Any], value: float | None) -> bool:
    """Return True if a metric is the mean of the values. A perplexity, for example, is not."""
    if value is None or not all(isinstance(item, int | float) for item in values):
        return False
    return math.isclose(sum(values) / len(values), value, abs_tol=1e-9)


def metrics_of(results: dict[str, Any]) -> dict[str, Scores]:
    """Return a dict from task or group to its scores."""
    metrics: dict[str, Scores] = {}
    for task, values in results["results"].items():
        scores: dict[str, Score] = {}
        for key, value in values.items():
            metric, comma, name = key.partition(",")
            if comma and not metric.endswith("_stderr"):
                stderr = _number(values.get(f"{metric}_stderr,{name}"))
                scores[_shown(metric, name)] = Score(value=_number(value), stderr=stderr)
        metrics[task] = scores
    return metrics


def _shown(metric: str, filter_name: str) -> str:
    """Return `metric,filter`, or `metric` without a filter."""
    return metric if filter_name == "none" else f"{metric},{filter_name}"


def _number(value: Any) -> float | None:
    """Return a number, or None for "N/A"."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _check_unique(tasks: Sequence[str]) -> None:
    """Raise UserError for two tasks of the same name: the harness would silently answer only one of them."""
    by_name: dict[str, str] = {}
    for task in tasks:
        name = Path(task).name.removesuffix(SUFFIX)
        if name in by_name:
            raise UserError(f"tasks: {by_name[name]!r} and {task!r} have the same name {name!r}; rename one of them")
        by_name[name] = task
