"""The interface of a residual variant: a config with costs, a module for each sublayer, modules for entry and exit."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from widthwise.config_io import Config, UserError
from widthwise.model.cost import Cost
from widthwise.model.kinds import Component, all_must_agree, must_stay
from widthwise.model.norm import NormConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from widthwise.model.context import Exit, Site, Stream

SiteWidths = tuple[int, int, int]
"""Coordinates of the stream as it arrives at a site, and those that its sublayer reads and writes."""


class Idle(NamedTuple):
    """Coordinates and parameters that no training can use."""

    n_unread: int
    """Coordinates of the embedding that nothing reads."""
    sites: Sequence[tuple[int, int]]
    """For each site the coordinates that it reads and nothing wrote, and that it writes and nothing reads."""
    n_params: int = 0
    """Parameters of the residual itself that multiply zeros."""


@dataclass(frozen=True)
class PrefixLayout:
    """Every layer owns a prefix of one vector, as wide as the layer."""

    resize: str = "carry"
    """Content of the extra coordinates of a layer wider than its predecessor; with `carry`, what was last written."""


@dataclass(frozen=True)
class SlotLayout:
    """Every layer owns the first slots of n_slots equal ones, as many as fill its width."""

    slot_width: int
    n_slots: int
    n_owned_slots: int
    """Slots that the widest layer owns."""
    has_means: bool = False
    """True if a mean is taken over coordinates of several slots; wider slots would change it."""


class ResidualConfig(Config, ABC):
    """The residual of a resolved model, with every size written out. d_model: width of embedding and head.

    The last methods are for growth. Unless a class sets `kept` and `layout`, growth and padding refuse it.
    """

    if TYPE_CHECKING:
        kind: Any  # a Literal of each class
        multiplier: float

    module: ClassVar[str]
    """The file "package.file" with `build_site`, `build_entry` and `build_exit`; each takes the config and the
    arguments of the method of its name. It is imported, and with it torch, when a module is built. A class in one file
    with its modules overrides these methods instead."""
    kept: ClassVar[tuple[str, ...] | None] = None
    """Fields that growth must not change, because that would change the function; `multiplier` is kept in any case.
    None: growth does not know this residual."""
    is_sum: ClassVar[bool] = False
    """True if the stream is the sum of the embedding and all updates, so that a factor of all of them is one of the
    stream."""

    final_norm_spans_layer: ClassVar[bool] = False
    """True if the last norm may cover what the last layer owns; if not, it covers the head's d_model coordinates."""

    def check_widths(self, d_model: int, widths: Sequence[int]) -> None:
        """Raises ValueError if layers of these widths cannot use this residual; by default all can."""

    @abstractmethod
    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        """Cost of one site; arguments as in `build`."""

    def within_layers(self) -> Self:
        """The residual as it costs a model of which no layer needs another one in its backward pass."""
        return self

    def build(self, d_before: int, d_read: int, d_write: int) -> "Site":
        """Build a site whose stream arrives d_before wide, and whose sublayer reads d_read coordinates and writes
        d_write."""
        return import_module(self.module).build_site(self, d_before, d_read, d_write)

    def idle(self, d_model: int, sites: Sequence[SiteWidths], width: int) -> Idle:
        """Return what the sizes of a model leave unused. sites: those of all layers, first to last. width: what the
        last norm covers. Nothing by default: slots are mixed by coefficients that can learn to fill and to hear all.
        """
        return Idle(0, [(0, 0)] * len(sites))

    def embedding_width(self, d_model: int) -> int:
        """Columns of the embedding table."""
        return d_model

    def entry_cost(self, d_model: int) -> Cost:
        """Cost of making the stream from a row of the embedding table; by default none."""
        return Cost()

    def build_entry(self, d_model: int) -> "nn.Module":
        """Build a module (B, T, embedding_width) -> the stream before the first layer."""
        return import_module(self.module).build_entry(self, d_model)

    def exit_cost(self, d_model: int) -> Cost:
        """Cost of the exit without its last norm; by default none."""
        return Cost()

    def reduction_params(self, d_model: int) -> int:
        """Parameters of the exit that MTP heads can share: its matrix."""
        return 0

    def build_exit(self, d_model: int, width: int, norm: NormConfig) -> "Exit":
        """Build the exit. norm: the last norm before the head, which covers `width` coordinates."""
        return import_module(self.module).build_exit(self, d_model, width, norm)

    @abstractmethod
    def slot_shape(self, d_model: int) -> tuple[int, int]:
        """(n_slots, slot_width): the equal parts of the stream, for those who use all of it, such as MTP heads."""

    def to_slots(self, stream: "Stream", d_model: int) -> "Tensor":
        """The stream as (B, T, n_slots, slot_width), which by default it is."""
        return stream

    def from_slots(self, slots: "Tensor") -> "Stream":
        """The inverse of `to_slots`."""
        return slots

    @property
    def layout(self) -> PrefixLayout | SlotLayout | None:
        """Layout of the stream among layers, which decides how it can grow. None: growth does not know."""
        return None

    def with_constants_of(self, old: "ResidualConfig", d_model: int, widths: Sequence[int]) -> "ResidualConfig":
        """This config with the constants of `old`, the residual of the model that grows.

        A class that other kinds can be converted to overrides this. d_model, widths: of the old model's head and
        layers. Raises ValueError `field: ...` if `old` cannot become this without changing the function.
        """
        must_stay(("kind",), old, self)
        all_must_agree(self.kept or (), old, self)
        return self

    def growth_in_words(self, old: "ResidualConfig") -> Iterator[str]:
        """One line for each expansion that leads from `old` to this."""
        yield from ()

    def has_usual_divisors(self, d_model: int) -> bool:
        """Return whether its norms have the divisors of a model that never grew."""
        return True

    def baked(self) -> "ResidualConfig":
        """The config with the divisors of a model that never grew, and other constants adjusted to compensate."""
        return self


class ResidualTemplate(Config, ABC):
    """Options of the residual in a recipe, independent of widths."""

    if TYPE_CHECKING:
        multiplier: float

    @property
    def d_model_quantum(self) -> int:
        """d_model must be a multiple of this."""
        return 1

    def quantum(self, d_model: int) -> int:
        """Every width must be a multiple of this. Raises ValueError if d_model is not."""
        return 1

    def check_solvable(self) -> None:
        """Raises ValueError if the cost of a layer depends on other layers, so that widths cannot be solved for."""

    def check_searchable(self) -> None:
        """Raises ValueError if costs are not polynomials in d_model, which a search for shapes requires."""

    @abstractmethod
    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        """Cost of one site at real widths (before rounding), or numpy arrays of them, without what depends on the layer
        before.
        """

    @abstractmethod
    def at_widths(self, d_model: int, widths: Sequence[int]) -> ResidualConfig:
        """The residual of a model whose layers have these widths. Raises ValueError if there is none."""


RESIDUALS = Component(ResidualConfig, ResidualTemplate)
"""The registered residuals, of this package and of plugins."""


def register_residual(config: type[ResidualConfig], template: type[ResidualTemplate]) -> None:
    """Registers a residual under its `kind`, so that recipes can use it and runs with it can be read.

    config: with every size written out; template: what a recipe says, which may be the same class. Raises UserError if
    their kinds differ, another residual has that kind, or a class lacks `multiplier`.
    """
    for member in (config, template):
        if "multiplier" not in member.model_fields:
            raise UserError(f"{member.__name__}.multiplier: must be declared; 1.0 is usual")
    RESIDUALS.register(config, template)
