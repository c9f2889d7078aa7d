"""The module of a residual whose layers learn the width of their prefix."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from widthwise.kernels.sliced_swiglu.reference import unit_centres
from widthwise.model.axes import Vector
from widthwise.model.choices import Choices
from widthwise.model.ffn.width_mask import StraightThroughMaskConfig
from widthwise.model.ffn.width_mask_module import straight_through
from widthwise.model.ffn.width_score_module import wide
from widthwise.model.residual.interface_module import Site
from widthwise.model.residual.plain_module import PlainResidual, Stream

if TYPE_CHECKING:
    from widthwise.model.residual.learned_prefix import LearnedPrefixConfig


class LearnedPrefix(Site):
    """A plain site behind a mask over its coordinates, of which coordinate i has its centre at i + 1/2."""

    def __init__(self, config: "LearnedPrefixConfig", plain: PlainResidual, d_model: int):
        super().__init__()
        self.config, self.plain, self.d_model = config, plain, d_model
        self.temperature = StraightThroughMaskConfig().first_temperature(d_model)
        self.bias = Vector({}, math.log(config.start / (1 - config.start)))

    def join(self, first: Any) -> None:
        assert isinstance(first, LearnedPrefix)
        self.bias = first.bias

    def choices(self) -> Choices:
        return {"prefix_fraction": self.fraction()}

    def fraction(self) -> Tensor:
        """The width over d_model, (1,), in fp32 or wider."""
        least = self.config.min_fraction
        return least + (1 - least) * torch.sigmoid(wide(self.bias()))

    def read(self, stream: Stream) -> tuple[Tensor, Stream]:
        prefix, kept = self.plain.read(stream)
        return self._masked(prefix), kept

    def write(self, kept: Stream, update: Tensor) -> Stream:
        return self.plain.write(kept, self._masked(update))

    def _masked(self, x: Tensor) -> Tensor:
        """x: (B, T, n), 0 behind the width; the mask has the derivative of a sigmoid."""
        width = self.d_model * self.fraction()
        temperature = torch.tensor(self.temperature, dtype=torch.float64)
        mask = straight_through(width, unit_centres(0, x.shape[-1], width), temperature)
        return x * mask.to(x.dtype)
