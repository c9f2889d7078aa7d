"""The hand-written kernels beside their plain references on the CPU: forward and backward time, and bytes kept.

python benchmarks/kernels.py [--out benchmarks/results/kernels_cpu.json]
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from harness import Part, cpu_parser, interleave, run_parts, summarise
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from workloads import DTYPES

from widthwise.computing import Precision
from widthwise.kernels.linear_cross_entropy import Head, linear_cross_entropy, reference_linear_cross_entropy
from widthwise.kernels.rms_norm import reference_rms_norm, rms_norm
from widthwise.kernels.rotary import Rope, reference_rotate, rope_table, rotate
from widthwise.kernels.swiglu import reference_swiglu, swiglu

N_TOKENS, D_MODEL, D_FF, VOCAB_SIZE, HEAD_DIM = 1024, 256, 1024, 4096, 32


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers that want a gradient."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()


def norms(dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    """A norm of the fp32 stream whose output has the type of the matrix products."""
    x, gain = parameter(N_TOKENS, D_MODEL), torch.ones(D_MODEL, requires_grad=True)

    def call(form: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return form(x, gain, 1e-5, D_MODEL)

    return {"reference": lambda: call(reference_rms_norm), "fused": lambda: call(rms_norm)}


def gates(dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    """The elementwise part of a SwiGLU."""
    gate, up = parameter(N_TOKENS, D_FF, dtype=dtype), parameter(N_TOKENS, D_FF, dtype=dtype)
    return {"reference": lambda: reference_swiglu(gate, up), "fused": lambda: swiglu(gate, up)}


def losses(dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    """Head and cross-entropy."""
    hidden, weight = parameter(N_TOKENS, D_MODEL, dtype=dtype), parameter(VOCAB_SIZE, D_MODEL)
    targets = torch.randint(VOCAB_SIZE, (N_TOKENS,), generator=torch.Generator().manual_seed(1))

    def call(form: Any) -> Tensor:
        return form(hidden, Head(weight, 0.02), targets)[0]

    return {
        "reference": lambda: call(reference_linear_cross_entropy),
        "fused": lambda: call(linear_cross_entropy),
    }


def rotations(dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    """The queries of one text."""
    x = parameter(1, N_TOKENS, D_MODEL // HEAD_DIM, HEAD_DIM, dtype=dtype)
    cos, sin = rope_table(torch.arange(N_TOKENS)[None], Rope(HEAD_DIM, 1e4))
    return {
        "reference": lambda: reference_rotate(x, cos, sin),
        "fused": lambda: rotate(x, cos, sin),
    }


KERNELS = {"rms_norm": norms, "swiglu": gates, "linear_cross_entropy": losses, "rotary": rotations}


def kept_bytes(call: Callable[[], Tensor]) -> int:
    """Bytes autograd keeps between forward and backward, each storage counted once."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = call()
    del output
    return sum(sizes.values())


def with_backward(call: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward, and backward along ones."""
    direction = torch.ones_like(call())
    return lambda: call().backward(direction)


def fused_over_reference(kernel: str, precision: Precision, n_rounds: int = 40) -> dict[str, Any]:
    """Both forms in turn."""
    calls = KERNELS[kernel](DTYPES[precision])
    runs = {name: with_backward(call) for name, call in calls.items()}
    variants = summarise(interleave(runs, n_rounds=n_rounds, n_warmup=5), "reference")
    for name, call in calls.items():
        variants[name]["kept_bytes"] = kept_bytes(call)
    memory = variants["fused"]["kept_bytes"] / variants["reference"]["kept_bytes"]
    ratio = variants["fused"]["cpu_ratio"]["median"]
    return {
        "variants": variants,
        "summary": f"fused / reference {ratio:.2f} of the CPU time, {memory:.2f} of the bytes kept",
    }


def main(argv: list[str] | None = None) -> int:
    arguments = cpu_parser(__doc__, "kernels").parse_args(argv)
    parts = [
        Part(f"{kernel}/{precision}", lambda _, pair=(kernel, precision): fused_over_reference(*pair), 60)
        for kernel in KERNELS
        for precision in DTYPES
    ]
    return 0 if run_parts(parts, arguments.out, "cpu", total_seconds=300) else 1


if __name__ == "__main__":
    sys.exit(main())
