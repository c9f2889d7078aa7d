"""lm-evaluation-harness asks of a file what we ask of it."""

from pathlib import Path
from typing import Any

import pytest
from harness_cases import keep_harness_in, write_lines
from scored_models import CHOICES, CLOZES, SCHEMAS, tiny_scorer

from widthwise.config_io import UserError
from widthwise.evaluation.local_tasks import local_task
from widthwise.runs.harness import harness_results, metrics_of
from widthwise.yaml_io import dump_yaml, parse_yaml

pytest.importorskip("lm_eval", reason="needs the extra [eval]")


@pytest.fixture(autouse=True)
def _own_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_harness_in(tmp_path, monkeypatch)


def test_the_delimiter_begins_the_answer(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", CLOZES)
    for delimiter in ("\nAnswer: ", " \"quoted' {{ ", ""):
        assert _asked(path, delimiter) == [(row["context"], delimiter + row["continuation"]) for row in CLOZES]
    path = write_lines(path, CHOICES)
    pairs = [(row["query"], "Answer: " + choice) for row in CHOICES for choice in row["choices"]]
    assert _asked(path, "Answer: ") == pairs
    path = write_lines(path, SCHEMAS)
    pairs = [(context, " " + row["continuation"]) for row in SCHEMAS for context in row["context_options"]]
    assert _asked(path, " ") == pairs


def _asked(path: Path, delimiter: str) -> list[Any]:
    from lm_eval.tasks import TaskManager

    config = parse_yaml(dump_yaml(local_task(path, delimiter)), "dump")  # as a file would say it
    (task,) = TaskManager(include_defaults=False).load([config])["tasks"].values()
    task.build_all_requests()
    return [instance.args for instance in task.instances]


def test_limit_examples_and_samples(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", CHOICES)
    results = harness_results(tiny_scorer(max_length=160), [str(path)], num_fewshot=1, limit=2)
    assert [len(each["filtered_resps"]) for each in results["samples"]["rows"]] == [2, 4]
    for row, sample in zip(CHOICES, results["samples"]["rows"]):
        context = sample["arguments"][0][0]
        others = [each["query"] for each in CHOICES if each is not row and context.startswith(each["query"])]
        assert len(others) == 1  # the example
        assert context.endswith(row["query"])
    assert metrics_of(results)["rows"]["acc"].value in (0.0, 0.5, 1.0)


def test_a_line_of_no_form_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [*CHOICES, {"question": "?"}])
    with pytest.raises(UserError, match=r"rows.jsonl: line 5: has keys question"):
        local_task(path)
