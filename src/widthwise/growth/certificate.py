"""The certificate of a growth: measurements that show whether the grown model can be trusted.

Both models are rebuilt in float64 on the CPU and given the same random tokens. Their logits must agree, and the
gradient of the grown model, pulled back through the plan to the old parameters, must equal the old gradient: a
misplaced row can hide in the logits, but not in the gradients. Two optimizer steps then show which new entries learn.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.growth.plan import GrowthPlan
from widthwise.growth.tensor_plan import Constant, FreshEntries
from widthwise.model.axes import Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.memory import allocating, free_memory
from widthwise.records.certificate import Certificate, LivenessCounts, ModelSize

N_SEQUENCES, N_TOKENS = 2, 32


@dataclass(frozen=True)
class Bounds:
    """Allowed differences between numbers that are equal in exact arithmetic."""

    logits: float
    """Relative to max(1, largest logit)."""
    gradients: float
    """Relative to the largest entry of all gradients."""


BOUNDS = {
    # Rounding is about 1e-15 of the largest logit, unless norms amplify it. Gradients lose more digits, most where a
    # softmax is saturated; the worst seen was 6e-13 of the largest. A misplaced entry is off by its own size.
    torch.float64: Bounds(1e-12, 1e-10),
    # fp32 rounds 5e8 times more coarsely.
    torch.float32: Bounds(1e-5, 1e-3),
}
STORED_BOUND = 1e-5
"""Bound on logits of the weights as stored in fp32, which rounds entries that growth multiplied or averaged."""


def model_size(model: ModelConfig, seq_len: int) -> ModelSize:
    """Return parameters and forward FLOPs. seq_len: sequence length at which FLOPs are counted."""
    return ModelSize(params=int(model.cost().params), flops_per_token=model.inference_cost().forward_flops(seq_len))


def certify(
    plan: GrowthPlan,
    old_weights: Mapping[str, Tensor],
    new_weights: Mapping[str, Tensor],
    *,
    seq_len: int,
    lr: float,
    seed: int = 0,
    fresh: FreshEntries | None = None,
    tokens: Tensor | None = None,
) -> Certificate:
    """Compare a grown model with its original.

    old_weights, new_weights: fp32, by parameter name (tied ones by their first name); seed, fresh: as given to the plan
    for the new weights; seq_len: for counting FLOPs; lr: of the two optimizer steps; tokens: integers (B, T) with
    T > 1, random by default. The caller's random state is not touched.
    """
    dtype = torch.float64 if _fits(plan, torch.float64) else torch.float32
    bounds, tokens = BOUNDS[dtype], _tokens(plan, seed) if tokens is None else tokens
    new = {name: weight.detach() for name, weight in new_weights.items()}
    old = {name: weight.detach().to(dtype) for name, weight in old_weights.items()}
    grown = new if dtype != torch.float64 else dict(plan.weights(old, seed, fresh))
    n_params = plan.old.cost().params + plan.new.cost().params
    with (
        allocating(f"certificate: two models of {n_params:,.0f} parameters in all do not fit into memory"),
        torch.random.fork_rng(devices=[]),
    ):
        before = measured(plan.old, old, tokens, seed)
        # Added MTP heads have a loss of their own, which the old model lacks, so that it is left out here.
        after = measured(plan.new, grown, tokens, seed, further_heads=float(plan.old.mtp is not None))
        logit_difference = largest(before.logits - after.logits)
        stored_difference = logit_difference
        if any(not torch.equal(new[name].to(dtype), weight) for name, weight in grown.items()):
            stored_difference = largest(before.logits - logits_of(decoder_of(plan.new, new, dtype), tokens, seed))
        gradient_difference = relative_difference(before.gradients, pulled_back(plan, old, after.gradients))
        liveness = liveness_of(plan, new, tokens, dtype, lr, seed)
    scale = max(1.0, largest(before.logits))
    return Certificate(
        dtype=str(dtype).removeprefix("torch."),
        n_sequences=tokens.shape[0],
        n_tokens=tokens.shape[1],
        largest_logit=largest(before.logits),
        logit_difference=logit_difference,
        logit_bound=bounds.logits * scale,
        stored_logit_difference=stored_difference,
        stored_logit_bound=STORED_BOUND * scale,
        gradient_difference=gradient_difference,
        gradient_bound=bounds.gradients,
        liveness=liveness,
        is_padding=fresh == Constant(0.0),
        seq_len=seq_len,
        before=model_size(plan.old, seq_len),
        after=model_size(plan.new, seq_len),
    )


def _fits(plan: GrowthPlan, dtype: torch.dtype) -> bool:
    """Return True if everything held at once takes at most half of the free memory.

    That is two tensors for each old parameter (weight, gradient) and six for each grown one: weight and gradient of the
    comparison; weight, gradient and two moments of the model that takes steps.
    """
    n_old, n_new = plan.old.cost().params, plan.new.cost().params
    return (2 * n_old + 6 * n_new) * dtype.itemsize <= free_memory() / 2


def _tokens(plan: GrowthPlan, seed: int) -> Tensor:
    n_positions = [model.positions.n_positions for model in (plan.old, plan.new) if model.positions is not None]
    n_tokens = min([N_TOKENS, *n_positions])
    return torch.randint(plan.old.vocab_size, (N_SEQUENCES, n_tokens), generator=torch.Generator().manual_seed(seed))


N_STEPS = 2
"""Steps after which every new entry that can learn has had a gradient, even in tied embeddings and normed queries."""


def decoder_of(config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Decoder:
    """Build a decoder with these weights on the CPU, in evaluation mode, with its schedules at the end of training."""
    model = blueprint(config).to(dtype).to_empty(device="cpu")
    model.tie()
    model.progress.fill_(1.0)
    model.set_weights(weights.items())
    return model.eval()


@dataclass(frozen=True)
class Measurement:
    """Logits and gradients of one model on one batch."""

    logits: Tensor
    gradients: dict[str, Tensor]
    """Name of a parameter -> its gradient."""


def measured(
    config: ModelConfig, weights: Mapping[str, Tensor], tokens: Tensor, seed: int, further_heads: float = 1.0
) -> Measurement:
    """Return logits, and gradients of next-token loss + further_heads * MTP loss, in evaluation mode.

    Router losses do not arise there.
    """
    model = decoder_of(_with_further_heads(config, further_heads), weights, next(iter(weights.values())).dtype)
    logits = logits_of(model, tokens, seed)
    torch.manual_seed(seed)
    model.loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
    return Measurement(logits, _gradients(model))


@torch.no_grad()
def logits_of(model: Decoder, tokens: Tensor, seed: int) -> Tensor:
    """Return the logits (B, T, vocab_size). seed: of random widths."""
    torch.manual_seed(seed)  # random widths are drawn in evaluation as well
    return model(tokens)


def _gradients(model: Decoder) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


def _with_further_heads(config: ModelConfig, coefficient: float) -> ModelConfig:
    """Return the config with this coefficient for the loss of the MTP heads."""
    if config.mtp is None:
        return config
    mtp = config.mtp.model_copy(update={"coefficient": coefficient, "final_coefficient": None})
    return config.model_copy(update={"mtp": mtp})


def pulled_back(plan: GrowthPlan, old: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Backpropagate the gradients of the grown parameters through the plan to the old parameters."""
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
    """Return the largest difference between two sets of gradients, over the largest entry of the first."""
    difference = max(largest(gradient - others[name]) for name, gradient in gradients.items())
    return difference / max(largest(gradient) for gradient in gradients.values())


def liveness_of(
    plan: GrowthPlan, weights: Mapping[str, Tensor], tokens: Tensor, dtype: torch.dtype, lr: float, seed: int
) -> dict[str, LivenessCounts]:
    """Take steps as training does, with auxiliary losses, and count the new entries that ever have a gradient."""
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
    """Return bool (n_rows,), the rows used by `tokens`, for tables of tokens or positions; None for other tensors."""
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
    """Return the largest absolute value."""
    return float(values.abs().max()) if values.numel() else 0.0
