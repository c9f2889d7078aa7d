"""A small world in which the commands of the documents run as they stand: the same names, toy sizes."""

import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from widthwise.cli.main import app
from widthwise.yaml_io import merge

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {
    "model": {"vocab_size": 300, "d_model": 32, "n_layers": 8, "attention": {"head_dim": 8}, "init": {"std": 0.06}},
    "seq_len": 64,
    "data": {"corpus": "synthetic", "tokenizer": "bpe-300"},
    "optimizer": {"kind": "adamw", "lr": 0.004},
    "schedule": {"kind": "constant", "warmup_steps": 1},
    "train": {
        "steps": 4,
        "batch_size": 2,
        "precision": "fp32",
        "validate_every": 1,
        "validation_tokens": 64,
        "checkpoint_every": 2,
        "loss_window_steps": 2,
    },
}
X = {"kind": "x", "bottleneck_layer": 0.5, "bottleneck_width": 0.5}
PAIR = {"seeds": [1], "match": "none", "variants": {"uniform": {}, "x": {"model": {"shape": X}}}}
RUNGS = {f"d{width}": {"model": {"d_model": width}} for width in (16, 24, 32)}
SLOTS = {"kind": "hyper_connections", "n_fractions": 2, "embedding": "expand", "reduce": "slot"}
RECIPES: dict[str, dict[str, Any]] = {
    "small": TINY,
    "x_2b": merge(TINY, {"model": {"shape": X}}),
    "large": merge(TINY, {"model": {"d_model": 48, "ffn": {"d_ff": 192}}, "train": {"steps": 6}}),
    "quickstart": {"extends": "small.yaml", "compare": PAIR},
    "compare_virtual_width": {
        "extends": "small.yaml",
        "compare": {
            "seeds": [1, 2],
            "match": "none",
            "variants": {
                "plain": {},
                **{f"r{m}": {"model": {"residual": {**SLOTS, "n_slots": 2 * m}}} for m in (1, 2, 4)},
            },
        },
    },
    "sweep_shapes": {
        "extends": "small.yaml",
        "sweep": {
            "seeds": [1],
            "match": "none",
            "baseline": {},
            "baseline_name": "uniform",
            "groups": {"x": {"change": {"model": {"shape": X}}, "over": {"model.shape.bottleneck_width": [0.5, 0.75]}}},
        },
    },
    "ladder_small": {
        "extends": "small.yaml",
        "sweep": {
            "seeds": [1],
            "match": "none",
            "tokens_per_param": 0.02,
            "rungs": RUNGS,
            "groups": {"uniform": {}, "x": {"change": {"model": {"shape": X}}}},
        },
    },
}
"""What replaces the recipes of configs/ that the documents train."""
QUESTIONS: dict[str, list[dict[str, Any]]] = {
    "piqa": [{"query": "Question: hot or cold?\nAnswer:", "choices": ["hot", "cold"], "gold": 0}] * 3,
    "lambada_openai": [{"context": "the cat sat on the", "continuation": "mat"}] * 3,
}


def build(folder: Path) -> None:
    """Fills a folder, in which this process works, with recipes, texts, questions and runs."""
    for name in ("configs", "benchmarks/papers/points"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("README.md", "examples"):
        (folder / name).symlink_to(ROOT / name)
    for name, data in RECIPES.items():
        _write(folder / "configs" / f"{name}.yaml", yaml.safe_dump(data, sort_keys=False))
    # The documents give its name alone: a file that is called so comes before the bundled recipe.
    shutil.copy(folder / "configs/x_2b.yaml", folder / "x_2b")
    texts = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
    for title, text in texts.items():
        _write(folder / f"books/{title}.txt", text)
        _write(folder / f"my_texts/{title}.txt", text)
    for path in (ROOT / "src/widthwise").rglob("*.py"):  # so many documents that a twentieth of them is not empty
        _write(folder / f"my_texts/{path.parent.name}_{path.stem}.txt", path.read_text())
    shutil.copy(folder / "books/shape.txt", folder / "books/emma.txt")
    _write(folder / "new/today.txt", texts["log"])
    _write_lines(folder / "books.jsonl", [{"text": texts[title]} for title in ("growth", "virtual_width")])
    _write(folder / "larger.yaml", yaml.safe_dump(RECIPES["large"], sort_keys=False))
    for name, questions in QUESTIONS.items():
        for place in (".", "eval", "questions"):
            _write_lines(folder / place / f"{name}.jsonl", questions)
    # The runs and models that pages take for given.
    call("train", "configs/small.yaml", "train.keep_last=9", "--out", "runs/a")
    call("train", "x_2b", "train.keep_last=9", "--out", "runs/x")
    call("export", "runs/a", "models/Llama-3.2-1B")
    for name in ("b", "mine", "small", "uniform", "200m"):
        shutil.copytree(folder / "runs/a", folder / "runs" / name)
    for name, d_model in {"500m": 48, "1b": 64}.items():
        call("train", "configs/small.yaml", f"model.d_model={d_model}", "--out", f"runs/{name}")
    shutil.copytree(folder / "models/Llama-3.2-1B", folder / "models/SmolLM2-135M")
    config = folder / "models/SmolLM2-135M/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 512}))
    call("compare", "configs/quickstart.yaml")
    call("sweep", "configs/sweep_shapes.yaml", "--out", "runs/shapes")
    call("sweep", "configs/ladder_small.yaml")


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    _write(path, "".join(json.dumps(line) + "\n" for line in lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def call(*arguments: str) -> None:
    """The command line in this process, with few steps and tokens; an error is raised, not printed."""
    arguments = tuple(re.sub(r"^train\.steps=\d+$", "train.steps=6", word) for word in arguments)
    arguments = tuple("4096" if before == "--tokens" else word for before, word in zip(("", *arguments), arguments))
    with mock.patch.object(sys, "argv", ["widthwise", *arguments]):
        app(arguments, standalone_mode=False)
