"""Mixture of experts: a router sends each token to the top_k of n_experts narrow SwiGLUs.

Sources: Shazeer et al. 2017, arXiv:1701.06538; the variable-width paper's mixture, arXiv:2606.18246.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, options_of
from widthwise.model.cost import Cost, linear
from widthwise.model.ffn.interface import FFNConfig, HiddenWidthTemplate, register_ffn
from widthwise.model.ffn.swiglu import SwiGLUConfig, swiglu_cost
from widthwise.sizes import WIDEST, Count, Width


class Routing(Config):
    """Options of the router, which do not depend on the width of the layer."""

    n_experts: Count
    """Experts to choose from."""
    top_k: Count
    """Experts per token. With 1 and `normalised`, the weight is always 1, and the router learns only from the auxiliary
    losses."""
    normalised: bool = True
    """Take the softmax over the logits of the chosen experts, so that their weights add up to 1. false: over the logits
    of all experts, as in OLMoE, arXiv:2409.02060."""
    gated_shared: bool = False
    """Multiply the output of the shared expert by sigmoid(w . x), with a learned vector w. Source: Qwen 2 MoE,
    arXiv:2407.10671."""
    balance_coefficient: pydantic.NonNegativeFloat = 0.01
    """Coefficient of the balance loss, n_experts * sum over experts of (mean probability * share of choices), which is
    1 if both are uniform. Source: Switch Transformer, arXiv:2101.03961, equation 4."""
    z_coefficient: pydantic.NonNegativeFloat = 0.001
    """Coefficient of the router z-loss, mean squared log-normaliser. Source: ST-MoE, arXiv:2202.08906, equation 5."""

    @pydantic.model_validator(mode="after")
    def _check_choice(self) -> "Routing":
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k: got {self.top_k}; must be at most n_experts = {self.n_experts}")
        return self

    def experts_cost(self, d_model: float, d_expert: float, d_shared: float, d_out: float) -> Cost:
        """Return the cost of router, experts of width d_expert, and a shared expert of width d_shared.

        Kept for the backward pass: gate and up of every choice; in fp32 the weights of the choices and, for auxiliary
        losses, the router's logits, probabilities and log-normaliser.
        """
        n_statistics = 2 * self.n_experts if self.normalised else 3 * self.n_experts  # logits, one or two softmaxes
        router = linear(d_model, self.n_experts) + Cost(activation_fp32_elements=self.top_k + n_statistics + 1)
        expert = linear(d_model, d_expert) + linear(d_model, d_expert) + linear(d_expert, d_out)
        routed = Cost(
            params=self.n_experts * expert.params,
            active_params=self.top_k * expert.params,
            flops=self.top_k * expert.flops,
            activation_elements=self.top_k * 2 * d_expert,
        )
        shared = swiglu_cost(d_model, d_shared, d_out) if np.any(d_shared) else Cost()  # d_shared may be an array
        if self.gated_shared:
            shared += linear(d_model, 1) + Cost(activation_elements=1 + d_out)
        return router + routed + shared


class MoEConfig(Routing, FFNConfig):
    """Sum over the chosen experts of weight * down(silu(gate(x)) * up(x)), plus a shared expert if there is one.

    No noise, no capacity limit, no dropped tokens.
    """

    constant_fields = ("normalised", "gated_shared")
    hidden_axes: ClassVar = {"d_expert": "d_expert", "d_shared": "d_ff"}
    bakes_with_one_eps = True
    module = "widthwise.model.ffn.moe_module:MoE"
    kind: Literal["moe"] = "moe"
    d_expert: Width
    """Hidden width of each expert, in channels."""
    d_shared: int = Field(default=0, ge=0, le=WIDEST)
    """Hidden width of the shared expert, which every token uses in addition to its chosen ones; 0: none."""

    @pydantic.model_validator(mode="after")
    def _check_gate(self) -> "MoEConfig":
        if self.gated_shared and not self.d_shared:
            raise ValueError("gated_shared: got true; needs a shared expert; give n_shared_experts")
        return self

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        return (self.d_expert,) * self.top_k + ((self.d_shared,) if self.d_shared else ())

    def cost(self, d_model: int, d_out: int) -> Cost:
        return self.experts_cost(d_model, self.d_expert, self.d_shared, d_out)

    def with_constants_of(self, old: FFNConfig, reads_more: bool) -> FFNConfig:
        """Return this config. A SwiGLU becomes equal experts, which diverge because their tokens differ."""
        if isinstance(old, SwiGLUConfig):
            if not self.normalised:
                raise ValueError("normalised: got false; must be true, so that the weights of equal experts sum to 1")
            if self.d_expert < old.d_ff:  # every expert starts as the whole feed-forward
                raise ValueError(f"d_expert: got {self.d_expert}; must be at least the old d_ff, {old.d_ff}")
            return self
        super().with_constants_of(old, reads_more)
        assert isinstance(old, MoEConfig)
        factor, rest = divmod(self.n_experts, old.n_experts)
        if rest or factor == 0 or self.top_k != old.top_k * factor:
            raise ValueError(
                f"n_experts: got {self.n_experts} with top_k {self.top_k} where it was {old.n_experts} with "
                f"{old.top_k}; single experts cannot be added, because they would take tokens or weight from other "
                "experts: multiply n_experts and top_k by one number, or grow d_expert or d_shared"
            )
        if self.d_expert < old.d_expert and self.d_expert * factor != old.d_expert:
            got = f"d_expert: got {self.d_expert} where it was {old.d_expert}"
            raise ValueError(f"{got}; it must grow, or experts must be cut into equal parts")
        return self

    def growth_in_words(self, old: FFNConfig) -> Iterator[str]:
        if not isinstance(old, MoEConfig):
            experts = f"{self.n_experts} experts of {self.d_expert} hidden units, {self.top_k} a token"
            yield f"feed-forward {old.kind} -> {experts} (upcycling)"
            return
        factor = self.n_experts // old.n_experts
        is_cut = factor > 1 and self.d_expert * factor == old.d_expert
        if factor > 1:
            expansion = "experts cut" if is_cut else "experts duplicated"
            yield f"{old.n_experts} -> {self.n_experts} experts, {old.top_k} -> {self.top_k} a token ({expansion})"
        if self.d_expert != old.d_expert:
            expansion = "experts cut" if is_cut else "MLP expansion"
            yield f"experts {old.d_expert} -> {self.d_expert} hidden units ({expansion})"
        if self.d_shared != old.d_shared:
            yield f"shared expert {old.d_shared} -> {self.d_shared} hidden units (MLP expansion)"


class MoETemplate(Routing, HiddenWidthTemplate):
    """A mixture for a layer of any width; usually d_expert = 0.32 d_model."""

    hidden_key = "d_expert"
    usual_ratio = 0.32
    kind: Literal["moe"] = "moe"
    d_expert: Width | None = None
    """Hidden width of every expert of every layer."""
    n_shared_experts: int = Field(default=0, ge=0, le=1000)
    """Experts that every token uses, built as one expert of n_shared_experts * d_expert channels. Source: DeepSeekMoE,
    arXiv:2401.06066."""

    def cost(self, d_model: float, d_out: float) -> Cost:
        d_expert = self.real_hidden(d_model)
        return self.experts_cost(d_model, d_expert, self.n_shared_experts * d_expert, d_out)

    def at_width(self, d_model: int) -> MoEConfig:
        d_expert = self.whole_hidden(d_model)
        return MoEConfig(d_expert=d_expert, d_shared=self.n_shared_experts * d_expert, **options_of(Routing, self))


register_ffn(MoEConfig, MoETemplate)
