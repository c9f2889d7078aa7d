"""The module of a feed-forward in plain torch, with or without a gate."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from widthwise.model.axes import Linear
from widthwise.model.context import Choices, FeedForward, PassContext
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.norm import NormSite


def relu2(x: Tensor) -> Tensor:
    """Return the squared ReLU, max(x, 0)^2."""
    return relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "relu": relu,
    "relu2": relu2,
    "silu": silu,
}


class MLP(FeedForward):
    def __init__(self, config: MLPConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.config = config
        self.norm = norm.build(d_model, d_out)
        if config.gated:
            self.w_gate = Linear({"d_model": d_model}, {"d_ff": config.d_ff}, has_bias=config.bias)
        self.w_up = Linear({"d_model": d_model}, {"d_ff": config.d_ff}, has_bias=config.bias)
        self.w_down = Linear({"d_ff": config.d_ff}, {"d_model": d_out}, has_bias=config.bias)

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        x = self.norm.before(x)
        activation = ACTIVATIONS[self.config.activation]
        hidden = activation(self.w_gate(x)) * self.w_up(x) if self.config.gated else activation(self.w_up(x))
        return self.norm.after(self.w_down(hidden)), {}
