"""Training steps on the CPU: a ><former beside the uniform model, and the uniform model beside Hugging Face's Llama.

OMP_NUM_THREADS=1 python benchmarks/training.py [--quick] [--out benchmarks/results/training_cpu.json]
"""

import sys
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from harness import Part, cpu_command, interleave, summarise
from kernels import kept_bytes
from torch import nn
from workloads import DTYPES, Size, TrainingStep, cost_ratios

from widthwise.computing import Precision
from widthwise.kernels.dispatch import autocast
from widthwise.model.decoder import Decoder, build
from widthwise.model.execution import compile_layers

FLOP_SLACK = 0.03
"""By how much the step-time ratio may exceed the FLOP ratio."""


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
    tokens, targets = size.batch()
    return TrainingStep(model, lambda: model.loss(tokens, targets)[0], precision)


def x_over_uniform(size: Size, precision: Precision, compiled: bool, n_rounds: int) -> dict[str, Any]:
    """Both at equal parameters, beside the FLOP ratio of the cost model."""
    configs = {shape: size.model(shape) for shape in ("uniform", "x")}
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
    tokens, _ = size.batch()
    return TrainingStep(model, lambda: model(input_ids=tokens, labels=tokens).loss, precision)


def ours_over_llama(size: Size, precision: Precision, compiled: bool, n_rounds: int) -> dict[str, Any]:
    """The uniform decoder and Hugging Face's Llama of the same shape and parameters: time, and bytes kept."""
    ours, theirs = build(size.model(), seed=0), llama(size)
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

    found = []
    for run, own in ((ours_over_llama, llama_sizes), (x_over_uniform, sizes)):
        for mode, compiled, seconds in (("eager", False, 120), ("compiled", True, 240)):
            for size, precision in product(own[:1] if compiled and run is x_over_uniform else own, DTYPES):
                name = f"{run.__name__}/{size.name}/{mode}/{precision}"
                each = partial(run, size, precision, compiled, n_rounds)
                found.append(Part(name, lambda _, each=each: each(), seconds))
    return found


def main(argv: list[str] | None = None) -> int:
    def chosen(quick: bool) -> list[Part]:
        return parts(QUICK, QUICK, n_rounds=3) if quick else parts(FULL, LLAMA_SIZES, n_rounds=9)

    return cpu_command(__doc__, "training", chosen, 2400, argv)


if __name__ == "__main__":
    sys.exit(main())
