"""Small runs, their exports to Hugging Face, and files of questions, for comparisons with lm-evaluation-harness."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scored_models import CHOICES as SHORT_CHOICES
from scored_models import CLOZES as SHORT_CLOZES
from scored_models import SCHEMAS

from widthwise.config_io import parse
from widthwise.data.json_tokenizer import train_bpe
from widthwise.recipe.recipe import Recipe
from widthwise.runs.train import train

DATA = os.environ.get("WIDTHWISE_TEST_DATA")
"""Where files too large for the repository lie."""
VOCAB_SIZE = 400
SEQ_LEN = 301
"""Less than the longest question, so that some are cut."""

CLOZES = [*SHORT_CLOZES, {"context": "In the naïve reading it is a noun; " * 50 + "it is a", "continuation": "noun"}]
CHOICES = [*SHORT_CHOICES, {"query": "Question: A long one. " * 90, "choices": ["yes", "no"], "gold": 0}]
QUESTIONS = [
    {"query": "2 + 2 is", "choices": ["4", "five"], "gold": 0},
    {"query": "The sky is", "choices": ["blue", "a"], "gold": 0},
    {"query": "Ice is", "choices": ["hot", "cold"], "gold": 1},
]
"""Short ones, which are never cut."""

UNIFORM: dict[str, dict[str, Any]] = {
    "llama": {"attention": {"n_heads": None, "head_dim": 6, "kv_group_size": 2}},
    "gpt2": {
        "norm": {"kind": "layer"},
        "attention": {"n_heads": 2, "bias": True, "out_bias": True, "rope_base": None},
        "ffn": {"kind": "mlp", "activation": "gelu_tanh", "bias": True},
        "positions": {"n_positions": SEQ_LEN},
    },
}
"""What transformers loads, too."""


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


def texts() -> list[str]:
    return [json.dumps(row, ensure_ascii=False) for rows in (CLOZES, CHOICES, SCHEMAS) for row in rows]


def trained_run(folder: Path, options: dict[str, Any]) -> Path:
    """Weights large enough that answers differ."""
    tokenizer = train_bpe(iter(texts() * 3), VOCAB_SIZE).save(folder)
    model = {"vocab_size": VOCAB_SIZE, "d_model": 24, "n_layers": 3, "attention": {"n_heads": 2}, "init": {"std": 0.4}}
    training = {"steps": 2, "batch_size": 2, "precision": "fp32", "compile": False, "validation_tokens": 2 * SEQ_LEN}
    data = {
        "model": model | options,
        "seq_len": SEQ_LEN,
        "data": {"corpus": "synthetic", "tokenizer": str(tokenizer)},
        "optimizer": {"kind": "adamw", "lr": 1e-3},
        "schedule": {"kind": "constant", "warmup_steps": 1},
        "train": training,
    }
    train(parse(Recipe, data), folder / "run")
    return folder / "run"


def shared_file(name: str) -> Path:
    """Skips the test where it is not there."""
    path = Path(DATA or "", "eval", name)
    if not (DATA and path.is_file()):
        pytest.skip(f"WIDTHWISE_TEST_DATA names no folder that holds eval/{name}")
    return path
