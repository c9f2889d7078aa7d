"""One CUDA GPU: results equal to the CPU's, training steps of the recipes, decoding with the KV cache.

python benchmarks/gpu.py [--out benchmarks/results/gpu.json] [--only training]

Needs PyTorch >= 2.11 and, for the 500M recipes, about 80 GB of GPU memory. Downloads nothing and takes less than nine
minutes.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, Accelerator, Part, attempt, interleave, quantiles, run_parts, summarise
from torch import Tensor
from workloads import TrainingStep, cost_ratios, random_batch, recipe_model, relative_error, template

from widthwise.computing import Precision
from widthwise.kernels.dispatch import autocast
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.model.execution import compile_layers
from widthwise.model.generate import SamplingConfig, continue_cached

SHAPES = ("uniform", "x", "diamond", "growing", "narrowing")
TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "bf16": 3e-2}
"""Allowed ||difference|| / ||reference||, the reference being fp32 on the CPU.

A bf16 rounding is up to 0.4%, and some dozen follow one another.
"""

WARMING_SHARE = 0.8
"""Part of a training part's time that building and compiling may take."""


def logits_and_gradients(
    config: ModelConfig, device: str, precision: Precision, compiled: bool
) -> tuple[Tensor, Tensor]:
    """Logits and all gradients of one batch, as two fp32 vectors on the CPU."""
    model = build(config, seed=0, device=device)
    if compiled:
        compile_layers(model)
    tokens, targets = random_batch(config.vocab_size, 2, 63, device)
    with autocast(torch.device(device), precision):
        model.loss(tokens, targets)[0].backward()
        with torch.no_grad():
            logits = model(tokens)
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return logits.detach().float().flatten().cpu(), gradients.float().cpu()


def equality(on: Accelerator, shape: str, modes: tuple[str, ...]) -> dict[str, Any]:
    """Logits and gradients of a small model here and on the CPU. modes: "eager", "compiled". Raises on a deviation."""
    on.free()
    config = template(128, 6, 32, 331, shape).resolve(63)
    reference = logits_and_gradients(config, "cpu", "fp32", compiled=False)
    errors: dict[str, dict[str, float]] = {}
    for precision in TOLERANCES:
        for mode in modes:
            outcome = logits_and_gradients(config, on.device, precision, compiled=mode == "compiled")
            names = ("logits", "gradients")
            errors[f"{precision}/{mode}"] = {n: relative_error(*pair) for n, *pair in zip(names, outcome, reference)}
    worst = {
        precision: max(max(e.values()) for k, e in errors.items() if k.startswith(precision))
        for precision in TOLERANCES
    }
    beyond = [precision for precision in TOLERANCES if not worst[precision] <= TOLERANCES[precision]]  # NaN is beyond
    if beyond:
        raise ArithmeticError(f"{shape} differs from the CPU beyond {TOLERANCES}: {errors}")
    return {
        "relative_errors": errors,
        "tolerances": TOLERANCES,
        "summary": f"fp32 within {worst['fp32']:.1e}, bf16 within {worst['bf16']:.1e}",
    }


def measured_flops(on: Accelerator, n: int = 8192) -> dict[str, Any]:
    """Rate of a square bf16 product on random data: the ceiling of this board as it is cooled and powered."""
    a, b = (torch.randn(n, n, device=on.device, dtype=torch.bfloat16) for _ in range(2))
    times = interleave({"product": lambda: a @ b}, n_rounds=20, n_warmup=5, synchronize=on.synchronize)
    seconds = quantiles(times["product"].wall)["median"]
    return {"n": n, "flops_per_second": 2 * n**3 / seconds, "summary": f"{2 * n**3 / seconds / 1e12:.0f} TFLOP/s"}


class RecipeStep:
    """The training step of a recipe's model, and what it costs."""

    def __init__(self, on: Accelerator, config: ModelConfig, batch: tuple[Tensor, Tensor], compiled: bool):
        self.on, self.config = on, config
        self.model = build(config, seed=0, device=on.device)
        if compiled:
            compile_layers(self.model)
        self.step = TrainingStep(self.model, lambda: self.model.loss(*batch)[0], "bf16")

    def __call__(self) -> None:
        self.step()

    def memory(self) -> dict[str, int]:
        """Bytes of weights and optimizer state, and what a step adds at its peak; other models' share is left out."""
        before = self.on.forget_peak()
        self.step()
        self.on.synchronize()
        added = max(0, self.on.peak_bytes() - before)
        return {"state_bytes": self.step.state_bytes, "step_bytes": added, "peak_bytes": self.step.state_bytes + added}


