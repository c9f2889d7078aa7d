"""The boundary against its definition, and the Triton form against the reference.

Triton reads TRITON_INTERPRET when it is imported, so its interpreter runs in a process of its own. It rounds to bf16 by
cutting bits off, which costs twice what rounding does.
"""

import importlib.util
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import pytest
import torch
from thinned import in_turn

from widthwise.config_io import UserError
from widthwise.kernels.boundary import PendingWrite, Reading, boundary, defers_writes, reference, use_triton


class Case(NamedTuple):
    n_slots: int
    slot_width: int
    n_read_before: int
    n_write_before: int
    n_read: int
    n_write: int
    writes: bool = True
    """Whether a write is pending; else the site is the first one."""
    is_dynamic_before: bool = True
    is_dynamic: bool = True
    tokens: tuple[int, ...] = (2, 3)
    state_scale: float = 1.0
    update_dtype: torch.dtype | None = None
    autocast: bool = False

    def __str__(self) -> str:
        options = [name for name, default in self._field_defaults.items() if getattr(self, name) != default]
        return "-".join(
            ["x".join(str(size) for size in self[:6]), *(f"{name}={getattr(self, name)}" for name in options)]
        )


CASES = [
    Case(3, 5, 2, 2, 2, 2),
    Case(4, 33, 1, 1, 1, 1),
    Case(5, 7, 2, 3, 1, 4, is_dynamic_before=False),
    Case(3, 6, 3, 1, 1, 3, is_dynamic=False),
    Case(2, 130, 1, 1, 1, 2, is_dynamic=False, is_dynamic_before=False, tokens=(5,)),
    Case(9, 4, 4, 3, 5, 4, tokens=(1, 1)),
    Case(1, 2, 1, 1, 1, 1, tokens=(7,)),
    Case(3, 5, 0, 0, 2, 3, writes=False),
    Case(3, 5, 0, 0, 2, 3, writes=False, is_dynamic=False),
    Case(3, 5, 2, 2, 2, 2, tokens=(0, 3)),
    Case(3, 5, 2, 2, 2, 2, state_scale=0.0),
    Case(3, 5, 2, 2, 2, 2, update_dtype=torch.bfloat16, autocast=True),
]
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 2e-2}
"""How large ||difference|| / ||truth|| may be: some ten roundings."""
EPS = 1e-4


def inputs(case, dtype):
    """Leaves by name; coefficients and parameters of bf16 states are fp32."""
    generator = torch.Generator().manual_seed(0)
    parameter_dtype = torch.promote_types(dtype, torch.float32)

    def random(*shape, offset=0.0, scale=1.0, dtype=parameter_dtype):
        values = offset + scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(dtype).requires_grad_()

    n, b = case.n_slots, case.slot_width
    n_before, k = case.n_read_before + n + case.n_write_before, case.n_read + n + case.n_write
    leaves = {"state": random(*case.tokens, n, b, scale=case.state_scale, dtype=dtype)}
    if case.writes:
        leaves["update"] = random(*case.tokens, case.n_write_before * b, dtype=case.update_dtype or dtype)
        leaves["coefficients"] = random(*(case.tokens if case.is_dynamic_before else ()), n, n_before, scale=0.5)
    leaves["static"] = random(n, k, scale=0.5)
    if case.is_dynamic:
        leaves["projection"] = random(b, k, scale=b**-0.5)
        leaves["scale"] = random(n, k, offset=1, scale=0.3)
    return leaves


def wide(leaves):
    return {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}


def apply(form, case, leaves):
    """State, x, coefficients."""
    stream, device = leaves["state"], leaves["state"].device.type
    if case.writes:
        stream = PendingWrite(stream, leaves["update"], leaves["coefficients"], case.n_read_before, 1.3)
    reading = Reading(leaves["static"], leaves.get("projection"), leaves.get("scale"), case.n_read, EPS)
    with torch.autocast(device, torch.bfloat16, enabled=case.autocast):
        return form(stream, reading)


def outcome(form, case, leaves):
    """Outputs by name, and the gradient of each leaf for a fixed random direction of all outputs."""
    outputs = apply(form, case, leaves)
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(output.shape, generator=generator, dtype=torch.float64) for output in outputs]
    total = sum((output.double() * d.to(output.device)).sum() for output, d in zip(outputs, directions))
    gradients = torch.autograd.grad(total, list(leaves.values()))
    named = dict(zip(("new state", "x", "new coefficients"), outputs))
    return {**named, **{f"gradient of {name}": gradient for name, gradient in zip(leaves, gradients)}}


