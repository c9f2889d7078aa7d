"""The boundary between sublayers of an over-width stream on a GPU: Triton beside the reference, eager and compiled."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from harness import Accelerator, Part, interleave, quantiles, summarise
from torch import Tensor
from workloads import relative_error

from widthwise.kernels.boundary import PendingWrite, Reading, boundary, reference, use_triton

WITHOUT_TRITON = "left out: Triton does not run here (it needs a CUDA GPU and the package triton)"
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Allowed ||difference|| / ||truth||, the truth being the reference in float64."""
EPS = 1e-6

Leaves = dict[str, Tensor]
Form = Callable[..., tuple[Tensor, Tensor, Tensor]]


class Size(NamedTuple):
    """A stream of n_slots slots of d_model / n_fractions numbers."""

    n_fractions: int
    n_slots: int
    d_model: int

    @property
    def slot_width(self) -> int:
        return self.d_model // self.n_fractions


SIZES = (Size(2, 3, 1024), Size(1, 4, 1024), Size(4, 16, 2048))


def random_leaves(size: Size, n_tokens: int, dtype: torch.dtype, device: str) -> Leaves:
    """State and update of the type, coefficients and parameters in fp32."""
    generator = torch.Generator().manual_seed(0)
    m, n, b = size.n_fractions, size.n_slots, size.slot_width

    def random(*shape: int, offset: float = 0.0, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        values = offset + scale * torch.randn(shape, generator=generator)
        return values.to(device, dtype).requires_grad_()

    return {
        "state": random(1, n_tokens, n, b, dtype=dtype),
        "update": random(1, n_tokens, m * b, dtype=dtype),
        "coefficients": random(1, n_tokens, n, 2 * m + n, scale=0.3),
        "static": random(n, 2 * m + n, scale=0.3),
        "projection": random(b, 2 * m + n, scale=b**-0.5),
        "scale": random(n, 2 * m + n, offset=1.0, scale=0.3),
    }


def forward(form: Form, size: Size, leaves: Leaves) -> tuple[Tensor, Tensor, Tensor]:
    m = size.n_fractions
    pending = PendingWrite(leaves["state"], leaves["update"], leaves["coefficients"], m, 1.0)
    reading = Reading(leaves["static"], leaves["projection"], leaves["scale"], m, EPS)
    return form(pending, reading)


def both(form: Form, size: Size, leaves: Leaves, directions: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
    """Outputs, and gradients of all leaves for the directions; those default to the outputs themselves."""
    outputs = forward(form, size, leaves)
    if directions is None:
        directions = tuple(output.detach() for output in outputs)
    return *outputs, *torch.autograd.grad(outputs, list(leaves.values()), directions)


def boundary_equality(on: Accelerator, size: Size, n_tokens: int = 257) -> dict[str, Any]:
    """Errors of Triton and of the reference in fp32 and bf16 against the reference in float64.

    Raises where Triton deviates or where it gives other bits the second time.
    """
    on.free()
    report: dict[str, Any] = {"tolerances": {str(dtype): bound for dtype, bound in TOLERANCES.items()}}
    for dtype, tolerance in TOLERANCES.items():
        leaves = random_leaves(size, n_tokens, dtype, on.device)
        if not use_triton(leaves["state"]):
            return {"summary": WITHOUT_TRITON}
        wide = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
        directions = tuple(output.detach() for output in forward(reference.boundary, size, wide))
        truth = both(reference.boundary, size, wide, directions)
        own_directions = tuple(
            direction.to(output.dtype)
            for direction, output in zip(directions, forward(reference.boundary, size, leaves))
        )
        found = {name: both(form, size, leaves, own_directions) for name, form in forms(on, compiled=False).items()}
        report[str(dtype)] = {
            name: max(relative_error(value.detach().double(), own.detach()) for value, own in zip(values, truth))
            for name, values in found.items()
        }
        again = both(boundary, size, leaves, own_directions)
        if not all(torch.equal(*pair) for pair in zip(found["triton"], again)):
            raise ArithmeticError("the same inputs gave other bits the second time")
        if not report[str(dtype)]["triton"] <= tolerance:  # NaN is beyond
            raise ArithmeticError(f"Triton differs from float64 beyond {tolerance}: {report}")
    worst = ", ".join(f"{dtype} within {report[str(dtype)]['triton']:.1e}" for dtype in TOLERANCES)
    return {**report, "summary": worst}


def forms(on: Accelerator, compiled: bool) -> dict[str, Form]:
    """Those that run here, the baseline first."""
    found: dict[str, Form] = {"eager": reference.boundary}
    if compiled:
        found["compiled"] = torch.compile(reference.boundary, dynamic=False)
    if use_triton(torch.empty(0, device=on.device)):
        found["triton"] = boundary
    return found


def boundary_speed(on: Accelerator, size: Size, n_tokens: int, n_rounds: int, *, compiled: bool) -> dict[str, Any]:
    """Forward, and forward with backward, of one boundary in bf16, the forms in turn.

    floor_bytes: state, update and x crossing the memory once each way; bytes_per_second is relative to it.
    """
    on.free()
    leaves = random_leaves(size, n_tokens, torch.bfloat16, on.device)
    available = forms(on, compiled)
    if "triton" not in available:
        return {"summary": WITHOUT_TRITON}
    virtual_width = size.n_slots / size.n_fractions
    report: dict[str, Any] = {"n_tokens": n_tokens}
    passes: Mapping[str, tuple[Callable[..., object], float]] = {
        "forward": (forward, 2 * virtual_width + 2),
        "forward_backward": (both, 5 * virtual_width + 5),
    }
    for name, (run, crossings) in passes.items():
        calls = {form: partial(run, function, size, leaves) for form, function in available.items()}
        with torch.set_grad_enabled(run is both):
            times = interleave(calls, n_rounds=n_rounds, n_warmup=5, synchronize=on.synchronize)
        floor_bytes = crossings * size.d_model * n_tokens * leaves["state"].element_size()
        variants = summarise(times, "eager")
        for form, own in variants.items():
            own["bytes_per_second"] = floor_bytes / quantiles(times[form].wall)["median"]
        report[name] = {"floor_bytes": floor_bytes, "variants": variants}
    report["summary"] = ", ".join(
        f"{name} {own['wall_ratio']['median']:.2f} of eager ({own['bytes_per_second'] / 1e12:.2f} TB/s of the floor)"
        for name, own in report["forward_backward"]["variants"].items()
        if name != "eager"
    )
    return report


def name(size: Size) -> str:
    return f"{size.n_fractions}_of_{size.n_slots}_at_{size.d_model}"


def equality_parts(on: Accelerator) -> list[Part]:
    def equal(size: Size) -> Part:
        return Part(f"boundary/equality/{name(size)}", lambda _: boundary_equality(on, size), 20)

    return [equal(size) for size in SIZES]


def speed_parts(on: Accelerator) -> list[Part]:
    """Some 16k tokens, as a GPU's batch has."""

    def timed(size: Size) -> Part:
        def run(_: float) -> dict[str, Any]:
            return boundary_speed(on, size, n_tokens=16384, n_rounds=20, compiled=True)

        return Part(f"boundary/speed/{name(size)}", run, 30)

    return [timed(size) for size in SIZES]
