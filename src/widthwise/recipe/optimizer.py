"""The optimizers of a recipe, selected by `kind`."""

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Discriminator, Field, Tag

from widthwise.config_io import Config

if TYPE_CHECKING:
    import torch

    from widthwise.model.decoder import Decoder

MODULE = "widthwise.recipe.optimizers"
"""Module that builds optimizers with torch, which recipes do not import."""

BelowOne = Annotated[float, Field(ge=0, lt=1)]


class AdamWConfig(Config):
    """AdamW with decoupled weight decay. Source: Loshchilov and Hutter 2019, arXiv:1711.05101."""

    kind: Literal["adamw"] = "adamw"
    lr: pydantic.PositiveFloat
    """Learning rate of embedding, head and gains; hidden matrices have lr / model.init.width_multiplier."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)
    eps: pydantic.PositiveFloat = 1e-10
    weight_decay: pydantic.NonNegativeFloat = 0.1
    """Weight decay of the matrices; see the next three options for other parameters."""
    decays_embedding: bool = True
    """Decay the embedding, a tied head and learned positions; OLMo 2: no. An untied head always decays."""
    decays_gains: bool = False
    """Decay the gains of the norms; OLMo 2: yes."""
    decays_scales: bool = True
    """Decay the scales of dynamic hyper-connections, as the paper can be interpreted. With false, decay cannot turn the
    dynamic part off."""
    lr_follows_layer_width: bool = False
    """Multiply the rate of a layer's matrices by model.d_model / (the layer's width)."""
    lr_factors: dict[str, pydantic.PositiveFloat] = Field(default_factory=dict)
    """Part of the model -> factor of the learning rate of its parameters, such as `{w_reduce: 0.1, w_expand: 0.1}`. A
    part is one or several consecutive names of a parameter's path: `w_reduce`, `exit`, `layers.3`, `layers.3.ffn`. In
    `adamw` of Muon the factors apply to both optimizers."""
    scaled: dict[str, pydantic.PositiveFloat] = Field(default_factory=dict)
    """Parameter -> factor by which `bake` multiplied it. Its rate is multiplied by that factor, and eps and weight
    decay are divided by it, so that training continues unchanged, except for the clipping of gradients, whose norm
    changes. In `adamw` of Muon the factors apply to both optimizers."""

    @property
    def settling_steps(self) -> int:
        """Time constant of the slowest moving average, in steps."""
        return round(1 / (1 - max(self.betas)))

    @property
    def adamw(self) -> "AdamWConfig":
        """The optimizer itself, as `MuonConfig.adamw`."""
        return self

    def with_scaled(self, factors: dict[str, float]) -> "AdamWConfig":
        """Return a copy with another `scaled`."""
        return self.model_copy(update={"scaled": factors})

    def build(self, model: "Decoder") -> "torch.optim.Optimizer":
        """Build the optimizer of a model. Raise UserError if a key of `scaled` or `lr_factors` matches no parameter."""
        return import_module(MODULE).adamw(self, model)

    def hidden_matrices(self, model: "Decoder") -> "set[torch.nn.Parameter]":
        """Return the parameters whose update needs the whole matrix, and of which only the momentum is kept: none."""
        return set()


class MuonConfig(Config):
    """Muon for hidden matrices, whose momentum is made orthogonal before each step, and AdamW for other parameters.

    Hidden matrices map one hidden state to another. Other parameters are the embedding, the head, gains and biases, the
    coefficients of hyper-connections and of mixtures of slots, maps to coefficients, to widths or to scores of experts,
    and the matrices of experts, which share a parameter and would be made orthogonal to each other. The iteration is
    torch's: five steps with the coefficients of the source, which map singular values between 0.01 and 1 to between
    0.68 and 1.14. Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.
    """

    kind: Literal["muon"] = "muon"
    lr: pydantic.PositiveFloat
    """Learning rate of hidden matrices. It is not divided by model.init.width_multiplier."""
    momentum: BelowOne = 0.95
    nesterov: bool = True
    """Add the gradient to the momentum again, as a look-ahead."""
    weight_decay: pydantic.NonNegativeFloat = 0.1
    """Weight decay of hidden matrices."""
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """Factor of an orthogonal matrix, in addition to lr. `original`: sqrt(max(1, n_out / n_in)), for equal step sizes
    at all widths. `match_rms_adamw`: 0.2 sqrt(max(n_out, n_in)), for entries as large as AdamW's, so that its learning
    rate can be used (Liu et al. 2025, arXiv:2502.16982)."""
    adamw: AdamWConfig
    """The optimizer of other parameters; its rate follows the same schedule."""

    @property
    def settling_steps(self) -> int:
        """Time constant of the slowest moving average, in steps."""
        return max(round(1 / (1 - self.momentum)), self.adamw.settling_steps)

    def with_scaled(self, factors: dict[str, float]) -> "MuonConfig":
        """Return a copy with another `adamw.scaled`."""
        return self.model_copy(update={"adamw": self.adamw.with_scaled(factors)})

    def build(self, model: "Decoder") -> "torch.optim.Optimizer":
        """Build both optimizers of a model. Raises as `AdamWConfig.build`."""
        return import_module(MODULE).muon(self, model)

    def hidden_matrices(self, model: "Decoder") -> "set[torch.nn.Parameter]":
        """Return the parameters that Muon trains."""
        return import_module(MODULE).hidden_matrices(self, model)


def _kind(optimizer: Any) -> Any:
    """Return the kind of an optimizer section; by default AdamW."""
    return optimizer.get("kind", "adamw") if isinstance(optimizer, dict) else getattr(optimizer, "kind", "adamw")


Optimizer = Annotated[Annotated[AdamWConfig, Tag("adamw")] | Annotated[MuonConfig, Tag("muon")], Discriminator(_kind)]
