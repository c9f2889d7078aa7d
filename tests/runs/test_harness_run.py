"""lm-evaluation-harness and runs: its metrics."""

from pathlib import Path
from typing import Any

import pytest
from harness_cases import keep_harness_in, write_lines

from widthwise.evaluation.local_tasks import encode_task, load_task, local_task, score_task
from widthwise.evaluation.scorer import Scorer
from widthwise.runs.harness import run_lm_eval
from widthwise.runs.open import open_model
from widthwise.yaml_io import dump_yaml

pytest.importorskip("lm_eval", reason="needs the extra [eval]")

ROWS = [
    {"query": "The gate", "choices": ["is open", "sings"], "gold": 0},
    {"query": "a", "choices": ["b", "cd"], "gold": 1},
]


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
    trained = open_model(run)
    return Scorer(trained.model, trained.tokenizer, trained.recipe.seq_len)


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
