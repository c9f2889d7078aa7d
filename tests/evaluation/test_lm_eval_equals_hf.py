"""lm-evaluation-harness through our adapter gives what it gives through its own Hugging Face backend."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness_cases import harness_task, keep_harness_in, write_lines
from scored_models import CHOICES as SHORT_CHOICES
from scored_models import CLOZES as SHORT_CLOZES
from scored_models import SCHEMAS
from tiny_runs import TINY

from widthwise.config_io import parse
from widthwise.data.json_tokenizer import train_bpe
from widthwise.recipe.recipe import Recipe
from widthwise.runs.evaluate import metrics_of
from widthwise.runs.export import export_run
from widthwise.runs.open import open_model
from widthwise.runs.scoring import EvaluationConfig
from widthwise.runs.train import train

pytest.importorskip("lm_eval", reason="needs the extra [eval]")
pytest.importorskip("accelerate", reason="needs accelerate, which the harness's Hugging Face backend imports")
transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

Pair = tuple[Any, Any]
"""Ours and the harness's own, of the same weights."""
TOLERANCE = 1e-4
"""Nats; both sides compute in fp32."""
RELATIVE = 2.4e-7
"""Two units of the last place of fp32, in which the harness adds up: of 1000 nats it knows no more."""
VOCAB_SIZE = 400
SEQ_LEN = 301
"""Less than the longest question, so that some are cut."""

CLOZES = [*SHORT_CLOZES, {"context": "In the naïve reading it is a noun; " * 50 + "it is a", "continuation": "noun"}]
CHOICES = [*SHORT_CHOICES, {"query": "Question: A long one. " * 90, "choices": ["yes", "no"], "gold": 0}]
TEXTS = [row["context"] for row in CLOZES] + [row["query"] for row in CHOICES]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A Llama, with weights large enough that answers differ."""
    from lm_eval.models.huggingface import HFLM

    from widthwise.evaluation.lm_eval_model import ScorerLM

    folder = tmp_path_factory.mktemp("llama")
    texts = [json.dumps(row, ensure_ascii=False) for rows in (CLOZES, CHOICES, SCHEMAS) for row in rows]
    tokenizer = train_bpe(iter(texts * 3), VOCAB_SIZE).save(folder)
    attention = {"head_dim": 6, "kv_group_size": 2}
    model = {"vocab_size": VOCAB_SIZE, "d_model": 24, "n_layers": 3, "attention": attention, "init": {"std": 0.4}}
    training = {"steps": 2, "batch_size": 2, "precision": "fp32", "validation_tokens": 2 * SEQ_LEN}
    data = {"corpus": "synthetic", "tokenizer": str(tokenizer)}
    recipe = {**TINY, "model": model, "seq_len": SEQ_LEN, "data": data, "train": training}
    train(parse(Recipe, recipe), folder / "run")
    assert export_run(folder / "run", folder / "hf")["model_type"] == "llama"
    theirs = HFLM(pretrained=str(folder / "hf"), device="cpu", dtype="float32", batch_size=3)
    return ScorerLM(open_model(folder / "run", "cpu").scorer(EvaluationConfig(batch_size=4))), theirs


@pytest.fixture(autouse=True)
def _own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_harness_in(tmp_path, monkeypatch)


def results(model: Any, config: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """What `evaluate` finds. It is called directly, because `simple_evaluate` describes the machine each time."""
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    tasks = TaskManager().load([dict(config)])
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(1234)
    return dict(evaluate(model, tasks, limit=limit, bootstrap_iters=0))


def same(models: Pair, config: dict[str, Any], limit: int | None = None) -> None:
    """Item by item: log-likelihoods, whether they are greedy; and all metrics."""
    ours, theirs = (results(model, config, limit) for model in models)
    (items,), (expected,) = ours["samples"].values(), theirs["samples"].values()
    assert len(items) == len(expected) > 1
    answers = []
    for item, other in zip(items, expected):
        assert item["arguments"] == other["arguments"]
        own, wanted = zip(*item["filtered_resps"]), zip(*other["filtered_resps"])
        (log_likelihoods, are_greedy), (their_log_likelihoods, theirs_are_greedy) = own, wanted
        assert log_likelihoods == pytest.approx(their_log_likelihoods, rel=RELATIVE, abs=TOLERANCE)
        assert are_greedy == theirs_are_greedy
        answers += log_likelihoods
    assert len({round(answer, 2) for answer in answers}) > len(answers) // 2  # the model tells them apart
    (found,), (wanted,) = metrics_of(ours).values(), metrics_of(theirs).values()
    assert found.keys() == wanted.keys() >= {"acc"}
    for metric, estimate in wanted.items():
        assert found[metric].value == pytest.approx(estimate.value, rel=TOLERANCE)


def test_of_every_form(models: Pair, tmp_path: Path) -> None:
    """Clozes, choices, the same behind examples, and schemas."""
    forms = [(CLOZES, " ", 0), (CHOICES, " ", 0), (CHOICES, "\nAnswer: ", 2), (SCHEMAS, " ", 0)]
    for i, (rows, delimiter, num_fewshot) in enumerate(forms):
        path = write_lines(tmp_path / f"rows{i}.jsonl", rows)
        same(models, {**harness_task(path, delimiter), "num_fewshot": num_fewshot})


def test_of_whole_documents(models: Pair) -> None:
    from lm_eval.api.instance import Instance

    texts = [text for text in [*TEXTS, "\n".join(TEXTS)] if text]
    requests = [Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(texts)]
    ours, theirs = (model.loglikelihood_rolling(requests) for model in models)
    assert ours == pytest.approx(theirs, rel=RELATIVE, abs=TOLERANCE)
    assert len(models[0].tok_encode(requests[-1].args[0])) > 3 * SEQ_LEN
