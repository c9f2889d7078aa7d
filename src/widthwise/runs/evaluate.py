"""Evaluation of a run or a Hugging Face folder on texts, local tasks and tasks of lm-evaluation-harness."""

import contextlib
import difflib
import hashlib
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from widthwise.config_io import refusing, require, to_data
from widthwise.data.config import open_data
from widthwise.data.identity import check_data_of_run, has_seen_data
from widthwise.data.mixture import MixedData
from widthwise.data.prepared import PreparedData
from widthwise.data.readers import read_documents
from widthwise.evaluation.estimate import text_means
from widthwise.evaluation.local_tasks import encode_task, load_task, score_task
from widthwise.evaluation.perplexity import score_documents, score_stream
from widthwise.evaluation.scorer import Scorer
from widthwise.mistakes import UserError
from widthwise.records.evaluation import Evaluation, ItemAnswers, Score, Scores, TextScores
from widthwise.records.record import SealedFile
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment
from widthwise.runs.open import Model, open_model
from widthwise.runs.scoring import EvaluationConfig
from widthwise.training.observer import Observer, SilentObserver

HELD_OUT = "held-out"
"""Name of a run's held-out text; HELD_OUT/NAME for each source of a mixture."""
NAME_A_TEXT = "name a text with --text or --data"
N_RESAMPLES = 1000
"""Bootstrap resamples, for metrics of lm-evaluation-harness that are not means."""


def evaluate_run(
    path: Path | str, config: EvaluationConfig | None = None, observer: Observer | None = None, step: int | None = None
) -> Evaluation:
    """Evaluate the model of a run or a Hugging Face folder on texts and tasks, including every block and item.

    `bits_per_byte` is the mean over the texts; None without a text. Each text has its metrics with standard errors in
    `texts[name].metrics`, each task in `tasks` or `lm_eval`.

    step: of the checkpoint; default: the run's newest undamaged one. Raises UserError for a path without a model or
    tokenizer, and for unavailable files and tasks, before the model reads anything (except for tasks of
    lm-evaluation-harness).
    """
    config = config or EvaluationConfig()
    observer = observer or SilentObserver()
    task_files = [load_task(Path(file), limit=config.limit) for file in config.task_files]
    _check_unique("texts, data", [*config.texts, *config.data])
    _check_unique("task_files", [task.name for task in task_files])
    loaded = open_model(path, config.device, step)
    for damage in loaded.damages:
        observer.message(str(damage))
    scorer = loaded.scorer(config)
    if loaded.tokenizer.bos_note is not None:
        observer.message(f"{path}: {loaded.tokenizer.bos_note}")
    encoded = {task.name: encode_task(scorer, task) for task in task_files}
    texts = {}
    for name, score in _texts(loaded, scorer, config).items():
        _begin(name, f"reading {name}", scorer, observer)
        texts[name] = score()
    tasks = {}
    for name, task in encoded.items():
        _begin(name, f"{name}: {len(task.requests)} items", scorer, observer)
        tasks[name] = score_task(scorer, task)
    harness_scores: dict[str, Scores] = {}
    harness_items: dict[str, ItemAnswers] = {}
    if config.tasks:
        names = list(dict.fromkeys(config.tasks))
        _begin("lm-evaluation-harness", f"lm-evaluation-harness: {', '.join(names)}", scorer, observer)
        harness_scores, harness_items = run_lm_eval(scorer, names, config.num_fewshot, config.limit)
    text_metrics = [scores.metrics for scores in texts.values()]
    means = text_means(text_metrics)  # None for fewer than two texts
    bits = text_metrics[0]["bits_per_byte"].value if text_metrics else None
    if means is not None:
        bits = means.metrics["mean_bits_per_byte"].value
    return Evaluation(
        run=str(path),
        step=loaded.step,
        tokens=loaded.tokens,
        request=to_data(config),
        tokenizer=loaded.tokenizer.spec,
        max_length=scorer.max_length,
        stride=config.stride or scorer.max_length,
        precision=loaded.precision_for(config),
        texts=texts,
        text_means=means,
        bits_per_byte=bits,
        tasks=tasks,
        lm_eval=harness_scores,
        lm_eval_items=harness_items,
        damages=[str(damage) for damage in loaded.damages],
        environment=environment(),
    )


