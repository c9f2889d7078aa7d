"""The interface of a residual variant: a config with costs, a module for each sublayer, and for entry and exit."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from widthwise.config_io import Config
from widthwise.mistakes import UserError
from widthwise.model.cost import Cost
from widthwise.model.kinds import Component, ConfigOfKind, all_must_agree, must_stay
from widthwise.model.norm import NormConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from widthwise.model.context import Exit, Site, Stream

SiteWidths = tuple[int, int, int]
"""Width of the stream before a site, and numbers of coordinates that its sublayer reads and writes."""


class Idle(NamedTuple):
    """Numbers of coordinates and parameters without effect or gradient."""

    n_unread: int
    """Coordinates of the embedding that nothing reads."""
    sites: Sequence[tuple[int, int]]
    """For each site, the coordinates that it reads but nothing writes, and that it writes but nothing reads."""
    n_params: int = 0
    """Parameters of the residual that multiply zeros."""


@dataclass(frozen=True)
class PrefixLayout:
    """Every layer owns a prefix of one vector, with the width of the layer."""

    resize: str = "carry"
    """Content of the extra coordinates of a layer wider than its predecessor; with `carry`, the last written values."""


@dataclass(frozen=True)
class SlotLayout:
    """Every layer owns the first of n_slots equal slots, as many as fill its width."""

    slot_width: int
    n_slots: int
    n_owned_slots: int
    """Slots that the widest layer owns."""
    has_means: bool = False
    """True if a mean over coordinates of several slots is computed, which wider slots would change."""


class ResidualConfig(ConfigOfKind, ABC):
    """The residual of a resolved model, with all sizes written out. In all methods d_model is the width of embedding
    and head.

    `layout` and the methods after it are for growth. Growth and padding refuse a class that does not set
    `constant_fields` and `layout`.
    """

    if TYPE_CHECKING:
        multiplier: float

    module: ClassVar[str]
    """The file "package.file" with functions `build_site`, `build_entry` and `build_exit`. The methods `build`,
    `build_entry` and `build_exit` import it together with torch, and call these with the config and their arguments. A
    config in the same file as its modules overrides the methods instead."""
    constant_fields: ClassVar[tuple[str, ...] | None] = None
    """Fields that growth must not change, because that would change the function; `multiplier` never changes. None:
    growth is not supported."""
    is_sum: ClassVar[bool] = False
    """True if the stream is the sum of the embedding and all updates, so that scaling all of them scales the stream."""
    always_mixes: ClassVar[bool] = False
    """True if a site changes the stream even if its sublayer writes nothing, so that growth cannot add a layer."""
    final_norm_spans_layer: ClassVar[bool] = False
    """True if the last norm may cover as many coordinates as the last layer; otherwise it covers d_model."""

    def check_widths(self, d_model: int, widths: Sequence[int]) -> None:
        """Raise ValueError if layers of these widths cannot use this residual. By default all can."""

    @abstractmethod
    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        """Return the cost of one site. See `build` for the arguments."""

    def within_layers(self) -> Self:
        """Return the residual with the costs of layers that are recomputed one by one.

        The backward pass of such a layer uses no states that other layers keep.
        """
        return self

    def build(self, d_before: int, d_read: int, d_write: int) -> "Site":
        """Build a site. d_before: width of the input stream; d_read, d_write: coordinates that the sublayer reads and
        writes.
        """
        return import_module(self.module).build_site(self, d_before, d_read, d_write)

    def idle(self, d_model: int, sites: Sequence[SiteWidths], width: int) -> Idle:
        """Return the coordinates and parameters that a model cannot use because of its sizes.

        sites: attention and feed-forward of each layer, first to last; width: coordinates of the last norm. By default
        none, because coefficients can learn to read and write all slots.
        """
        return Idle(0, [(0, 0)] * len(sites))

    def embedding_width(self, d_model: int) -> int:
        """Return the columns of the embedding table."""
        return d_model

    def entry_cost(self, d_model: int) -> Cost:
        """Return the cost of the entry, which turns a row of the embedding table into the stream. By default 0."""
        return Cost()

    def build_entry(self, d_model: int) -> "nn.Module":
        """Build a module (B, T, embedding_width) -> the stream before the first layer."""
        return import_module(self.module).build_entry(self, d_model)

    def exit_cost(self, d_model: int, shares_reduction: bool = False) -> Cost:
        """Return the cost of the exit without its last norm. By default 0.

        shares_reduction: omit the parameters of its matrix, which an MTP head shares with the model.
        """
        return Cost()

    def build_exit(self, d_model: int, width: int, norm: NormConfig) -> "Exit":
        """Build the exit. norm: the last norm before the head, over `width` coordinates."""
        return import_module(self.module).build_exit(self, d_model, width, norm)

    @abstractmethod
    def slot_shape(self, d_model: int) -> tuple[int, int]:
        """Return (n_slots, slot_width), the shape of `to_slots`: the stream of a token in equal parts."""

    def to_slots(self, stream: "Stream", d_model: int) -> "Tensor":
        """Return the whole stream as (B, T, n_slots, slot_width). By default the stream has this form."""
        return stream

    def from_slots(self, slots: "Tensor") -> "Stream":
        """Return the stream from the result of `to_slots`."""
        return slots

    @property
    def layout(self) -> PrefixLayout | SlotLayout | None:
        """Layout of the stream among layers, which decides how it can grow. None: growth is not supported."""
        return None

    def with_constants_of(self, old: "ResidualConfig", d_model: int, widths: Sequence[int]) -> "ResidualConfig":
        """Return this config with the constants of `old`, the residual of the model that grows.

        A class to which other kinds can be converted overrides this. d_model, widths: of the old model's head and
        layers. Raises ValueError `field: ...` if the conversion would change the function.
        """
        must_stay(("kind",), old, self)
        all_must_agree(self.constant_fields or (), old, self)
        return self

    def growth_in_words(self, old: "ResidualConfig") -> Iterator[str]:
        """Yield a line for each expansion from `old` to this config."""
        yield from ()

    def baked(self) -> "ResidualConfig":
        """Return the config with the norm divisors of a model that never grew, and an eps that compensates for them."""
        return self


class ResidualTemplate(Config, ABC):
    """Options of the residual in a recipe, for any widths."""

    if TYPE_CHECKING:
        multiplier: float

    @property
    def d_model_quantum(self) -> int:
        """Divisor of d_model."""
        return 1

    def quantum(self, d_model: int) -> int:
        """Return a divisor of every width. Raise ValueError if it does not divide d_model."""
        return 1

    def check_solvable(self) -> None:
        """Raise ValueError if the cost of a layer depends on other layers, so that widths cannot be solved."""

    def check_searchable(self) -> None:
        """Raise ValueError if costs are not polynomials in d_model, which a search for shapes requires."""

    @abstractmethod
    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        """Return the cost of one site before rounding. d_read, d_write: real numbers, or NumPy arrays of them.

        Costs that depend on the previous layer are left out.
        """

    @abstractmethod
    def at_widths(self, d_model: int, widths: Sequence[int]) -> ResidualConfig:
        """Return the residual of a model with layers of these widths. Raise ValueError if there is none."""


RESIDUALS = Component(ResidualConfig, ResidualTemplate)
"""Registered residuals of this package and of plugins."""


def register_residual(config: type[ResidualConfig], template: type[ResidualTemplate]) -> None:
    """Register a residual under its `kind`, so that recipes can use it and runs with it can be read.

    config: with all sizes written out; template: as in a recipe, may be the same class. Raises UserError if their kinds
    differ or are taken, or a class has no `multiplier`.
    """
    for member in (config, template):
        if "multiplier" not in member.model_fields:
            raise UserError(f"{member.__name__}.multiplier: must be declared; 1.0 is usual")
    RESIDUALS.register(config, template)
