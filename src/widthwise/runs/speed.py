"""Speed of this machine: the faster precision, and the time of a training step."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from widthwise.computing import Precision
from widthwise.model.decoder import build
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.run_dir import RunDir
from widthwise.training.observer import Observer
from widthwise.training.teacher import LoadedTeacher
from widthwise.training.train_state import TrainState

BF16_GAIN = 1.3
"""Least ratio of a CPU's time for products in fp32 to that in bf16 for which `precision: auto` means bf16."""


def chosen_precision(folder: Path, observer: Observer | None = None) -> Precision:
    """Return the precision of the runs in a folder, or else the faster one, for recipes that say `auto`."""
    for config in (folder / "config.yaml", *sorted(folder.glob("*/*/config.yaml"))):
        if config.is_file():
            return saved_recipe(RunDir(config.parent)).train.settled_precision
    return faster_precision(observer)


def faster_precision(observer: Observer | None = None) -> Precision:
    """The type in which matrix products are faster here: bf16 on a GPU that has it, and on a CPU that multiplies it at
    least BF16_GAIN times as fast as fp32, measured in about a tenth of a second; else fp32."""
    if torch.cuda.is_available():
        found, why = ("bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"), "for this GPU"
    else:
        gain = bf16_gain()
        found, why = ("bf16" if gain >= BF16_GAIN else "fp32"), f"bf16 products are {gain:.2g} times as fast here"
    if observer is not None:
        observer.message(f"precision: auto is {found}; {why}")
    return found


def bf16_gain() -> float:
    """Seconds of products in fp32 over those in bf16 on this CPU, timed in turn so that other work slows both."""
    x, weight = torch.ones(256, 256), torch.ones(256, 256)
    pairs = [(x.to(dtype), weight.to(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    rounds = [[seconds(partial(nn.functional.linear, *pair), n_calls=3) for pair in pairs] for _ in range(3)]
    return statistics.median(fp32 / bf16 for fp32, bf16 in rounds)


def step_seconds(recipe: Recipe) -> float:
    """Seconds of a training step of a recipe's model on this CPU, measured with this process's number of threads."""
    given = recipe.train
    train = TrainConfig(steps=1, batch_size=given.batch_size, precision=given.settled_precision, distill=given.distill)
    teacher = None if given.distill is None else LoadedTeacher(recipe)
    model = build(recipe.explicit_model, seed=0)
    optimizer = AdamWConfig(lr=1e-4).build(model)
    plain = recipe.model_copy(update={"train": train, "growth": (), "rewarmup": None})
    train_state = TrainState(plain, plain.phases[0], model, optimizer, teacher=teacher)
    batch = torch.randint(model.config.vocab_size, (given.batch_size, recipe.seq_len + 1))
    return seconds(lambda: train_state.train_step(1, batch), n_calls=2)


def seconds(run: Callable[[], object], n_calls: int = 5) -> float:
    """The median of several calls after one that is not timed.

    One thread is timed by its process's CPU time, which other processes on the machine change less.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    run()
    found = []
    for _ in range(n_calls):
        began = clock()
        run()
        found.append(clock() - began)
    return statistics.median(found)
