"""Speed of this machine: the faster precision."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

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
    pairs = [torch.ones(2, 256, 256, dtype=dtype).unbind() for dtype in (torch.float32, torch.bfloat16)]
    rounds = [[seconds(partial(nn.functional.linear, *pair), n_calls=3) for pair in pairs] for _ in range(3)]
    return statistics.median(fp32 / bf16 for fp32, bf16 in rounds)


def seconds(run: Callable[[], object], n_calls: int = 5) -> float:
    """Return the median time of several calls after a warm-up call.

    With one thread it is CPU time, which other processes on the machine change less.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    run()
    times = []
    for _ in range(n_calls):
        began = clock()
        run()
        times.append(clock() - began)
    return statistics.median(times)
