"""Evaluation of a run or a Hugging Face folder: texts, local tasks, those of lm-evaluation-harness, a paper's suite."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, to_data
from widthwise.data.prepared import PreparedData
from widthwise.data.readers import read_documents
from widthwise.evaluation.estimate import text_means
from widthwise.evaluation.local_tasks import EncodedTask, encode_task, load_task, score_task
from widthwise.evaluation.paper_tasks import plan_suite
from widthwise.evaluation.perplexity import TextScores, score_documents, score_stream
from widthwise.evaluation.scorer import Scorer
from widthwise.files import write_atomic
from widthwise.runs.environment import environment
from widthwise.runs.loaded import load_model
from widthwise.runs.scoring import EvaluationConfig
from widthwise.runs.trained import LoadedModel

Working = Callable[[str, int, int | None, str], None]
"""Takes what is being read, how much of it is done, of how much, and the unit."""


def evaluate_run(
    path: Path | str,
    config: EvaluationConfig | None = None,
    say: Callable[[str], None] = lambda message: None,
    step: int | None = None,
    working: Working = lambda stage, n_done, n_total, unit: None,
) -> dict[str, Any]:
    """The answers of a model of a run, or of a Hugging Face folder, as plain data with every block and item.

    `["bits_per_byte"]` is the number of the text, or the mean of those of several; None where none was read. Each text
    has its metrics with standard errors in `["texts"][name]["metrics"]`, each task in `["tasks"]` or `["lm_eval"]`.

    say: takes messages on what is being done. step: of the checkpoint; the run's newest good one where not given.
    working: takes the progress of each text and task. Raises UserError for a path without a model or tokenizer, and for
    files and tasks that are unavailable, before the model reads anything but for tasks of lm-evaluation-harness.
    """
    config = config or EvaluationConfig()
    task_files = [load_task(Path(file), limit=config.limit) for file in config.task_files]
    _check_unique("texts, data", [*config.texts, *config.data])
    _check_unique("task_files", [task.name for task in task_files])
    suite = None
    if config.suite is not None:
        named = [*config.texts, *config.data]
        suite = plan_suite(config.suite, config.local, named, config.tasks, config.limit, config.partial)
        for part in suite.missing:
            say(f"{config.suite}: without {part}")
    loaded = load_model(path, config.device, step)
    for damage in loaded.damages:
        say(str(damage))
    scorer = loaded.scorer(config)
    suite_files = [] if suite is None else suite.files
    encoded, encoded_suite = ({task.name: encode_task(scorer, task) for task in of} for of in (task_files, suite_files))
    texts, readings = {}, _texts(loaded, scorer, config)
    for name, score in readings.items():
        say(f"reading {name}")
        _report(scorer, name, working)
        texts[name] = score().record()
    tasks = _local_results(scorer, encoded, say, working)
    of_suite = _local_results(scorer, encoded_suite, say, working)
    harness, harness_items = {}, {}
    names = [*config.tasks, *(suite.harness if suite else ())]
    if names:
        from widthwise.runs.harness import run_lm_eval

        say(f"lm-evaluation-harness: {', '.join(dict.fromkeys(names))}")
        scorer.on_progress = lambda n_done, n_total: None  # the harness shows its own
        answers = run_lm_eval(scorer, list(dict.fromkeys(names)), config.num_fewshot, config.limit)
        harness, harness_items = answers.metrics, answers.items
    of_texts, local = ({name: each["metrics"] for name, each in found.items()} for found in (texts, of_suite))
    means = text_means(of_texts)
    bits = means["metrics"]["mean_bits_per_byte"] if means else next(iter(of_texts.values()), {}).get("bits_per_byte")
    return {
        "run": str(path),
        "step": loaded.step,
        "tokens": loaded.tokens,
        "request": to_data(config),
        "tokenizer": loaded.tokenizer.spec,
        "max_length": scorer.max_length,
        "stride": config.stride or scorer.max_length,
        "precision": loaded.precision_for(config),
        "texts": texts,
        "text_means": means,
        "bits_per_byte": bits["value"] if bits else None,
        "tasks": tasks if suite is None else tasks | {suite.suite.answers(name): of_suite[name] for name in of_suite},
        "lm_eval": harness,
        "lm_eval_items": harness_items,
        "suite": None if suite is None else suite.table(local, harness, of_texts),
        "damages": [str(damage) for damage in loaded.damages],
        "environment": environment(),
    }


def _texts(loaded: LoadedModel, scorer: Scorer, config: EvaluationConfig) -> dict[str, Callable[[], TextScores]]:
    """The texts to read, by name. Raises UserError for one that is missing, or made with another tokenizer."""
    readings: dict[str, Callable[[], TextScores]] = {}
    for source in config.texts:
        next(read_documents(source, config.field))
        readings[source] = partial(_score_raw, scorer, source, config)
    for folder in config.data:
        data = PreparedData.open(folder)
        data.check_tokenizer(scorer.tokenizer)
        readings[folder] = partial(_score_held_out, scorer, data, config.max_tokens, config.stride)
    if config.names_nothing:
        for name, (data, n_tokens) in loaded.own_texts().items():
            readings[name] = partial(_score_held_out, scorer, data, config.max_tokens or n_tokens, config.stride)
    return readings


def _score_raw(scorer: Scorer, source: str, config: EvaluationConfig) -> TextScores:
    texts = (document.text for document in read_documents(source, config.field))
    return score_documents(scorer, texts, config.stride, config.max_tokens, source)


def _score_held_out(scorer: Scorer, data: PreparedData, max_tokens: int | None, stride: int | None) -> TextScores:
    n_tokens = data.held_out.n_tokens
    if max_tokens is not None:
        n_tokens = min(n_tokens, max_tokens + 1)
    return score_stream(scorer, data.held_out.tokens(0, n_tokens), stride, str(data.path))


def _report(scorer: Scorer, name: str, working: Working) -> None:
    """From here on the scorer's progress is that of a text or task."""
    scorer.on_progress = lambda n_done, n_total: working(name, n_done, n_total, "tokens")


def _local_results(
    scorer: Scorer, tasks: dict[str, EncodedTask], say: Callable[[str], None], working: Working
) -> dict[str, Any]:
    results = {}
    for name, encoded in tasks.items():
        say(f"{name}: {len(encoded.requests)} items")
        _report(scorer, name, working)
        results[name] = score_task(scorer, encoded).record()
    return results


def _check_unique(key: str, names: Sequence[str]) -> None:
    """Raises UserError for a repeated name: one result would replace the other."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{key}: {twice!r} is named twice; every text and task needs a name of its own")


def save_evaluation(record: dict[str, Any]) -> Path:
    """Writes an evaluation into its run: evaluations/STEP-REQUEST.json, where equal questions get equal names.

    Nothing that training reads. An evaluation of the same step and request is replaced, no other. Raises
    UserError where it cannot be written, and for that of a Hugging Face folder, which is not ours to write into.
    """
    if record["step"] is None:
        raise UserError(f"{record['run']}: is no run directory, which keeps evaluations")
    request = json.dumps(record["request"])
    name = f"step_{record['step']:08d}-{hashlib.sha256(request.encode()).hexdigest()[:12]}.json"
    path = Path(record["run"]) / "evaluations" / name
    write_atomic(path, json.dumps(record, indent=2) + "\n")
    return path
