"""Training steps on the CPU: free and doubly stochastic hyper-connections beside the plain residual and a package.

OMP_NUM_THREADS=1 python benchmarks/virtual_width.py [--quick] [--out benchmarks/results/virtual_width_cpu.json]
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from harness import Part, cpu_command, interleave, summarise
from kernels import kept_bytes
from torch import Tensor, nn
from workloads import DTYPES, Size, TrainingStep, cost_ratios

from widthwise.computing import Precision
from widthwise.config_io import parse
from widthwise.kernels.dispatch import autocast
from widthwise.model.config import ModelConfig
from widthwise.model.context import Exit, Site
from widthwise.model.decoder import Decoder, build
from widthwise.model.execution import compile_layers
from widthwise.model.residual.hyper_connections import HyperConnectionsTemplate
from widthwise.model.residual.manifold import ManifoldTemplate
from widthwise.model.residual.plain_module import Stream

N_STREAMS = 4
"""Of the package and of `manifold`, which then have as much state as (1, 4)."""

FULL = Size(256, 64, n_layers=8, batch_size=8)
QUICK = Size(64, 16, n_layers=2, vocab_size=97, seq_len=32, batch_size=2)


@dataclass(frozen=True)
class Target:
    """What a form may cost, as multiples of the plain residual's step: CPU time in bf16 and in fp32, bytes kept."""

    bf16: float
    fp32: float | None = None
    kept_bytes: float | None = None


TARGETS = {
    (2, 3): Target(1.12, 1.13, 1.25),
    (1, 4): Target(1.25, 1.35, 1.45),
    (4, 16): Target(1.45, 1.55, 1.65),
    (8, 64): Target(2.0),
}
"""(blocks of d_model, slots) -> target."""
COMPILED = ("plain", "2_of_3", f"1_of_{N_STREAMS}", f"manifold_{N_STREAMS}", f"manifold_{N_STREAMS}_permutations")
"""Keys of `configs` whose compiled step is timed."""


def name(m: int, n: int) -> str:
    return f"{m}_of_{n}"


def slots_config(size: Size, m: int, n: int, **options: Any) -> ModelConfig:
    """The same layers around n slots, with whatever is usual: a table as wide, a matrix behind."""
    residual = {"kind": "hyper_connections", "n_fractions": m, "n_slots": n, **options}
    return (
        size.template().model_copy(update={"residual": parse(HyperConnectionsTemplate, residual)}).resolve(size.seq_len)
    )


def manifold_config(size: Size, **options: Any) -> ModelConfig:
    """The same layers around as many slots with doubly stochastic carries."""
    residual = parse(ManifoldTemplate, {"kind": "manifold", "n_slots": N_STREAMS, **options})
    return size.template().model_copy(update={"residual": residual}).resolve(size.seq_len)


