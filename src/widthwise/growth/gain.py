"""First-order gain of a growth: by how much the loss would fall along the gradient of the new weights that are 0.

A growth leaves the function as it is, so that its worth cannot be seen in the loss, but in the gradient: a step of rate
eta along it lowers the loss by eta times its square, to first order. Of several growths planned as one each has the
gradient it would have alone, because none of them changes the function.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from widthwise.growth.certify.measuring import decoder_of
from widthwise.growth.plan.model_plan import GrowthPlan
from widthwise.model.decoder import Decoder


def first_order_gains(
    plan: GrowthPlan, old: Mapping[str, Tensor], batches: Sequence[Tensor], seed: int
) -> dict[str, float]:
    """Parameter of the grown model -> the squared gradient of its new entries that are 0, in squared nats.

    old: weights of the old model; batches: an even number of (B, T + 1) tokens; seed: of the drawn entries. The square
    is the product of the mean gradients of two halves of the batches, whose noise is independent, so that noise adds
    nothing to it on average; where there is nothing to gain it may be below 0. Entries that the loss does not depend on
    in evaluation, such as those of a score behind a hard mask, gain nothing. The caller's random state is not touched.
    """
    if len(batches) % 2 or not batches:
        raise ValueError(f"batches: got {len(batches)}; must be two halves")
    is_zero = {name: found for name, tensor in plan.tensors.items() if (found := tensor.must_be_zero()).any()}
    weights = dict(plan.weights(old, seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of random widths
        model = decoder_of(plan.new, weights, torch.float32)
        halves = [_mean_gradients(model, batches[half::2], is_zero) for half in (0, 1)]
    return {name: float((halves[0][name] * halves[1][name]).sum()) for name in is_zero}


def _mean_gradients(model: Decoder, batches: Sequence[Tensor], chosen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameter -> the gradients of its chosen entries, in float64, averaged over batches of one size."""
    model.zero_grad()
    for batch in batches:
        model.loss(batch[:, :-1], batch[:, 1:]).objective.backward()
    parameters = dict(model.named_parameters())
    found = {}
    for name, entries in chosen.items():
        parameter = parameters[name]
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found[name] = gradient.view(entries.shape)[entries].double() / len(batches)
    return found
