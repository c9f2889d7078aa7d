"""What a training step on one CPU thread spends its time on: matrix products, how fast they are, and the rest by name.

python benchmarks/step_shares.py [--quick] [--out benchmarks/results/step_shares_cpu.json]

The models are those of the quickstart, at d_model 128 and two and four times as wide. Every operator is timed by the
CPU time of the process, so that other users of the machine count little.
"""

import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import ROOT, Part, cpu_command, interleave, quantiles, threads
from loader import sources
from torch._C._autograd import _get_sequence_nr  # pyright: ignore[reportMissingModuleSource]
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import DTYPES

from widthwise.computing import Precision
from widthwise.config_io import parse
from widthwise.data.loader import Loader
from widthwise.recipe.recipe import Recipe
from widthwise.training.train_state import TrainState
from widthwise.yaml_io import merge, read_recipe

QUICKSTART = ROOT / "configs" / "quickstart.yaml"
VARIANTS = ("uniform", "x", "hourglass", "dynamic", "virtual")
HEAD_DIMS = {1: 16, 2: 32, 4: 64}
"""By how many times as wide as 128."""
SIZES = {"model": {"vocab_size": 2048}, "seq_len": 256, "train": {"batch_size": 8}}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
CASTS = {"_to_copy", "copy_", "clone"}
PLACES = {
    "kernels/attention": "attention",
    "kernels/rms_norm": "norms",
    "kernels/rotary": "rotary positions",
    "kernels/swiglu": "SwiGLU",
    "kernels/linear_cross_entropy": "loss head",
    "kernels/sliced_swiglu": "dynamic width",
    "kernels/hyper_connections": "hyper-connections",
    "model/ffn/dynamic": "dynamic width",
    "model/ffn/width": "dynamic width",
    "model/residual/hyper_connections": "hyper-connections",
    "model/residual": "residual",
    "training/objective": "objective",
    "nn/utils/clip_grad": "clipping",
    "torch/optim": "optimizer",
}
"""Part of a file's path -> what its operators are counted as, if they are no matrix products."""
ELSEWHERE, PRODUCT = "other elementwise", "matrix products"


class OperatorTimes(TorchDispatchMode):
    """CPU seconds of every operator called inside, by what it belongs to, and the FLOPs of matrix products.

    In the backward pass an operator belongs where the one that it differentiates was called.
    """

    def __init__(self):
        super().__init__()
        self.seconds: dict[str, float] = defaultdict(float)
        self.product_flops = 0
        self._places: dict[int, str] = {}
        """By the number that autograd gives a node when it is made."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = OPDEFS.get(func._schema.name)
        if ours is not None:
            with self:  # what it is made of is timed instead
                return ours._init_fn(*args, **(kwargs or {}))
        name, place = func._schema.name.split("::")[1], self._place()
        began = time.process_time()
        found = func(*args, **(kwargs or {}))
        self.seconds[_counted_as(name, place)] += time.process_time() - began
        if name in PRODUCTS:
            a, b = args[-2:]
            self.product_flops += 2 * a.numel() * b.shape[-1]
        return found

    def _place(self) -> str:
        frame, own = sys._getframe(2), None
        while frame is not None and own is None:
            own = next((name for part, name in PLACES.items() if part in frame.f_code.co_filename), None)
            frame = frame.f_back
        node = torch._C._current_autograd_node()
        if node is not None:
            return own or self._places.get(node._sequence_nr(), ELSEWHERE)
        self._places.setdefault(_get_sequence_nr() - 1, own or ELSEWHERE)
        return own or ELSEWHERE


def _counted_as(name: str, place: str) -> str:
    if name in PRODUCTS:
        return PRODUCT
    return "casts and copies" if name in CASTS and place == ELSEWHERE else place


def recipe_of(variant: str, times: int, precision: Precision) -> Recipe:
    """A recipe of the quickstart, so many times as wide as 128, which is twice the quickstart's width."""
    data = read_recipe(QUICKSTART)
    data = merge(merge(data, data.pop("compare")["variants"][variant]), SIZES)
    model = data["model"]
    model["d_model"] *= 2 * times
    model["attention"]["head_dim"] = HEAD_DIMS[times]
    if "d_hidden" in model["ffn"]:
        model["ffn"]["d_hidden"] *= 2 * times
    data["train"]["precision"] = precision
    return parse(Recipe, data, variant)


