"""A custom feed-forward: config, template and module in one file; it is then designed, counted, trained and grown."""

from typing import ClassVar, Literal

import pydantic
from torch import Tensor, sin

import widthwise
from widthwise.model.axes import Linear
from widthwise.model.context import Choices, FeedForward, PassContext
from widthwise.model.cost import Cost, linear
from widthwise.model.ffn.interface import FFNConfig, HiddenWidthTemplate
from widthwise.model.norm import NormSite


class SineConfig(FFNConfig):
    kind: Literal["sine"] = "sine"
    d_ff: pydantic.PositiveInt
    constant_fields = ()  # fields that growth must not change
    hidden_axes: ClassVar = {"d_ff": "d_ff"}

    def cost(self, d_model: int, d_out: int) -> Cost:
        return linear(d_model, self.d_ff) + linear(self.d_ff, d_out) + Cost(activation_elements=2 * self.d_ff)

    def build(self, d_model: int, d_out: int, norm: NormSite) -> "Sine":
        return Sine(self, d_model, d_out, norm)


class SineTemplate(HiddenWidthTemplate):
    usual_ratio = 4.0
    kind: Literal["sine"] = "sine"
    d_ff: pydantic.PositiveInt | None = None

    def cost(self, d_model: float, d_out: float) -> Cost:
        d_ff = self.real_hidden(d_model)
        return linear(d_model, d_ff) + linear(d_ff, d_out) + Cost(activation_elements=2 * d_ff)

    def at_width(self, d_model: int) -> SineConfig:
        return SineConfig(d_ff=self.whole_hidden(d_model))


class Sine(FeedForward):
    def __init__(self, config: SineConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.norm = norm.build(d_model, d_out)
        self.w_up = Linear({"d_model": d_model}, {"d_ff": config.d_ff})
        self.w_down = Linear({"d_ff": config.d_ff}, {"d_model": d_out})

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        return self.norm.after(self.w_down(sin(self.w_up(self.norm.before(x))))), {}


widthwise.register_ffn(SineConfig, SineTemplate)
recipe = widthwise.load_recipe("smoke", ["model.ffn={kind: sine}"])
print(f"held-out loss {widthwise.train(recipe, 'runs/sine').val_loss:.3f}")
grown = widthwise.grow_run("runs/sine", "runs/larger", sizes=widthwise.NewSizes(add_layers=2))
print(*grown["lines"], sep="\n")
