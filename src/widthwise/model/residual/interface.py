"""What every residual variant is: a config with costs, a module for each sublayer's site, modules for the two ends."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from widthwise.config_io import Config, UserError
from widthwise.model.agreement import all_must_agree
from widthwise.model.cost import Cost
from widthwise.model.kinds import Component
from widthwise.model.norm import NormConfig

Stream = Any
"""What flows from layer to layer. Only the variant that made it looks inside."""


@dataclass(frozen=True)
class PrefixLayout:
    """Every layer owns a prefix of one vector, as wide as it is."""

    resize: str = "carry"
    """What a layer wider than its predecessor finds in its new coordinates; with `carry` what was last written."""


@dataclass(frozen=True)
class SlotLayout:
    """Every layer owns the first of n_slots equal slots, as many as fill its width."""

    slot_width: int
    n_slots: int
    n_owned_slots: int
    """Those that the widest layer owns."""
    has_means: bool = False
    """Whether a mean over coordinates of several slots is taken, which wider slots would change."""


class Site(nn.Module, ABC):
    """One sublayer's access to the stream."""

    @abstractmethod
    def read(self, stream: Stream) -> tuple[Tensor, Any]:
        """The sublayer's input (B, T, d_read), and what `write` needs later."""

    @abstractmethod
    def write(self, kept: Any, update: Tensor) -> Stream:
        """update: (B, T, d_write), the sublayer's output -> the stream after it."""


class Exit(nn.Module, ABC):
    """The end of the stream."""

    def share_reduction(self, other: Any) -> None:
        """Takes over the matrix of another exit of the same variant, where it has one."""

    @abstractmethod
    def forward(self, stream: Stream) -> Tensor:
        """The stream after the last layer -> what the head multiplies, normalised, (B, T, d_model)."""


class ResidualConfig(Config, ABC):
    """One residual for all layers, with every size written out. d_model: width of embedding and head.

    What growth needs to know of it stands at the end. Unless a class sets `kept` and `layout`, growth and padding
    refuse it.
    """

    if TYPE_CHECKING:
        kind: Any  # a Literal of each class
        multiplier: float

    kept: ClassVar[tuple[str, ...] | None] = None
    """Fields that growth leaves as they are, because another value would be another function; `multiplier` is kept in
    any case. None: growth does not know this residual."""
    is_sum: ClassVar[bool] = False
    """Whether the stream is the sum of the embedding and of what sublayers write, so that a factor of them all is a
    factor of the stream."""

    final_norm_spans_layer: ClassVar[bool] = False
    """Whether the last norm may cover what the last layer owns; where not, it covers the head's d_model."""

    @abstractmethod
    def check_widths(self, d_model: int, widths: Sequence[int]) -> None:
        """Raises ValueError where layers of these widths cannot use it."""

    @abstractmethod
    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        """Of one site; the arguments are those of `build`."""

    @abstractmethod
    def build(self, d_before: int, d_read: int, d_write: int) -> Site:
        """A site where the stream arrives d_before wide, the sublayer reads d_read coordinates and writes d_write."""

    @abstractmethod
    def embedding_width(self, d_model: int) -> int:
        """Columns of the embedding table."""

    @abstractmethod
    def entry_cost(self, d_model: int) -> Cost:
        """From a row of the table to the stream."""

    @abstractmethod
    def build_entry(self, d_model: int) -> nn.Module:
        """A module (B, T, embedding_width) -> the stream before the first layer."""

    @abstractmethod
    def exit_cost(self, d_model: int) -> Cost:
        """Of the exit without its last norm."""

    def reduction_params(self, d_model: int) -> int:
        """Parameters of the exit that further heads can share, those of its matrix."""
        return 0

    @abstractmethod
    def build_exit(self, d_model: int, width: int, norm: NormConfig) -> Exit:
        """norm: the last norm before the head, which covers `width` coordinates."""

    @abstractmethod
    def slot_shape(self, d_model: int) -> tuple[int, int]:
        """(n_slots, slot_width): the equal parts of the stream for who works on it whole, as further heads do."""

    @abstractmethod
    def to_slots(self, stream: Stream, d_model: int) -> Tensor:
        """The stream as (B, T, n_slots, slot_width)."""

    @abstractmethod
    def from_slots(self, slots: Tensor) -> Stream:
        """The inverse of `to_slots`."""

    @property
    def layout(self) -> PrefixLayout | SlotLayout | None:
        """How layers share the stream, from which follows how it grows. None: growth does not know."""
        return None

    def with_constants_of(self, old: "ResidualConfig", d_model: int, widths: Sequence[int]) -> "ResidualConfig":
        """This config with the constants of `old`, from which a model grows.

        A conversion from another kind begins here: a class that can become one overrides this. d_model, widths: of the
        model before, of its head and of its layers. Raises ValueError `field: ...` where `old` cannot become this
        without changing the function.
        """
        if type(old) is not type(self):
            raise ValueError(f"kind: got {self.kind} where it was {old.kind}; growth takes nothing away")
        all_must_agree(self.kept or (), old, self)
        return self

    def growth_in_words(self, old: "ResidualConfig") -> Iterator[str]:
        """A line for each expansion that makes this of `old`."""
        yield from ()

    def has_usual_divisors(self, d_model: int) -> bool:
        """Whether its norms divide by what they would in a model that never grew."""
        return True

    def baked(self) -> "ResidualConfig":
        """With the divisors of a model that never grew, and other constants that make up for them."""
        return self


class ResidualTemplate(Config, ABC):
    """What a recipe says about the residual, whatever the widths."""

    if TYPE_CHECKING:
        multiplier: float

    @property
    def d_model_quantum(self) -> int:
        """d_model must be a multiple of this."""
        return 1

    def quantum(self, d_model: int) -> int:
        """Every width must be a multiple of this. Raises ValueError where d_model is none."""
        return 1

    def check_solvable(self) -> None:
        """Raises ValueError where the cost of a layer depends on other layers, so that widths cannot be solved."""

    def check_searchable(self) -> None:
        """Raises ValueError where costs are no polynomials of d_model, as a search for shapes needs them."""

    @abstractmethod
    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        """Of one site before rounding, at any real widths; numpy arrays of widths too. What depends on the layer
        before is left out.
        """

    @abstractmethod
    def at_widths(self, d_model: int, widths: Sequence[int]) -> ResidualConfig:
        """The residual of a model whose layers have these widths. Raises ValueError where there is none."""


RESIDUALS = Component(ResidualConfig, ResidualTemplate)
"""Those of this folder, and those that plugins register."""


def register_residual(config: type[ResidualConfig], template: type[ResidualTemplate]) -> None:
    """Makes a residual known by its `kind`: recipes may say it, and runs with it can be read.

    config: with every size written out; template: what a recipe says, which may be the same class. Raises UserError
    where they are not of one kind, where another residual has that kind, and where there is no `multiplier`.
    """
    for each in (config, template):
        if "multiplier" not in each.model_fields:
            raise UserError(f"{each.__name__}.multiplier: must be declared; 1.0 is usual")
    RESIDUALS.register(config, template)