def portable(results):
    """For another process: name -> (type, values)."""
    return {name: (str(value.dtype), value.detach().double().numpy()) for name, value in results.items()}


def relative_error(value, truth):
    return float((torch.as_tensor(value) - truth).norm() / truth.norm().clamp_min(1e-30))


def assert_equal(results, case, dtype):
    """Against the reference in float64; types and shapes against the reference as it is."""
    leaves = inputs(case, dtype)
    tolerance = TOLERANCES[torch.bfloat16 if case.autocast else dtype]
    truth = outcome(reference.boundary, case._replace(autocast=False), wide(leaves))
    typed = portable(outcome(reference.boundary, case, leaves))
    assert set(results) == set(truth)
    for name, (dtype, value) in results.items():
        assert (dtype, value.shape) == (typed[name][0], typed[name][1].shape), name
        assert relative_error(value, truth[name].detach()) < tolerance, name


# What runs in the processes.


def interpreted(case, dtype):
    return portable(outcome(boundary, case, inputs(case, dtype)))


def interpreted_in_pieces(case):
    """Permuted inputs, and the gradient of x alone for the parameters alone."""
    leaves = inputs(case, torch.float32)
    permuted = {
        name: leaf.detach().transpose(0, -1).contiguous().transpose(0, -1) if leaf.dim() > 1 else leaf.detach()
        for name, leaf in leaves.items()
    }
    for name in ("static", "projection"):
        permuted[name].requires_grad_()
    x = apply(boundary, case, permuted)[1]
    gradients = torch.autograd.grad(x.sum(), [permuted["static"], permuted["projection"]])
    return portable(dict(zip(("static", "projection"), gradients)))


def compiled_for_hopper(case):
    """Compiles each kernel for compute capability 9.0, which needs no GPU; returns bytes of code by name."""
    import triton
    from triton.backends.compiler import GPUTarget

    from widthwise.kernels.boundary import backward_kernel, forward_kernel

    halves = ("state", "update", "new_state", "x", "grad_new_state", "grad_x", "grad_state", "grad_update")
    types = dict.fromkeys(halves, "*bf16")
    types |= dict.fromkeys(("eps", "multiplier"), "fp32")
    types |= dict.fromkeys(("token_stride", "new_token_stride", "n_tokens", "n_rows"), "i32")
    sizes = {"N": case.n_slots, "B": case.slot_width, "N_READ": case.n_read, "SLOTS": 4, "DIMS": 128}
    sizes |= {"N_READ_BEFORE": case.n_read_before, "N_WRITE_BEFORE": case.n_write_before, "ROWS": 32}
    sizes |= {"K": case.n_read + case.n_slots + case.n_write, "COLUMNS": 16, "PRECISION": "tf32"}
    sizes |= {"WRITES": case.writes, "DYNAMIC": case.is_dynamic}
    types |= dict.fromkeys(sizes, "constexpr")
    kernels = forward_kernel.boundary_forward, backward_kernel.boundary_backward, backward_kernel.projection_backward
    n_bytes = {}
    for kernel in kernels:
        own_types = {name: types.get(name, "*fp32") for name in kernel.arg_names}
        constants = {name: sizes[name] for name in kernel.arg_names if name in sizes}
        source = triton.compiler.ASTSource(kernel, own_types, constants)
        n_bytes[kernel.__name__] = len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"])
    return n_bytes


