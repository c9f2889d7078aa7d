"""First-order gain of a growth: the fall of the loss in a step of the new weights that are 0.

A growth leaves the function as it is, so that its worth cannot be seen in the loss, but in the gradient g: a step of
rate eta along it lowers the loss by eta times the sum of g^2, to first order, and one along its sign by eta times the
sum of |g|. The first is a step of SGD, the second the first one of Adam. Of several growths planned as one each has the
gradient it would have alone, because none of them changes the function.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from widthwise.growth.certificate import decoder_of
from widthwise.growth.plan import GrowthPlan
from widthwise.model.decoder import Decoder

Step = Callable[[Tensor], Tensor]
"""Negative step of an optimizer for a gradient, at a rate of 1."""
STEPS: Mapping[str, Step] = {"gradient": lambda gradient: gradient, "sign": torch.sign}
"""Steps of SGD, and the first step of Adam, of equal length for small and large gradients."""


def first_order_gains(
    plan: GrowthPlan, old: Mapping[str, Tensor], batches: Sequence[Tensor], seed: int, step: Step = STEPS["gradient"]
) -> dict[str, Tensor]:
    """Return the fall of the loss per rate for a step of each new entry that is 0, by parameter, column after column.

    old: weights of the old model; batches: an even number of (B, T + 1) tokens; seed: of the drawn entries. A step for
    the mean gradient of one half of the batches meets the gradient of the other half, so that independent noise adds
    nothing on average and a gain of 0 may come out negative. Entries that do not affect the loss in evaluation, such as
    those of a score behind a hard mask, gain nothing. The caller's random state is not touched.
    """
    if len(batches) % 2 or not batches:
        raise ValueError(f"batches: got {len(batches)}; must be two halves")
    is_zero = {name: found for name, tensor in plan.tensors.items() if (found := tensor.must_be_zero()).any()}
    weights = dict(plan.weights(old, seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of random widths
        model = decoder_of(plan.new, weights, torch.float32)
        halves = [_mean_gradients(model, batches[half::2], is_zero) for half in (0, 1)]
    pairs = {name: (halves[0][name], halves[1][name]) for name in is_zero}
    return {name: (first * step(second) + step(first) * second) / 2 for name, (first, second) in pairs.items()}


def _mean_gradients(model: Decoder, batches: Sequence[Tensor], chosen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of the chosen entries by parameter, in float64, averaged over batches of one size."""
    model.zero_grad()
    for batch in batches:
        model.loss(batch[:, :-1], batch[:, 1:]).objective.backward()
    parameters = dict(model.named_parameters())
    found = {}
    for name, entries in chosen.items():
        parameter = parameters[name]
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        by_column = gradient.view(entries.shape).movedim(-1, 0)[entries.movedim(-1, 0)]
        found[name] = by_column.double() / len(batches)
    return found
