"""SwiGLU, the feed-forward with a silu gate. Source: Shazeer 2020, arXiv:2002.05202."""

from typing import ClassVar, Literal

from widthwise.model.cost import Cost, linear
from widthwise.model.ffn.interface import FFNConfig, HiddenWidthTemplate, register_ffn
from widthwise.sizes import Width


def swiglu_cost(d_model: float, d_ff: float, d_out: float) -> Cost:
    """Return the cost of gate, up and down projection. Kept for the backward pass: gate, up and their product."""
    return linear(d_model, d_ff) + linear(d_model, d_ff) + linear(d_ff, d_out) + Cost(activation_elements=3 * d_ff)


class SwiGLUConfig(FFNConfig):
    """The feed-forward down(silu(gate(x)) * up(x))."""

    constant_fields = ()
    hidden_axes: ClassVar = {"d_ff": "d_ff"}
    bakes_with_one_eps = True
    module = "widthwise.model.ffn.swiglu_module:SwiGLU"
    kind: Literal["swiglu"] = "swiglu"
    d_ff: Width
    """Hidden width, in channels."""

    def cost(self, d_model: int, d_out: int) -> Cost:
        return swiglu_cost(d_model, self.d_ff, d_out)


class SwiGLUTemplate(HiddenWidthTemplate):
    """A SwiGLU for a layer of any width; usually d_ff = 4 d_model."""

    usual_ratio = 4.0
    kind: Literal["swiglu"] = "swiglu"
    d_ff: Width | None = None
    """Hidden width of every layer."""

    def cost(self, d_model: float, d_out: float) -> Cost:
        return swiglu_cost(d_model, self.real_hidden(d_model), d_out)

    def at_width(self, d_model: int) -> SwiGLUConfig:
        return SwiGLUConfig(d_ff=self.whole_hidden(d_model))


register_ffn(SwiGLUConfig, SwiGLUTemplate)