def peak_flops(precision: Precision, size: int, n_rounds: int = 5) -> float:
    """FLOP per CPU second of the product of two large matrices: the best of the rounds."""
    a, b = (torch.randn(size, size).to(DTYPES[precision]) for _ in range(2))
    seconds = []
    for _ in range(n_rounds):
        began = time.process_time()
        torch.mm(a, b)
        seconds.append(time.process_time() - began)
    return 2 * size**3 / min(seconds)


def step_shares(variant: str, times: int, precision: Precision, n_rounds: int, peak_size: int = 1024) -> dict[str, Any]:
    """Shares of the CPU time of a step, and the rate of its matrix products over the peak."""
    recipe = recipe_of(variant, times, precision)
    watched: list[OperatorTimes] = []
    with threads(1), tempfile.TemporaryDirectory() as folder:
        tokens = sources(Path(folder), 1, 20 * recipe.tokens_per_step)
        loader = Loader(tokens, seq_len=recipe.seq_len, batch_size=recipe.train.batch_size, seed=1)
        train_state = TrainState.untrained(recipe, recipe.phases[0])

        def step() -> None:
            train_state.train_step(1, next(loader))

        def watched_step() -> None:
            operators, began = OperatorTimes(), time.process_time()
            batch = next(loader)
            operators.seconds["data"] = time.process_time() - began
            with operators:
                train_state.train_step(1, batch)
            watched.append(operators)

        found = interleave({"step": step, "watched": watched_step}, n_rounds=n_rounds)["step"]
        peak = peak_flops(precision, peak_size)
    step_seconds = quantiles(found.cpu)
    seconds = _medians(watched[-n_rounds:])
    product_flops = watched[-1].product_flops
    shares = {name: own / step_seconds["median"] for name, own in seconds.items()}
    shares["Python and autograd"] = 1 - sum(shares.values())
    rate = product_flops / seconds[PRODUCT] / peak
    rest = sorted(((share, name) for name, share in shares.items() if name != PRODUCT), reverse=True)
    return {
        "n_params": sum(parameter.numel() for parameter in train_state.model.parameters()),
        "step_cpu_seconds": step_seconds,
        "shares": shares,
        "product_flops": product_flops,
        "peak_flops_per_second": peak,
        "rate_over_peak": rate,
        "summary": f"{shares[PRODUCT]:.2f} in matrix products at {rate:.2f} of the peak; "
        + ", ".join(f"{share:.3f} {name}" for share, name in rest[:6]),
    }


def _medians(rounds: list[OperatorTimes]) -> dict[str, float]:
    names = {name for each in rounds for name in each.seconds}
    return {name: float(np.median([each.seconds[name] for each in rounds])) for name in sorted(names)}


def parts(quick: bool) -> list[Part]:
    """Wide models make fewer rounds, because one takes seconds. A quick run is in fp32, which is fast on every CPU."""
    found = []
    for times, n_rounds in ((1, 1),) if quick else ((1, 9), (2, 5), (4, 3)):
        for precision, variant in product(("fp32",) if quick else DTYPES, VARIANTS):
            run = partial(step_shares, variant, times, precision, n_rounds)
            found.append(Part(f"{variant}/{128 * times}/{precision}", lambda _, run=run: run(), seconds=120))
    return found


def main(argv: list[str] | None = None) -> int:
    return cpu_command(__doc__, "step_shares", parts, total_seconds=1800, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
