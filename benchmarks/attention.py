"""Attention in blocks beside torch's fused function on the CPU: time of a forward pass, and of one with backward.

python benchmarks/attention.py [--out benchmarks/results/attention_cpu.json]
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from harness import Part, cpu_parser, interleave, run_parts, summarise, threads
from torch import Tensor
from workloads import DTYPES

from widthwise.computing import Precision
from widthwise.kernels.attention import sdpa_attention
from widthwise.kernels.attention_in_blocks import Scoring, attention_in_blocks

D_MODEL, N_TOKENS = 256, 1024
FORMS = {"sdpa": sdpa_attention, "blocks": attention_in_blocks}


class Case(NamedTuple):
    """Heads that are D_MODEL wide together, and texts of at least N_TOKENS tokens together."""

    seq_len: int
    head_dim: int
    kv_group_size: int = 1
    n_documents: int = 1
    """In each text, of one length."""

    @property
    def name(self) -> str:
        name = f"{self.seq_len} tokens, heads of {self.head_dim}"
        if self.kv_group_size > 1:
            name += f", {self.kv_group_size} query heads to a key-value head"
        return name if self.n_documents == 1 else f"{name}, {self.n_documents} documents"

    def documents(self) -> Tensor | None:
        if self.n_documents == 1:
            return None
        documents = torch.arange(self.seq_len) * self.n_documents // self.seq_len
        return documents.expand(self.n_texts, self.seq_len)

    @property
    def n_texts(self) -> int:
        return max(1, N_TOKENS // self.seq_len)

    def heads(self, dtype: torch.dtype) -> list[Tensor]:
        """Queries, keys and values as projections leave them."""
        n_heads, generator = D_MODEL // self.head_dim, torch.Generator().manual_seed(0)
        n_kv_heads = n_heads // self.kv_group_size
        sizes = [(self.n_texts, self.seq_len, n, self.head_dim) for n in (n_heads, n_kv_heads, n_kv_heads)]
        drawn = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
        return [x.transpose(1, 2).requires_grad_() for x in drawn]


CASES = [
    *(Case(seq_len, head_dim) for head_dim in (16, 32, 64, 128) for seq_len in (64, 256, 1024)),
    *(Case(seq_len, 64) for seq_len in (32, 128, 512, 2048)),
    Case(512, 64, kv_group_size=4),
    Case(512, 64, n_documents=4),
]


def run_of(form: Callable[..., Tensor], case: Case, dtype: torch.dtype, with_backward: bool) -> Callable[[], object]:
    """One call of a form: with its gradients, or without autograd."""
    inputs, documents = case.heads(dtype), case.documents()
    attend = partial(form, *inputs, Scoring(case.head_dim**-0.5), documents)
    if not with_backward:
        return torch.no_grad()(attend)
    direction = torch.randn_like(attend())
    return lambda: torch.autograd.grad(attend(), inputs, direction)


def blocks_over_sdpa(case: Case, precision: Precision, n_threads: int, n_rounds: int = 7) -> dict[str, Any]:
    """Both forms in turn, on so many threads."""
    report, ratios = {}, {}
    with threads(n_threads):
        for name, with_backward in (("forward", False), ("forward and backward", True)):
            runs = {form: run_of(call, case, DTYPES[precision], with_backward) for form, call in FORMS.items()}
            report[name] = summarise(interleave(runs, n_rounds=n_rounds), "sdpa")
            ratios[name] = report[name]["blocks"]["cpu_ratio" if n_threads == 1 else "wall_ratio"]["median"]
    found = ", ".join(f"{ratio:.2f} {name}" for name, ratio in ratios.items())
    return {"variants": report, "ratios": ratios, "summary": f"blocks / sdpa {found}"}


def main(argv: list[str] | None = None) -> int:
    parser = cpu_parser(__doc__, "attention")
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1], help="how many, one after the other (default: 1)"
    )
    arguments = parser.parse_args(argv)
    parts = [
        Part(
            f"{case.name}/{precision}/{n_threads} thread{'s' * (n_threads > 1)}",
            lambda _, each=(case, precision, n_threads): blocks_over_sdpa(*each),
            seconds=20,
        )
        for n_threads in arguments.threads
        for precision in DTYPES
        for case in CASES
    ]
    return 0 if run_parts(parts, arguments.out, "cpu", total_seconds=600) else 1


if __name__ == "__main__":
    sys.exit(main())
