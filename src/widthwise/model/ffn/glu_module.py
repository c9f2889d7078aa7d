"""The module of a gated feed-forward with any activation of its gate. Source: Shazeer 2020, arXiv:2002.05202."""

from torch import Tensor

from widthwise.model.ffn.mlp_module import ACTIVATIONS
from widthwise.model.ffn.swiglu_module import SwiGLU
from widthwise.model.norm import NormSite


class GLU(SwiGLU):
    """down(activation(gate(x)) * up(x)): GEGLU, ReGLU and others, in plain torch."""

    def __init__(self, activation: str, d_model: int, d_ff: int, d_out: int, norm: NormSite):
        super().__init__(d_model, d_ff, d_out, norm)
        self.activation = ACTIVATIONS[activation]

    def update_of(self, read: Tensor) -> Tensor:
        return self.norm.after(self.w_down(self.activation(self.w_gate(read)) * self.w_up(read)))
