"""Training steps on the CPU: a ><former beside the uniform model, and the uniform model beside Hugging Face's Llama.

OMP_NUM_THREADS=1 python benchmarks/training.py [--quick] [--out benchmarks/results/training_cpu.json]
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from harness import Part, cpu_command, interleave, summarise
from kernels import kept_bytes
from torch import nn
from workloads import TrainingStep, cost_ratios, random_batch, template

from widthwise.computing import Precision
from widthwise.kernels.dispatch import autocast
from widthwise.model.compiling import compile_layers
from widthwise.model.decoder import Decoder, build

FLOP_SLACK = 0.03
"""By how much the step-time ratio may exceed the FLOP ratio."""


@dataclass(frozen=True)
class Size:
    """A uniform model and its batch."""

    d_model: int
    head_dim: int
    n_layers: int = 12
    vocab_size: int = 4096
    seq_len: int = 256
    batch_size: int = 4

    @property
    def name(self) -> str:
        return f"{self.n_layers}_layers_d{self.d_model}_head{self.head_dim}_seq{self.seq_len}"


@dataclass(frozen=True)
class Target:
    """What our step may cost, as multiples of Llama's."""

    cpu_time: float
    kept_bytes: float = 0.7


LLAMA_TARGETS = {
    ("bf16", False): Target(0.65),
    ("fp32", False): Target(0.90),
    ("bf16", True): Target(0.70),
    ("fp32", True): Target(0.90),
}
"""(precision, whether compiled) -> target."""
FULL = (Size(256, 32), Size(256, 64), Size(384, 64))
LLAMA_SIZES = (Size(256, 32), Size(256, 32, seq_len=1024, batch_size=1))
QUICK = (Size(128, 32, n_layers=4, vocab_size=512, seq_len=64, batch_size=2),)


def decoder_step(model: Decoder, size: Size, precision: Precision) -> TrainingStep:
    """A training step of our decoder."""
    tokens, targets = random_batch(size.vocab_size, size.batch_size, size.seq_len)
    return TrainingStep(model, lambda: model.loss(tokens, targets)[0], precision)


def x_over_uniform(size: Size, precision: Precision, compiled: bool, n_rounds: int) -> dict[str, Any]:
    """Both at equal parameters, beside the FLOP ratio of the cost model."""
    configs = {
        shape: template(size.d_model, size.n_layers, size.head_dim, size.vocab_size, shape).resolve(size.seq_len)
        for shape in ("uniform", "x")
    }
    models = {shape: build(config, seed=0) for shape, config in configs.items()}
    if compiled:
        for model in models.values():
            compile_layers(model)
    steps = {shape: decoder_step(model, size, precision) for shape, model in models.items()}
    variants = summarise(interleave(steps, n_rounds=n_rounds), "uniform")
    costs = cost_ratios(configs["x"], configs["uniform"], size.seq_len)
    ratio = variants["x"]["cpu_ratio"]["median"]
    return {
        **costs,
        "target": costs["flop_ratio"] + FLOP_SLACK,
        "meets_target": ratio <= costs["flop_ratio"] + FLOP_SLACK,
        "variants": variants,
        "summary": f"x / uniform {ratio:.3f} of the CPU time, FLOP ratio {costs['flop_ratio']:.3f}",
    }


def llama(size: Size) -> nn.Module:
    """Hugging Face's Llama with the sizes of our uniform model."""
    from transformers import LlamaConfig, LlamaForCausalLM  # an extra, needed by this comparison alone

    torch.manual_seed(0)
    n_heads = size.d_model // size.head_dim
    config = LlamaConfig(
        vocab_size=size.vocab_size,
        hidden_size=size.d_model,
        intermediate_size=4 * size.d_model,
        num_hidden_layers=size.n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads,
        head_dim=size.head_dim,
        max_position_embeddings=size.seq_len,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )
    return LlamaForCausalLM(config).train()


def llama_step(model: nn.Module, size: Size, precision: Precision) -> TrainingStep:
    """A training step of Hugging Face's model, its loss through `labels`, which it shifts itself."""
    tokens, _ = random_batch(size.vocab_size, size.batch_size, size.seq_len)
    return TrainingStep(model, lambda: model(input_ids=tokens, labels=tokens).loss, precision)


def ours_over_llama(size: Size, precision: Precision, compiled: bool, n_rounds: int) -> dict[str, Any]:
    """The uniform decoder and Hugging Face's Llama of the same shape and parameters: time, and bytes kept."""
    config = template(size.d_model, size.n_layers, size.head_dim, size.vocab_size).resolve(size.seq_len)
    ours, theirs = build(config, seed=0), llama(size)
    n_params = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert n_params[0] == n_params[1], n_params
    steps = {"llama": llama_step(theirs, size, precision), "ours": decoder_step(ours, size, precision)}
    with autocast(torch.device("cpu"), precision):
        kept = {name: kept_bytes(step.loss) for name, step in steps.items()}
    if compiled:
        compile_layers(ours)
        theirs.compile()
    variants = summarise(interleave(steps, n_rounds=n_rounds), "llama")
    ratio, kept_ratio = variants["ours"]["cpu_ratio"]["median"], kept["ours"] / kept["llama"]
    target = LLAMA_TARGETS[precision, compiled]
    return {
        "n_params": n_params[0],
        "target": target.cpu_time,
        "meets_target": ratio <= target.cpu_time,
        "kept_bytes_eager": kept,
        "kept_bytes_target": target.kept_bytes,
        "meets_kept_bytes_target": kept_ratio <= target.kept_bytes,
        "variants": variants,
        "summary": f"ours / Llama {ratio:.3f} of the CPU time, {kept_ratio:.2f} of the bytes kept where not compiled",
    }


def parts(sizes: tuple[Size, ...], llama_sizes: tuple[Size, ...], n_rounds: int) -> list[Part]:
    """Every size against its ><former or against Llama, in both precisions, eager and compiled.

    Of the ><former only the first size is compiled: each of its layers is a graph of its own, and that takes minutes.
    """

    def part(name: str, run: Callable[..., dict[str, Any]], *arguments: Any, seconds: float) -> Part:
        return Part(name, lambda _: run(*arguments, n_rounds), seconds)

    modes = (("eager", False, 120), ("compiled", True, 240))
    return [
        *(
            part(
                f"ours_over_llama/{size.name}/{mode}/{precision}",
                ours_over_llama,
                size,
                precision,
                compiled,
                seconds=seconds,
            )
            for mode, compiled, seconds in modes
            for size in llama_sizes
            for precision in ("fp32", "bf16")
        ),
        *(
            part(
                f"x_over_uniform/{size.name}/{mode}/{precision}",
                x_over_uniform,
                size,
                precision,
                compiled,
                seconds=seconds,
            )
            for mode, compiled, seconds in modes
            for size in (sizes[:1] if compiled else sizes)
            for precision in ("fp32", "bf16")
        ),
    ]


def main(argv: list[str] | None = None) -> int:
    def chosen(quick: bool) -> list[Part]:
        return parts(QUICK, QUICK, n_rounds=3) if quick else parts(FULL, LLAMA_SIZES, n_rounds=9)

    return cpu_command(__doc__, "training", chosen, 2400, argv)


if __name__ == "__main__":
    sys.exit(main())
