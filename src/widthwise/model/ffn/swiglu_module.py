"""The module of SwiGLU."""

from torch import Tensor

from widthwise.kernels.swiglu import swiglu
from widthwise.model.axes import Linear
from widthwise.model.context import Choices, FeedForward, PassContext
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.norm import NormSite


class SwiGLU(FeedForward):
    def __init__(self, config: SwiGLUConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.norm = norm.build(d_model, d_out)
        self.w_gate = Linear({"d_model": d_model}, {"d_ff": config.d_ff})
        self.w_up = Linear({"d_model": d_model}, {"d_ff": config.d_ff})
        self.w_down = Linear({"d_ff": config.d_ff}, {"d_model": d_out})

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        x = self.norm.before(x)
        return self.norm.after(self.w_down(swiglu(self.w_gate(x), self.w_up(x)))), {}
