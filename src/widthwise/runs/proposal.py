"""The inverse of a plan: from devices and days to a model and its tokens, by a law.

Compute is days x devices x utilisation x peak. A model of N parameters is to see 20 N tokens (Hoffmann et al. 2022,
arXiv:2203.15556), which takes about 6 N x 20 N FLOPs; here the model's own FLOPs are counted, attention included. The
largest model of the family is taken that the compute trains so and that fits into the memory. Where memory is the
tighter bound, the compute goes into more tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from widthwise.computing import ActivationCheckpointing
from widthwise.config_io import UserError, parse
from widthwise.recipe.design import HEAD_DIM, WIDTH_PER_LAYER, Family
from widthwise.recipe.recipe import Recipe
from widthwise.runs.plan import CHEAPEST_FIRST, LAW_TOKENS_PER_PARAM, MOST_EPOCHS, Planner, data_epochs
from widthwise.training.devices import Device, needs_speed

TOKENS_PER_PASS = 8192
"""A pass is to have so many at least, that its matrix products are efficient; a model that leaves room for fewer is
called too large."""
PATH_TO_FILL_IN = "FILL_IN"
"""Value of `data.path` where the family's corpus does not hold the tokens."""
LARGEST_SIZE = 512
"""Heads of the largest model that is proposed; its width follows from them."""


@dataclass(frozen=True)
class Request:
    """The devices, and what is to be trained on them."""

    device: Device
    n_devices: int
    days: float | None
    """None: as long as it takes."""
    tokens_per_param: float
    n_params: float | None
    """None: the number by the law."""

    def fits(self, recipe: Recipe, kind: ActivationCheckpointing) -> bool:
        """Return True where a pass of TOKENS_PER_PASS fits, one of several of a step."""
        n_sequences = max(1, TOKENS_PER_PASS // recipe.seq_len)
        sizes = {"batch_size": 2 * n_sequences * self.n_devices, "micro_batch_size": n_sequences}
        train = recipe.train.model_copy(update={**sizes, "activation_checkpointing": kind})
        planner = Planner(recipe.model_copy(update={"train": train}), self.n_devices)
        return planner.memory(train).total_bytes <= self.device.memory_bytes


@dataclass(frozen=True)
class Proposal:
    """A recipe, and why it is this one."""

    recipe: Recipe
    data: dict[str, Any]
    """The recipe as a file has it."""
    law: str


def propose(request: Request, family: Family) -> Proposal:
    """The recipe for a request. Raises UserError where not even the smallest model fits, or days lack a speed."""
    device, rate = request.device, request.device.flops_per_second
    if not rate and request.days is not None and request.n_params is None:
        raise needs_speed(device)
    flops = rate * request.n_devices * request.days * 86400 if rate and request.days is not None else math.inf

    def params(size: int) -> float:
        return family.uniform(size).explicit_model.cost().params

    def affordable(size: int) -> float:
        """Tokens per parameter that the days have compute for."""
        recipe = family.uniform(size)
        cost = recipe.explicit_model.cost()
        return flops / cost.training_flops(recipe.seq_len) / cost.params

    def is_trained(size: int) -> bool:
        return request.tokens_per_param <= affordable(size)

    if request.n_params is not None:
        low = max(1, _largest(lambda size: params(size) <= (request.n_params or 0)))
        size = min(low, low + 1, key=lambda size: abs(params(size) - (request.n_params or 0)))
        law, is_short = f"the size nearest to {request.n_params:,.0f} parameters", not is_trained(size)
    else:
        size = _largest(lambda size: is_trained(size) and request.fits(family.uniform(size), "layer"))
        if size == 0:
            raise UserError(f"--device: not even d_model = {HEAD_DIM} fits on {device.name}; give more days or memory")
        is_short = flops < math.inf and is_trained(size + 1)  # so it is memory that ended it
        law = "the largest model" + (" that fits into the memory" if is_short or flops == math.inf else "")
    tokens_per_param = affordable(size) if is_short else request.tokens_per_param
    uniform, n_tokens = family.uniform(size), tokens_per_param * params(size)
    kind = CHEAPEST_FIRST[-1]  # needs the least memory
    for each in CHEAPEST_FIRST[:-1]:
        if request.fits(uniform, each):
            kind = each
            break
    recipe, _ = family.recipe(size, n_tokens, {"activation_checkpointing": kind})
    pass_of = Planner(recipe, request.n_devices).setup(device, kind).micro_batch_size or 1
    changes = {"activation_checkpointing": kind, "micro_batch_size": pass_of}
    recipe, data = family.recipe(size, n_tokens, changes)
    if not family.has_data and data_epochs(recipe) > MOST_EPOCHS:
        data["data"] = {"path": PATH_TO_FILL_IN, "tokenizer": data["data"]["tokenizer"]}
        recipe = parse(Recipe, data, "proposal")
    if request.n_params is not None:
        n_params = recipe.explicit_model.cost().params
        law += f", {n_params:,} ({n_params / request.n_params - 1:+.1%})"
    text = f"{law}; {tokens_per_param:.3g} tokens per parameter"
    if is_short:
        text += ", all that the compute gives"
    elif tokens_per_param == LAW_TOKENS_PER_PARAM:
        text += " (Hoffmann et al. 2022, arXiv:2203.15556)"
    return Proposal(recipe, data, f"{text}; d_model = {WIDTH_PER_LAYER} x layers")


def _largest(is_possible: Callable[[int], bool]) -> int:
    """The largest size for which it holds, given that it holds for all smaller ones; 0 where it holds for none."""
    low, high = 0, 1
    while high <= LARGEST_SIZE and is_possible(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    return low