class PackageSite(Site):
    """A sublayer's access to the streams of the package."""

    def __init__(self, connection: nn.Module):
        super().__init__()
        self.connection = connection

    def read(self, stream: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.connection(stream)

    def write(self, skip: Callable[[Tensor], Tensor], update: Tensor) -> Tensor:
        return skip(update)


class PackageExit(Exit):
    """The sum of the streams, and the last norm."""

    def __init__(self, reduce: nn.Module, exit_: Exit):
        super().__init__()
        self.reduce, self.exit = reduce, exit_

    def forward(self, stream: Tensor) -> Tensor:
        return self.exit(Stream(self.reduce(stream)))


def package_decoder(size: Size, is_manifold: bool) -> Decoder:
    """The plain decoder with the package around its sublayers, as its users put it: copies of the embedding, their sum.

    Raises ImportError where it is not installed.
    """
    try:
        import hyper_connections as package  # an extra, needed here alone
    except ImportError as error:
        raise ImportError("the comparison needs the package hyper-connections: pip install -e '.[bench]'") from error
    model = build(size.model(), seed=0)
    functions = package.get_init_and_expand_reduce_stream_functions
    if is_manifold:
        functions = package.mc_get_init_and_expand_reduce_stream_functions
    connect, expand, reduce = functions(N_STREAMS, dim=size.d_model)
    for i, layer in enumerate(model.layers):
        layer.attention_residual = PackageSite(connect(layer_index=2 * i))
        layer.ffn_residual = PackageSite(connect(layer_index=2 * i + 1))
    model.entry, model.exit = expand, PackageExit(reduce, model.exit)
    return model


def configs(size: Size) -> dict[str, ModelConfig]:
    """The models of this library: plain, free and doubly stochastic."""
    return {
        "plain": size.model(),
        **{name(m, n): slots_config(size, m, n) for m, n in TARGETS},
        f"{name(1, N_STREAMS)}_every_state_kept": slots_config(size, 1, N_STREAMS, state_every=1),
        f"manifold_{N_STREAMS}": manifold_config(size),
        f"manifold_{N_STREAMS}_permutations": manifold_config(size, carry="permutations"),
    }


def decoders(size: Size) -> dict[str, Decoder]:
    return {
        **{key: build(config, seed=0) for key, config in configs(size).items()},
        f"package_{N_STREAMS}_streams": package_decoder(size, is_manifold=False),
        f"package_{N_STREAMS}_streams_manifold": package_decoder(size, is_manifold=True),
    }


def step_over_plain(size: Size, precision: Precision, n_rounds: int) -> dict[str, Any]:
    """All decoders in turn: a step's time, and the bytes autograd keeps from its forward to its backward pass."""
    tokens, targets = size.batch()
    models = decoders(size)
    losses = {key: lambda model=model: model.loss(tokens, targets).objective for key, model in models.items()}
    with autocast(torch.device("cpu"), precision):
        kept = {key: kept_bytes(loss) for key, loss in losses.items()}
    steps = {key: TrainingStep(model, losses[key], precision) for key, model in models.items()}
    variants = summarise(interleave(steps, n_rounds=n_rounds), "plain")
    for key, model in models.items():
        variants[key]["n_params"] = sum(parameter.numel() for parameter in model.parameters())
        variants[key]["kept_bytes"] = kept[key]
        variants[key]["kept_bytes_ratio"] = kept[key] / kept["plain"]
    for m, n in TARGETS:
        own = variants[name(m, n)]
        own |= cost_ratios(slots_config(size, m, n), size.model(), size.seq_len)
        own |= against_target(own, getattr(TARGETS[m, n], precision), TARGETS[m, n].kept_bytes)
    found = ", ".join(
        f"{key} {each['cpu_ratio']['median']:.3f} ({each['kept_bytes_ratio']:.2f} of the bytes)"
        for key, each in variants.items()
        if key != "plain"
    )
    return {"variants": variants, "summary": f"CPU time over the plain residual: {found}"}


def compiled_step_over_plain(size: Size, n_rounds: int) -> dict[str, Any]:
    """A compiled step in fp32: plain, free and doubly stochastic carries."""
    tokens, targets = size.batch()
    steps = {}
    for key in COMPILED:
        model = build(configs(size)[key], seed=0)
        compile_layers(model)
        steps[key] = TrainingStep(model, lambda model=model: model.loss(tokens, targets).objective, "fp32")
    variants = summarise(interleave(steps, n_rounds=n_rounds), "plain")
    ratios = ", ".join(f"{key} {variant['cpu_ratio']['median']:.3f}" for key, variant in variants.items())
    return {"variants": variants, "summary": f"CPU time over the plain residual, all compiled: {ratios}"}


def against_target(variant: dict[str, Any], cpu_time: float | None, kept: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if cpu_time is not None:
        found |= {"target": cpu_time, "meets_target": variant["cpu_ratio"]["median"] <= cpu_time}
    if kept is not None:
        found |= {"kept_bytes_target": kept, "meets_kept_bytes_target": variant["kept_bytes_ratio"] <= kept}
    return found


def sites_over_reference(size: Size, m: int, n: int, n_rounds: int) -> dict[str, Any]:
    """The hand-written form beside plain torch: the sites of a model, around sublayers that add a row to their input.

    That both compute the same is tested, see tests/kernels/test_hyper_connections_kernel.py.
    """
    model = build(slots_config(size, m, n), seed=0)
    sites = [site for layer in model.layers for site in (layer.attention_residual, layer.ffn_residual)]
    generator = torch.Generator().manual_seed(0)
    state = torch.randn(size.batch_size, size.seq_len, n, size.d_model // m, generator=generator).requires_grad_()
    rows = [torch.randn(size.d_model, generator=generator).requires_grad_() for _ in sites]
    direction = torch.randn(state.shape, generator=generator)

    def forward(form: str) -> Tensor:
        with patch.dict(os.environ, WIDTHWISE_KERNELS=form):
            stream = state
            for site, row in zip(sites, rows, strict=True):
                x, kept = site.read(stream)
                stream = site.write(kept, x + row)
            return stream

    forms = {"reference": "reference", "fused": ""}
    runs = {key: lambda form=form: forward(form).backward(direction) for key, form in forms.items()}
    variants = summarise(interleave(runs, n_rounds=n_rounds), "reference")
    for key, form in forms.items():
        variants[key]["kept_bytes"] = kept_bytes(lambda form=form: forward(form))
    ratio = variants["fused"]["cpu_ratio"]["median"]
    memory = variants["fused"]["kept_bytes"] / variants["reference"]["kept_bytes"]
    return {
        "variants": variants,
        "summary": f"fused / reference {ratio:.2f} of the CPU time, {memory:.2f} of the bytes kept",
    }


def parts(size: Size, n_rounds: int) -> list[Part]:
    """Steps in both precisions, compiled steps, and the sites alone."""
    steps = [
        Part(f"step/{precision}", lambda _, precision=precision: step_over_plain(size, precision, n_rounds), 600)
        for precision in DTYPES
    ]
    compiled = Part("compiled/fp32", lambda _: compiled_step_over_plain(size, n_rounds), 300)
    sites = [
        Part(f"sites/{name(m, n)}", lambda _, pair=(m, n): sites_over_reference(size, *pair, n_rounds), 120)
        for m, n in TARGETS
    ]
    return [*steps, compiled, *sites]


def main(argv: list[str] | None = None) -> int:
    def chosen(quick: bool) -> list[Part]:
        return parts(QUICK, n_rounds=3) if quick else parts(FULL, n_rounds=9)

    return cpu_command(__doc__, "virtual_width", chosen, 1500, argv)


if __name__ == "__main__":
    sys.exit(main())
