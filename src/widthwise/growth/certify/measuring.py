"""The measurements behind a certificate, on a model and on one grown from it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.growth.plan.fresh import Constant
from widthwise.growth.plan.model_plan import GrowthPlan
from widthwise.model.axes import Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint
from widthwise.records.certificate import LivenessCounts

N_STEPS = 2
"""Steps after which every new entry that can learn has had a gradient, even in tied embeddings and normed queries."""


def decoder_of(config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Decoder:
    """A decoder with these weights on the CPU, in evaluation mode, with its schedules at the end of training."""
    model = blueprint(config).to(dtype).to_empty(device="cpu")
    model.tie()
    model.progress.fill_(1.0)
    model.set_weights(weights.items())
    return model.eval()


@dataclass(frozen=True)
class Measured:
    """Logits and gradients of one model on one batch."""

    logits: Tensor
    gradients: dict[str, Tensor]
    """Name of a parameter -> its gradient."""


def measured(
    config: ModelConfig, weights: Mapping[str, Tensor], tokens: Tensor, seed: int, further_heads: float = 1.0
) -> Measured:
    """Logits, and gradients of next-token loss + further_heads * loss of the MTP heads, in evaluation mode.

    Router losses do not arise there.
    """
    model = decoder_of(_with_further_heads(config, further_heads), weights, next(iter(weights.values())).dtype)
    logits = logits_of(model, tokens, seed)
    torch.manual_seed(seed)
    model.loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
    return Measured(logits, _gradients(model))


@torch.no_grad()
def logits_of(model: Decoder, tokens: Tensor, seed: int) -> Tensor:
    """The logits (B, T, vocab_size). seed: of random widths."""
    torch.manual_seed(seed)  # random widths are drawn in evaluation as well
    return model(tokens)


def _gradients(model: Decoder) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


def _with_further_heads(config: ModelConfig, coefficient: float) -> ModelConfig:
    """The config with this coefficient for the loss of the MTP heads."""
    if config.mtp is None:
        return config
    mtp = config.mtp.model_copy(update={"coefficient": coefficient, "final_coefficient": None})
    return config.model_copy(update={"mtp": mtp})


def pulled_back(plan: GrowthPlan, old: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the grown parameters, backpropagated through the plan to the old parameters."""
    found = {name: torch.zeros_like(weight) for name, weight in old.items()}
    for name, tensor_plan in plan.tensors.items():
        if not tensor_plan.source:
            continue
        leaf = old[tensor_plan.source].clone().requires_grad_()
        # Free entries do not depend on the old weights, so that any filling will do here.
        grown = tensor_plan.grow(leaf, torch.Generator().manual_seed(0), Constant(0.0))
        found[tensor_plan.source] += torch.autograd.grad(grown, leaf, gradients[name])[0]
    return found


def relative_difference(gradients: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of gradients, over the largest entry of the first."""
    difference = max(largest(gradient - others[name]) for name, gradient in gradients.items())
    return difference / max(largest(gradient) for gradient in gradients.values())


def liveness_of(
    plan: GrowthPlan, weights: Mapping[str, Tensor], tokens: Tensor, dtype: torch.dtype, lr: float, seed: int
) -> dict[str, LivenessCounts]:
    """Takes steps as training does, with auxiliary losses, and counts which new entries ever have a gradient."""
    is_new = {name: found for name, found in plan.is_new().items() if found.any()}
    torch.manual_seed(seed)  # of random width masks
    model = decoder_of(_with_further_heads(plan.new, 1.0), weights, dtype).train()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), lr=lr, weight_decay=0.0)
    alive = {name: torch.zeros_like(found) for name, found in is_new.items()}
    for step in range(N_STEPS + 1):
        optimizer.zero_grad()
        model.loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
        gradients = _gradients(model)
        for name, found in alive.items():
            found |= gradients[name].view(found.shape) != 0  # exact: a dead entry is multiplied by 0
        if step < N_STEPS:
            optimizer.step()
    return {name: _counted(found, alive[name], _judged_rows(model, name, tokens)) for name, found in is_new.items()}


def _judged_rows(model: Decoder, name: str, tokens: Tensor) -> Tensor | None:
    """bool (n_rows,): the rows that occur in `tokens`, for tables of tokens or positions; None for other tensors."""
    owner, inputs = model.get_submodule(name.rpartition(".")[0]), tokens[:, :-1].flatten()
    assert isinstance(owner, Weight)
    if "vocab_size" in owner.in_axes:
        return torch.isin(torch.arange(owner.in_axes["vocab_size"]), inputs)
    if "n_positions" in owner.in_axes:
        return torch.arange(owner.in_axes["n_positions"]) < tokens.shape[1] - 1
    return None


def _counted(is_new: Tensor, is_alive: Tensor, judged_rows: Tensor | None) -> LivenessCounts:
    judged = is_new
    if judged_rows is not None:
        judged = is_new & judged_rows.view(-1, *[1] * (is_new.dim() - 1))
    counts = [int(found.sum()) for found in (is_new, judged & is_alive, judged & ~is_alive, is_new & ~judged)]
    return LivenessCounts(n_new=counts[0], n_alive=counts[1], n_dead=counts[2], n_unjudged=counts[3])


def largest(values: Tensor) -> float:
    """The largest absolute value."""
    return float(values.abs().max()) if values.numel() else 0.0
