"""The module of a mixture of experts."""

import torch
from torch import Tensor

from widthwise.kernels.dispatch import widened
from widthwise.kernels.swiglu import grouped_swiglu
from widthwise.model.axes import Control, Experts
from widthwise.model.context import Choices, FeedForward, PassContext
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.ffn.swiglu_module import SwiGLU
from widthwise.model.norm import NormSite, Place


class MoE(FeedForward):
    """A mixture of experts. Matrices of experts are stacked along the rows: w_gate has n_experts * d_expert rows."""

    def __init__(self, config: MoEConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.config = config
        n_experts = config.n_experts
        d_expert = config.d_expert
        self.norm = norm.build(d_model, d_out)
        self.w_router = Control({"d_model": d_model}, {"n_experts": n_experts})
        self.w_gate = Experts({"d_model": d_model}, {"n_experts": n_experts, "d_expert": d_expert})
        self.w_up = Experts({"d_model": d_model}, {"n_experts": n_experts, "d_expert": d_expert})
        self.w_down = Experts({"d_expert": d_expert}, {"n_experts": n_experts, "d_model": d_out})
        no_norm = NormSite(Place(), norm.config)
        self.shared = SwiGLU(SwiGLUConfig(d_ff=config.d_shared), d_model, d_out, no_norm) if config.d_shared else None
        self.w_shared_gate = Control({"d_model": d_model}, {"gate": 1}) if config.gated_shared else None

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        """x: (B, T, d_model), the stream -> the update (B, T, d_out), the expert load, and in training the losses."""
        x = self.norm.before(x)
        logits = widened(self.w_router(x).flatten(0, 1))
        weights, chosen = self.choose(logits)
        n_experts = self.config.n_experts
        matrices = (w.weight.unflatten(0, (n_experts, -1)) for w in (self.w_gate, self.w_up, self.w_down))
        update = grouped_swiglu(x.flatten(0, 1), chosen, weights, *matrices).unflatten(0, x.shape[:2])
        if self.shared is not None:
            shared = self.shared(x, context)[0]
            if self.w_shared_gate is not None:
                shared = torch.sigmoid(self.w_shared_gate(x)) * shared
            update = update + shared
        # The shape is static, unlike bincount's.
        counts = chosen.new_zeros(n_experts).scatter_add_(0, chosen.flatten(), chosen.new_ones(chosen.numel()))
        expert_load = counts.to(logits.dtype) / chosen.numel()
        choices = {"expert_load": expert_load}
        if self.training:
            # Gradients flow through the probabilities; the load has none.
            probability = logits.softmax(dim=-1).mean(dim=0)
            balance = n_experts * (probability * expert_load).sum()
            router_z = logits.logsumexp(dim=-1).square().mean()
            choices |= {
                "auxiliary_loss": self.config.balance_coefficient * balance + self.config.z_coefficient * router_z,
                "balance_loss": balance.detach(),
                "router_z_loss": router_z.detach(),
            }
        return self.norm.after(update), choices

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits: (..., n_experts), of the router -> weights and indices of the chosen experts, (..., top_k)."""
        top_logits, chosen = logits.topk(self.config.top_k, dim=-1)
        if self.config.normalised:
            return top_logits.softmax(dim=-1), chosen
        return logits.softmax(dim=-1).gather(-1, chosen), chosen
