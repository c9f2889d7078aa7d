"""Files of questions, and how lm-evaluation-harness is asked."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

QUESTIONS = [
    {"query": "2 + 2 is", "choices": ["4", "five"], "gold": 0},
    {"query": "The sky is", "choices": ["blue", "a"], "gold": 0},
    {"query": "Ice is", "choices": ["hot", "cold"], "gold": 1},
]
"""Short ones, which fit into tiny models."""


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def instances(kind: Any, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Requests of the harness."""
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=each, idx=i) for i, each in enumerate(arguments)]


def keep_harness_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """The harness writes its tables of questions into a folder of the test, and does not describe the machine, which
    takes seconds."""
    import datasets
    from lm_eval import evaluator

    datasets.disable_progress_bars()
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    patch.setattr(evaluator, "add_env_info", lambda results: None)
