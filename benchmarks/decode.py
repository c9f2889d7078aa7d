"""Cached greedy decoding on the CPU: a ><former and transformers' `generate` beside the uniform model.

OMP_NUM_THREADS=1 python benchmarks/decode.py [--quick] [--out benchmarks/results/decode_cpu.json]
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from harness import Part, cpu_command, interleave, summarise
from torch import Tensor, nn
from workloads import DTYPES, cost_ratios, template

from widthwise.computing import Precision
from widthwise.interop.hf_export import FolderExtras, export_hf
from widthwise.model.context import KVCache
from widthwise.model.decoder import Decoder, build
from widthwise.model.generate import SamplingConfig, continue_cached

GREEDY = SamplingConfig(temperature=0)
X_TARGET, TRANSFORMERS_TARGET = 1.05, 1.5
"""Tokens per second: the ><former's over the uniform model's, and the uniform model's over transformers'."""


@dataclass(frozen=True)
class Case:
    """A uniform model, and texts that are continued by a few tokens."""

    d_model: int
    head_dim: int
    batch_size: int
    context: int
    """Tokens in the cache."""
    n_new: int
    precision: Precision
    n_layers: int = 8
    vocab_size: int = 4096

    @property
    def name(self) -> str:
        return f"d{self.d_model}/batch_{self.batch_size}/context_{self.context}/{self.precision}"

    def model(self, shape: str) -> Decoder:
        config = template(self.d_model, self.n_layers, self.head_dim, self.vocab_size, shape).resolve(self.context)
        return build(config, seed=0, dtype=DTYPES[self.precision])

    def texts(self) -> Tensor:
        """(batch_size, context + 1): what the cache is of, and the first token to be read."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.vocab_size, (self.batch_size, self.context + 1), generator=generator)


def full_cache(model: Decoder, case: Case) -> KVCache:
    """Room for the new tokens behind random keys and values, in all rows the same: the work does not depend on them."""
    cache, generator = model.new_cache(case.batch_size, case.context + case.n_new), torch.Generator().manual_seed(0)
    for layer in cache.layers:
        for held in (layer.keys, layer.values):
            shape = (1, held.shape[1], case.context, held.shape[3])
            held[:, :, : case.context] = torch.randn(shape, generator=generator)
    cache.advance(case.context)
    return cache


class Ours:
    """Decoding by our model, each call from the same cache."""

    def __init__(self, model: Decoder, case: Case):
        self.model, self.case, self.cache = model, case, full_cache(model, case)

    @torch.inference_mode()  # as `generate` does
    def __call__(self) -> Tensor:
        self.cache.rewind(self.case.context)
        last = self.case.texts()[:, -1:]
        found = continue_cached(self.model, self.cache, last, None, self.case.n_new, GREEDY, None)
        return torch.stack(list(found), dim=1)


class Theirs:
    """Decoding by transformers from a copy of our cache."""

    def __init__(self, model: Decoder, case: Case, cache: KVCache):
        from transformers import DynamicCache  # an extra, needed by this comparison alone

        self.model, self.case, self.cache = exported(model, case), case, DynamicCache()
        for i, layer in enumerate(cache.layers):
            keys, values = (held[:, :, : case.context].clone() for held in (layer.keys, layer.values))
            self.cache.update(keys, values, i)

    def __call__(self) -> Tensor:
        texts, n_new = self.case.texts(), self.case.n_new
        options = {"do_sample": False, "max_new_tokens": n_new, "min_new_tokens": n_new, "pad_token_id": 0}
        found = self.model.generate(  # pyright: ignore[reportCallIssue]
            texts, attention_mask=torch.ones_like(texts), past_key_values=self.cache, **options
        )
        self.cache.crop(-n_new)
        return found[:, texts.shape[1] :]


def exported(model: Decoder, case: Case) -> nn.Module:
    """The model as transformers loads it from the folder that we export."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        dtype = DTYPES[case.precision]
        extras = FolderExtras(n_positions=case.context + case.n_new + 1)
        export_hf(model.config, model.state_dict(), f"{folder}/model", extras, dtype)
        return AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=dtype).eval()


def decoding(case: Case, n_rounds: int) -> dict[str, Any]:
    """All three in turn. Raises ValueError where ours and transformers' tokens differ in fp32."""
    models = {shape: case.model(shape) for shape in ("uniform", "x")}
    ours = {shape: Ours(model, case) for shape, model in models.items()}
    theirs = Theirs(models["uniform"], case, ours["uniform"].cache)
    runs: dict[str, Callable[[], Tensor]] = {**ours, "transformers": theirs}
    n_equal = int((runs["uniform"]() == runs["transformers"]()).sum())
    n_tokens = case.batch_size * case.n_new
    if case.precision == "fp32" and n_equal < n_tokens:
        raise ValueError(f"{n_tokens - n_equal} of {n_tokens} tokens differ from transformers'")
    variants = summarise(interleave(runs, n_rounds=n_rounds, n_warmup=1), "uniform")
    for own in variants.values():
        own["tokens_per_cpu_second"] = n_tokens / own["cpu_seconds"]["median"]
    x_speed = 1 / variants["x"]["cpu_ratio"]["median"]
    our_speed = variants["transformers"]["cpu_ratio"]["median"]
    return {
        **cost_ratios(models["x"].config, models["uniform"].config, case.context),
        "n_new": case.n_new,
        "equal_tokens": n_equal / n_tokens,
        "x_over_uniform": x_speed,
        "x_target": X_TARGET,
        "uniform_over_transformers": our_speed,
        "transformers_target": TRANSFORMERS_TARGET,
        "variants": variants,
        "summary": f"tokens per CPU second: x / uniform {x_speed:.2f}, uniform / transformers {our_speed:.2f}",
    }


def cases() -> Iterator[Case]:
    """Few tokens where the cache is large."""
    for precision in DTYPES:
        for batch_size, context, n_new in ((1, 128, 24), (1, 2048, 24), (8, 128, 16), (8, 2048, 6), (64, 128, 6)):
            yield Case(256, 32, batch_size, context, n_new, precision)
        yield Case(256, 32, 64, 2048, 2, precision)
        for batch_size, context, n_new in ((1, 128, 8), (8, 128, 6), (8, 2048, 3)):
            yield Case(512, 64, batch_size, context, n_new, precision)


def parts(quick: bool) -> list[Part]:
    n_rounds = 2 if quick else 5
    toys = [Case(64, 16, 3, 9, 4, precision, n_layers=4, vocab_size=97) for precision in DTYPES]
    return [
        Part(case.name, lambda _, case=case: decoding(case, n_rounds), seconds=150)
        for case in (toys if quick else cases())
    ]


def main(argv: list[str] | None = None) -> int:
    return cpu_command(__doc__, "decode", parts, 1500, argv)


if __name__ == "__main__":
    sys.exit(main())
