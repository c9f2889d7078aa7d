"""Generalized hyper-connections: the stream is n slots, and sublayers read and write learned mixtures of them.

Source: virtual-width paper, arXiv:2511.11238, section 3; see docs/virtual_width.md for its contradictions. A slot has
`slot_width` numbers. A layer of width d reads and writes m = d / slot_width blocks, so that layers of different
widths share one stream; with coefficients frozen at their initial values this is the plain residual with carry. m = 1
gives Hyper-Connections (Zhu et al. 2024, arXiv:2409.19606), n_slots = m Frac-Connections (Zhu et al. 2025,
arXiv:2503.14125).
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

import pydantic

from widthwise.config_io import options_of
from widthwise.model.cost import Cost, vector
from widthwise.model.kinds import may_be_added, must_agree, must_stay
from widthwise.model.residual.interface import (
    RESIDUALS,
    Idle,
    PrefixLayout,
    ResidualConfig,
    ResidualTemplate,
    SiteWidths,
    SlotLayout,
    register_residual,
)
from widthwise.model.residual.manifold import ManifoldTemplate
from widthwise.model.residual.slots import ENTRY_COSTS, REDUCTION_COSTS, HyperConnectionOptions, SlotsConfig, n_blocks
from widthwise.sizes import NSlots, Width

IN_TURN = {
    "read_init": ("in_turn", "first"),
    "writes": ("own", "all"),
    "embedding": ("copies", "slot"),
    "reduce": ("sum", "slot"),
}
"""Option -> its value that assigns blocks to slots in turn, which needs layers of one width, and the value to use with
layers of different widths."""
TILING = {"embedding": "copies", "reduce": "sum", "reduce_init": "mean"}
"""Option -> its value that requires a stream of whole groups of d_model coordinates."""


class HyperConnectionsConfig(HyperConnectionOptions, SlotsConfig):
    """A stream of n_slots slots."""

    module = "widthwise.model.residual.hyper_connections_module"
    n_owned_slots: NSlots
    """Slots that the widest layer reads and writes. No layer owns later slots."""
    slot_norm_dim: pydantic.PositiveInt | None = None
    """Divisor of a slot's sum of squares in the norm for dynamic coefficients; the output of this norm is also divided
    by the root of the divisor. null: slot_width. A grown model keeps its old divisor."""
    group_norm: Literal["rms", "layer"] | None
    """Norm over every d_model coordinates of the stream before it is reduced."""
    group_norm_dim: pydantic.PositiveInt | None = None
    """Divisor of the sums of squares in the group norm; null: d_model."""

    def check_widths(self, d_model: int, widths: Sequence[int]) -> None:
        counts = [n_blocks(width, self.slot_width) for width in (d_model, *widths)]
        widest = max(counts)
        if self.n_slots < widest:
            raise ValueError(f"n_slots: got {self.n_slots}; must be at least the {widest} blocks of the widest layer")
        if widest > self.n_owned_slots:
            raise ValueError(f"n_owned_slots: got {self.n_owned_slots}; the widest layer has {widest} blocks")
        for name, (value, instead) in IN_TURN.items():
            if len(set(counts)) > 1 and getattr(self, name) == value:
                raise ValueError(f"{name}: got {value}; with layers of different widths use {instead}")
        n_fractions = counts[0]
        if self.n_slots % n_fractions:
            not_tiled = f"groups of {n_fractions} slots do not tile n_slots = {self.n_slots}"
            if self.group_norm is not None:
                raise ValueError(f"group_norm: got {self.group_norm}; must be none, because {not_tiled}")
            for name, value in TILING.items():
                if getattr(self, name) == value:
                    raise ValueError(f"{name}: got {value}; {not_tiled}")
        if self.reduce == "sum" and self.reduce_init != "first":
            raise ValueError(f"reduce_init: got {self.reduce_init}; must be first, because reduce: sum has no weights")
        # Slots that start equal, take equal updates and are not read stay equal.
        n_unowned = self.n_slots - self.n_owned_slots
        n_distinct = math.lcm(*counts)
        if self.embedding == "pad" and n_unowned > n_distinct:
            raise ValueError(
                f"embedding: got pad; only {n_distinct} of the {n_unowned} slots that no layer owns would ever differ, "
                "because all start at 0; use direct, expand or slot"
            )
        if self.embedding == "copies" and self.read_init == "first" and self.n_slots > 2 * n_fractions:
            raise ValueError("embedding: got copies; slots that are not read would stay equal; use read_init: in_turn")

    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        b = self.slot_width
        return self.site_cost(b, self.n_slots, d_read // b, d_write // b)

    def idle(self, d_model: int, sites: Sequence[SiteWidths], width: int) -> Idle:
        """Count the parameters of the first site that multiply slots that start at 0."""
        n_empty = self.n_slots - n_blocks(d_model, self.slot_width) if self.embedding == "pad" else 0
        _, n_read, n_write = (site_width // self.slot_width for site_width in sites[0])
        n_idle = n_read + self.n_slots  # static coefficients of reads and carries of one slot
        if self.dynamic and self.scale == "entries":
            n_idle += n_read + self.n_slots + (1 if self.writes == "own" else n_write)  # scales of all coefficients
        return super().idle(d_model, sites, width)._replace(n_params=n_empty * n_idle)

    def embedding_width(self, d_model: int) -> int:
        return self.stream_width if self.embedding == "direct" else d_model

    def entry_cost(self, d_model: int) -> Cost:
        cost = ENTRY_COSTS.get(self.embedding)
        return Cost() if cost is None else cost(d_model, self.n_slots, self.slot_width)

    def exit_cost(self, d_model: int, shares_reduction: bool = False) -> Cost:
        cost = REDUCTION_COSTS[self.reduce](d_model, self.n_slots, self.slot_width)
        if shares_reduction:
            cost = cost.shared()
        if self.group_norm is None:
            return cost
        width = self.stream_width
        # The output of the group norm is counted with the reduction, which keeps it.
        cost += vector(width) + Cost(activation_fp32_elements=width // d_model)
        if self.group_norm == "layer":  # a bias, before which the output is kept once more
            cost += vector(width) + Cost(activation_elements=width)
        return cost

    @property
    def layout(self) -> SlotLayout:
        return SlotLayout(self.slot_width, self.n_slots, self.n_owned_slots, has_means=self.group_norm == "layer")

    def with_constants_of(self, old: ResidualConfig, d_model: int, widths: Sequence[int]) -> "HyperConnectionsConfig":
        """Return this config with the constants of `old`. A plain residual becomes slots of the same function."""
        if not isinstance(old, HyperConnectionsConfig):
            # With initial coefficients, the slots must equal the old stream.
            widest = max(d_model, *widths)
            if not (isinstance(old.layout, PrefixLayout) and old.is_sum):
                raise ValueError(f"kind: got {self.kind} where it was {old.kind}; only a plain one can become slots")
            for name in ("read_init", "reduce_init"):
                if getattr(self, name) != "first":
                    raise ValueError(f"{name}: got {getattr(self, name)}; must be first, as in a plain residual")
            if self.reduce == "sum" and self.n_slots > self.n_owned_slots:
                raise ValueError("reduce: got sum; must be full or slot, because the first slots were read")
            if self.embedding in ("expand", "slot") and widest > d_model:
                raise ValueError(
                    f"embedding: got {self.embedding}; must be direct or pad, because coordinates {d_model} to "
                    f"{widest} start at 0"
                )
            # A group norm before the last norm would change the function, because both have an eps.
            return self.model_copy(update={"group_norm": None})
        must_stay(("embedding", "reduce", "writes", "scale"), old, self)
        if self.reduce == "sum" or (self.dynamic and self.scale == "numbers"):
            must_stay(("n_slots",), old, self)  # a new slot would be read at once
        may_be_added("dynamic", old.dynamic, self.dynamic)
        if old.group_norm is not None:
            must_agree("group_norm", old.group_norm, self.group_norm)
        constants = {
            "eps": old.eps,
            "group_norm": old.group_norm,
            "slot_norm_dim": old.slot_norm_dim or old.slot_width,
            "group_norm_dim": old.group_norm_dim or d_model,
        }
        return self.model_copy(update=constants)

    def growth_in_words(self, old: ResidualConfig) -> Iterator[str]:
        if not isinstance(old, HyperConnectionsConfig):
            yield f"residual: {old.kind} -> {self.n_slots} slots of {self.slot_width} (virtual width)"
            return
        if self.slot_width != old.slot_width:
            yield f"residual: slots {old.slot_width} -> {self.slot_width} wide (hidden dimension expansion)"
        if self.n_slots != old.n_slots:
            yield f"residual: {old.n_slots} -> {self.n_slots} slots (virtual width)"
        if self.dynamic and not old.dynamic:
            yield "residual: coefficients depend on the state, unchanged at first (conversion)"

    def baked(self) -> "HyperConnectionsConfig":
        eps = self.eps * ((self.slot_norm_dim or self.slot_width) / self.slot_width)
        return self.model_copy(update={"slot_norm_dim": None, "group_norm_dim": None, "eps": eps})


class HyperConnectionsTemplate(HyperConnectionOptions, ResidualTemplate):
    """The paper's (m, n): d_model is cut into m = n_fractions blocks. The stream has n = n_slots slots of this size.

    The virtual width is n / m times d_model.
    """

    n_fractions: NSlots | None = None
    """Blocks of d_model. 1, the default, gives Hyper-Connections."""
    slot_width: Width | None = None
    """Numbers in a block; replaces n_fractions."""
    n_slots: NSlots | None = None
    """Slots of the stream. null: as many as blocks in the widest layer, which gives Frac-Connections."""
    group_norm: Literal["auto", "rms", "layer", "none"] = "auto"
    """Norm over every d_model coordinates of the stream before the reduction. `layer` is the paper's; `rms` does not
    change the model's initial function. auto: rms if the groups tile a stream wider than d_model and `reduce` is not
    sum."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "HyperConnectionsTemplate":
        if self.n_fractions is not None and self.slot_width is not None:
            raise ValueError("n_fractions: conflicts with slot_width; give only one of them")
        return self

    @property
    def d_model_quantum(self) -> int:
        return self.slot_width or self.n_fractions or 1

    def quantum(self, d_model: int) -> int:
        """Return the slot width. Raise ValueError if it does not divide d_model."""
        if self.slot_width is not None:
            n_blocks(d_model, self.slot_width)
            return self.slot_width
        n_fractions = self.n_fractions or 1
        if d_model % n_fractions:
            raise ValueError(f"n_fractions: got {n_fractions}; must divide d_model = {d_model}")
        return d_model // n_fractions

    def check_solvable(self) -> None:
        if self.n_slots is None:
            raise ValueError("n_slots: missing; a solved shape needs it, because all costs depend on it")

    def check_searchable(self) -> None:
        if self.slot_width is not None and self.n_slots is not None:
            raise ValueError("slot_width: conflicts with n_slots; a search changes d_model, so give n_fractions")

    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        slot_width = self.quantum(d_model)
        n_slots = self.n_slots or d_model // slot_width  # as in a uniform model; see check_solvable
        return self.site_cost(slot_width, n_slots, d_read / slot_width, d_write / slot_width)

    def at_widths(self, d_model: int, widths: Sequence[int]) -> HyperConnectionsConfig:
        slot_width = self.quantum(d_model)
        n_owned_slots = max(n_blocks(width, slot_width) for width in (d_model, *widths))
        n_slots = self.n_slots or n_owned_slots
        n_fractions = d_model // slot_width
        group_norm = None if self.group_norm == "none" else self.group_norm
        if group_norm == "auto":
            is_tiled = n_slots > n_fractions and n_slots % n_fractions == 0
            group_norm = "rms" if is_tiled and self.reduce != "sum" else None
        return HyperConnectionsConfig(
            slot_width=slot_width,
            n_slots=n_slots,
            n_owned_slots=n_owned_slots,
            group_norm=group_norm,
            **options_of(HyperConnectionOptions, self),
        )


