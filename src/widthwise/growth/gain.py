"""First-order gain of a growth: by how much the loss would fall in a step of the new weights that are 0.

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
"""The step that an optimizer takes for a gradient, at a rate of 1 and in the other direction."""


def along_gradient(gradient: Tensor) -> Tensor:
    """A step of SGD."""
    return gradient


def along_sign(gradient: Tensor) -> Tensor:
    """The first step of Adam, which is as long for a small gradient as for a large one."""
    return gradient.sign()


STEPS: Mapping[str, Step] = {"gradient": along_gradient, "sign": along_sign}


def first_order_gains(
    plan: GrowthPlan, old: Mapping[str, Tensor], batches: Sequence[Tensor], seed: int, step: Step = along_gradient
) -> dict[str, Tensor]:
    """Parameter of the grown model -> by how much a step of each of its new entries that are 0 lowers the loss, per
    rate, one column after the other.

    old: weights of the old model; batches: an even number of (B, T + 1) tokens; seed: of the drawn entries. The batches
    are halved: a step for the mean gradient of one half meets that of the other, whose noise is independent, so that
    noise adds nothing on average; where there is nothing to gain the result may be below 0. Entries that the loss does
    not depend on in evaluation, such as those of a score behind a hard mask, gain nothing. The caller's random state is
    not touched.
    """
    if len(batches) % 2 or not batches:
        raise ValueError(f"batches: got {len(batches)}; must be two halves")
    is_zero = {name: found for name, tensor in plan.tensors.items() if (found := tensor.must_be_zero()).any()}
    weights = dict(plan.weights(old, seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of random widths
        model = decoder_of(plan.new, weights, torch.float32)
        halves = [_mean_gradients(model, batches[half::2], is_zero) for half in (0, 1)]
    return {name: _gain(halves[0][name], halves[1][name], step) for name in is_zero}


def _gain(first: Tensor, second: Tensor, step: Step) -> Tensor:
    """By how much a step that follows one half lowers the loss on the other, averaged over both ways round."""
    return (first * step(second) + step(first) * second) / 2


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
        by_column = gradient.view(entries.shape).movedim(-1, 0)[entries.movedim(-1, 0)]
        found[name] = by_column.double() / len(batches)
    return found
