"""Comparisons at several scales whose differences follow from a formula. They have no runs: the page needs none."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fake_comparison import at_equal_loss, cost, estimate
from page_section import write as write_record

SEEDS = (1, 2, 3)
HALF_WIDTH = 0.01
BASE_TOKENS = 5_000_000
DOUBLING = 0.1
"""Nats that twice the tokens are worth."""
DATA = {"corpus": {"name": "books", "fingerprint": "f"}, "files": {}, "tokenizer": {"spec": "bpe-1024", "id": "i"}}

Difference = Callable[[float], float]
"""Difference to the baseline after so many doublings of BASE_TOKENS."""
EFFECTS: Mapping[str, Difference] = {
    "turns": lambda doublings: -0.03 + 0.03 * doublings,
    "helps": lambda doublings: -0.05 + 0.01 * doublings,
    "noise": lambda doublings: 0.002 * doublings,
}
"""`turns` is -0.03, 0, 0.03 after 0, 1, 2 doublings; `helps` stays below -0.03; `noise` is within HALF_WIDTH of 0."""


def comparison_data(
    width: int, doublings: int, effects: Mapping[str, Difference] = EFFECTS, seeds: Sequence[int] = SEEDS
) -> dict[str, Any]:
    """One of five layers of this width, trained on BASE_TOKENS * 2**doublings tokens."""
    tokens = BASE_TOKENS * 2**doublings
    variants: list[dict[str, Any]] = [_variant("uniform", width, tokens, 0.0, seeds) | {"verdict": "baseline"}]
    for name, at in effects.items():
        own = _variant(name, width, tokens, at(doublings), seeds)
        own["difference"] = estimate(at(doublings), HALF_WIDTH, len(seeds))
        ratio = estimate(math.exp2(at(doublings) / DOUBLING), 0.1, len(seeds))
        variants.append(own | {"at_equal_loss": {"val_loss": at_equal_loss(tokens_ratio=ratio)}})
    command = f"widthwise compare configs/w{width}.yaml train.steps={tokens // 1000}"
    about = {"title": f"width {width}", "command": command, "created": "2026-11-23T03:00:00+00:00"}
    about |= {"confidence": 0.95, "seeds": list(seeds), "baseline": "uniform", "matched": "params"}
    return {**about, "environment": {"python": "3.11.7", "data": DATA}, "points": variants}


def _variant(name: str, width: int, tokens: int, offset: float, seeds: Sequence[int]) -> dict[str, Any]:
    loss = 3 + offset - DOUBLING * math.log2(tokens / BASE_TOKENS)
    return {
        "name": name,
        "state": "finished",
        "runs": [f"runs/{name}-seed{seed}" for seed in seeds],
        "val_loss": {"mean": loss, "per_seed": [loss] * len(seeds)},
        "cost": cost([width] * 5),
        "ratio": {"params": 1.0},
        "measured": {"tokens": {"mean": float(tokens), "per_seed": [float(tokens)] * len(seeds)}},
    }


def write(folder: Path, data: Mapping[str, Any]) -> Path:
    return write_record(folder / "outcome.json", data)


def write_scales(folder: Path, effects: Mapping[str, Difference] = EFFECTS) -> list[Path]:
    """Two sizes, each after 0 and 2 doublings; the larger one after 2 lacks `noise`."""
    folders = []
    for width in (64, 192):
        for doublings in (0, 2):
            lacks = {"noise"} if (width, doublings) == (192, 2) else set()
            own = {name: at for name, at in effects.items() if name not in lacks}
            folders.append(write(folder / f"w{width}-d{doublings}", comparison_data(width, doublings, own)))
    return folders