@pytest.fixture(scope="module")
def process_with(tmp_path_factory):
    """Runs a function of this module in a process whose environment says TRITON_INTERPRET=`interpret`."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    pools = {}

    def run(interpret, function, *arguments):
        if interpret not in pools:
            pools[interpret] = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TRITON_INTERPRET", interpret)
                patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
                pools[interpret].submit(os.getpid).result()
        return pools[interpret].submit(function, *arguments).result()

    yield run
    for pool in pools.values():
        pool.shutdown()


def literal(case, leaves):
    """Sum by sum, token by token: Eq. (6)-(10) with the normalised state formed."""
    tokens, n, b = leaves["state"].shape[0], case.n_slots, case.slot_width
    states, xs, tables = [], [], []
    for t in range(tokens):
        old, update, table = leaves["state"][t], leaves["update"][t].view(-1, b), leaves["coefficients"][t]
        read, carry = case.n_read_before, case.n_read_before + n
        new = torch.stack([
            old[j]
            + sum(table[i, read + j] * old[i] for i in range(n))
            + 1.3 * sum(table[j, carry + k] * update[k] for k in range(case.n_write_before))
            for j in range(n)
        ])  # fmt: skip
        normalised = new / (new.square().sum(dim=-1, keepdim=True) / b + EPS).sqrt()
        own = leaves["scale"] * torch.tanh(normalised @ leaves["projection"]) + leaves["static"]
        states.append(new)
        tables.append(own)
        xs.append(torch.cat([sum(own[i, k] * new[i] for i in range(n)) for k in range(case.n_read)]))
    return torch.stack(states), torch.stack(xs), torch.stack(tables)


def test_the_reference_is_the_definition():
    case = Case(5, 7, 2, 3, 1, 4, tokens=(4,))
    leaves = inputs(case, torch.float64)
    for ours, truth in zip(apply(reference.boundary, case, leaves), literal(case, leaves)):
        torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


@in_turn(
    ("dtype", DTYPES),
    ("case", CASES),
)
def test_triton_equals_reference(process_with, case, dtype):
    assert_equal(process_with("1", interpreted, case, dtype), case, dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@in_turn(
    ("dtype", DTYPES),
    ("case", CASES),
)
def test_triton_equals_reference_on_a_gpu(case, dtype):
    leaves = {name: leaf.detach().cuda().requires_grad_() for name, leaf in inputs(case, dtype).items()}
    results = {name: value.cpu() for name, value in outcome(boundary, case, leaves).items()}
    assert_equal(portable(results), case, dtype)


def test_permuted_inputs_and_one_output_alone(process_with):
    case = Case(3, 5, 2, 2, 2, 2)
    results = process_with("1", interpreted_in_pieces, case)
    leaves = wide(inputs(case, torch.float32))
    x = apply(reference.boundary, case, leaves)[1]
    truth = torch.autograd.grad(x.sum(), [leaves["static"], leaves["projection"]])
    for (_, ours), expected in zip(results.values(), truth):
        assert relative_error(ours, expected) < TOLERANCES[torch.float32]


@pytest.mark.hard
@pytest.mark.parametrize(
    "case", [Case(3, 100, 2, 2, 2, 2), Case(3, 100, 1, 2, 2, 1, writes=False, is_dynamic=False)], ids=str
)
def test_kernels_compile_for_a_gpu(process_with, case):
    assert all(process_with("0", compiled_for_hopper, case).values())


def test_triton_runs_where_it_can(monkeypatch):
    for interpret, kernels, dtype, has_triton, expected in [
        ("1", "", torch.float32, True, True),
        ("1", "", torch.bfloat16, True, True),
        ("1", "", torch.float64, True, False),
        ("1", "reference", torch.float32, True, False),
        ("1", "", torch.float32, False, False),
        ("", "", torch.float32, True, False),
    ]:
        monkeypatch.setenv("TRITON_INTERPRET", interpret)
        monkeypatch.setenv("WIDTHWISE_KERNELS", kernels)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=has_triton: object() if found else None)
        assert use_triton(torch.ones(1, dtype=dtype)) == expected


def test_a_model_refuses_what_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("WIDTHWISE_KERNELS", "triton")
    with pytest.raises(UserError, match="WIDTHWISE_KERNELS: got triton; it needs the package triton, a CUDA device"):
        defers_writes(torch.ones(1))
    monkeypatch.setenv("WIDTHWISE_KERNELS", "tritn")
    with pytest.raises(UserError, match="WIDTHWISE_KERNELS: got 'tritn'; allowed: fused, reference, triton"):
        defers_writes(torch.ones(1))
    monkeypatch.setenv("WIDTHWISE_KERNELS", "")
    assert not defers_writes(torch.ones(1))


def test_elsewhere_the_reference_runs(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    case = Case(3, 5, 2, 2, 2, 2)
    leaves = inputs(case, torch.float32)
    for ours, truth in zip(apply(boundary, case, leaves), apply(reference.boundary, case, leaves)):
        assert torch.equal(ours, truth)
