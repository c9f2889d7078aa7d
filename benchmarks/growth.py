"""Growing a model of a billion parameters in width: seconds and memory, in memory and from file to file.

python benchmarks/growth.py [--quick] [--out benchmarks/results/growth_cpu.json]

Each part runs in a process of its own, whose peak memory is what the system says of it.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, Part, run_parts
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from widthwise.config_io import ConfigT, parse
from widthwise.growth.correspondence import Correspondence
from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import parameter_shapes
from widthwise.shape.template import ModelTemplate

FULL = {"vocab_size": 32000, "d_model": 2048, "n_layers": 14, "ffn": {"kind": "swiglu", "d_ff": 8192}}
QUICK = {"vocab_size": 97, "d_model": 64, "n_layers": 2, "ffn": {"kind": "swiglu", "d_ff": 256}}
N_MORE = {"full": 512, "quick": 16}
"""Coordinates by which every layer becomes wider."""
TARGET_SECONDS, TARGET_MEMORY_RATIO = 60, 3.0


def model(size: str) -> ModelConfig:
    """The one that grows."""
    data = {"attention": {"head_dim": 64 if size == "full" else 16}, **(FULL if size == "full" else QUICK)}
    return parse(ModelTemplate, data, "model").resolve(seq_len=1024)


def growth(size: str) -> GrowthPlan:
    old = model(size)
    layers = tuple(wider(layer, ("d_model", "d_in", "d_out"), N_MORE[size]) for layer in old.layers)
    wanted = wider(old, ("d_model", "final_norm_width"), N_MORE[size]).model_copy(update={"layers": layers})
    return plan_growth(old, wanted, Correspondence.same(old))


def wider(config: ConfigT, sizes: Sequence[str], n_more: int) -> ConfigT:
    """A copy in which these sizes are larger."""
    return config.model_copy(update={name: getattr(config, name) + n_more for name in sizes})


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """fp32, normal(0.02)."""
    generator, shapes = torch.Generator().manual_seed(seed), parameter_shapes(config)
    return {name: torch.empty(shape).normal_(0, 0.02, generator=generator) for name, shape in shapes.items()}


def peak_memory_bytes() -> int:
    """Most memory this process ever held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_memory(size: str) -> dict[str, Any]:
    """All old and all new weights at once."""
    old, plan = random_weights(model(size)), growth(size)
    resting = peak_memory_bytes() - n_bytes(old)
    began = time.perf_counter()
    new = dict(plan.weights(old))
    return measured(time.perf_counter() - began, old, new, resting)


def file_to_file(size: str) -> dict[str, Any]:
    """A checkpoint read tensor by tensor, the grown one written."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "old.safetensors"), Path(folder, "new.safetensors")
        subprocess.run([sys.executable, __file__, "--write", str(source), "--size", size], check=True)
        resting = peak_memory_bytes()
        began = time.perf_counter()
        plan = growth(size)
        with safe_open(source, "pt") as file:
            old = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        new = {name: tensor.contiguous() for name, tensor in plan.weights(old)}
        save_file(new, target)
        return measured(time.perf_counter() - began, old, new, resting)


def measured(seconds: float, old: dict[str, Tensor], new: dict[str, Tensor], resting_bytes: int) -> dict[str, Any]:
    """resting_bytes: of the process without any weights."""
    peak = peak_memory_bytes() - resting_bytes
    ratio = peak / n_bytes(old)
    before, after = n_params(old), n_params(new)
    return {
        "n_params": before,
        "n_params_grown": after,
        "seconds": seconds,
        "weight_bytes": n_bytes(old),
        "peak_bytes": peak,
        "peak_ratio": ratio,
        "n_threads": torch.get_num_threads(),
        "meets_targets": seconds < TARGET_SECONDS and ratio < TARGET_MEMORY_RATIO,
        "summary": f"{before:,} -> {after:,} parameters in {seconds:.1f} s, {ratio:.2f} times its memory",
    }


def n_params(weights: dict[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in weights.values())


def n_bytes(weights: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


PARTS = {"in_memory": in_memory, "file_to_file": file_to_file}


def in_own_process(name: str, size: str, seconds: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--part", name, "--size", size],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return json.loads(done.stdout)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a toy size: whether it runs, not how fast")
    parser.add_argument(
        "--out", type=Path, help="JSON file; benchmarks/results/growth_cpu[_quick].json where not given"
    )
    parser.add_argument("--size", choices=tuple(N_MORE), default="full", help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments.size)))
        return 0
    if arguments.write:
        save_file(random_weights(model(arguments.size)), arguments.write)
        return 0
    size = "quick" if arguments.quick else "full"
    out = arguments.out or RESULTS / ("growth_cpu_quick.json" if arguments.quick else "growth_cpu.json")
    chosen = [Part(name, partial(in_own_process, name, size), seconds=300) for name in PARTS]
    return 0 if run_parts(chosen, out, "cpu", total_seconds=600) else 1


if __name__ == "__main__":
    sys.exit(main())
