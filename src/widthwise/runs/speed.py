"""The faster precision on this machine, for recipes with `precision: auto`."""

import statistics
import time
import timeit
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from widthwise.computing import Precision
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.training.observer import Observer

BF16_GAIN = 1.3
"""Least ratio of a CPU's time for fp32 products to its time for bf16 products at which `precision: auto` is bf16."""


def chosen_precision(folder: Path, observer: Observer | None = None) -> Precision:
    """Return the precision of the runs in a folder, or else the faster one, for recipes with `precision: auto`."""
    for config in (folder / "config.yaml", *sorted(folder.glob("*/*/config.yaml"))):
        if config.is_file():
            return saved_recipe(RunDir(config.parent)).train.settled_precision
    return faster_precision(observer)


def faster_precision(observer: Observer | None = None) -> Precision:
    """Return the precision with faster matrix products on this machine.

    It is bf16 on a GPU that supports it, and on a CPU whose bf16 products are at least BF16_GAIN times as fast as
    fp32, measured in about a tenth of a second; otherwise fp32.
    """
    if torch.cuda.is_available():
        is_faster = torch.cuda.is_bf16_supported(including_emulation=False)
        reason = "for this GPU"
    else:
        gain = bf16_gain()
        is_faster = gain >= BF16_GAIN
        reason = f"bf16 products are {gain:.2g} times as fast here"
    precision = "bf16" if is_faster else "fp32"
    if observer is not None:
        observer.message(f"precision: auto is {precision}; {reason}")
    return precision


def bf16_gain() -> float:
    """Return the time of fp32 products over bf16 products on this CPU, interleaved so that other work slows both."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter  # others do not change CPU time
    pairs = [torch.ones(2, 256, 256, dtype=dtype).unbind() for dtype in (torch.float32, torch.bfloat16)]

    def seconds(pair: Sequence[Tensor]) -> float:
        _, *times = timeit.repeat(partial(nn.functional.linear, *pair), timer=clock, repeat=4, number=1)
        return statistics.median(times)

    rounds = [[seconds(pair) for pair in pairs] for _ in range(3)]
    return statistics.median(fp32 / bf16 for fp32, bf16 in rounds)
