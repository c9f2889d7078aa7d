"""The short form of a residual in a recipe that gives only the width of the stream."""

from fractions import Fraction
from typing import Annotated, Any, Literal

import pydantic

from widthwise.model.residual.hyper_connections import HyperConnectionsTemplate
from widthwise.model.residual.interface import RESIDUALS
from widthwise.model.residual.manifold import ManifoldTemplate

LARGEST_DENOMINATOR = 8
"""Largest denominator of a virtual width as a fraction of d_model; n_fractions and n_slots allow any."""


class VirtualWidthTemplate(HyperConnectionsTemplate):
    """Short form of a `HyperConnectionsTemplate` that gives only the virtual width: 1.5 means 3 halves of d_model."""

    kind: Literal["virtual"] = "virtual"  # pyright: ignore[reportIncompatibleVariableOverride]
    width: Annotated[float, pydantic.Field(gt=1, le=1024)]
    """Stream over d_model: n_slots / n_fractions in lowest terms, but with at least two fractions; to two decimals."""
    constraint: Literal["none", "manifold"] = "none"
    """`manifold`: the `ManifoldTemplate` of as many slots, each d_model wide, so that the width is a whole number."""

    @pydantic.model_validator(mode="after")
    def _in_slots(self) -> Any:
        for key in ("n_fractions", "slot_width", "n_slots"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key}: conflicts with width, which gives n_slots / n_fractions; give only one")
        if self.constraint == "manifold":
            if self.width % 1:
                raise ValueError(f"width: got {self.width:g}; must be whole with constraint: manifold")
            given = {key: getattr(self, key) for key in self.model_fields_set - {"kind", "width", "constraint"}}
            return ManifoldTemplate.model_validate({**given, "n_slots": int(self.width)})
        fraction = Fraction(self.width).limit_denominator(LARGEST_DENOMINATOR)
        if abs(fraction - self.width) > 0.005:
            allowed = f"a fraction n/m with m up to {LARGEST_DENOMINATOR}, such as {fraction}"
            raise ValueError(f"width: got {self.width:g}; must be {allowed}")
        m = max(2, fraction.denominator)
        options = {key: getattr(self, key) for key in HyperConnectionsTemplate.model_fields}
        slots = {"kind": "hyper_connections", "n_fractions": m, "n_slots": int(m * fraction)}
        return HyperConnectionsTemplate.model_validate(options | slots)


RESIDUALS.templates.add(VirtualWidthTemplate)
