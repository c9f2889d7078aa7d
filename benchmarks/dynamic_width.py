"""A feed-forward whose tokens use different widths, on the CPU: all units, all units and a mask, and in slices.

python benchmarks/dynamic_width.py [--out benchmarks/results/dynamic_width_cpu.json]
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from harness import Part, cpu_parser, interleave, run_parts, summarise
from kernels import with_backward
from torch import Tensor
from torch.nn.functional import linear
from workloads import DTYPES

from widthwise.computing import Precision
from widthwise.kernels.dispatch import autocast
from widthwise.kernels.sliced_swiglu import bucketed_units, reference_sliced_swiglu, sliced_swiglu
from widthwise.kernels.swiglu import swiglu
from widthwise.model.ffn.width_choice_module import HARD

TRAINING = {"n_tokens": 4096, "d_model": 512, "d_ff": 1536}
DECODING = {"n_tokens": 1, "d_model": 768, "d_ff": 2048}


def spread_widths(n_tokens: int, d_ff: int) -> Tensor:
    """Many narrow tokens and a few wide ones in mixed order: on average 0.47 d_ff once rounded up to 8 buckets."""
    even = (torch.arange(n_tokens) + 0.5) / n_tokens
    return d_ff * even[torch.randperm(n_tokens, generator=torch.Generator().manual_seed(3))] ** 1.45


def forms(sizes: dict[str, int], width: Tensor, precision: Precision) -> dict[str, Callable[[], Tensor]]:
    """The three forms on the same tensors, weights in fp32."""
    n_tokens, d_model, d_ff = sizes["n_tokens"], sizes["d_model"], sizes["d_ff"]
    generator = torch.Generator().manual_seed(0)
    shapes = (n_tokens, d_model), (d_ff, d_model), (d_ff, d_model), (d_model, d_ff)
    scales = 1.0, d_model**-0.5, d_model**-0.5, d_ff**-0.5
    x, *weights = (
        (scale * torch.randn(shape, generator=generator)).requires_grad_() for shape, scale in zip(shapes, scales)
    )
    w_gate, w_up, w_down = weights

    def under_autocast(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with autocast(torch.device("cpu"), precision):
                return call()

        return run

    return {
        "dense": under_autocast(lambda: linear(swiglu(linear(x, w_gate), linear(x, w_up)), w_down)),
        "masked": under_autocast(lambda: reference_sliced_swiglu(x, w_gate, w_up, w_down, width, HARD)),
        "sliced": under_autocast(lambda: sliced_swiglu(x, w_gate, w_up, w_down, width, HARD)),
    }


PASSES = {"forward": torch.no_grad(), "forward_backward": with_backward}


def sliced_over_dense(
    sizes: dict[str, int], width: Tensor, precision: Precision, passes: str, target: float | None, n_rounds: int
) -> dict[str, Any]:
    """The three forms in turn."""
    calls = forms(sizes, width, precision)
    times = interleave({name: PASSES[passes](call) for name, call in calls.items()}, n_rounds=n_rounds, n_warmup=3)
    variants = summarise(times, "dense")
    asked = float(width.mean()) / sizes["d_ff"]
    bucketed = float(bucketed_units(width, 0.0, sizes["d_ff"]).double().mean()) / sizes["d_ff"]
    masked, sliced = (variants[name]["cpu_ratio"]["median"] for name in ("masked", "sliced"))
    return {
        **sizes,
        "asked_fraction": asked,
        "bucketed_fraction": bucketed,
        "target": target,
        "variants": variants,
        "summary": f"of dense: sliced {sliced:.2f}, masked {masked:.2f} of the CPU time, {bucketed:.2f} of the units",
    }


def parts() -> list[Part]:
    """Widths that save half, and widths that save nothing, with many tokens and with one."""
    n_tokens, d_ff = TRAINING["n_tokens"], TRAINING["d_ff"]
    cases = {
        "spread": (TRAINING, spread_widths(n_tokens, d_ff), PASSES, 0.62, 15),
        "full": (TRAINING, torch.full((n_tokens,), float(d_ff)), PASSES, 1.05, 15),
        "decode": (DECODING, torch.full((1,), DECODING["d_ff"] / 2), ["forward"], None, 300),
    }
    return [
        Part(
            f"{name}/{precision}/{passes}",
            lambda _, own=(sizes, width, precision, passes, target, n_rounds): sliced_over_dense(*own),
            120,
        )
        for name, (sizes, width, own_passes, target, n_rounds) in cases.items()
        for precision in DTYPES
        for passes in own_passes
    ]


def main(argv: list[str] | None = None) -> int:
    arguments = cpu_parser(__doc__, "dynamic_width").parse_args(argv)
    return 0 if run_parts(parts(), arguments.out, "cpu", total_seconds=600) else 1


if __name__ == "__main__":
    sys.exit(main())
