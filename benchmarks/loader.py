"""How fast batches come, next to how fast the quickstart consumes them, and whether memory grows with their number.

python benchmarks/loader.py [--quick] [--out benchmarks/results/loader_cpu.json]

The fastest model of the quickstart makes a training step, then the loader reads many batches of the same size: from one
source, from a mixture of 2 and from one of 12.
"""

import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT, Part, cpu_command, interleave, summarise
from workloads import TrainingStep, random_batch

from widthwise.data.loader import Loader
from widthwise.data.mixture import TokenMixture
from widthwise.data.shards import ShardWriter, TokenFile
from widthwise.experiments.compare import read_plan
from widthwise.model.decoder import build

TARGET = 20.0
"""Times as many tokens per second as the quickstart consumes."""
FASTEST = "x"
"""Variant of the quickstart."""
N_SOURCES = (1, 2, 12)
FULL = {"n_tokens": 4_000_000, "n_batches": 100, "n_rounds": 10, "n_batches_of_memory": 4_000}
QUICK = {"n_tokens": 60_000, "n_batches": 10, "n_rounds": 1, "n_batches_of_memory": 50}


def sources(folder: Path, n_sources: int, n_tokens: int) -> TokenFile | TokenMixture:
    """Random tokens: so many in all, in files of which each is smaller and rarer than the one before."""
    weights = {f"source_{index:02d}": n_sources - index for index in range(n_sources)}
    files, random = {}, np.random.default_rng(0)
    for name, weight in weights.items():
        own = random.integers(0, 2048, n_tokens * weight // sum(weights.values()), dtype=np.uint16)
        with ShardWriter(folder / name, np.dtype("<u2")) as writer:
            writer.add(own, np.array([len(own)]))
        files[name] = TokenFile(folder / name)
    return TokenMixture(files, weights) if n_sources > 1 else next(iter(files.values()))


def own_memory_bytes() -> int | None:
    """Memory of this process without mapped files, whose pages the system may drop; None where it does not tell."""
    status = Path("/proc/self/status")
    found = re.search(r"RssAnon:\s*(\d+) kB", status.read_text()) if status.is_file() else None
    return None if found is None else 1024 * int(found[1])


def read_batches(loader: Loader, n_batches: int) -> None:
    for _ in range(n_batches):
        next(loader)


def memory_growth_bytes(loader: Loader, n_batches: int) -> int | None:
    """How much more memory the process has after so many batches."""
    before = own_memory_bytes()
    read_batches(loader, n_batches)
    after = own_memory_bytes()
    return None if before is None or after is None else after - before


def measure(n_sources: int, sizes: dict[str, int], seconds: float) -> dict[str, Any]:
    recipe = read_plan([ROOT / "configs" / "quickstart.yaml"]).recipes[FASTEST]
    model, batch_size = build(recipe.explicit_model, seed=0), recipe.train.batch_size
    tokens, targets = random_batch(recipe.explicit_model.vocab_size, batch_size, recipe.seq_len)
    step = TrainingStep(model, lambda: model.loss(tokens, targets)[0], recipe.train.precision)
    n_batches = sizes["n_batches"]
    with tempfile.TemporaryDirectory() as name:
        data = sources(Path(name), n_sources, sizes["n_tokens"])
        loader = Loader(data, seq_len=recipe.seq_len, batch_size=batch_size, seed=1)
        variants = {"step": step, "batches": partial(read_batches, loader, n_batches)}
        times = interleave(variants, n_rounds=sizes["n_rounds"], n_warmup=1)
        growth = memory_growth_bytes(loader, sizes["n_batches_of_memory"])
    found = summarise(times, "step")
    rate = n_batches * recipe.tokens_per_step / found["batches"]["wall_seconds"]["median"]
    multiple = n_batches / found["batches"]["wall_ratio"]["median"]
    return {
        "variants": found,
        "n_batches": n_batches,
        "tokens_per_second": rate,
        "multiple_of_quickstart": multiple,
        "memory_growth_bytes": growth,
        "n_batches_of_memory": sizes["n_batches_of_memory"],
        "target": TARGET,
        "meets_target": multiple >= TARGET,
        "summary": f"{rate:,.0f} tokens/s, {multiple:.0f} times what the quickstart consumes; after "
        f"{sizes['n_batches_of_memory']:,} further batches {growth} bytes more",
    }


def main(argv: list[str] | None = None) -> int:
    def parts(quick: bool) -> list[Part]:
        sizes = QUICK if quick else FULL
        return [Part(f"{n}_sources", partial(measure, n, sizes), seconds=120) for n in N_SOURCES]

    return cpu_command(__doc__, "loader", parts, 300, argv)


if __name__ == "__main__":
    sys.exit(main())
