"""The interface of a feed-forward variant: a config with sizes and costs, a module, and a template for recipes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError
from widthwise.model.cost import Cost
from widthwise.model.kinds import Component, all_must_agree, must_stay
from widthwise.model.norm import NormSite
from widthwise.sizes import Width

if TYPE_CHECKING:
    from widthwise.model.context import FeedForward


@dataclass(frozen=True)
class Adjustable:
    """A number of a recipe that makes a model larger or smaller."""

    key: str
    """Name in its section of the recipe."""
    value: float
    """Present value."""
    step: float
    """The smallest change that may alter the model; values are multiples of it."""
    limits: tuple[float, float] | None = None
    """Open interval of a number that moves costs either way, so that all its values are looked at; None: costs grow
    with it."""


class FFNConfig(Config, ABC):
    """One layer's feed-forward, with explicit sizes.

    The last methods are for growth. Unless a class sets `kept`, growth and padding refuse it.
    """

    if TYPE_CHECKING:
        kind: Any  # a Literal of each class

    module: ClassVar[str]
    """The class of the module, "package.file:Class". It is imported, and with it torch, when a module is built. A class
    in the same file as its module overrides `build` instead."""
    kept: ClassVar[tuple[str, ...] | None] = None
    """Fields that growth must not change, because that would change the function. None: growth does not know this
    feed-forward."""
    hidden_axes: ClassVar[dict[str, str]] = {}
    """Fields that count hidden units -> the axis of the module's matrices that they size. New units on that axis have
    free input weights and zero output weights; padding rounds these fields up."""
    active_at_start: ClassVar[tuple[str, ...]] = ()
    """Parts of the module that act from the start when added to an existing feed-forward, so that they preserve the
    function only with their usual initialisation. All other added parts are free."""
    bakes_with_one_eps: ClassVar[bool] = False
    """True if it reads the stream through one norm (or none) and is linear in its last matrix, so that `bake` can scale
    the stream by scaling its weights."""

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """Hidden width of every feed-forward map that a token passes through, in order."""
        return tuple(getattr(self, field) for field in self.hidden_axes)

    @property
    def n_residual_additions(self) -> int:
        """Number of additions to a residual stream, internal ones included."""
        return 1

    @abstractmethod
    def cost(self, d_model: int, d_out: int) -> Cost:
        """Cost without norms, in a layer of width d_model that writes the first d_out coordinates of the stream."""

    def block_costs(self, d_model: int, d_out: int) -> list[Cost]:
        """Cost without norms of each block that adds to the stream on its own, in order; one unless it is a stack."""
        return [self.cost(d_model, d_out)]

    def norm_cost(self, d_model: int, d_out: int, norm: NormSite) -> Cost:
        """Cost of its norms."""
        return norm.cost(d_model, d_out)

    def build(self, d_model: int, d_out: int, norm: NormSite) -> "FeedForward":
        """Build the module. norm: kind and placement of the layer's feed-forward norm."""
        return resolve_name(self.module)(self, d_model, d_out, norm)

    def norm_placement(self, placement: str) -> str:
        """The placement of its inner norms in a layer with norms at `placement`."""
        return placement

    def with_constants_of(self, old: "FFNConfig", reads_more: bool) -> "FFNConfig":
        """This config with the constants of `old`, the feed-forward of the layer that grows.

        A class that other kinds can be converted to overrides this, and `name_before` if parameters have other names
        there. reads_more: whether the layer reads a wider stream than before. Raises ValueError `field: ...` if `old`
        cannot become this without changing the function.
        """
        must_stay(("kind",), old, self)
        all_must_agree(self.kept or (), old, self)
        return self

    def name_before(self, old: "FFNConfig", name: str) -> str | None:
        """The name of a parameter of this module in the module of `old`; None if it is new."""
        return name

    def units_before(self, n_old: int, n_new: int) -> Sequence[int]:
        """(n_new,): the old hidden unit at each position, -1 for a new one."""
        return (*range(n_old), *[-1] * (n_new - n_old))

    def growth_in_words(self, old: "FFNConfig") -> Iterator[str]:
        """One line for each expansion that leads from `old` to this."""
        for field in self.hidden_axes:
            before, after = getattr(old, field), getattr(self, field)
            if after != before:
                yield f"feed-forward {before} -> {after} hidden units (MLP expansion)"


class FFNTemplate(Config, ABC):
    """A feed-forward for a layer of any width: what a recipe says for all layers."""

    if TYPE_CHECKING:
        kind: Any  # a Literal of each class

    @abstractmethod
    def cost(self, d_model: float, d_out: float) -> Cost:
        """Cost at real widths (before rounding), or numpy arrays of them."""

    @abstractmethod
    def at_width(self, d_model: int) -> FFNConfig:
        """The config of a layer of width d_model. Raises ValueError if that width does not allow one."""

    def adjustable(self, widths: Sequence[int]) -> Adjustable:
        """The field that makes it larger or smaller in layers of these widths. Raises ValueError if it has none."""
        raise ValueError(f"kind: {self.kind!r} declares no adjustable size")


class HiddenWidthTemplate(FFNTemplate):
    """A template whose hidden width is proportional to the layer's width, or the same in all layers.

    A subclass has a field named by `hidden_key`: the hidden width of every layer, or None to use `ratio`.
    """

    hidden_key: ClassVar[str]
    usual_ratio: ClassVar[float]
    ratio: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Hidden width over d_model, rounded to the nearest multiple of `multiple_of`. null: the kind's usual one."""
    multiple_of: Width = 1

    @pydantic.model_validator(mode="after")
    def _check_hidden(self) -> "HiddenWidthTemplate":
        if self._given is not None and (self.ratio is not None or self.multiple_of != 1):
            raise ValueError(f"{self.hidden_key}: conflicts with ratio or multiple_of; give the width or the rule")
        return self

    @property
    def _given(self) -> int | None:
        return getattr(self, self.hidden_key)

    def real_hidden(self, d_model: float) -> float:
        """Hidden width before rounding, at a real width or a numpy array of widths."""
        return self._given or (self.ratio or self.usual_ratio) * d_model

    def whole_hidden(self, d_model: int) -> int:
        """Hidden width in channels, rounded to a multiple of `multiple_of`, at least one."""
        return self._given or max(1, round(self.real_hidden(d_model) / self.multiple_of)) * self.multiple_of

    def adjustable(self, widths: Sequence[int]) -> Adjustable:
        """The hidden width, by one, or the ratio: by one multiple, where the layers differ in about one of them."""
        if self._given is not None:
            return Adjustable(self.hidden_key, self._given, step=1)
        return Adjustable("ratio", self.ratio or self.usual_ratio, step=self.multiple_of / sum(set(widths)))


FEED_FORWARDS = Component(FFNConfig, FFNTemplate)
"""The registered feed-forwards, of this package and of plugins."""


def register_ffn(config: type[FFNConfig], template: type[FFNTemplate]) -> None:
    """Registers a feed-forward under its `kind`, so that recipes can use it and runs with it can be read.

    config: the feed-forward of one layer; template: what a recipe says for all layers. Raises UserError if their kinds
    differ, if another feed-forward has that kind, and if the hidden widths cannot be known.
    """
    if not config.hidden_axes and config.hidden_widths is FFNConfig.hidden_widths:
        raise UserError(f"{config.__name__}.hidden_axes: must name the fields of hidden units; or define hidden_widths")
    FEED_FORWARDS.register(config, template)
