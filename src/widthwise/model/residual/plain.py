"""The plain residual over one wide stream: layers read and write a prefix of it, and the rest is carried forward.

Each coordinate has the value from the last layer wide enough to own it; a coordinate that was never written is 0. This
is Eq. (1) of the variable-width paper. The stream is stored as its current prefix and the parked tails, the coordinates
that narrower layers left out, so that narrowing is a view and widening one concatenation.
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


def projected_axes(resize: Resize, d_before: int, d_after: int) -> Axes:
    """Return the output axes of the projection before a layer of width d_after: extra coordinates, or all; {}: none.

    d_before: width of the layer before it.
    """
    if d_after <= d_before:
        return {}
    return {"projection": {"d_widened": d_after - d_before}, "full_projection": {"d_model": d_after}}.get(resize, {})


class PlainResidualConfig(ResidualConfig, ResidualTemplate):
    """prefix += multiplier * update. The exit always restores coordinates as with `carry`.

    It has no sizes, so the class is both template and resolved config.
    """

    module = "widthwise.model.residual.plain_module"
    final_norm_spans_layer = True
    constant_fields = ("resize",)
    is_sum = True
    kind: Literal["plain"] = "plain"
    resize: Resize = "carry"
    """Content of the extra coordinates of a layer wider than its predecessor, or of all with full_projection."""
    projections: Literal["as_matrices", "as_released"] = "as_matrices"
    """Initial weights and learning rate of projections: as hidden matrices, or as in the paper's release, with torch's
    initial weights, uniform within 1 / sqrt(d_before), and the rate of embedding and head."""
    multiplier: pydantic.PositiveFloat = 1.0
    """Factor of every update."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "PlainResidualConfig":
        if self.projections != "as_matrices" and not self.resize.endswith("projection"):
            raise ValueError(f"projections: got {self.projections}; needs resize projection or full_projection")
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
        axes = projected_axes(self.resize, d_before, d_read)
        return linear(d_before, size(axes)) + Cost(activation_elements=d_before) if axes else Cost()

    def idle(self, d_model: int, sites: Sequence[SiteWidths], width: int) -> Idle:
        widest = max(d_model, width, *(max(site) for site in sites))
        is_written = np.arange(widest) < d_model
        is_read = np.arange(widest) < max(d_model, width)
        unwritten = []
        unread = []
        for d_before, d_read, d_write in sites:
            if self.resize != "carry":
                is_written[d_before:d_read] = self.resize != "zero"  # zeros, or written by a projection
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
