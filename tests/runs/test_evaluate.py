"""Runs and Hugging Face folders evaluated: the held-out text as a validation sees it, other texts, tasks."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from boxes import refusal
from file_operations import forge
from harness_cases import QUESTIONS, keep_harness_in, write_harness_task, write_lines
from tiny_runs import records, tiny_recipe

from widthwise.config_io import parse
from widthwise.data.config import open_data
from widthwise.evaluation.differences import evaluation_differences
from widthwise.evaluation.local_tasks import encode_task, load_task, score_task
from widthwise.evaluation.scorer import Scorer
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.record import SealedFile
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import HELD_OUT, EvaluationConfig, evaluate_run, run_lm_eval, save_evaluation
from widthwise.runs.export import export_run
from widthwise.runs.open import open_model
from widthwise.runs.train import resume

KINDS = {
    "experts and slots": (
        "model.shape={kind: uniform}",
        "model.ffn={kind: moe, n_experts: 3, top_k: 2, ratio: 0.5}",
        "model.residual={kind: hyper_connections, n_slots: 3, slot_width: 8}",
    ),
    "dynamic widths and learned positions": ("model.ffn={kind: dynamic}", "model.positions={n_positions: 17}"),
    "wider after step 5": ("growth=[{at_step: 5, model: {shape: {kind: explicit, widths: [24, 16, 24]}}}]",),
}


@pytest.fixture(scope="module")
def runs(trained) -> list[Path]:
    """The same recipe with two seeds."""
    return [trained(f"train.seed={seed}", "train.checkpoint_every=null", name=f"run{seed}") for seed in (1, 2)]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "questions.jsonl", QUESTIONS)


def _asked(**options) -> EvaluationConfig:
    return parse(EvaluationConfig, options)


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_text_gives_the_loss_of_the_validation_of_that_step(kind: str, trained) -> None:
    run = trained(*KINDS[kind], "train.steps=6", "train.validate_every=3", "train.checkpoint_every=3", name=kind)
    validations = {record["step"]: record for record in records(run, "validation")}
    for step in (3, 6):
        found, record = evaluate_run(run, _asked(), step=step), validations[step]
        metrics = {name: score.value for name, score in found.texts[HELD_OUT].metrics.items()}
        assert metrics["nats_per_token"] == pytest.approx(record["loss"], rel=1e-6)
        assert metrics["token_perplexity"] == pytest.approx(record["perplexity"], rel=1e-6)
        assert metrics["bits_per_byte"] == found.bits_per_byte == pytest.approx(record["bits_per_byte"], rel=1e-6)
        assert (found.step, found.tokens) == (step, step * 4 * 17)


def test_prepared_data_and_limits(runs: list[Path]) -> None:
    folder = str(open_data(saved_recipe(RunDir(runs[0])).data).path)
    found = evaluate_run(runs[0], _asked(data=[folder], max_tokens=50)).texts
    assert found.keys() == {folder}
    assert found[folder].n_tokens == 50
    own = evaluate_run(runs[0], _asked(max_tokens=50)).texts
    assert own[HELD_OUT] == found[folder]


def test_raw_text_is_read_document_by_document(runs: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"body": "one text"}\n{"body": "and another — longer than a window"}\n')
    found = evaluate_run(runs[0], _asked(texts=[str(path)], field="body", stride=3))
    text = found.texts[str(path)]
    assert (text.n_documents, text.n_bytes) == (2, 8 + 36)
    assert (text.n_characters, text.n_words) == (8 + 34, 2 + 7)
    nats = math.log(text.metrics["word_perplexity"].value) * 9
    assert nats == pytest.approx(sum(text.blocks["nats"]))
    assert (found.stride, found.max_length) == (3, 17)


def test_two_runs_differ_by_the_paired_difference_of_their_items(runs: list[Path], questions: Path) -> None:
    asked = _asked(task_files=[str(questions)], texts=[__file__], max_tokens=300)
    one, other = (evaluate_run(run, asked) for run in runs)
    entries = {(each.on, each.metric): each for each in evaluation_differences(one, other)}
    items = [np.array(record.tasks["questions"].items["bits_per_byte"]) for record in (one, other)]
    found = entries["questions", "bits_per_byte"]
    assert found.value == pytest.approx((items[1] - items[0]).mean())
    assert found.stderr == pytest.approx((items[1] - items[0]).std(ddof=1) / math.sqrt(len(QUESTIONS)))
    bits = [record.texts[__file__].metrics["bits_per_byte"].value for record in (one, other)]
    assert entries[__file__, "bits_per_byte"].value == pytest.approx(bits[1] - bits[0])
    fewer = evaluate_run(runs[1], _asked(task_files=[str(questions)], limit=2))
    (refused,) = evaluation_differences(one, fewer)
    assert (refused.on, refused.metric, refused.value, refused.stderr) == ("questions", None, None, None)


def test_tasks_of_the_harness_are_asked_of_it(harness: None, runs: list[Path], questions: Path) -> None:
    asked = _asked(tasks=[write_harness_task(questions)], task_files=[str(questions)], limit=2)
    found = evaluate_run(runs[0], asked)
    ours, theirs = found.tasks["questions"].metrics, found.lm_eval["questions"]
    assert theirs["acc_norm"].to_data() == pytest.approx(ours["acc_norm"].to_data())
    items = found.lm_eval_items["questions"].items
    assert items == {name: found.tasks["questions"].items[name] for name in ("acc", "acc_norm")}


def test_an_evaluation_is_kept_in_its_run_and_changes_nothing_else(runs: list[Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    first, other = evaluate_run(run, _asked(max_tokens=40)), evaluate_run(run, _asked(max_tokens=60))
    paths = [save_evaluation(record) for record in (first, other, first)]
    assert paths[0] == paths[2] != paths[1]
    assert SealedFile(paths[0]).read() == json.loads(json.dumps(first.to_data()))
    assert {path.name for path in run.iterdir()} - {"evaluations"} == {path.name for path in runs[0].iterdir()}
    assert {path: path.read_bytes() for path in before} == before
    resume(run)
    assert RunDir(run).result() == RunDir(runs[0]).result()


def test_the_precision_is_that_of_the_recipe_or_the_one_asked_for(runs: list[Path]) -> None:
    found = [evaluate_run(runs[0], _asked(precision=each)) for each in (None, "fp32", "bf16")]
    own, fp32, bf16 = (each.bits_per_byte for each in found)
    assert own == fp32 != bf16 == pytest.approx(own, rel=0.02)


def test_mistakes_are_named(runs: list[Path], questions: Path, tmp_path: Path) -> None:
    twice = [str(questions), str(questions)]
    (empty := tmp_path / "empty.txt").write_text("")
    for options, message in [
        ({"task_files": twice}, "task_files: 'questions' is named twice"),
        ({"stride": 18}, "stride: got 18; must be from 1 to max_length = 17"),
        ({"texts": [__file__, "gone.txt"]}, "gone.txt: no such file"),
        ({"texts": [str(empty)]}, "empty.txt: holds no token to predict"),
    ]:
        assert message in refusal(evaluate_run, runs[0], _asked(**options))
    for options, message in [
        ({"task_files": ["a.jsonl"], "num_fewshot": 3}, "num_fewshot: got 3 without tasks of lm-evaluation-harness"),
        ({"texts": ["a.txt"], "limit": 3}, "limit: got 3 without a task"),
        ({"tasks": ["piqa"], "stride": 3}, "stride: got 3 without a text"),
        ({"task_files": ["a.jsonl"], "max_tokens": 3}, "max_tokens: got 3 without a text"),
    ]:
        assert message in refusal(_asked, **options)


def test_data_must_be_of_its_tokenizer_and_the_held_out_text_that_of_the_training(runs, tmp_path: Path) -> None:
    other = open_data(tiny_recipe("data.tokenizer=bpe-300", "model.vocab_size=300").data).path
    message = "was tokenised by bpe-300, not by the tokenizer of the run (bytes)"
    assert message in refusal(evaluate_run, runs[0], _asked(data=[str(other)]))
    run = shutil.copytree(runs[0], tmp_path / "run")
    recipe = run / "config.yaml"
    recipe.write_text(recipe.read_text().replace("held_out: 0.05", "held_out: 0.01"))
    assert "was trained on other data (synthetic " in (said := refusal(evaluate_run, run, _asked()))
    assert said.endswith("name a text with --text or --data")
    tokenizer = RunDir(run).environment()["data"]["tokenizer"]
    forge(run / "environment.json", lambda entries: entries.update(data=None, tokenizer=tokenizer))  # as imported
    message = "has not been trained yet; name a text with --text or --data"
    assert message in refusal(evaluate_run, run, _asked())
    assert evaluate_run(run, _asked(texts=[__file__], max_tokens=20)).texts[__file__].n_tokens == 20


BPE = ("data.tokenizer=bpe-280", "model.vocab_size=280", "train.checkpoint_every=9")
SHAPES = {
    "llama": "model.shape={kind: explicit, widths: [16, 16, 16]}",
    "widthwise": "model.shape={kind: explicit, widths: [24, 8, 24]}",
}


@pytest.fixture(scope="module")
def folder(trained) -> Path:
    """A run and its export of each model_type."""
    for name, shape in SHAPES.items():
        folder = trained(shape, *BPE, name=f"{name}-run").parent
        assert export_run(folder / f"{name}-run", folder / name)["model_type"] == name
    return folder


def test_an_exported_folder_has_the_numbers_of_its_run(folder: Path, questions: Path) -> None:
    for name in SHAPES:
        data = str(open_data(saved_recipe(RunDir(folder / f"{name}-run")).data).path)
        asked = {"texts": [__file__], "data": [data], "max_tokens": 400, "task_files": [str(questions)]}
        config = parse(EvaluationConfig, {**asked, "max_length": 17})
        evaluations = (evaluate_run(folder / each, config) for each in (f"{name}-run", name))
        expected, found = (
            {(on, metric): score.value for on, scores in each.scores.items() for metric, score in scores.items()}
            for each in evaluations
        )
        assert {(__file__, "token_perplexity"), ("questions", "acc")} <= expected.keys()
        assert found == pytest.approx(expected, rel=1e-5)
        assert f"{name}: a Hugging Face folder has no held-out text" in refusal(evaluate_run, folder / name, _asked())


ROWS = [
    {"query": "The gate", "choices": ["is open", "sings"], "gold": 0},
    {"query": "a", "choices": ["b", "cd"], "gold": 1},
]


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing outside the folder of the test is written."""
    pytest.importorskip("lm_eval", reason="needs the extra [eval]")
    keep_harness_in(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)


