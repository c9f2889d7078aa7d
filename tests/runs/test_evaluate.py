"""Runs evaluated: the held-out text as a validation sees it, other texts, tasks, and what is written."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness_cases import QUESTIONS, keep_harness_in, write_lines
from scipy import stats
from tiny_runs import tiny_recipe

from widthwise.config_io import UserError, parse
from widthwise.data.config import open_data
from widthwise.evaluation.differences import evaluation_differences, without_items
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs import evaluate, harness
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run, save_evaluation
from widthwise.runs.harness import HarnessAnswers
from widthwise.runs.scored import HELD_OUT
from widthwise.runs.train import resume, train
from widthwise.training.checkpoint_folder import checkpoint_paths

KINDS = {
    "hourglass": "model.ffn={kind: hourglass, n_blocks: 2, d_hidden: 5}",
    "moe": "model.ffn={kind: moe, n_experts: 3, top_k: 2, ratio: 0.5}",
    "dynamic": "model.ffn={kind: dynamic}",
    "virtual_width": "model.residual={kind: hyper_connections, n_slots: 3, slot_width: 8}",
    "learned_positions": "model.positions={n_positions: 17}",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same recipe with two seeds."""
    folder = tmp_path_factory.mktemp("evaluated")
    for seed in (1, 2):
        train(tiny_recipe(f"train.seed={seed}", "train.checkpoint_every=null"), folder / f"run{seed}")
    return [folder / "run1", folder / "run2"]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "questions.jsonl", QUESTIONS)


def _asked(**options) -> EvaluationConfig:
    return parse(EvaluationConfig, options)


