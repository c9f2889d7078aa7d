"""Tasks of lm-evaluation-harness (extra [eval]) for a model of ours."""

import contextlib
import difflib
import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, require
from widthwise.evaluation.local_tasks import SUFFIX, local_task
from widthwise.evaluation.scorer import Scorer
from widthwise.records.evaluation import ItemAnswers, Score, Scores

N_RESAMPLES = 1000
"""Bootstrap resamples, for metrics that are not means."""


def run_lm_eval(
    scorer: Scorer, tasks: Sequence[str], num_fewshot: int | None = None, limit: int | None = None
) -> tuple[dict[str, Scores], dict[str, ItemAnswers]]:
    """Return the metrics of each task and group of tasks, and of each metric that is a mean over items the values in
    the order of the questions. For the arguments and what is raised see `harness_results`.
    """
    results = harness_results(scorer, tasks, num_fewshot, limit)
    metrics, tasks_of = metrics_of(results), results["group_subtasks"]
    items = {task: _items(samples, metrics[task]) for task, samples in results["samples"].items()}
    groups = [group for group in tasks_of if group in metrics]
    pooled = {group: _pooled([items[task] for task in _leaves(group, tasks_of)], metrics[group]) for group in groups}
    return metrics, items | pooled


def _leaves(name: str, tasks_of: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks of a group, also those of groups in it."""
    return [leaf for part in tasks_of[name] for leaf in _leaves(part, tasks_of)] if name in tasks_of else [name]


def _pooled(tasks: Sequence[ItemAnswers], metrics: Scores) -> ItemAnswers:
    """The items of a group, whose metric is the mean over them if its tasks count by their size."""
    items = {
        metric: [value for task in tasks for value in task.items[metric]]
        for metric in sorted(set.intersection(*(set(task.items) for task in tasks)))
    }
    fingerprint = hashlib.sha256("".join(task.fingerprint for task in tasks).encode()).hexdigest()
    means = {metric: values for metric, values in items.items() if _is_mean(values, _value(metrics, metric))}
    return ItemAnswers(fingerprint=fingerprint, items=means)


def _items(samples: Sequence[dict[str, Any]], metrics: Scores) -> ItemAnswers:
    """The items of each metric that is a mean; of a perplexity, whose items are log-likelihoods, those of its logarithm
    as `nats`. samples: of each question as often as there are filters of answers."""
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    questions = {sample["doc_id"]: sample["doc_hash"] + sample["prompt_hash"] for sample in ordered}
    found: dict[str, list[Any]] = {}
    for sample in ordered:
        for metric in sample["metrics"]:
            found.setdefault(_shown(metric, sample["filter"]), []).append(sample[metric])
    items = {}
    for metric, values in found.items():
        value = _value(metrics, metric)
        if _is_mean(values, value):
            items[metric] = [float(each) for each in values]
        elif value is not None and value > 0 and _is_mean(values, -math.log(value)):
            items["nats"] = [-float(each) for each in values]
    return ItemAnswers(fingerprint=hashlib.sha256("".join(questions.values()).encode()).hexdigest(), items=items)


def _value(metrics: Scores, metric: str) -> float | None:
    return metrics[metric].value if metric in metrics else None


def _is_mean(values: Sequence[Any], value: float | None) -> bool:
    """Other metrics, as perplexities, are functions of values that mean something else, or of several at once."""
    if value is None or not all(isinstance(each, int | float) for each in values):
        return False
    return math.isclose(sum(values) / len(values), value, abs_tol=1e-9)


def harness_results(
    scorer: Scorer,
    tasks: Sequence[str],
    num_fewshot: int | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Run `lm_eval.simple_evaluate` and return its results, with every question and its answers under `samples`.

    tasks: names that the harness knows, and files of local questions (NAME.jsonl; see `evaluation.local_tasks`), which
    alone need no network. num_fewshot: examples before each question; what a task says where not given. limit:
    questions of each task, from the front.

    Raises UserError where the harness is not installed, does not know a task, or cannot have its data, and for tasks of
    one name.
    """
    require("lm_eval", "eval")
    import lm_eval.evaluator
    from lm_eval.tasks import TaskManager

    from widthwise.evaluation.lm_eval_model import ScorerLM

    files = [task for task in tasks if task.endswith(SUFFIX)]
    names = [task for task in tasks if not task.endswith(SUFFIX)]
    _check_unique(tasks)
    configs = [local_task(Path(file)) for file in files]
    # The list of the harness's own tasks is read from thousands of files.
    manager = TaskManager(include_defaults=bool(names))
    for name in names:
        if name not in manager.all_tasks and not Path(name).is_file():
            near = difflib.get_close_matches(name, manager.all_tasks, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`lm_eval ls tasks` lists them"
            raise UserError(f"tasks: got {name!r}; lm-evaluation-harness has none of that name; {hint}")
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the bootstrap would start a process for every core
    with _data_errors(tasks), contextlib.redirect_stdout(sys.stderr):
        results = lm_eval.evaluator.simple_evaluate(
            model=ScorerLM(scorer),
            tasks=[*configs, *names],
            num_fewshot=num_fewshot,
            limit=limit,
            bootstrap_iters=N_RESAMPLES,
            task_manager=manager,
        )
    assert results is not None  # only of further processes
    return dict(results)


def metrics_of(results: dict[str, Any]) -> dict[str, Scores]:
    """Return task or group -> its scores."""
    metrics: dict[str, Scores] = {}
    for task, found in results["results"].items():
        scores: dict[str, Score] = {}
        for key, value in found.items():
            metric, comma, name = key.partition(",")
            if comma and not metric.endswith("_stderr"):
                stderr = _number(found.get(f"{metric}_stderr,{name}"))
                scores[_shown(metric, name)] = Score(value=_number(value), stderr=stderr)
        metrics[task] = scores
    return metrics


def _shown(metric: str, filter_name: str) -> str:
    """`metric,filter` of the harness, as `metric` if there is no filter."""
    return metric if filter_name == "none" else f"{metric},{filter_name}"


def _number(value: Any) -> float | None:
    """None for "N/A"."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _check_unique(tasks: Sequence[str]) -> None:
    """Raises UserError for two tasks of one name: the harness would answer one of them and say nothing."""
    seen: dict[str, str] = {}
    for task in tasks:
        name = Path(task).name.removesuffix(SUFFIX)
        if name in seen:
            raise UserError(f"tasks: {seen[name]!r} and {task!r} are both named {name!r}; every task needs its own")
        seen[name] = task


@contextlib.contextmanager
def _data_errors(tasks: Sequence[str]) -> Iterator[None]:
    """Turn the harness's errors about unavailable data into one line."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (ConnectionError, DatasetsError) as error:
        raise UserError(
            f"{' '.join(tasks)}: lm-evaluation-harness cannot load the data of a task ({error}); "
            f"without network name files of questions (NAME{SUFFIX})"
        ) from None
