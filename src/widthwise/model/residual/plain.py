"""The plain residual over one wide stream: layers read and write a prefix of it, and the rest is carried forward.

Each coordinate holds the value left by the last layer wide enough to own it; a coordinate never written is 0. That is
Eq. (1) of the variable-width paper. The stream is stored as its current prefix and the tails that narrower layers
parked, so that narrowing is a view and widening one concatenation.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pydantic

from widthwise.model.cost import Axes, Cost, linear, size
from widthwise.model.residual.interface import (
    Idle,
    PrefixLayout,
    ResidualConfig,
    ResidualTemplate,
    SiteWidths,
    register_residual,
)

if TYPE_CHECKING:
    from torch import Tensor

    from widthwise.model.context import Stream


Resize = Literal["carry", "zero", "projection", "full_projection"]


def projected(resize: Resize, d_before: int, d_after: int) -> Axes:
    """The coordinates that a layer of width d_after finds projected after one of d_before: none, the extra or all."""
    if d_after <= d_before:
        return {}
    return {"projection": {"d_widened": d_after - d_before}, "full_projection": {"d_model": d_after}}.get(resize, {})


class PlainResidualConfig(ResidualConfig, ResidualTemplate):
    """prefix += multiplier * update. After the last layer, coordinates are always restored as with `carry`.

    It has no sizes, so one class is both template and resolved config.
    """

    module = "widthwise.model.residual.plain_module"
    final_norm_spans_layer = True
    kept = ("resize",)
    is_sum = True
    kind: Literal["plain"] = "plain"
    resize: Resize = "carry"
    """Content of the extra coordinates of a layer wider than its predecessor; with full_projection, in all."""
    projections: Literal["as_matrices", "as_released"] = "as_matrices"
    """Start and rate of projections: as all hidden matrices, or as in the paper's release, which leaves them to
    torch's start, uniform within 1 / sqrt(d_before), and gives them the rate of embedding and head."""
    multiplier: pydantic.PositiveFloat = 1.0
    """Factor of every update."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "PlainResidualConfig":
        if self.projections != "as_matrices" and not self.resize.endswith("projection"):
            got = f"projections: got {self.projections}; resize {self.resize} has none"
            raise ValueError(f"{got}, only projection and full_projection")
        return self

    def slot_shape(self, d_model: int) -> tuple[int, int]:
        return 1, d_model

    def to_slots(self, stream: "Stream", d_model: int) -> "Tensor":
        return stream.carry_to(d_model).prefix[..., None, :]

    def from_slots(self, slots: "Tensor") -> "Stream":
        return import_module(self.module).Stream(slots.squeeze(-2))

    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        return Cost()

    def at_widths(self, d_model: int, widths: Sequence[int]) -> "PlainResidualConfig":
        return self

    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        axes = projected(self.resize, d_before, d_read)
        return linear(d_before, size(axes)) + Cost(activation_elements=d_before) if axes else Cost()

    def idle(self, d_model: int, sites: Sequence[SiteWidths], width: int) -> Idle:
        widest = max(d_model, width, *(max(site) for site in sites))
        is_written, is_read = np.arange(widest) < d_model, np.arange(widest) < max(d_model, width)
        unwritten, unread = [], []
        for d_before, d_read, d_write in sites:
            if self.resize != "carry":
                is_written[d_before:d_read] = self.resize != "zero"
            unwritten.append(d_read - int(is_written[:d_read].sum()))
            is_written[:d_write] = True
        for d_before, d_read, d_write in reversed(sites):
            unread.append(d_write - int(is_read[:d_write].sum()))
            is_read[:d_read] = True
            if self.resize != "carry":
                is_read[d_before:d_read] = False  # replaced by zeros or a projection
        return Idle(d_model - int(is_read[:d_model].sum()), list(zip(unwritten, reversed(unread))))

    @property
    def layout(self) -> PrefixLayout:
        return PrefixLayout(self.resize)


register_residual(PlainResidualConfig, PlainResidualConfig)
