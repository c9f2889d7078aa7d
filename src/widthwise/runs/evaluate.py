"""Evaluation of a run or a Hugging Face folder on texts, local tasks and tasks of lm-evaluation-harness."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from widthwise.config_io import to_data
from widthwise.data.prepared import PreparedData
from widthwise.data.readers import read_documents
from widthwise.evaluation.estimate import text_means
from widthwise.evaluation.local_tasks import encode_task, load_task, score_task
from widthwise.evaluation.perplexity import score_documents, score_stream
from widthwise.evaluation.scorer import Scorer
from widthwise.mistakes import UserError
from widthwise.records.evaluation import Evaluation, ItemAnswers, Scores, TextAnswers
from widthwise.records.record import SealedFile
from widthwise.runs.environment import environment
from widthwise.runs.open import Model, open_model
from widthwise.runs.scoring import EvaluationConfig
from widthwise.training.observer import Observer, SilentObserver


def evaluate_run(
    path: Path | str, config: EvaluationConfig | None = None, observer: Observer | None = None, step: int | None = None
) -> Evaluation:
    """Evaluate the model of a run or a Hugging Face folder; return every block and item.

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
    harness: dict[str, Scores] = {}
    harness_items: dict[str, ItemAnswers] = {}
    if config.tasks:
        from widthwise.runs.harness import run_lm_eval

        names = list(dict.fromkeys(config.tasks))
        observer.message(f"lm-evaluation-harness: {', '.join(names)}")
        scorer.on_progress = lambda n_done, n_total: None  # the harness shows its progress
        harness, harness_items = run_lm_eval(scorer, names, config.num_fewshot, config.limit)
    text_metrics = [answers.metrics for answers in texts.values()]
    means = text_means(text_metrics)
    bits = means.metrics["mean_bits_per_byte"] if means else next(iter(text_metrics), {}).get("bits_per_byte")
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
        bits_per_byte=bits and bits.value,
        tasks=tasks,
        lm_eval=harness,
        lm_eval_items=harness_items,
        damages=[str(damage) for damage in loaded.damages],
        environment=environment(),
    )


def _texts(loaded: Model, scorer: Scorer, config: EvaluationConfig) -> dict[str, Callable[[], TextAnswers]]:
    """Return the readings of texts by name. Raises UserError for a text that is missing or has another tokenizer."""
    readings: dict[str, Callable[[], TextAnswers]] = {}
    for source in config.texts:
        next(read_documents(source, config.field))
        documents = (document.text for document in read_documents(source, config.field))
        readings[source] = partial(score_documents, scorer, documents, config.stride, config.max_tokens, source)
    for folder in config.data:
        data = PreparedData.open(folder)
        data.check_tokenizer(scorer.tokenizer)
        readings[folder] = partial(_score_held_out, scorer, data, config.max_tokens, config.stride)
    if config.names_nothing:
        for name, (data, n_tokens) in loaded.own_texts().items():
            readings[name] = partial(_score_held_out, scorer, data, config.max_tokens or n_tokens, config.stride)
    return readings


def _score_held_out(scorer: Scorer, data: PreparedData, max_tokens: int | None, stride: int | None) -> TextAnswers:
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
    """Write an evaluation into its run, as evaluations/STEP-REQUEST.json with a hash of the request.

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
