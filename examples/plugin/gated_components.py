"""A feed-forward and a residual from outside the package: what a plugin consists of."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pydantic
from torch import Tensor
from torch.nn.functional import leaky_relu

import widthwise
from widthwise.config_io import Config, options_of
from widthwise.model.axes import Linear, Vector
from widthwise.model.context import Choices, FeedForward, PassContext
from widthwise.model.cost import Cost, linear, vector
from widthwise.model.ffn.interface import FFNConfig, HiddenWidthTemplate
from widthwise.model.norm import NormSite
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.model.residual.plain_module import PlainResidual, Stream


class LeakyOptions(Config):
    slope: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Slope of the gate below 0."""

    def leaky_cost(self, d_model: float, d_inner: float, d_out: float) -> Cost:
        """Kept for the backward pass: gate, its activation, up and their product."""
        kept = Cost(activation_elements=4 * d_inner)
        return linear(d_model, d_inner) + linear(d_model, d_inner) + linear(d_inner, d_out) + kept


class LeakyConfig(LeakyOptions, FFNConfig):
    """down(leaky_relu(gate(x)) * up(x))."""

    constant_fields = ("slope",)
    hidden_axes: ClassVar = {"d_inner": "d_inner"}
    kind: Literal["leaky"] = "leaky"
    d_inner: pydantic.PositiveInt

    def cost(self, d_model: int, d_out: int) -> Cost:
        return self.leaky_cost(d_model, self.d_inner, d_out)

    def build(self, d_model: int, d_out: int, norm: NormSite) -> "Leaky":
        return Leaky(self, d_model, d_out, norm)


class LeakyTemplate(LeakyOptions, HiddenWidthTemplate):
    """Usually d_inner = 3 d_model."""

    hidden_key = "d_inner"
    usual_ratio = 3.0
    kind: Literal["leaky"] = "leaky"
    d_inner: pydantic.PositiveInt | None = None

    def cost(self, d_model: float, d_out: float) -> Cost:
        return self.leaky_cost(d_model, self.real_hidden(d_model), d_out)

    def at_width(self, d_model: int) -> LeakyConfig:
        return LeakyConfig(d_inner=self.whole_hidden(d_model), **options_of(LeakyOptions, self))


class Leaky(FeedForward):
    def __init__(self, config: LeakyConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.slope = config.slope
        self.norm = norm.build(d_model, d_out)
        self.w_gate = Linear({"d_model": d_model}, {"d_inner": config.d_inner})
        self.w_up = Linear({"d_model": d_model}, {"d_inner": config.d_inner})
        self.w_down = Linear({"d_inner": config.d_inner}, {"d_model": d_out})

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        x = self.norm.before(x)
        hidden = leaky_relu(self.w_gate(x), self.slope) * self.w_up(x)
        return self.norm.after(self.w_down(hidden)), {}


class GatedResidualConfig(PlainResidualConfig):
    """prefix += multiplier * gate * update, with one learned number for each sublayer. It is its own template."""

    kind: Literal["gated"] = "gated"

    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        return vector(1) + Cost(activation_elements=d_write)

    def at_widths(self, d_model: int, widths: Sequence[int]) -> "GatedResidualConfig":
        return self

    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        return super().cost(d_before, d_read, d_write) + self.matched_cost(0, d_read, d_write)

    def build(self, d_before: int, d_read: int, d_write: int) -> "GatedResidual":
        return GatedResidual(self, d_before, d_read, d_write)


class GatedResidual(PlainResidual):
    def __init__(self, config: GatedResidualConfig, d_before: int, d_read: int, d_write: int):
        super().__init__(config, d_before, d_read, d_write)
        self.gate = Vector({}, start=1.0)

    def write(self, skip: Stream, update: Tensor) -> Stream:
        return super().write(skip, self.gate() * update)


widthwise.register_ffn(LeakyConfig, LeakyTemplate)
widthwise.register_residual(GatedResidualConfig, GatedResidualConfig)
