"""Training steps on the CPU: the models of the quickstart at d_model 128 and 256 beside the uniform one.

OMP_NUM_THREADS=1 python benchmarks/quickstart.py [--quick] [--out benchmarks/results/quickstart_cpu.json]
"""

import math
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from harness import Part, cpu_command, interleave, summarise
from loader import sources
from step_shares import VARIANTS, recipe_of

from widthwise.computing import Precision
from widthwise.data.loader import Loader
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.dynamic_module import DynamicWidth
from widthwise.recipe.recipe import Recipe
from widthwise.training.train_state import TrainState

OVER_FLOPS = {"x": 1.03, "hourglass": 1.10, "virtual": 1.10}
"""By which factor the step-time ratio of a quickstart's model may exceed the FLOP ratio."""
DYNAMIC_TARGET = 1.0
"""The step-time ratio of dynamic widths, of which SPENT_FRACTION is used on average."""
SPENT_FRACTION = 0.6
SCORE_STD = 0.5
"""How widely tokens differ in the logit of their width."""


def quickstart(
    times: int, precision: Precision, n_rounds: int, recipe: Callable[..., Recipe] = recipe_of
) -> dict[str, Any]:
    """Whole steps of the quickstart's models, so many times as wide as 128, in turn. recipe: that of a variant."""
    train_states, recipes = {}, {variant: recipe(variant, times, precision) for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        common = recipes["uniform"]
        tokens = sources(Path(folder), 1, 2 * common.tokens_per_step)
        batch = next(Loader(tokens, seq_len=common.seq_len, batch_size=common.train.batch_size, seed=1))
    for variant, own in recipes.items():
        train_states[variant] = TrainState.untrained(own, own.phases[0])
    spend(train_states["dynamic"].model, SPENT_FRACTION)
    steps = {
        variant: lambda train_state=train_state: train_state.train_step(1, batch)
        for variant, train_state in train_states.items()
    }
    variants = summarise(interleave(steps, n_rounds=n_rounds), "uniform")
    base = common.phases[0].model.cost().forward_flops(common.seq_len)
    for variant, factor in OVER_FLOPS.items():
        variants[variant]["flop_ratio"] = recipes[variant].phases[0].model.cost().forward_flops(common.seq_len) / base
        variants[variant]["target"] = factor * variants[variant]["flop_ratio"]
    variants["dynamic"]["target"] = DYNAMIC_TARGET
    for variant in (*OVER_FLOPS, "dynamic"):
        variants[variant]["meets_target"] = variants[variant]["cpu_ratio"]["median"] <= variants[variant]["target"]
    ratios = [f"{name} {each['cpu_ratio']['median']:.3f}" for name, each in variants.items() if name != "uniform"]
    return {"variants": variants, "summary": f"CPU time over uniform: {', '.join(ratios)}"}


def spend(model: Decoder, fraction: float) -> None:
    """Sets the widths of dynamic layers to `fraction` of all units on average, different for each token."""
    for ffn in (module for module in model.modules() if isinstance(module, DynamicWidth)):
        level = (fraction - ffn.config.min_fraction) / (1 - ffn.config.min_fraction)
        assert ffn.bias is not None
        torch.nn.init.constant_(ffn.bias.weight, math.log(level / (1 - level)))
        torch.nn.init.normal_(ffn.score.v.weight, std=SCORE_STD / math.sqrt(ffn.score.v.weight.shape[1]))


def parts(quick: bool) -> list[Part]:
    cases = [(1, "bf16", 1)] if quick else [(*case, 9) for case in product((1, 2), ("fp32", "bf16"))]
    return [
        Part(f"d{128 * times}/{precision}", lambda _, each=(times, precision, n_rounds): quickstart(*each), 240)
        for times, precision, n_rounds in cases
    ]


def main(argv: list[str] | None = None) -> int:
    return cpu_command(__doc__, "quickstart", parts, total_seconds=900, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