MAX_DENOMINATOR = 8
"""Largest denominator of `width` in the short form; n_fractions and n_slots allow any."""


class VirtualWidthTemplate(HyperConnectionsTemplate):
    """Short form of a `HyperConnectionsTemplate`, or with `constraint` of a `ManifoldTemplate`, by the virtual width.

    Validation replaces it by the long form.
    """

    kind: Literal["virtual"] = "virtual"  # pyright: ignore[reportIncompatibleVariableOverride]
    width: Annotated[float, pydantic.Field(gt=1, le=1024)]
    """Width of the stream over d_model, to two decimals: n_slots / n_fractions in lowest terms, but with at least two
    fractions. 1.5 gives 3 slots of half d_model."""
    constraint: Literal["none", "manifold"] = "none"
    """`manifold`: the `ManifoldTemplate` of as many slots, each d_model wide, so that the width is a whole number."""

    @pydantic.model_validator(mode="after")
    def _long_form(self) -> Any:
        """Return the `HyperConnectionsTemplate` or `ManifoldTemplate` of this width."""
        for key in ("n_fractions", "slot_width", "n_slots"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key}: conflicts with width, which gives n_slots / n_fractions; give only one")
        if self.constraint == "manifold":
            if self.width % 1:
                raise ValueError(f"width: got {self.width:g}; must be whole with constraint: manifold")
            given = {key: getattr(self, key) for key in self.model_fields_set - {"kind", "width", "constraint"}}
            return ManifoldTemplate.model_validate({**given, "n_slots": int(self.width)})
        fraction = Fraction(self.width).limit_denominator(MAX_DENOMINATOR)
        if abs(fraction - self.width) > 0.005:
            allowed = f"a fraction n/m with m up to {MAX_DENOMINATOR}, such as {fraction}"
            raise ValueError(f"width: got {self.width:g}; must be {allowed}")
        n_fractions = max(2, fraction.denominator)
        options = {key: getattr(self, key) for key in HyperConnectionsTemplate.model_fields}
        sizes = {"kind": "hyper_connections", "n_fractions": n_fractions, "n_slots": int(n_fractions * fraction)}
        return HyperConnectionsTemplate.model_validate(options | sizes)


register_residual(HyperConnectionsConfig, HyperConnectionsTemplate)
RESIDUALS.templates.add(VirtualWidthTemplate)
