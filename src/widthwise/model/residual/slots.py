"""The options of a stream of slots, and the costs of its sites, entries and reductions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self

import pydantic

from widthwise.config_io import Config
from widthwise.model.cost import Cost, linear, vector
from widthwise.model.residual.interface import ResidualConfig
from widthwise.sizes import NSlots, Width

N_SCALES = 2
"""Number of scales of a site with `scale: numbers`: one for reads and carries, one for writes."""


class SlotOptions(Config):
    """Options of every stream of slots that a recipe and a resolved model share."""

    multiplier: pydantic.PositiveFloat = 1.0
    """Factor of every update."""
    eps: pydantic.PositiveFloat = 1e-6
    """eps of the norm of the state that dynamic coefficients read."""
    state_every: pydantic.PositiveInt = 2
    """Every state_every-th site keeps its state for the backward pass. Other states are recomputed from the previous
    state and the update, which runs no sublayer twice and is bitwise the same. 1 is faster by a percent or two;
    sqrt(2 n_layers) has the lowest peak memory. Only in eager mode on the CPU; otherwise all states are kept."""


class SlotsConfig(SlotOptions, ResidualConfig):
    """The residual of a resolved model whose stream consists of equal slots."""

    constant_fields = ()
    slot_width: Width
    n_slots: NSlots

    def within_layers(self) -> Self:
        return self.model_copy(update={"state_every": min(self.state_every, 2)})  # a layer has two sites

    @property
    def stream_width(self) -> int:
        return self.n_slots * self.slot_width

    def slot_shape(self, d_model: int) -> tuple[int, int]:
        return self.n_slots, self.slot_width


class HyperConnectionOptions(SlotOptions):
    """Options of a stream with unconstrained coefficients that a recipe and a resolved model share."""

    kind: Literal["hyper_connections"] = "hyper_connections"
    dynamic: bool = True
    """Let coefficients depend on each token's state; otherwise they are learned once for all tokens."""
    read_init: Literal["first", "in_turn"] = "first"
    """Slots that a sublayer of m blocks reads before training. `first`: the first m of the n slots. `in_turn`: slot
    (l m + k) mod n for block k of sublayer l, as in the papers of Hyper- and Frac-Connections; refused if widths
    differ."""
    writes: Literal["all", "own"] = "all"
    """Blocks of an update of m blocks that slot j can take: `all`, or as in Frac-Connections only its `own`, block
    j mod m, which is refused if widths differ. With m = 1 both are the same."""
    scale: Literal["entries", "numbers"] = "entries"
    """Learned factors of the state-dependent part. `entries`: one for each coefficient, 1 before training. `numbers`,
    as in the papers of Hyper- and Frac-Connections: one for reads and carries and one for writes, 0.01 before training;
    the projection is then not divided by sqrt(slot_width)."""
    embedding: Literal["direct", "expand", "slot", "pad", "copies"] = "direct"
    """Initial slots of a token. `direct`: an embedding table as wide as the stream. The other options start from a
    table of width d_model: `expand` applies a matrix, `slot` mixes the blocks of a row, `pad` appends zeros, `copies`
    repeats the row."""
    reduce: Literal["full", "slot", "sum"] = "full"
    """Reduction of the slots to d_model coordinates: `full` by a matrix (Eq. 4), `slot` by mixtures (Alg. 1), `sum`
    by adding all groups of d_model coordinates, without parameters."""
    reduce_init: Literal["first", "mean"] = "first"
    """Input of the head before training. `first`: the first d_model coordinates, so that the model starts as a model
    without virtual width. `mean`: the mean of all groups of d_model coordinates, which must tile the stream."""

    def site_cost(self, slot_width: float, n_slots: int, n_read: Any, n_write: Any) -> Cost:
        """Return the cost of one site. n_read, n_write: in blocks, before rounding.

        FLOPs of the slot norm are not counted, as for any norm. With `writes: own` there are fewer parameters, but the
        same products. Kept for the backward pass: the update, and one state per state_every sites.
        """
        n_coefficients = n_read + n_slots + n_write
        n_learned = n_coefficients if self.writes == "all" else n_read + n_slots + 1
        mixing = mixing_cost(n_slots, n_coefficients, n_write * slot_width, slot_width, self.state_every)
        static = vector(n_slots * n_learned) + mixing
        if not self.dynamic:
            return static
        matrix = slot_width * n_learned
        projection = replace(linear(slot_width, n_coefficients, n_slots), params=matrix, active_params=matrix)
        n_scales = n_slots * n_learned if self.scale == "entries" else N_SCALES
        return static + vector(n_scales + slot_width) + projection


def mixing_cost(n_slots: int, n_coefficients: Any, d_write: Any, slot_width: float, state_every: int) -> Cost:
    """Return the FLOPs of mixing the slots of one site, and the activations kept for the backward pass.

    n_coefficients: of each slot; d_write: width of the update. Kept are the update, and one state per state_every
    sites.
    """
    return Cost(
        flops=2 * n_slots * n_coefficients * slot_width,
        activation_elements=d_write,
        activation_fp32_elements=n_slots * slot_width / state_every,
    )


def n_blocks(width: int, slot_width: int) -> int:
    """Return the number of blocks in a layer of this width. Raise ValueError if slot_width does not divide it."""
    if width % slot_width:
        raise ValueError(f"slot_width: got {slot_width}; must divide every width, {width} too")
    return width // slot_width


EndCost = Callable[[int, int, int], Cost]
"""Cost of an entry or a reduction, as a function of d_model, n_slots and the slot width b."""
ENTRY_COSTS: dict[str, EndCost] = {
    "expand": lambda d_model, n_slots, b: linear(d_model, n_slots * b) + Cost(activation_elements=d_model),
    "slot": lambda d_model, n_slots, b: linear(d_model // b, n_slots, b) + Cost(activation_fp32_elements=d_model),
}
"""Option `embedding` -> cost of the entry in addition to the embedding table. Other entries have no matrix and cost
nothing more."""
REDUCTION_COSTS: dict[str, EndCost] = {
    "full": lambda d_model, n_slots, b: linear(n_slots * b, d_model) + Cost(activation_elements=n_slots * b),
    "slot": lambda d_model, n_slots, b: linear(n_slots, d_model // b, b) + Cost(activation_elements=n_slots * b),
    "sum": lambda d_model, n_slots, b: Cost(),
}
"""Option `reduce` -> cost of the reduction. A reduction with a matrix keeps the slots for the backward pass."""
