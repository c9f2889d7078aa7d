"""Time and peak memory of `widthwise shrink` on a Hugging Face folder of about 1B parameters, on one thread.

python benchmarks/shrinking_1b.py [--n-layers 16] [--out benchmarks/results/shrinking_1b_cpu.json]

A Llama with random weights in bf16 is cut to 0.7 of its FLOPs by one command in a process of its own. What counts is
that process's peak of resident memory, above that of a Python that has imported torch, over the bytes of the weights in
the folder.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, environment

from widthwise.files import write_atomic

SIZES = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
OPTIONS = ("--flops", "0.7", "--calibration-batches", "1", "--json")
OVERRIDES = (
    "data.corpus=synthetic",
    "data.tokenizer=bytes",
    "train.batch_size=1",
    "train.precision=bf16",
    "train.validation_tokens=1024",
)
IDLE = "import re, torch; print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])"
"""Its own peak in KiB: of so small a process the system would count that of the parent, from before it began."""
TARGET = 1.3
"""Most peak memory, over the bytes of the weights."""


def make_folder(folder: str, n_layers: int) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_hidden_layers=n_layers)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def run(*command: str) -> tuple[dict[str, float], int, str]:
    """Return wall and CPU seconds, the peak of resident memory in bytes, and the output of a command on one thread."""
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert child.stdout is not None
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: failed")
    seconds = {"wall": time.monotonic() - began, "cpu": usage.ru_utime + usage.ru_stime}
    return seconds, usage.ru_maxrss * 1024, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-layers", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS / "shrinking_1b_cpu.json")
    parser.add_argument("--make", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make is not None:
        make_folder(given.make, given.n_layers)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = f"{scratch}/llama", f"{scratch}/small"
        run(__file__, "--make", folder, "--n-layers", str(given.n_layers))
        idle = int(run("-c", IDLE)[2]) * 1024
        command = ["widthwise", "shrink", folder, *OPTIONS, "--out", out, *OVERRIDES]
        seconds, peak, text = run("-m", *command)
        n_bytes = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    record: dict[str, Any] = json.loads(text)
    ratio = (peak - idle) / n_bytes
    result = {
        "environment": environment(),
        "model": {**SIZES, "num_hidden_layers": given.n_layers},
        "command": ["widthwise", "shrink", "llama", *OPTIONS, "--out", "small", *OVERRIDES],
        "params": [record[key]["params"] for key in ("before", "after")],
        "flops_per_token": [record[key]["flops_per_token"] for key in ("before", "after")],
        "seconds": seconds,
        "peak_bytes": peak,
        "idle_bytes": idle,
        "weights_bytes": n_bytes,
        "ratio": ratio,
        "target": TARGET,
        "meets_target": ratio <= TARGET,
    }
    write_atomic(given.out, json.dumps(result, indent=1) + "\n")
    print(
        f"{seconds['wall']:.0f} s, {(peak - idle) / 1e9:.2f} GB beside {n_bytes / 1e9:.2f} GB of weights: {ratio:.3f}"
    )


if __name__ == "__main__":
    main()
