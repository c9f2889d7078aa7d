"""lm-evaluation-harness and runs: its command line, its errors, its metrics."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from boxes import refusal
from harness_cases import keep_harness_in, write_lines

from widthwise.evaluation.local_tasks import encode_task, load_task, local_task, score_task
from widthwise.evaluation.scorer import Scorer
from widthwise.runs.harness import harness_command_line, metrics_of, run_lm_eval
from widthwise.runs.trained import load_trained
from widthwise.yaml_io import dump_yaml

pytest.importorskip("lm_eval", reason="needs the extra [eval]")

ROWS = [
    {"query": "The gate", "choices": ["is open", "sings"], "gold": 0},
    {"query": "a", "choices": ["b", "cd"], "gold": 1},
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "gates.jsonl", ROWS)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing outside the folder of the test is written."""
    keep_harness_in(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The harness reads its thousands of tasks for seconds."""
    from lm_eval import tasks

    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "arc_easy.yaml").write_text(
        "task: arc_easy\ndataset_path: allenai/ai2_arc\noutput_type: multiple_choice\ntest_split: test\n"
        "doc_to_text: q\ndoc_to_choice: c\ndoc_to_target: t\n"
    )
    whole = tasks.TaskManager.__init__

    def few(self: Any, include_path: Any = None, include_defaults: bool = True, **options: Any) -> None:
        whole(self, include_path=include_path or folder, include_defaults=False, **options)

    monkeypatch.setattr(tasks.TaskManager, "__init__", few)


def scorer(run: Path) -> Scorer:
    trained = load_trained(run)
    return Scorer(trained.model, trained.tokenizer, trained.recipe.seq_len)


def test_its_command_line_knows_runs_and_files(
    finished: Path, questions: Path, capfd: pytest.CaptureFixture[str], few_tasks: None, tmp_path: Path
) -> None:
    arguments = ["--model", "widthwise", "--model_args", f"run={finished},batch_size=3", "--tasks", str(questions)]
    harness_command_line([*arguments, "--output_path", str(tmp_path / "out")])
    expected = run_lm_eval(scorer(finished), [str(questions)])[0]["gates"]
    (written,) = (tmp_path / "out").rglob("results_*.json")
    record = json.loads(written.read_text())
    assert metrics_of(record)["gates"] == expected
    header, *_ = (line for line in capfd.readouterr().out.splitlines() if line.startswith("|"))
    assert header.startswith("|Tasks|Version|")
    config = record["config"]
    assert (config["model"], config["step"], config["max_length"]) == ("widthwise", 9, 17)
    assert config["model_num_parameters"] == sum(p.numel() for p in load_trained(finished).model.parameters())


def test_mistakes_on_its_command_line_are_one_line(questions: Path, few_tasks: None) -> None:
    for arguments, message in (
        ("run=nowhere --tasks gates.jsonl", "nowhere: "),
        ("run=nowhere,batchsize=3 --tasks gates.jsonl", "model_args: batchsize: unknown key; did"),
        ("max_length=3 --tasks gates.jsonl", "model_args: run: is required but missing"),
        ("run=nowhere,device=gpu --tasks gates.jsonl", "model_args: device: got 'gpu'"),
        ("run=nowhere --batch_size auto --tasks gates.jsonl", "batch_size: got 'auto'"),
        ("run=nowhere --tasks gates.json", "Tasks not found: gates.json"),
        ("run=nowhere --tasks=gone.jsonl", "gone.jsonl: cannot be read"),
    ):
        asked = ["--model", "widthwise", "--model_args", *arguments.split()]
        assert message in refusal(harness_command_line, asked)


def test_a_run_by_name_is_what_its_options_say(finished: Path) -> None:
    from lm_eval.api.registry import get_model

    made = get_model("widthwise").create_from_arg_string(
        f"run={finished},max_length=9,precision=bf16", {"batch_size": "5", "device": "cuda:0", "max_batch_size": None}
    )
    assert (made.max_length, made.batch_size, made.scorer.autocast_dtype) == (9, 5, torch.bfloat16)
    own = get_model("widthwise").create_from_arg_obj({"run": str(finished), "batch_size": 2}, {"batch_size": 1})
    assert (own.max_length, own.batch_size, own.scorer.autocast_dtype) == (17, 2, None)
    assert get_model("dummy").__name__ == "DummyLM"  # its own are still there


def test_a_group_has_the_items_of_its_tasks(finished: Path, few_tasks: None, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    for name, rows in (("one", ROWS), ("two", ROWS[:1])):
        config = local_task(write_lines(tmp_path / f"{name}.jsonl", rows))
        (folder / f"{name}.yaml").write_text(dump_yaml(config))
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


def test_a_perplexity_is_paired_by_the_loss_of_every_answer(finished: Path, tmp_path: Path) -> None:
    rows = [{"context": "one two", "continuation": "three"}, {"context": "a b c", "continuation": "de"}]
    path = write_lines(tmp_path / "cloze.jsonl", rows)
    task = load_task(path)
    found = run_lm_eval(scorer(finished), [str(path)])[1]["cloze"].items
    expected = score_task(scorer(finished), encode_task(scorer(finished), task)).items
    assert found["nats"] == pytest.approx(expected["nats"], rel=1e-5)
    assert found["acc"] == expected["acc"]
