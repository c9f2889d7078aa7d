"""Peak memory of real training steps on a CPU, next to what the memory model of `plan` says.

python benchmarks/memory.py [--only NAME ...] [--out benchmarks/results/memory_cpu.json]

Each recipe is trained in a process of its own, twice: two steps, after which all is freed, so that the kernels that
libraries compile for its sizes are there; and two steps again. What counts is the peak of the last step, less what the
process held before the second model. glibc is told to give larger tensors back when they are freed, so that the process
holds what is alive.
"""

import argparse
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Part, cpu_parser, run_parts

from widthwise.config_io import parse
from widthwise.data.loader import Boundaries
from widthwise.recipe.recipe import Recipe
from widthwise.runs.rank_memory import ShardedModel
from widthwise.training.metrics import PeakMemory
from widthwise.training.train_state import TrainState
from widthwise.yaml_io import apply_overrides

BASE: dict[str, Any] = {
    "model": {
        "vocab_size": 4096,
        "d_model": 256,
        "n_layers": 8,
        "attention": {"head_dim": 32},
        "ffn": {"kind": "swiglu", "ratio": 4},
    },
    "seq_len": 256,
    "data": {"corpus": "synthetic", "tokenizer": "bytes"},
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "schedule": {"kind": "constant"},
    "train": {"steps": 10, "batch_size": 4, "precision": "fp32"},
}
X = ("model.shape={kind: x, quantum: 32}",)
CASES: dict[str, tuple[str, ...]] = {
    "uniform": (),
    "uniform_bf16": ("train.precision=bf16",),
    "x_bf16_layer": (*X, "train.precision=bf16", "train.activation_checkpointing=layer", "train.batch_size=8"),
    "x_selective": (*X, "train.activation_checkpointing=selective"),
    "x_several_passes": (*X, "train.micro_batch_size=2"),
    "hourglass_bf16": ("model.ffn={kind: hourglass, n_blocks: 4}", "model.d_model=320", "train.precision=bf16"),
    "moe": ("model.ffn={kind: moe, n_experts: 8, top_k: 2, d_expert: 256}", "train.micro_batch_size=2"),
    "virtual_width_bf16": (
        "model.residual={kind: hyper_connections, n_fractions: 2, n_slots: 3, embedding: expand, reduce: slot}",
        "train.precision=bf16",
    ),
    "mtp_tied": ("model.mtp={n_depths: 2}", "model.tie_embeddings=true"),
    "dynamic": ("model.ffn={kind: dynamic, ratio: 4, score: {kind: linear}, mask: {kind: ste}}",),
    "dynamic_bf16": (
        "model.ffn={kind: dynamic, ratio: 4, score: {kind: linear}, mask: {kind: ste}}",
        "train.precision=bf16",
    ),
    "muon": ("optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.01}}",),
    "documents_apart_bf16": (
        *X,
        "data.mask_documents=true",
        "data.reset_positions=true",
        "seq_len=1024",
        "train.batch_size=4",
        "train.precision=bf16",
        "train.activation_checkpointing=layer",
    ),
    "few_tokens": ("model.d_model=384", "train.batch_size=1"),
    "large_vocabulary_bf16": ("model.vocab_size=32768", "model.n_layers=4", "train.precision=bf16"),
}
SEPARATOR = 0
"""The token that ends documents among random ones."""
TOLERANCE = 0.1
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}


def recipe_of(*overrides: str) -> Recipe:
    data = deepcopy(BASE)
    apply_overrides(data, overrides)
    return parse(Recipe, data, "recipe")


def train(recipe: Recipe, n_steps: int) -> int | None:
    """Bytes that the process held at most in the last of the steps."""
    train_state = TrainState.untrained(recipe, recipe.phases[0])
    peak: PeakMemory | None = None
    for step in range(1, n_steps + 1):
        shape = (recipe.train.batch_size, recipe.seq_len + 1)
        batch = torch.randint(recipe.explicit_model.vocab_size, shape)
        peak = PeakMemory(torch.device("cpu"))
        train_state.train_step(
            step, batch, Boundaries(SEPARATOR, recipe.data.mask_documents, recipe.data.reset_positions)
        )
    return peak and peak.n_bytes()


def held_bytes() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    found = re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def measured(recipe: Recipe) -> dict[str, int]:
    """What training adds to the memory of this process at most, and what libraries keep of it."""
    before = held_bytes()
    train(recipe, 2)
    with_kernels = held_bytes()
    peak = train(recipe, 2)
    assert peak is not None, "this system does not reset its count of the peak"
    return {"measured_bytes": peak - with_kernels, "library_bytes": with_kernels - before}


def measure(case: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", case]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=seconds, check=True
    )
    found = json.loads(done.stdout)
    recipe = recipe_of(*CASES[case])
    memory = ShardedModel(recipe, "cpu").memory(recipe.train)
    ratio = found["measured_bytes"] / memory.total_bytes
    return {
        "overrides": CASES[case],
        **found,
        "said_bytes": memory.total_bytes,
        "said": memory.to_data(),
        "ratio": ratio,
        "tolerance": TOLERANCE,
        "meets_target": abs(ratio - 1) <= TOLERANCE,
        "summary": f"{found['measured_bytes'] / 1e6:.0f} MB measured, {memory.total_bytes / 1e6:.0f} MB said "
        f"({memory.moment}): {ratio:.3f}",
    }


def main(argv: list[str] | None = None) -> int:
    parser = cpu_parser(__doc__, "memory")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="these recipes alone")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child is not None:
        print(json.dumps(measured(recipe_of(*CASES[arguments.child]))))
        return 0
    parts = [Part(case, partial(measure, case), seconds=180) for case in arguments.only]
    return 0 if run_parts(parts, arguments.out, "cpu", total_seconds=1500) else 1


if __name__ == "__main__":
    sys.exit(main())