def scorer(run: Path) -> Scorer:
    return open_model(run).scorer(EvaluationConfig())


def test_a_group_has_the_items_of_its_tasks(finished: Path, harness: None, tmp_path: Path) -> None:
    (folder := tmp_path / "tasks").mkdir()
    for name, rows in (("one", ROWS), ("two", ROWS[:1])):
        write_harness_task(write_lines(folder / f"{name}.jsonl", rows))
    by_size = "aggregate_metric_list: [{metric: acc, weight_by_size: true}]"
    (folder / "inner.yaml").write_text(f"group: inner\ntask: [two]\n{by_size}\n")
    (folder / "outer.yaml").write_text(f"group: outer\ntask: [one, inner]\n{by_size}\n")
    metrics, found = run_lm_eval(scorer(finished), ["outer"])
    items = {name: each.items for name, each in found.items()}
    assert items["one"].keys() == {"acc", "acc_norm"}
    assert items["inner"] == {"acc": items["two"]["acc"]}
    assert items["outer"] == {"acc": items["one"]["acc"] + items["two"]["acc"]}
    assert sum(items["outer"]["acc"]) / 3 == pytest.approx(metrics["outer"]["acc"].value)
    _, again = run_lm_eval(scorer(finished), ["outer"], limit=1)
    assert again["outer"].fingerprint != found["outer"].fingerprint
    assert again["two"].fingerprint == found["two"].fingerprint


def test_a_perplexity_is_paired_by_the_loss_of_every_answer(harness: None, finished: Path, tmp_path: Path) -> None:
    rows = [{"context": "one two", "continuation": "three"}, {"context": "a b c", "continuation": "de"}]
    path = write_lines(tmp_path / "cloze.jsonl", rows)
    task = load_task(path)
    found = run_lm_eval(scorer(finished), [write_harness_task(path)])[1]["cloze"].items
    expected = score_task(scorer(finished), encode_task(scorer(finished), task)).items
    assert found["nats"] == pytest.approx(expected["nats"], rel=1e-5)
    assert found["acc"] == expected["acc"]
