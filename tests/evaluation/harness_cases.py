"""Files of questions, and how lm-evaluation-harness is asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from widthwise.yaml_io import dump_yaml

QUESTIONS = [
    {"query": "2 + 2 is", "choices": ["4", "five"], "gold": 0},
    {"query": "The sky is", "choices": ["blue", "a"], "gold": 0},
    {"query": "Ice is", "choices": ["hot", "cold"], "gold": 1},
]
"""Short ones, which fit into tiny models."""


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


MEAN = {"aggregation": "mean", "higher_is_better": True}
OF_FORMS: dict[str, dict[str, Any]] = {
    "choices": {
        "doc_to_text": "query",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": name, **MEAN} for name in ("acc", "acc_norm")],
    },
    "context_options": {
        "doc_to_text": "gold",  # a number: the choices are contexts
        "doc_to_choice": "context_options",
        "doc_to_target": "continuation",
        "metric_list": [{"metric": "acc", **MEAN}],
    },
    "context": {
        "doc_to_text": "context",
        "metric_list": [
            {"metric": "acc", **MEAN},
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
        ],
    },
}
"""A key that only this form of a question has -> what the harness is told of it."""


def harness_task(path: Path, delimiter: str = " ") -> dict[str, Any]:
    """Return a file of questions as a task of the harness."""
    row = json.loads(path.read_text().splitlines()[0])
    key = next(key for key in OF_FORMS if key in row)
    about = {"output_type": "multiple_choice", "target_delimiter": delimiter}
    if key == "context":
        about = {"output_type": "loglikelihood", "target_delimiter": ""}
        about["doc_to_target"] = f"{{{{ {delimiter!r} + continuation }}}}"  # a template
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path.resolve())}}}
    splits = {"test_split": "test", "fewshot_split": "test"}  # the harness excludes the question
    return {"task": path.stem, "metadata": {"version": 1.0}, **data, **splits, **OF_FORMS[key], **about}


def write_harness_task(questions: Path) -> str:
    """Write the task of a file of questions next to it, and return its path."""
    path = questions.with_suffix(".yaml")
    path.write_text(dump_yaml(harness_task(questions)))
    return str(path)


def keep_harness_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """The harness writes its tables of questions into a folder of the test, knows only the tasks in `tasks` there, and
    does not describe the machine; its thousands of tasks and the machine take seconds."""
    import datasets
    from lm_eval import evaluator
    from lm_eval.tasks import TaskManager

    whole = TaskManager.__init__
    patch.setattr(
        TaskManager, "__init__", lambda self: whole(self, include_path=folder / "tasks", include_defaults=False)
    )
    datasets.disable_progress_bars()
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    patch.setattr(evaluator, "add_env_info", lambda results: None)
