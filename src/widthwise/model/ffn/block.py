"""One block of an hourglass feed-forward: gated or not, with any activation."""

from typing import TYPE_CHECKING

from widthwise.config_io import Config
from widthwise.model.agreement import must_agree
from widthwise.model.cost import Cost, linear
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.mlp import N_KEPT, Activation, MLPConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig, swiglu_cost
from widthwise.model.norm import NormSite

if TYPE_CHECKING:
    from widthwise.model.ffn.mlp_module import MLP
    from widthwise.model.ffn.swiglu_module import SwiGLU

CONVENTIONAL = (SwiGLUConfig, MLPConfig)
"""Feed-forwards that can be a block."""


class BlockForm(Config):
    """What a block computes."""

    activation: Activation = "silu"
    """silu is SwiGLU's and the paper's. relu2 is the square of relu."""
    gated: bool = True
    """Whether w_gate(x), behind the activation, multiplies w_up(x); if not, w_up(x) goes through the activation, and a
    block has two matrices instead of three."""

    def block_cost(self, d_model: float, d_hidden: float, d_out: float) -> Cost:
        """The matrices, and the hidden activations kept for the backward pass."""
        if not self.gated:
            kept = Cost(activation_elements=N_KEPT[self.activation] * d_hidden)
            return linear(d_model, d_hidden) + linear(d_hidden, d_out) + kept
        recomputed = swiglu_cost(d_model, d_hidden, d_out)
        if self.activation == "silu":
            return recomputed
        # Beside gate or its activation, up and product: the activated gate, where the activation keeps its argument.
        return recomputed + Cost(activation_elements=(N_KEPT[self.activation] - 1) * d_hidden)

    def build_block(self, d_model: int, d_hidden: int, d_out: int, norm: NormSite) -> "SwiGLU | MLP":
        """The module."""
        from widthwise.model.ffn.glu_module import GLU

        if not self.gated:
            return MLPConfig(d_ff=d_hidden, activation=self.activation).build(d_model, d_out, norm)
        if self.activation == "silu":
            return SwiGLUConfig(d_ff=d_hidden).build(d_model, d_out, norm)
        return GLU(self.activation, d_model, d_hidden, d_out, norm)

    def check_first_block(self, old: FFNConfig) -> None:
        """Raises UserError where a conventional feed-forward is no block of this form."""
        if isinstance(old, MLPConfig):
            must_agree("bias", old.bias, False)
        must_agree("gated", isinstance(old, SwiGLUConfig), self.gated)
        must_agree("activation", old.activation if isinstance(old, MLPConfig) else "silu", self.activation)
