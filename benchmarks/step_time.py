"""Predicted against measured time of training steps on the CPU, of shapes of every kind, on one thread.

OMP_NUM_THREADS=1 python benchmarks/step_time.py [--quick] [--out benchmarks/results/step_time_cpu.json]

The rates are measured first, on kernels alone, and no number of them is fitted to a step. A step is that of `train`:
forward and backward pass, clipping, AdamW. Both are medians of CPU time.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import yaml
from harness import ROOT, Part, cpu_command, interleave, summarise
from workloads import cost_ratios

from widthwise.computing import Precision
from widthwise.config_io import parse
from widthwise.merging import merge
from widthwise.model.config import ModelConfig
from widthwise.recipe.design import ShapeRequest
from widthwise.recipe.fastest import design_fastest
from widthwise.recipe.recipe import parse_recipe
from widthwise.recipe.step_time import predicted_step
from widthwise.runs.rates import Step, measured_rates
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import read_recipe


@dataclass(frozen=True)
class Size:
    """What all shapes share; d_model and n_layers where a shape does not say otherwise."""

    d_model: int = 192
    head_dim: int = 32
    n_layers: int = 8
    vocab_size: int = 2048
    seq_len: int = 256
    batch_size: int = 4


FULL = Size()
RECIPE = ROOT / "configs" / "small.yaml"
"""Of which the choice is measured."""
SMALLER = ("model.d_model=64", "model.n_layers=4", "seq_len=32", "train.batch_size=2")
QUICK = Size(d_model=64, head_dim=16, n_layers=4, vocab_size=97, seq_len=32, batch_size=2)


def shapes(size: Size) -> dict[str, ModelConfig]:
    """A model of each kind."""
    d_model, n_layers, head_dim = size.d_model, size.n_layers, size.head_dim

    def model(**changes: Any) -> ModelConfig:
        data = {"vocab_size": size.vocab_size, "d_model": d_model, "n_layers": n_layers}
        return parse(ModelTemplate, {**data, "attention": {"head_dim": head_dim}, **changes}).resolve(size.seq_len)

    def x(bottleneck_width: float) -> dict[str, Any]:
        return {"kind": "x", "bottleneck_width": bottleneck_width, "rounding": "balanced"}

    def hourglass(n_blocks: int) -> dict[str, Any]:
        return {"kind": "hourglass", "n_blocks": n_blocks, "ratio": 1.6 / n_blocks}

    return {
        "uniform, narrow": model(d_model=2 * head_dim * round(d_model / 3 / head_dim)),
        "uniform": model(),
        "uniform, wide": model(d_model=2 * d_model),
        "x, bottleneck 0.3": model(shape=x(0.3)),
        "x, bottleneck 0.6": model(shape=x(0.6)),
        "hourglass, 1 block": model(ffn=hourglass(1)),
        "hourglass, 4 blocks": model(ffn=hourglass(4)),
        "dynamic width": model(ffn={"kind": "dynamic"}),
        "virtual width (2, 3)": model(residual={"kind": "hyper_connections", "n_fractions": 2, "n_slots": 3}),
        "deep and narrow": model(d_model=d_model // 3 // head_dim * head_dim, n_layers=4 * n_layers),
        "shallow and wide": model(d_model=2 * d_model, n_layers=max(1, n_layers // 4)),
        "mixture of experts": model(ffn={"kind": "moe", "n_experts": 8, "top_k": 2, "ratio": 1.0}),
    }


def predicted_and_measured(
    models: Mapping[str, ModelConfig], size: Size, precision: Precision, n_rounds: int
) -> dict[str, Any]:
    """Of every model: seconds by what takes them, what a step really took, and predicted over measured."""
    rates = measured_rates(precision)
    steps = {name: Step(model, size.batch_size, size.seq_len, precision) for name, model in models.items()}
    times = interleave(steps, n_rounds=n_rounds, n_warmup=1)
    found = {}
    for name, model in models.items():
        predicted = predicted_step(model, size.batch_size * size.seq_len, size.seq_len, rates)
        measured = float(np.median(times[name].cpu))
        found[name] = {
            "n_params": model.cost().params,
            "forward_flops": model.cost().forward_flops(size.seq_len),
            "predicted": asdict(predicted),
            "predicted_seconds": predicted.total,
            "measured_seconds": measured,
            "ratio": predicted.total / measured,
        }
    ratios = [each["ratio"] for each in found.values()]
    return {
        "size": asdict(size),
        "load_average": os.getloadavg()[0],
        "rates": rates.to_data(),
        "shapes": found,
        "rank_correlation": _rank_correlation(found),
        "summary": f"predicted / measured {min(ratios):.2f} to {max(ratios):.2f}, median {np.median(ratios):.2f}",
    }


def choice_over_uniform(precision: Precision, overrides: Sequence[str], n_rounds: int) -> dict[str, Any]:
    """The ><former that `design --match step_time` chooses, beside the usual one and the uniform model."""
    rates, changes = measured_rates(precision), [*overrides, f"train.precision={precision}"]
    chosen = yaml.safe_load(design_fastest(RECIPE, ShapeRequest(), rates, changes)[0])["model"]["shape"]
    usual = {"kind": "x", "rounding": "balanced"}
    base = read_recipe(RECIPE, changes)
    recipes = {
        name: parse_recipe(merge(base, {"model": {"shape": shape}}), name)
        for name, shape in (("uniform", {"kind": "uniform"}), ("usual", usual), ("chosen", chosen))
    }
    models = {name: recipe.model.resolve(recipe.seq_len) for name, recipe in recipes.items()}
    seq_len, n_sequences = recipes["uniform"].seq_len, recipes["uniform"].train.batch_size
    steps = {name: Step(model, n_sequences, seq_len, precision) for name, model in models.items()}
    variants = summarise(interleave(steps, n_rounds=n_rounds, n_warmup=1), "uniform")
    predicted = {
        name: predicted_step(model, n_sequences * seq_len, seq_len, rates).total for name, model in models.items()
    }
    for name, model in models.items():
        variants[name]["predicted_seconds"] = predicted[name]
        variants[name]["predicted_ratio"] = predicted[name] / predicted["uniform"]
        variants[name] |= cost_ratios(model, models["uniform"], seq_len)
    found = ", ".join(
        f"{name} {variants[name]['cpu_ratio']['median']:.3f} (predicted {variants[name]['predicted_ratio']:.3f})"
        for name in ("usual", "chosen")
    )
    return {
        "recipe": RECIPE.name,
        "shape": chosen,
        "load_average": os.getloadavg()[0],
        "rates": rates.to_data(),
        "variants": variants,
        "summary": f"x / uniform, CPU time: {found}",
    }


def _rank_correlation(found: Mapping[str, Mapping[str, Any]]) -> float:
    """Spearman's, of predicted and measured seconds."""
    seconds = [[each[key] for each in found.values()] for key in ("predicted_seconds", "measured_seconds")]
    ranks = np.argsort(np.argsort(seconds, axis=1), axis=1)
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def parts(size: Size, overrides: Sequence[str], n_rounds: int) -> list[Part]:
    """Both precisions. overrides: changes to the recipe of the choice."""
    precisions: tuple[Precision, ...] = ("fp32", "bf16")

    def part(name: str, run: Callable[..., dict[str, Any]], *arguments: Any) -> Part:
        return Part(name, lambda _: run(*arguments), 400)

    return [
        *(
            part(f"shapes/{precision}", predicted_and_measured, shapes(size), size, precision, n_rounds)
            for precision in precisions
        ),
        *(part(f"choice/{precision}", choice_over_uniform, precision, overrides, n_rounds) for precision in precisions),
    ]


def main(argv: list[str] | None = None) -> int:
    torch.set_num_threads(1)

    def chosen(quick: bool) -> list[Part]:
        return parts(QUICK, SMALLER, n_rounds=2) if quick else parts(FULL, (), n_rounds=5)

    return cpu_command(__doc__, "step_time", chosen, 870, argv)


if __name__ == "__main__":
    sys.exit(main())
