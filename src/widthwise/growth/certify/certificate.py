"""The certificate of a growth: what was measured of a grown model before anybody trusts it.

Both models are rebuilt in float64 on the CPU and given the same random tokens. Their logits must agree, and the
gradient of the grown model, pulled back through the plan to the old parameters, must be the old gradient: a wrong place
of a row can hide in logits, but not in gradients. Then the grown model takes two steps, to see which new entries learn.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.config_io import Config, to_data
from widthwise.growth.certify.measuring import (
    Liveness,
    decoder_of,
    largest,
    liveness_of,
    logits_of,
    measured,
    pulled_back,
    relative_difference,
)
from widthwise.growth.plan.fresh import Constant, Fresh
from widthwise.growth.plan.model_plan import Plan
from widthwise.model.config import ModelConfig
from widthwise.model.memory import allocating, free_memory

N_SEQUENCES, N_TOKENS = 2, 32


@dataclass(frozen=True)
class Bounds:
    """How far numbers may lie apart that are equal in exact arithmetic."""

    logits: float
    """Times max(1, the largest logit)."""
    gradients: float
    """Times the largest entry of all gradients."""


BOUNDS = {
    # Rounding is some 1e-15 of the largest logit in models without norms that blow it up. Gradients lose more of their
    # digits, most where a softmax is saturated: 6e-13 of the largest is the most that was seen. What stands in a wrong
    # place is off by its own size.
    torch.float64: Bounds(1e-12, 1e-10),
    # fp32 rounds 5e8 times as coarsely.
    torch.float32: Bounds(1e-5, 1e-3),
}
STORED_BOUND = 1e-5
"""Of the logits with the grown weights as they are stored, in fp32, where some were multiplied or averaged."""


class Size(Config):
    """What a model costs."""

    params: int
    flops_per_token: float
    """Forward, without further heads."""

    @classmethod
    def of(cls, model: ModelConfig, seq_len: int) -> "Size":
        return cls(params=int(model.cost().params), flops_per_token=model.inference_cost().forward_flops(seq_len))


class Certificate(Config):
    """What was measured. Differences are the largest of all entries."""

    dtype: str
    """In which the models were compared: float64, or float32 where two float64 models would not fit into memory."""
    n_sequences: int
    n_tokens: int
    """Of each sequence."""
    largest_logit: float
    logit_difference: float
    logit_bound: float
    stored_logit_difference: float
    """With the grown weights as they are stored, which rounds what was multiplied or averaged."""
    stored_logit_bound: float
    gradient_difference: float
    """Of old parameters, over the largest entry of all gradients."""
    gradient_bound: float
    liveness: dict[str, Liveness]
    """Of every tensor with new entries."""
    is_padding: bool
    """Whether new entries were meant to stay 0."""
    seq_len: int
    """At which FLOPs are counted."""
    before: Size
    after: Size

    @property
    def is_preserved(self) -> bool:
        """Whether the grown model computes what the old one did, and learns in its old parameters as it did."""
        return (
            self.logit_difference <= self.logit_bound
            and self.stored_logit_difference <= self.stored_logit_bound
            and self.gradient_difference <= self.gradient_bound
        )

    @property
    def dead(self) -> dict[str, int]:
        """Tensor -> new entries without any gradient, where there are some."""
        return {name: each.n_dead for name, each in self.liveness.items() if each.n_dead}

    def total(self, count: str) -> int:
        """Sum of one count of `Liveness` over all tensors."""
        return sum(getattr(each, count) for each in self.liveness.values())

    def record(self) -> dict[str, object]:
        """The content of certificate.json."""
        return {"is_preserved": self.is_preserved, **to_data(self)}

    def lines(self) -> list[str]:
        """For a person."""
        tokens = f"{self.n_sequences} x {self.n_tokens} random tokens, {self.dtype}"
        if self.dtype != "float64":
            tokens += " because float64 would not fit into memory"
        found = [
            f"function {'preserved' if self.is_preserved else 'CHANGED'} ({tokens})",
            f"  largest difference of logits {self.logit_difference:.1e}, largest logit {self.largest_logit:.3g} "
            f"(bound {self.logit_bound:.0e})",
            f"  largest difference of old gradients {self.gradient_difference:.1e} of the largest gradient "
            f"(bound {self.gradient_bound:.0e})",
        ]
        if self.stored_logit_difference > self.logit_bound:
            found.append(
                f"  as stored in fp32: largest difference of logits {self.stored_logit_difference:.1e} "
                f"(bound {self.stored_logit_bound:.0e})"
            )
        before, after = self.before, self.after
        return [
            *found,
            *self._new_entries(),
            f"parameters {before.params:,} -> {after.params:,} ({after.params / before.params:.3f}), forward FLOPs per "
            f"token {before.flops_per_token:,.0f} -> {after.flops_per_token:,.0f} "
            f"({after.flops_per_token / before.flops_per_token:.3f})",
        ]

    def _new_entries(self) -> list[str]:
        n_new, n_unjudged = self.total("n_new"), self.total("n_unjudged")
        if not n_new:
            return ["no new entries"]
        if self.is_padding:
            return [f"{n_new:,} new entries, all 0: padding, of which {self.total('n_alive'):,} would learn"]
        unjudged = f", {n_unjudged:,} of tokens and positions not seen" if n_unjudged else ""
        lines = [f"{n_new:,} new entries: {self.total('n_alive'):,} learn, {self.total('n_dead'):,} do not{unjudged}"]
        return lines + [
            f"  {name}: {n:,} of {self.liveness[name].n_new:,} had no gradient" for name, n in self.dead.items()
        ]


def certify(
    plan: Plan,
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

    old_weights, new_weights: fp32, by parameter name, of tied ones by the first; seed, fresh: those with which the plan
    made the new ones; seq_len: at which FLOPs are counted; lr: of the two steps; tokens: integers (B, T), T > 1, drawn
    where not given. The caller's random state stays as it was.
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
        # Heads that join have a loss of their own, which the old model knew nothing of.
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
        before=Size.of(plan.old, seq_len),
        after=Size.of(plan.new, seq_len),
    )


def _fits(plan: Plan, dtype: torch.dtype) -> bool:
    """Whether what is held at once takes at most half of the memory that is free.

    Old weights and gradients; the grown ones; and of the model that takes steps weights, gradients and moments.
    """
    n_old, n_new = plan.old.cost().params, plan.new.cost().params
    return (2 * n_old + 6 * n_new) * dtype.itemsize <= free_memory() / 2


def _tokens(plan: Plan, seed: int) -> Tensor:
    n_positions = [model.positions.n_positions for model in (plan.old, plan.new) if model.positions is not None]
    n_tokens = min([N_TOKENS, *n_positions])
    return torch.randint(plan.old.vocab_size, (N_SEQUENCES, n_tokens), generator=torch.Generator().manual_seed(seed))