def _texts(loaded: Model, scorer: Scorer, config: EvaluationConfig) -> dict[str, Callable[[], TextScores]]:
    """Return a dict from text to a function that scores it. Raises UserError for missing data or another tokenizer."""
    scorings: dict[str, Callable[[], TextScores]] = {}
    for source in config.texts:
        next(read_documents(source, config.field))  # raises UserError before any text is scored
        documents = (document.text for document in read_documents(source, config.field))
        scorings[source] = partial(score_documents, scorer, documents, config.stride, config.max_tokens, source)
    for folder in config.data:
        data = PreparedData.open(folder)
        data.check_tokenizer(scorer.tokenizer)
        scorings[folder] = partial(_score_held_out, scorer, data, config.max_tokens, config.stride)
    if config.uses_default_text:
        for name, (data, n_tokens) in _held_out_texts(loaded).items():
            scorings[name] = partial(_score_held_out, scorer, data, config.max_tokens or n_tokens, config.stride)
    return scorings


def _held_out_texts(loaded: Model) -> dict[str, tuple[PreparedData, int]]:
    """Return the held-out texts of the run's data by name, with the numbers of their targets in validations.

    A mixture has a text for each source. The targets are whole windows of the recipe's seq_len, at least one window for
    each source. Raises UserError if there is no text, or the data differ from the run's.
    """
    run = RunDir(loaded.path)
    recipe = loaded.recipe
    if recipe is None:
        raise UserError(f"{run.path}: a Hugging Face folder has no held-out text; {NAME_A_TEXT}")
    if not has_seen_data(run):
        raise UserError(f"{run.path}: has not been trained yet; {NAME_A_TEXT}")
    data = open_data(recipe.data)
    check_data_of_run(run, data.identity, "its recipe now names", f"; {NAME_A_TEXT}")
    held_out = recipe.held_out(data)
    if not isinstance(data, MixedData):
        return {HELD_OUT: (data, held_out.n_windows * recipe.seq_len)}
    n_windows = Counter(held_out.sources)
    return {
        f"{HELD_OUT}/{name}": (source, max(1, n_windows[name]) * recipe.seq_len)
        for name, source in data.sources.items()
    }


def _score_held_out(scorer: Scorer, data: PreparedData, max_tokens: int | None, stride: int | None) -> TextScores:
    n_tokens = data.held_out.n_tokens
    if max_tokens is not None:
        n_tokens = min(n_tokens, max_tokens + 1)
    return score_stream(scorer, data.held_out.tokens(0, n_tokens), stride, str(data.path), data.bytes_per_token_byte)


def _begin(name: str, message: str, scorer: Scorer, observer: Observer) -> None:
    """Announce a text or task, and show the progress of the scorer under its name."""
    observer.message(message)
    scorer.on_progress = lambda n_done, n_total: observer.working(name, n_done, n_total, "tokens")