def warm(kept: dict[str, RecipeStep], name: str, make: Callable[[], RecipeStep]) -> dict[str, Any]:
    """Builds one variant, compiles it by calling it, and adds it to `kept`."""
    step = make()
    step()
    step()
    step.on.synchronize()
    kept[name] = step
    return {}


def warm_all(
    makers: Mapping[str, Callable[[], RecipeStep]], seconds: float
) -> tuple[dict[str, RecipeStep], dict[str, float], dict[str, str]]:
    """The variants that are built and compiled in time, the seconds that each took, and why others are missing."""
    deadline = time.monotonic() + seconds
    steps: dict[str, RecipeStep] = {}
    outcomes = {
        name: attempt(partial(warm, steps, name, make), deadline - time.monotonic()) for name, make in makers.items()
    }
    left_out = {name: outcome["failed"] for name, outcome in outcomes.items() if "failed" in outcome}
    return steps, {name: outcomes[name]["part_seconds"] for name in steps}, left_out


def training_steps(
    on: Accelerator,
    models: Mapping[str, tuple[ModelConfig, str]],
    seq_len: int,
    micro_batch_size: int,
    *,
    compiled: bool,
    n_rounds: int,
    seconds: float,
) -> dict[str, Any]:
    """Steps in turn, in bf16. models: name -> (config, name of its baseline).

    A variant that is not built and compiled within WARMING_SHARE of the seconds is named under "left_out";
    the others are measured.
    """
    batch = random_batch(next(iter(models.values()))[0].vocab_size, micro_batch_size, seq_len, on.device)
    makers = {name: partial(RecipeStep, on, config, batch, compiled) for name, (config, _) in models.items()}
    steps, warm_seconds, left_out = warm_all(makers, WARMING_SHARE * seconds)
    if not steps:
        raise RuntimeError(f"no variant ran: {left_out}")
    times = interleave(steps, n_rounds=n_rounds, n_warmup=1, synchronize=on.synchronize)
    n_tokens, variants = micro_batch_size * seq_len, {}
    for name, step in steps.items():
        base_name = models[name][1] if models[name][1] in steps else name
        variants[name] = {
            "baseline": base_name,
            **summarise({name: times[name], base_name: times[base_name]}, base_name)[name],
            **cost_ratios(step.config, models[base_name][0], seq_len),
            **throughput(on, step.config, seq_len, n_tokens, quantiles(times[name].wall)["median"]),
            **step.memory(),
            "warm_seconds": warm_seconds[name],
        }
    report = {"seq_len": seq_len, "micro_batch_size": micro_batch_size, "compiled": compiled, "variants": variants}
    report["summary"] = ", ".join(
        f"{name} {own['wall_ratio']['median']:.3f} of its baseline's time (FLOP ratio {own['flop_ratio']:.3f})"
        for name, own in variants.items()
        if own["baseline"] != name
    )
    return report if not left_out else {**report, "left_out": left_out, "failed": f"left out: {left_out}"}


def throughput(on: Accelerator, config: ModelConfig, seq_len: int, n_tokens: int, seconds: float) -> dict[str, Any]:
    """Tokens per second and model FLOPs utilisation, attention scores counted in full (the papers) and by half."""
    cost, peak = config.cost(), on.datasheet_flops()
    full, causal = (3 * cost.forward_flops(seq_len, causal) * n_tokens / seconds for causal in (False, True))
    return {
        "tokens_per_second": n_tokens / seconds,
        "flops_per_second": full,
        "flops_per_second_causal": causal,
        "mfu": full / peak if peak else None,
        "mfu_causal": causal / peak if peak else None,
    }


@torch.no_grad()
def decode(model: Decoder, batch_size: int, n_prompt: int, n_new: int) -> Tensor:
    """Greedy continuation of a random prompt with the KV cache; returns the tokens (B, n_new)."""
    tokens, _ = random_batch(model.config.vocab_size, batch_size, n_prompt, model.embedding.weight.device.type)
    cache = model.new_cache(batch_size, n_prompt + n_new)
    greedy = SamplingConfig(temperature=0)
    return torch.stack([*continue_cached(model, cache, tokens, None, n_new, greedy, None)], dim=1)


