"""The certificate of a growth: measurements that show whether the grown model can be trusted.

Both models are rebuilt in float64 on the CPU and given the same random tokens. Their logits must agree, and the
gradient of the grown model, pulled back through the plan to the old parameters, must equal the old gradient: a
misplaced row can hide in the logits, but not in the gradients. Two optimizer steps then show which new entries learn.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.growth.certify.measuring import (
    decoder_of,
    largest,
    liveness_of,
    logits_of,
    measured,
    pulled_back,
    relative_difference,
)
from widthwise.growth.plan.fresh import Constant, Fresh
from widthwise.growth.plan.model_plan import GrowthPlan
from widthwise.model.config import ModelConfig
from widthwise.model.memory import allocating, free_memory
from widthwise.records.certificate import Certificate, ModelSize

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
    """Parameters and forward FLOPs. seq_len: sequence length at which FLOPs are counted."""
    return ModelSize(params=int(model.cost().params), flops_per_token=model.inference_cost().forward_flops(seq_len))


def certify(
    plan: GrowthPlan,
    old_weights: Mapping[str, Tensor],
    new_weights: Mapping[str, Tensor],
    *,
    seq_len: int,
    lr: float,
    seed: int = 0,
    fresh: Fresh | None = None,
    tokens: Tensor | None = None,
) -> Certificate:
    """Compares a grown model with the one it came from.

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
    """Whether everything held at once takes at most half of the free memory.

    That is two tensors for each old parameter (weight, gradient) and six for each grown one: weight and gradient of the
    comparison; weight, gradient and two moments of the model that takes steps.
    """
    n_old, n_new = plan.old.cost().params, plan.new.cost().params
    return (2 * n_old + 6 * n_new) * dtype.itemsize <= free_memory() / 2


def _tokens(plan: GrowthPlan, seed: int) -> Tensor:
    n_positions = [model.positions.n_positions for model in (plan.old, plan.new) if model.positions is not None]
    n_tokens = min([N_TOKENS, *n_positions])
    return torch.randint(plan.old.vocab_size, (N_SEQUENCES, n_tokens), generator=torch.Generator().manual_seed(seed))
