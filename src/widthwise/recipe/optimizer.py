"""The optimizers of a recipe, chosen by `kind`."""

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Discriminator, Field, Tag

from widthwise.config_io import Config

if TYPE_CHECKING:
    import torch

    from widthwise.model.decoder import Decoder

MODULE = "widthwise.recipe.optimizers"
"""Builds optimizers with torch, which recipes do not import."""

UpToOne = Annotated[float, Field(ge=0, lt=1)]


class AdamWConfig(Config):
    """AdamW with decoupled weight decay. Source: Loshchilov and Hutter 2019, arXiv:1711.05101."""

    kind: Literal["adamw"] = "adamw"
    lr: pydantic.PositiveFloat
    """Learning rate of embedding, head and gains; hidden matrices learn at lr / model.init.width_multiplier."""
    betas: tuple[UpToOne, UpToOne] = (0.9, 0.95)
    eps: pydantic.PositiveFloat = 1e-10
    weight_decay: pydantic.NonNegativeFloat = 0.1
    """Weight decay of the matrices; see the next three options for the rest."""
    decays_embedding: bool = True
    """Decay the embedding, and with it a tied head and learned positions; OLMo 2: no. An untied head always does."""
    decays_gains: bool = False
    """Decay the gains of the norms; OLMo 2: yes."""
    decays_scales: bool = True
    """Decay the scales of dynamic hyper-connections, as the paper's words can be read; false keeps decay from
    switching the dynamics off."""
    lr_follows_layer_width: bool = False
    """Multiply the rate of a layer's matrices by model.d_model / (the layer's width)."""
    lr_factors: dict[str, pydantic.PositiveFloat] = Field(default_factory=dict)
    """Part of the model -> factor of the learning rate of its parameters, as in `{w_reduce: 0.1, w_expand: 0.1}`. A
    part is a name, or several in a row, from a parameter's path: `w_reduce`, `exit`, `layers.3`, `layers.3.ffn`. In
    `adamw` of Muon they are those of both."""
    scaled: dict[str, pydantic.PositiveFloat] = Field(default_factory=dict)
    """Parameters that a baked model has multiplied by these factors: they learn at that multiple of the rate, with eps
    and weight decay divided by it, so that training continues as it would have, but for a clipping of gradients, whose
    norm is another. In `adamw` of Muon they are those of both."""

    @property
    def settling_steps(self) -> int:
        """Steps that its slowest average looks back."""
        return round(1 / (1 - max(self.betas)))

    @property
    def adamw(self) -> "AdamWConfig":
        """Itself, as Muon has one."""
        return self

    def with_scaled(self, factors: dict[str, float]) -> "AdamWConfig":
        """The same with another `scaled`."""
        return self.model_copy(update={"scaled": factors})

    def build(self, model: "Decoder") -> "torch.optim.Optimizer":
        """Build the optimizer over a model. Raises UserError where `scaled` or `lr_factors` names no parameter."""
        return import_module(MODULE).adamw(self, model)


class MuonConfig(Config):
    """Momentum of hidden matrices made orthogonal before each step; AdamW for all else.

    Hidden matrices lead from one hidden state to another. All else is the embedding, the head, gains and biases, the
    coefficients of hyper-connections and of mixtures of slots, maps to coefficients, to widths or to scores of experts,
    and the matrices of experts: those stand several in one parameter, and would be made orthogonal to each other.
    The iteration is torch's own: five steps with the coefficients of the source, which map singular values between 0.01
    and 1 to between 0.68 and 1.14. Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.
    """

    kind: Literal["muon"] = "muon"
    lr: pydantic.PositiveFloat
    """Learning rate of hidden matrices; model.init.width_multiplier does not divide it."""
    momentum: UpToOne = 0.95
    nesterov: bool = True
    """Look ahead: the gradient joins the momentum once more."""
    weight_decay: pydantic.NonNegativeFloat = 0.1
    """Weight decay of hidden matrices."""
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """The factor of an orthogonal matrix, besides lr. `original`: sqrt(max(1, n_out / n_in)), with which a step
    has one size at all widths. `match_rms_adamw`: 0.2 sqrt(max(n_out, n_in)), with which its entries are as large as
    those of AdamW, whose rate then serves (Liu et al. 2025, arXiv:2502.16982)."""
    adamw: AdamWConfig
    """The optimizer of everything else; its rate follows the same schedule."""

    @property
    def settling_steps(self) -> int:
        """Steps that its slowest average looks back."""
        return max(round(1 / (1 - self.momentum)), self.adamw.settling_steps)

    def with_scaled(self, factors: dict[str, float]) -> "MuonConfig":
        """The same with another `adamw.scaled`."""
        return self.model_copy(update={"adamw": self.adamw.with_scaled(factors)})

    def build(self, model: "Decoder") -> "torch.optim.Optimizer":
        """Build both optimizers over a model. Raises as `AdamWConfig.build`."""
        return import_module(MODULE).muon(self, model)


def _kind(optimizer: Any) -> Any:
    """A recipe that names no kind means AdamW."""
    return optimizer.get("kind", "adamw") if isinstance(optimizer, dict) else getattr(optimizer, "kind", "adamw")


Optimizer = Annotated[Annotated[AdamWConfig, Tag("adamw")] | Annotated[MuonConfig, Tag("muon")], Discriminator(_kind)]
