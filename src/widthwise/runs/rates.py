"""Measuring the rates of this machine from which step times are predicted; it takes a few seconds."""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from widthwise.computing import Precision
from widthwise.config_io import UserError, parse
from widthwise.data.cache import cache_folder
from widthwise.files import read_json_mapping, write_atomic
from widthwise.kernels import attention, linear_cross_entropy, rms_norm, rotate, swiglu
from widthwise.kernels.precision import autocast
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.model.rope import Rope, rope_table
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.recipe.step_time import BYTES_PER_ELEMENT, predicted_step
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.rates import Rates
from widthwise.run_dir import RunDir
from widthwise.runs.environment import cpu_name
from widthwise.shape.template import ModelTemplate
from widthwise.training.objective import Objective
from widthwise.training.observer import Observer
from widthwise.training.step import optimizer_step

SEQ_LEN = 256
N_SEQUENCES = 4
WIDTH, HEAD_DIM, VOCAB_SIZE = 256, 32, 4096
N_LINKS = 6
BF16_GAIN = 1.3
"""How much faster than in fp32 a CPU's products in bf16 must be for `precision: auto` to mean bf16."""
PRODUCTS = ((64, 64), (64, 256), (128, 128), (128, 512), (256, 256), (256, 1024), (512, 512))
"""Sizes (n_in, n_out) of the products that are timed, each in a chain there and back."""
HEADS = ((16, 128), (64, 128), (16, 512), (64, 512))
"""(head_dim, tokens) of the attention that is timed."""
CPU = torch.device("cpu")


class Step:
    """A step of `train` on one batch, as something to call."""

    def __init__(self, model: ModelConfig, n_sequences: int, seq_len: int, precision: Precision):
        self.model = build(model, seed=0)
        self.optimizer = AdamWConfig(lr=1e-4).build(self.model)
        self.batch = torch.randint(model.vocab_size, (n_sequences, seq_len + 1))
        self.config = TrainConfig(steps=1, batch_size=n_sequences, precision=precision)
        self.objective = Objective(self.config, model, CPU)

    def __call__(self) -> None:
        optimizer_step(self.model, self.optimizer, self.batch, self.objective, self.config)


