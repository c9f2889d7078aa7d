"""Feed-forward in plain torch: two matrices with an activation between them, and an optional gate and biases.

Sources: Vaswani et al. 2017, arXiv:1706.03762 (relu); GPT-2, Radford et al. 2019 (gelu_tanh); So et al. 2021,
arXiv:2109.08668 (relu2); Shazeer 2020, arXiv:2002.05202 (gates: GEGLU, ReGLU).
"""

from typing import ClassVar, Literal

from widthwise.config_io import Config, options_of
from widthwise.model.cost import Cost, linear, vector
from widthwise.model.ffn.interface import FFNConfig, HiddenWidthTemplate, register_ffn
from widthwise.sizes import Width

Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"]

N_KEPT: dict[Activation, int] = {"gelu": 2, "gelu_tanh": 2, "relu": 1, "relu2": 2, "silu": 2}
"""Activation -> numbers per channel that it and the next matrix product keep for the backward pass: its argument and
its value, or only the value."""


class MLPOptions(Config):
    """Options that a recipe and a resolved model share."""

    activation: Activation = "gelu"
    """gelu_tanh is GPT-2's approximation of gelu; relu2 is the square of relu."""
    gated: bool = False
    """Multiply w_up(x) by the activation of w_gate(x), instead of applying it to w_up(x): GEGLU with gelu or gelu_tanh
    (Gemma). With silu, kind swiglu computes the same and keeps less memory."""
    bias: bool = False
    """Give all matrices a bias, which starts at 0."""

    def mlp_cost(self, d_model: float, d_ff: float, d_out: float) -> Cost:
        """Return the cost of matrices, biases and the hidden activations kept for the backward pass.

        With a gate, w_up(x) and its product with the gate are kept in addition.
        """
        d_in = 2 * d_ff if self.gated else d_ff
        biases = vector(d_in) + vector(d_out) if self.bias else Cost()
        n_kept = N_KEPT[self.activation] + (2 if self.gated else 0)
        return linear(d_model, d_in) + linear(d_ff, d_out) + biases + Cost(activation_elements=n_kept * d_ff)


class MLPConfig(MLPOptions, FFNConfig):
    """The feed-forward down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x))."""

    constant_fields = ("activation", "gated", "bias")
    hidden_axes: ClassVar = {"d_ff": "d_ff"}
    bakes_with_one_eps = True
    module = "widthwise.model.ffn.mlp_module:MLP"
    kind: Literal["mlp"] = "mlp"
    d_ff: Width
    """Hidden width, in channels."""

    def cost(self, d_model: int, d_out: int) -> Cost:
        return self.mlp_cost(d_model, self.d_ff, d_out)


class MLPTemplate(MLPOptions, HiddenWidthTemplate):
    """An MLP for a layer of any width; usually d_ff = 4 d_model."""

    usual_ratio = 4.0
    kind: Literal["mlp"] = "mlp"
    d_ff: Width | None = None
    """Hidden width of every layer."""

    def cost(self, d_model: float, d_out: float) -> Cost:
        return self.mlp_cost(d_model, self.real_hidden(d_model), d_out)

    def at_width(self, d_model: int) -> MLPConfig:
        return MLPConfig(d_ff=self.whole_hidden(d_model), **options_of(MLPOptions, self))


register_ffn(MLPConfig, MLPTemplate)
