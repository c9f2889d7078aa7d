"""Proposal of a model and its number of tokens for given devices and days, by a scaling law.

Compute is days x devices x utilisation x peak. By default a model of N parameters trains on 20 N tokens (Hoffmann et
al. 2022, arXiv:2203.15556), about 6 N x 20 N FLOPs; the exact FLOPs are used, including attention. The proposal is the
largest model of the family that fits into compute and memory. If memory limits the model, it trains on more tokens.
A `size` is the number of heads of a model of the family, on which width and depth depend.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from widthwise.computing import ActivationCheckpointing
from widthwise.config_io import parse
from widthwise.data.config import DataConfig
from widthwise.data.corpus import named_corpus
from widthwise.mistakes import UserError
from widthwise.recipe.design import HEAD_DIM, WIDTH_PER_LAYER, Family
from widthwise.recipe.recipe import Recipe
from widthwise.runs.plan import BYTES_PER_TOKEN, CHEAPEST_FIRST, LAW_TOKENS_PER_PARAM, Planner
from widthwise.training.devices import NEEDS_SPEED, Device

TOKENS_PER_PASS = 8192
"""Least number of tokens in a pass for efficient matrix products. A model that needs smaller passes is too large."""
PATH_TO_FILL_IN = "FILL_IN"
"""Value of `data.path` if the family's corpus has too few tokens."""
MOST_EPOCHS = 4
"""Up to this number of epochs, repeated tokens are nearly as good as new ones (Muennighoff et al. 2023,
arXiv:2305.16264)."""
LARGEST_SIZE = 512
"""Limit of the search: from here on sizes are not doubled."""


@dataclass(frozen=True)
class Proposal:
    """A proposed recipe, with its reason."""

    recipe: Recipe
    data: dict[str, Any]
    """The recipe as in a file."""
    law: str


def propose(
    family: Family,
    device: Device,
    n_devices: int,
    days: float | None,
    tokens_per_param: float,
    n_params: float | None,
) -> Proposal:
    """Return the recipe of a family's model for some devices.

    days: limit of the training time, or None. tokens_per_param: of the law. n_params: approximate parameters of the
    model; default: by the law. Raises UserError if the smallest model does not fit, or for days on a device of unknown
    speed.
    """
    rate = device.flops_per_second
    if not rate and days is not None and n_params is None:
        raise UserError(NEEDS_SPEED)
    flops = rate * n_devices * days * 86400 if rate and days is not None else math.inf

    def fits(recipe: Recipe, kind: ActivationCheckpointing) -> bool:
        """Return True if a pass of TOKENS_PER_PASS fits, in a step of several passes."""
        n_sequences = max(1, TOKENS_PER_PASS // recipe.seq_len)
        sizes = {"batch_size": 2 * n_sequences * n_devices, "micro_batch_size": n_sequences}
        train = recipe.train.model_copy(update={**sizes, "activation_checkpointing": kind})
        planner = Planner(recipe.model_copy(update={"train": train}), n_devices)
        return planner.memory(train).total_bytes <= device.memory_bytes

    def params(size: int) -> float:
        return family.uniform(size).explicit_model.cost().params

    def affordable(size: int) -> float:
        """Return the largest tokens per parameter for which the compute suffices."""
        recipe = family.uniform(size)
        cost = recipe.explicit_model.cost()
        return flops / cost.training_flops(recipe.seq_len) / cost.params

    if n_params is not None:
        requested = n_params
        low = max(1, _largest(lambda size: params(size) <= requested))
        size = min(low, low + 1, key=lambda size: abs(params(size) - requested))
        law = f"the size nearest to {n_params:,.0f} parameters"
        is_short = affordable(size) < tokens_per_param
    else:
        size = _largest(lambda size: affordable(size) >= tokens_per_param and fits(family.uniform(size), "layer"))
        if size == 0:
            raise UserError(f"--device: not even d_model = {HEAD_DIM} fits on {device.name}; give more days or memory")
        is_short = flops < math.inf and affordable(size + 1) >= tokens_per_param  # limited by memory
        law = "the largest model"
        if is_short or flops == math.inf:
            law += " that fits into the memory"
    ratio = affordable(size) if is_short else tokens_per_param
    n_tokens = ratio * params(size)
    kind = CHEAPEST_FIRST[-1]  # needs the least memory
    for cheaper in CHEAPEST_FIRST[:-1]:
        if fits(family.uniform(size), cheaper):
            kind = cheaper
            break
    recipe, _ = family.recipe(size, n_tokens, {"activation_checkpointing": kind})
    micro_batch_size = Planner(recipe, n_devices).largest_pass(device, kind).micro_batch_size or 1
    train_section = {"activation_checkpointing": kind, "micro_batch_size": micro_batch_size}
    recipe, data = family.recipe(size, n_tokens, train_section)
    if not family.has_data:
        section = recipe.data
        assert isinstance(section, DataConfig)
        assert section.corpus is not None
        n_bytes = (1 - (section.held_out or 0)) * sum(len(document.text) for document in named_corpus(section.corpus))
        n_tokens_of_corpus = n_bytes / (1 if section.tokenizer == "bytes" else BYTES_PER_TOKEN)
        if recipe.n_tokens > MOST_EPOCHS * n_tokens_of_corpus:
            data["data"] = {"path": PATH_TO_FILL_IN, "tokenizer": data["data"]["tokenizer"]}
            recipe = parse(Recipe, data, "proposal")
    if n_params is not None:
        nearest = recipe.explicit_model.cost().params
        law += f", {nearest:,} ({nearest / n_params - 1:+.1%})"
    text = f"{law}; {ratio:.3g} tokens per parameter"
    if is_short:
        text += ", the most that the compute allows"
    elif ratio == LAW_TOKENS_PER_PARAM:
        text += " (Hoffmann et al. 2022, arXiv:2203.15556)"
    return Proposal(recipe, data, f"{text}; d_model = {WIDTH_PER_LAYER} x layers")


def _largest(is_possible: Callable[[int], bool]) -> int:
    """Return the largest possible size, by doubling and bisection; 0 if not even 1 is possible."""
    high = 1
    while high <= LARGEST_SIZE and is_possible(high):
        high *= 2
    low = high // 2
    return low + bisect_left(range(low + 1, high), True, key=lambda size: not is_possible(size))