def chosen_precision(folder: Path, observer: Observer | None = None) -> Precision:
    """That of the runs in the folder of a run or an experiment, or else the faster one: for recipes that say `auto`."""
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
    x, weight = torch.ones(256, WIDTH), torch.ones(WIDTH, WIDTH)
    pairs = [(x.to(dtype), weight.to(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    rounds = [[seconds(partial(nn.functional.linear, *pair), n_calls=3) for pair in pairs] for _ in range(3)]
    return statistics.median(fp32 / bf16 for fp32, bf16 in rounds)


def step_seconds(recipe: Recipe) -> float:
    """Seconds of a training step of a recipe's model on this CPU, measured with this process's number of threads."""
    train = recipe.train
    return seconds(Step(recipe.explicit_model, train.batch_size, recipe.seq_len, train.settled_precision), n_calls=2)


def measured_rates(precision: Precision) -> Rates:
    """Those of this process's number of threads."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        flop, element = _products(dtype)
        score_flop, score = _attention(dtype)
        rates = Rates(
            machine=cpu_name(),
            torch=torch.__version__,
            n_threads=torch.get_num_threads(),
            precision=precision,
            seconds_per_flop=flop,
            seconds_per_product_element=element,
            seconds_per_product=0.0,
            seconds_per_score_flop=score_flop,
            seconds_per_score=score,
            seconds_per_kept_byte=_elementwise(precision, dtype),
            seconds_per_logit=_loss(precision, dtype, flop, element),
            seconds_per_param=_update(dtype),
        )
        return rates.with_changes(seconds_per_product=_overhead(precision, rates))


def known_rates(precision: Precision, path: Path | None = None) -> Rates:
    """Those of a file, or of this machine, which are measured once for each number of threads and kept in the cache.

    Raises UserError for a file that holds no rates, or those of another precision.
    """
    if path is not None:
        rates = _read(path)
        if rates.precision != precision:
            raise UserError(f"{path}: precision is {rates.precision}; must be the recipe's, {precision}")
        return rates
    kept = cache_folder() / "rates" / f"{_slug(precision)}.json"
    if kept.exists():
        return _read(kept)
    rates = measured_rates(precision)
    write_atomic(kept, rates.to_json() + "\n")
    return rates


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


def _products(dtype: torch.dtype) -> Sequence[float]:
    """Seconds per FLOP and per number moved.

    A chain of several products has operands that left the cache by the time of the backward pass, as in a model.
    """
    counts, times, n_tokens = [], [], N_SEQUENCES * SEQ_LEN
    for n_in, n_out in PRODUCTS:
        sizes = [(n_in, n_out), (n_out, n_in)] * (N_LINKS // 2)
        weights = [torch.randn(out, in_).mul_(in_**-0.5).to(dtype).requires_grad_() for in_, out in sizes]
        x = torch.randn(n_tokens, n_in, dtype=dtype, requires_grad=True)

        def run(x: Tensor = x, weights: list[Tensor] = weights) -> None:
            y = x
            for weight in weights:
                y = nn.functional.linear(y, weight)
            torch.autograd.grad(y, [x, *weights], y.detach())

        n = len(sizes)
        counts.append((6 * n_tokens * n_in * n_out * n, n_tokens * (n_in + n_out) * n))
        times.append(seconds(run))
    return _relative_fit(counts, times)


def _attention(dtype: torch.dtype) -> Sequence[float]:
    """Seconds per forward FLOP below the diagonal, and per score there."""
    counts, times = [], []
    for head_dim, n_tokens in HEADS:
        n_heads = WIDTH // head_dim
        q, k, v = (torch.randn(N_SEQUENCES, n_heads, n_tokens, head_dim).to(dtype).requires_grad_() for _ in range(3))

        def run(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> None:
            y = attention(q, k, v, q.shape[-1] ** -0.5)
            torch.autograd.grad(y, [q, k, v], y.detach())

        n_scores = N_SEQUENCES * n_heads * n_tokens**2 / 2
        counts.append((4 * head_dim * n_scores, n_scores))
        times.append(seconds(run))
    return _relative_fit(counts, times)


def _elementwise(precision: Precision, dtype: torch.dtype) -> float:
    """Seconds per byte that layers keep: with neither products nor attention, but with norms, rotation, gate and
    residual additions.
    """
    d_ff = 4 * WIDTH
    x, gain = torch.randn(N_SEQUENCES, SEQ_LEN, WIDTH, requires_grad=True), torch.ones(WIDTH, requires_grad=True)
    hidden = [torch.randn(N_SEQUENCES, SEQ_LEN, d_ff).to(dtype).requires_grad_() for _ in range(2 * N_LINKS)]
    cos, sin = rope_table(torch.arange(SEQ_LEN)[None], Rope(HEAD_DIM, 1e4))

    def run() -> None:
        y, ends = x, []
        with autocast(CPU, precision):
            for gate, up in zip(hidden[::2], hidden[1::2], strict=True):
                heads = rms_norm(y, gain, 1e-5, WIDTH).unflatten(-1, (-1, HEAD_DIM))
                y = y + (rotate(heads, cos, sin) + rotate(heads, cos, sin)).flatten(-2)
                y = y + rms_norm(y, gain, 1e-5, WIDTH)
                ends.append(swiglu(gate, up))
        ends.append(y)
        torch.autograd.grad(ends, [x, gain, *hidden], [end.detach() for end in ends])

    n_kept = 2 * WIDTH + 4 * WIDTH + 3 * d_ff  # of norms, of attention, of a gate
    return seconds(run) / (N_LINKS * N_SEQUENCES * SEQ_LEN * n_kept * BYTES_PER_ELEMENT[precision])


def _loss(precision: Precision, dtype: torch.dtype, flop: float, element: float) -> float:
    """Seconds per logit beside the products."""
    n_tokens = N_SEQUENCES * SEQ_LEN
    hidden = torch.randn(n_tokens, WIDTH).to(dtype).requires_grad_()
    weight = torch.randn(VOCAB_SIZE, WIDTH).mul_(0.02).requires_grad_()
    targets = torch.randint(VOCAB_SIZE, (n_tokens,))

    def run() -> None:
        with autocast(CPU, precision):
            losses = linear_cross_entropy(hidden, weight, targets, 1.0)[0]
        torch.autograd.grad(losses.sum(), [hidden, weight])

    n_logits = n_tokens * VOCAB_SIZE
    products = 6 * n_logits * WIDTH * flop + n_tokens * (WIDTH + VOCAB_SIZE) * element
    return max(0.0, seconds(run) - products) / n_logits


def _update(dtype: torch.dtype) -> float:
    """Seconds per parameter."""
    weights = [torch.randn(4 * WIDTH, WIDTH, requires_grad=True) for _ in range(2 * N_LINKS)]
    optimizer = torch.optim.AdamW(weights, lr=1e-6, fused=True)

    def run() -> None:
        for weight in weights:
            weight.grad = weight.detach().to(dtype).to(torch.float32)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()

    return seconds(run) / sum(weight.numel() for weight in weights)


def _overhead(precision: Precision, rates: Rates) -> float:
    """Seconds per product that the other rates leave open in layers too small to compute much: calling operations."""
    rest, n_products = [], []
    for n_layers in (2, 10):
        data = {"vocab_size": 64, "d_model": 32, "n_layers": n_layers, "attention": {"head_dim": HEAD_DIM}}
        model = parse(ModelTemplate, data).resolve(SEQ_LEN)
        rest.append(seconds(Step(model, 1, SEQ_LEN, precision)) - predicted_step(model, SEQ_LEN, SEQ_LEN, rates).total)
        n_products.append(model.cost().n_products)
    return max(0.0, rest[1] - rest[0]) / (n_products[1] - n_products[0])


def _relative_fit(counts: Sequence[Sequence[float]], times: Sequence[float]) -> Sequence[float]:
    """x >= 0 with counts @ x near the times, each miss as a fraction of its time."""
    from scipy.optimize import nnls  # slow to import, and not needed to train

    rows = np.array(counts) / np.array(times)[:, None]
    scales = rows.max(axis=0)
    found, _ = nnls(rows / scales, np.ones(len(times)))
    return [float(each) for each in found / scales]


def _read(path: Path) -> Rates:
    return parse(Rates, read_json_mapping(path), str(path))


def _slug(precision: Precision) -> str:
    """What the rates depend on, as the name of a file."""
    parts = (cpu_name(), f"{torch.get_num_threads()}-threads", f"torch-{torch.__version__}", precision)
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower())
