"""Files of local questions as tasks of lm-evaluation-harness, which need no network."""

from pathlib import Path
from typing import Any

from widthwise.evaluation.local_tasks import Cloze, Item, MultipleChoice, Schema, load_task

SUFFIX = ".jsonl"
"""Ending of a task name that is a file."""


def local_task(path: Path, delimiter: str = " ") -> dict[str, Any]:
    """The harness's config of a file of one of the forms of `local_tasks`: plain data, which can be written as YAML.

    It asks what `score_task` asks. Raises UserError naming file and line where the file is not of one form.
    """
    task = load_task(path, delimiter)
    return {
        "task": task.name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path.resolve())}},
        "test_split": "test",
        "fewshot_split": "test",  # without the question itself
        "metadata": {"version": 1.0},
        **_questions(type(task.items[0]), delimiter),
    }


def _questions(form: type[Item], delimiter: str) -> dict[str, Any]:
    """A name of a key stands for its value as it is; only a cloze's answer is a template."""
    choosing = {"output_type": "multiple_choice", "target_delimiter": delimiter}
    return {
        MultipleChoice: {
            **choosing,
            "doc_to_text": "query",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "metric_list": [_mean("acc"), _mean("acc_norm")],
        },
        Schema: {
            **choosing,
            "doc_to_text": "gold",  # a number: the contexts are what is chosen among
            "doc_to_choice": "context_options",
            "doc_to_target": "continuation",
            "metric_list": [_mean("acc")],
        },
        Cloze: {
            "output_type": "loglikelihood",
            "target_delimiter": "",
            "doc_to_text": "context",
            "doc_to_target": f"{{{{ {delimiter!r} + continuation }}}}",
            "metric_list": [
                _mean("acc"),
                {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            ],
        },
    }[form]


def _mean(metric: str) -> dict[str, Any]:
    return {"metric": metric, "aggregation": "mean", "higher_is_better": True}