def _check_unique(key: str, names: Sequence[str]) -> None:
    """Raise UserError for a repeated name, because one result would replace the other."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"{key}: {repeated!r} is named twice; every text and task needs a different name")


def save_evaluation(evaluation: Evaluation) -> Path:
    """Write an evaluation into its run, as evaluations/step_STEP-REQUEST.json with a hash of the request.

    Replaces an evaluation of the same step and request. Training does not read the file. Raises UserError if it cannot
    be written, and for a Hugging Face folder, which is never written to.
    """
    if evaluation.step is None:
        raise UserError(f"{evaluation.run}: is not a run directory, so the evaluation cannot be saved in it")
    request = json.dumps(evaluation.request)
    name = f"step_{evaluation.step:08d}-{hashlib.sha256(request.encode()).hexdigest()[:12]}.json"
    path = Path(evaluation.run) / "evaluations" / name
    SealedFile(path).write(evaluation.to_data())
    return path


def run_lm_eval(
    scorer: Scorer, tasks: Sequence[str], num_fewshot: int | None = None, limit: int | None = None
) -> tuple[dict[str, Scores], dict[str, ItemAnswers]]:
    """Return the metrics of each task and group, and the items of metrics that are means, in the order of questions.

    tasks: names of the harness, and YAML files of tasks. num_fewshot: examples before each question; default: set by
    the task. limit: maximum number of questions of each task, from the front.

    Raises UserError if the harness is not installed, does not know a task or cannot load its data, and for a task that
    generates text.
    """
    require("lm_eval", "eval")
    import lm_eval.evaluator
    from datasets.exceptions import DatasetsError

    from widthwise.evaluation.lm_eval_model import LikelihoodTasks, ScorerLM

    manager = LikelihoodTasks()  # slow: reads a list of tasks from thousands of files
    for name in tasks:
        if name not in manager.all_tasks and not Path(name).is_file():
            matches = difflib.get_close_matches(name, manager.all_tasks, n=1)
            hint = f"did you mean {matches[0]!r}?" if matches else "`lm_eval ls tasks` lists them"
            raise UserError(f"tasks: got {name!r}; lm-evaluation-harness has no task of that name; {hint}")
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the bootstrap would start a process for every core
    unavailable = f"{' '.join(tasks)}: lm-evaluation-harness cannot load the data of a task; without network access, "
    unavailable += "use files of questions (--task-file)"
    with refusing(unavailable, ConnectionError, DatasetsError), contextlib.redirect_stdout(sys.stderr):
        evaluated = lm_eval.evaluator.simple_evaluate(
            model=ScorerLM(scorer),
            tasks=list(tasks),
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
    """Return all tasks in a group and its subgroups. tasks_of: group -> tasks and groups; a task has no entry."""
    if name not in tasks_of:
        return [name]
    return [leaf for part in tasks_of[name] for leaf in _leaves(part, tasks_of)]


def _pooled(tasks: Sequence[ItemAnswers], metrics: Scores) -> ItemAnswers:
    """Return the items of all tasks of a group, for metrics of the group that are means over them."""
    items = {}
    for metric in sorted(set.intersection(*(set(task.items) for task in tasks))):
        values = [value for task in tasks for value in task.items[metric]]
        if metric in metrics and _is_mean(values, metrics[metric].value):
            items[metric] = values
    fingerprint = hashlib.sha256("".join(task.fingerprint for task in tasks).encode()).hexdigest()
    return ItemAnswers(fingerprint=fingerprint, items=items)


def _items(samples: Sequence[dict[str, Any]], metrics: Scores) -> ItemAnswers:
    """Return the value of every question, for each metric that is their mean.

    A perplexity is the exponential of a mean; its items are the negative log-likelihoods, as `nats`. samples: one for
    each question and filter of answers.
    """
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    questions = {sample["doc_id"]: sample["doc_hash"] + sample["prompt_hash"] for sample in ordered}
    values_by_metric: dict[str, list[Any]] = {}
    for sample in ordered:
        for metric in sample["metrics"]:
            values_by_metric.setdefault(_shown(metric, sample["filter"]), []).append(sample[metric])
    items = {}
    for metric, values in values_by_metric.items():
        value = metrics[metric].value if metric in metrics else None
        if _is_mean(values, value):
            items[metric] = [float(item) for item in values]
        elif value is not None and value > 0 and _is_mean(values, -math.log(value)):  # a perplexity
            items["nats"] = [-float(item) for item in values]
    return ItemAnswers(fingerprint=hashlib.sha256("".join(questions.values()).encode()).hexdigest(), items=items)


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