def decoding(
    on: Accelerator,
    configs: Mapping[str, ModelConfig],
    batch_size: int,
    *,
    n_prompt: int,
    n_new: int,
    n_rounds: int,
) -> dict[str, Any]:
    """Tokens per second of the models in turn, bf16 weights, eager; the first model is the baseline."""
    models = {name: build(config, seed=0, device=on.device, dtype=torch.bfloat16) for name, config in configs.items()}
    runs = {name: partial(decode, model, batch_size, n_prompt, n_new) for name, model in models.items()}
    baseline = next(iter(configs))
    variants = summarise(interleave(runs, n_rounds=n_rounds, n_warmup=1, synchronize=on.synchronize), baseline)
    for name, own in variants.items():
        own["tokens_per_second"] = batch_size * n_new / own["wall_seconds"]["median"]
        own["cache_bytes"] = models[name].new_cache(batch_size, n_prompt + n_new).n_bytes
    rates = ", ".join(f"{name} {own['tokens_per_second']:.0f} tokens/s" for name, own in variants.items())
    return {"batch_size": batch_size, "n_prompt": n_prompt, "n_new": n_new, "variants": variants, "summary": rates}


def family(size: str) -> tuple[dict[str, tuple[ModelConfig, str]], int, int]:
    """The four recipes of a size, heads of 64 first, x after its baseline; the sequence length; the micro batch."""
    models: dict[str, tuple[ModelConfig, str]] = {}
    for suffix in ("_hw", ""):
        baseline = f"uniform_{size}{suffix}"
        for name in (baseline, f"x_{size}{suffix}"):
            config, seq_len, micro_batch_size = recipe_model(name)
            models[name] = (config, baseline)
    return models, seq_len, micro_batch_size


def family_steps(on: Accelerator, size: str, *, compiled: bool, n_rounds: int, seconds: float) -> dict[str, Any]:
    """Training steps of the four recipes of a size."""
    models, seq_len, micro_batch_size = family(size)
    on.free()
    return training_steps(on, models, seq_len, micro_batch_size, compiled=compiled, n_rounds=n_rounds, seconds=seconds)


def family_decoding(on: Accelerator, size: str, batch_size: int) -> dict[str, Any]:
    """Decoding with the recipes of a size whose heads are alike."""
    configs = {name: config for name, (config, _) in family(size)[0].items() if name.endswith("_hw")}
    on.free()
    return decoding(on, configs, batch_size, n_prompt=512, n_new=64, n_rounds=5)


def parts(on: Accelerator) -> list[Part]:
    """What is surest and cheapest first: a part that runs out of time costs nothing before it."""

    def equal(shape: str) -> Part:
        modes = ("eager", "compiled") if shape == "x" else ("eager",)
        return Part(f"equality/{shape}", lambda _: equality(on, shape, modes), 120)

    def trained(size: str, compiled: bool, n_rounds: int, seconds: float) -> Part:
        def run(seconds: float) -> dict[str, Any]:
            return family_steps(on, size, compiled=compiled, n_rounds=n_rounds, seconds=seconds)

        return Part(f"training/{size}/{'compiled' if compiled else 'eager'}", run, seconds)

    def decoded(size: str, batch_size: int) -> Part:
        return Part(f"decoding/{size}/batch_{batch_size}", lambda _: family_decoding(on, size, batch_size), 80)

    return [
        Part("matrix_product", lambda _: measured_flops(on), 20),
        *(equal(shape) for shape in SHAPES),
        trained("200m", compiled=False, n_rounds=8, seconds=60),
        trained("200m", compiled=True, n_rounds=15, seconds=200),
        *(decoded(size, batch_size) for size in ("200m", "500m") for batch_size in (1, 32)),
        trained("500m", compiled=False, n_rounds=8, seconds=60),
        trained("500m", compiled=True, n_rounds=15, seconds=300),
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json", help="JSON file")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PREFIX", help="run the parts whose names begin so")
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: needs a CUDA GPU, and PyTorch sees none here", file=sys.stderr)
        return 2
    try:
        wanted = [part for part in parts(Accelerator("cuda")) if part.name.startswith(tuple(arguments.only))]
        return 0 if run_parts(wanted, arguments.out, "cuda", total_seconds=525) else 1
    except UserError as error:
        print(f"benchmarks/gpu.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
