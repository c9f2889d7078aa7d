"""Virtual width: how a model with hyper-connections uses its stream."""

from collections.abc import Mapping, Sequence
from typing import Self

import pydantic

from widthwise.records.record import Known, Record


class CarrySpectrum(Record):
    """Spectral radius and norm of the carries of a site, and of the products of all carries up to it, its own included.

    Means over some tokens.
    """

    radius: Known
    norm: Known
    product_radius: Known
    product_norm: Known


class SiteSlots(Record):
    """What one sublayer reads from and writes to a stream of slots; tables have one row per slot."""

    name: str
    reach: Sequence[float]
    """Weights of the embedding and of every earlier sublayer in what this one reads."""
    reach_sd: Sequence[float]
    mean_distance: Known
    plain_distance: float
    """The mean distance that equal weights would give."""
    read: Sequence[Sequence[float]]
    carry: Sequence[Sequence[float]]
    write: Sequence[Sequence[float]]
    sd: Mapping[str, Sequence[float]]
    window_share: Known = None
    """Weight of the last n_slots sources over that of all."""
    gate_distance: Known = None
    """Mean distance of the sizes of carries and writes from the nearer of 0 and 1; 0 where routing is hard."""
    spectrum: CarrySpectrum | None = None


class VirtualWidth(Record):
    """How a model with hyper-connections uses its stream."""

    n_tokens: int
    n_slots: int
    slot_width: int
    dynamic: bool | None = None
    """Whether coefficients depend on the token."""
    sites: Sequence[SiteSlots] = pydantic.Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        for i, site in enumerate(self.sites):
            if not len(site.reach) == len(site.reach_sd) == i + 1:
                raise ValueError(f"sites.{i}.reach: expected {i + 1} weights, one for each source")
            if {len(site.read), len(site.carry), len(site.write)} != {self.n_slots}:
                raise ValueError(f"sites.{i}: expected tables of n_slots = {self.n_slots} rows")
        return self