def _equals_validation(run: Path) -> None:
    found, result = evaluate_run(run, _asked()), RunDir(run).result()
    assert result is not None
    metrics = found["texts"][HELD_OUT]["metrics"]
    assert metrics["nats_per_token"]["value"] == pytest.approx(result["val_loss"], rel=1e-6)
    assert metrics["token_perplexity"]["value"] == pytest.approx(result["val_perplexity"], rel=1e-6)
    assert metrics["bits_per_byte"]["value"] == pytest.approx(result["val_bits_per_byte"], rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(result["val_bits_per_byte"], rel=1e-6)
    assert found["step"] == result["steps"]


def test_held_out_text_gives_the_loss_of_the_last_validation(runs: list[Path]) -> None:
    _equals_validation(runs[0])


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_does_for_every_kind_of_model(kind: str, tmp_path: Path) -> None:
    train(tiny_recipe("model.shape={kind: uniform}", KINDS[kind], "train.steps=3"), tmp_path / "run")
    _equals_validation(tmp_path / "run")


def test_all_held_out_text_is_read_where_validations_know_no_limit(tmp_path: Path) -> None:
    options = ("train.validation_tokens=null", "data.held_out=0.01", "train.steps=3", "train.validate_every=null")
    train(tiny_recipe(*options), tmp_path / "run")
    _equals_validation(tmp_path / "run")


def test_prepared_data_and_limits(runs: list[Path]) -> None:
    folder = str(open_data(saved_recipe(RunDir(runs[0])).data).path)
    found = evaluate_run(runs[0], _asked(data=[folder], max_tokens=50))["texts"]
    assert found.keys() == {folder}
    assert found[folder]["n_tokens"] == 50
    own = evaluate_run(runs[0], _asked(max_tokens=50))["texts"]
    assert own[HELD_OUT] == found[folder]


def test_bits_per_byte_are_one_number(runs: list[Path], questions: Path) -> None:
    """The weighted mean over texts, and null where only tasks are answered."""
    asked = _asked(texts=[__file__, stats.__file__], max_tokens=40, weights={__file__: 3.0})
    found = evaluate_run(runs[0], asked)
    of_texts = [found["texts"][name]["metrics"]["bits_per_byte"]["value"] for name in asked.texts]
    assert found["bits_per_byte"] == pytest.approx((3 * of_texts[0] + of_texts[1]) / 4)
    assert evaluate_run(runs[0], _asked(task_files=[str(questions)]))["bits_per_byte"] is None


def test_raw_text_is_read_document_by_document(runs: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"body": "one text"}\n{"body": "and another — longer than a window"}\n')
    found = evaluate_run(runs[0], _asked(texts=[str(path)], field="body", stride=3))
    text = found["texts"][str(path)]
    assert (text["n_documents"], text["n_bytes"]) == (2, 8 + 36)
    assert (text["n_characters"], text["n_words"]) == (8 + 34, 2 + 7)
    nats = math.log(text["metrics"]["word_perplexity"]["value"]) * 9
    assert nats == pytest.approx(sum(text["blocks"]["nats"]))
    assert (found["stride"], found["max_length"]) == (3, 17)


def test_it_tells_how_far_each_text_and_task_is(runs: list[Path], questions: Path) -> None:
    told: list[tuple[str, int, int | None, str]] = []
    asked = _asked(texts=[__file__], max_tokens=300, stride=3, batch_size=1, task_files=[str(questions)])
    found = evaluate_run(runs[0], asked, working=lambda *each: told.append(each))
    of_text = [(n_done, n_total) for name, n_done, n_total, _ in told if name == __file__]
    assert [n_total for _, n_total in of_text] == [300] * len(of_text)
    assert [n_done for n_done, _ in of_text] == sorted({n_done for n_done, _ in of_text})
    assert of_text[-1] == (300, 300) == (found["texts"][__file__]["n_tokens"],) * 2
    assert len(of_text) > 64  # more than are put together at a time
    n_done, n_total = [each[1:3] for each in told if each[0] == "questions"][-1]
    assert n_done == n_total
    assert {unit for *_, unit in told} == {"tokens"}


def test_two_runs_differ_by_the_paired_difference_of_their_items(runs: list[Path], questions: Path) -> None:
    asked = _asked(task_files=[str(questions)], texts=[__file__], max_tokens=300)
    one, other = (evaluate_run(run, asked) for run in runs)
    entries = {(each["on"], each["metric"]): each for each in evaluation_differences(one, other)}
    items = [np.array(record["tasks"]["questions"]["items"]["bits_per_byte"]) for record in (one, other)]
    found = entries["questions", "bits_per_byte"]
    assert found["value"] == pytest.approx((items[1] - items[0]).mean())
    assert found["stderr"] == pytest.approx((items[1] - items[0]).std(ddof=1) / math.sqrt(len(QUESTIONS)))
    assert (found["low"] + found["high"]) / 2 == pytest.approx(found["value"])
    assert found["high"] - found["value"] == pytest.approx(found["stderr"] * stats.t.ppf(0.975, len(QUESTIONS) - 1))
    right = [np.array(record["tasks"]["questions"]["items"]["acc"]) for record in (one, other)]
    assert entries["questions", "acc"]["flips"]["gained"] == (np.flatnonzero(right[1] > right[0]) + 1).tolist()
    bits = [record["texts"][__file__]["metrics"]["bits_per_byte"]["value"] for record in (one, other)]
    assert entries[__file__, "bits_per_byte"]["value"] == pytest.approx(bits[1] - bits[0])
    fewer = evaluate_run(runs[1], _asked(task_files=[str(questions)], limit=2))
    (refused,) = evaluation_differences(one, fewer)
    assert refused == {"on": "questions", "metric": None, "value": None, "stderr": None, "low": None, "high": None}


def test_a_suite_is_answered_from_local_files(runs: list[Path], questions: Path) -> None:
    for name in ("copa", "arc_easy"):
        shutil.copy(questions, questions.with_name(f"{name}.jsonl"))
    asked = {"suite": "variable-width", "local": str(questions.parent)}
    with pytest.raises(UserError, match=r"11 parts cannot be had: ARC-C \(no arc_challenge.jsonl and --tasks arc_ch"):
        evaluate_run(runs[0], _asked(**asked))
    said: list[str] = []
    found = evaluate_run(runs[0], _asked(**asked, partial=True, weights={"COPA": 3}), said.append)
    rows = {row["name"]: row for row in found["suite"]["rows"]}
    assert rows["COPA"]["value"] == found["tasks"]["variable-width/copa"]["metrics"]["acc"]["value"]
    delimiters = {name: task["delimiter"] for name, task in found["tasks"].items()}
    assert delimiters == {"variable-width/copa": " ", "variable-width/arc_easy": "\nAnswer: "}
    assert rows["PIQA"]["value"] is None
    average, rows_used = found["suite"]["average"], (rows["COPA"]["value"], rows["ARC-E"]["value"])
    assert average["value"] == pytest.approx((3 * rows_used[0] + rows_used[1]) / 4)
    assert (average["n_tasks"], average["n_tasks_of_suite"], len(average["missing"])) == (2, 11, 9)
    assert "variable-width: without RACE (no file of it is known and --tasks race is not asked for)" in said
    assert found["lm_eval"] == {}


def test_the_texts_of_a_suite_are_those_of_their_names(runs: list[Path], tmp_path: Path) -> None:
    stems = ("dolma_common-crawl", "dolma_stack", "m2d2_s2orc", "wikitext_103")
    for i, stem in enumerate(stems):
        (tmp_path / f"{stem}.txt").write_text(f"the text number {i} is this one " * (i + 1))
    write_lines(tmp_path / "piqa.jsonl", QUESTIONS)
    texts = [str(tmp_path / f"{stem}.txt") for stem in stems]
    asked = {"suite": "hourglass", "local": str(tmp_path), "texts": texts, "partial": True}
    found = evaluate_run(runs[0], _asked(**asked))
    rows = {row["name"]: row["value"] for row in found["suite"]["rows"]}
    losses = [found["texts"][text]["metrics"]["nats_per_token"]["value"] for text in texts]
    assert rows["Val Loss"] == pytest.approx(np.mean(losses))
    assert rows["Val PPL"] == pytest.approx(np.mean(np.exp(losses)))
    means = found["text_means"]["metrics"]
    assert means["exp_mean_nats_per_token"]["value"] == pytest.approx(np.exp(np.mean(losses)))
    three = evaluate_run(runs[0], _asked(**{**asked, "texts": texts[1:]}))["suite"]
    assert {row["name"]: row["value"] for row in three["rows"]}["Val Loss"] is None
    assert "Dolma Common Crawl (no text dolma_common-crawl)" in three["missing"]


def test_tasks_of_the_harness_are_asked_of_it(
    runs: list[Path], questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval")
    keep_harness_in(tmp_path, monkeypatch)
    found = evaluate_run(runs[0], _asked(tasks=[str(questions)], task_files=[str(questions)], limit=2))
    ours, theirs = found["tasks"]["questions"]["metrics"], found["lm_eval"]["questions"]
    assert theirs["acc_norm"] == pytest.approx(ours["acc_norm"])
    items = found["lm_eval_items"]["questions"]["items"]
    assert items == {name: found["tasks"]["questions"]["items"][name] for name in ("acc", "acc_norm")}
    other = evaluate_run(runs[1], _asked(tasks=[str(questions)], task_files=[str(questions)], limit=2))
    entries = {(each["on"], each["metric"]): each for each in evaluation_differences(found, other)}
    for metric in ("acc", "acc_norm"):
        numbers = [{**entries[on, metric], "on": None} for on in ("questions", "lm-eval questions")]
        assert numbers[0] == numbers[1]


def test_the_harness_is_asked_what_the_suite_and_the_user_name(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(harness, "run_lm_eval", lambda scorer, *rest: asked.append(rest) or HarnessAnswers({}, {}))
    options = {"tasks": ["boolq", "piqa"], "num_fewshot": 3, "limit": 5, "partial": True}
    evaluate_run(runs[0], _asked(suite="hourglass", **options))
    assert asked == [(["boolq", "piqa", "arc_easy", "hellaswag", "sciq"], 3, 5)]


def test_an_evaluation_is_kept_in_its_run_and_changes_nothing_else(runs: list[Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    first, other = evaluate_run(run, _asked(max_tokens=40)), evaluate_run(run, _asked(max_tokens=60))
    paths = [save_evaluation(record) for record in (first, other, first)]
    assert paths[0] == paths[2] != paths[1]
    assert json.loads(paths[0].read_text()) == first
    assert {path.name for path in run.iterdir()} - {"evaluations"} == {path.name for path in runs[0].iterdir()}
    assert {path: path.read_bytes() for path in before} == before
    resume(run)
    assert RunDir(run).result() == RunDir(runs[0]).result()


def test_totals_leave_out_what_is_long(runs: list[Path], questions: Path) -> None:
    record = evaluate_run(runs[0], _asked(task_files=[str(questions)], texts=[__file__], max_tokens=40))
    totals = without_items(record)
    assert totals["tasks"]["questions"].keys() == record["tasks"]["questions"].keys() - {"items"}
    assert totals["texts"][__file__].keys() == record["texts"][__file__].keys() - {"blocks"}
    json.dumps(record, allow_nan=False)


def test_bf16_is_the_recipes_precision_or_the_one_asked_for(runs: list[Path]) -> None:
    values = [
        evaluate_run(runs[0], _asked(precision=precision))["texts"][HELD_OUT]["metrics"]["nats_per_token"]["value"]
        for precision in (None, "fp32", "bf16")
    ]
    assert values[0] == values[1] != values[2]
    assert values[2] == pytest.approx(values[0], rel=0.02)


def test_mistakes_are_named(runs: list[Path], questions: Path, tmp_path: Path) -> None:
    twice = [str(questions), str(questions)]
    (empty := tmp_path / "empty.txt").write_text("")
    for options, message in [
        ({"task_files": twice}, "task_files: 'questions' is named twice"),
        ({"stride": 18}, "stride: got 18; must be from 1 to max_length = 17"),
        ({"texts": [__file__, "gone.txt"]}, "gone.txt: no such file"),
        ({"texts": [str(empty)]}, "empty.txt: holds no token to predict"),
        ({"suite": "hourglass", "local": str(tmp_path / "none")}, "holds no file of the suite hourglass"),
        (
            {"suite": "virtual-width-b"},
            r"5 parts cannot be had: KOR-Bench-Easy \(lm-evaluation-harness has no such task, and the paper prints.*"
            r"McEval, Chinese SimpleQA: neither a file nor a task can give these, so this suite always needs --partial",
        ),
        (
            {"texts": [__file__], "weights": {"b.txt": 2}},
            "weights: got one of 'b.txt'; averaged are no texts or tasks",
        ),
    ]:
        with pytest.raises(UserError, match=message):
            evaluate_run(runs[0], _asked(**options))
    for options, message in [
        ({"suite": "x-wide"}, "suite: got 'x-wide'"),
        ({"local": "folder"}, "local: got 'folder' without a suite"),
        ({"partial": True}, "partial: got true without a suite"),
        ({"task_files": ["a.jsonl"], "num_fewshot": 3}, "num_fewshot: got 3 without tasks of lm-evaluation-harness"),
        ({"suite": "hourglass", "local": "a", "num_fewshot": 3}, "num_fewshot: got 3 without tasks"),
        ({"texts": ["a.txt"], "limit": 3}, "limit: got 3 without a task"),
        ({"tasks": ["piqa"], "stride": 3}, "stride: got 3 without a text"),
        ({"task_files": ["a.jsonl"], "max_tokens": 3}, "max_tokens: got 3 without a text"),
    ]:
        with pytest.raises(UserError, match=message):
            _asked(**options)


def test_the_model_computes_where_it_is_asked_to(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    load = evaluate.load_scored
    monkeypatch.setattr(evaluate, "load_scored", lambda path, *rest: asked.append(rest) or load(path, *rest))
    evaluate_run(runs[0], _asked(device="cpu", max_tokens=20))
    assert asked == [("cpu", None)]


def test_data_of_another_tokenizer_are_refused(runs: list[Path], tmp_path: Path) -> None:
    other = tiny_recipe("data.tokenizer=bpe-300", "model.vocab_size=300")
    folder = open_data(other.data).path
    with pytest.raises(UserError, match=r"was tokenised by bpe-300, not by the tokenizer of the run \(bytes\)"):
        evaluate_run(runs[0], _asked(data=[str(folder)]))


def test_held_out_text_must_be_that_of_the_training(runs: list[Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    recipe, environment = run / "config.yaml", json.loads((run / "environment.json").read_text())
    recipe.write_text(recipe.read_text().replace("held_out: 0.05", "held_out: 0.01"))
    with pytest.raises(UserError, match=r"was trained on synthetic .* name a text with --text or --data"):
        evaluate_run(run, _asked())
    unseen = {**environment, "data": None, "tokenizer": environment["data"]["tokenizer"]}  # as an imported run has it
    (run / "environment.json").write_text(json.dumps(unseen))
    with pytest.raises(UserError, match="has seen no data yet; name a text with --text or --data"):
        evaluate_run(run, _asked())
    assert evaluate_run(run, _asked(texts=[__file__], max_tokens=20))["texts"][__file__]["n_tokens"] == 20


def test_a_damaged_checkpoint_is_said(runs: list[Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    newest = checkpoint_paths(run / "checkpoints")[0]
    shutil.copytree(newest, newest.with_name("step_00000010"))
    said: list[str] = []
    record = evaluate_run(run, _asked(max_tokens=20), said.append)
    assert record["step"] == 9
    assert record["damages"]
    assert set(record["damages"]) <= set(said)
