"""The interface of a feed-forward variant: a config with sizes and costs, a module, and a template for recipes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, ClassVar

import pydantic
from pydantic import Field

from widthwise.mistakes import UserError
from widthwise.model.cost import Cost
from widthwise.model.kinds import Component, ConfigOfKind, all_must_agree, must_stay
from widthwise.model.norm import NormSite
from widthwise.sizes import Width

if TYPE_CHECKING:
    from widthwise.model.context import FeedForward


@dataclass(frozen=True)
class Adjustable:
    """A number in a recipe that can be changed to reach a cost, because costs grow with it."""

    key: str
    """Key in its section of the recipe."""
    value: float
    """Present value."""
    step: float
    """Smallest change that can alter the model. Values are multiples of it."""


class FFNConfig(ConfigOfKind, ABC):
    """One layer's feed-forward, with all sizes written out.

    `with_constants_of` and the methods after it are for growth. Growth and padding refuse a class that does not set
    `constant_fields`.
    """

    module: ClassVar[str]
    """The class of the module, "package.file:Class", which `build` imports together with torch. A config in the same
    file as its module overrides `build` instead."""
    constant_fields: ClassVar[tuple[str, ...] | None] = None
    """Fields that growth must not change, because that would change the function. None: growth is not supported."""
    hidden_axes: ClassVar[dict[str, str]] = {}
    """Field that counts hidden units -> its axis in the module's matrices. New units on that axis have free input
    weights and zero output weights. Padding rounds these fields up."""
    bakes_with_one_eps: ClassVar[bool] = False
    """True if it has at most one norm and is linear in its last matrix, so that `bake` can scale the stream by scaling
    its weights."""

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """Hidden width of every feed-forward block that a token passes through, in order."""
        return tuple(getattr(self, field) for field in self.hidden_axes)

    @property
    def n_residual_additions(self) -> int:
        """Number of additions to a residual stream, including internal ones."""
        return 1

    @abstractmethod
    def cost(self, d_model: int, d_out: int) -> Cost:
        """Return the cost without norms, in a layer of width d_model that writes the first d_out coordinates."""

    def block_costs(self, d_model: int, d_out: int) -> list[Cost]:
        """Return the cost without norms of each block that adds to the stream, in order. By default there is one."""
        return [self.cost(d_model, d_out)]

    def norm_cost(self, d_model: int, d_out: int, norm: NormSite) -> Cost:
        """Return the cost of the norms. norm: places and config of the layer's feed-forward norm."""
        return norm.cost(d_model, d_out)

    def build(self, d_model: int, d_out: int, norm: NormSite) -> "FeedForward":
        """Build the module. norm: places and config of the layer's feed-forward norm."""
        return resolve_name(self.module)(self, d_model, d_out, norm)

    def with_constants_of(self, old: "FFNConfig", reads_more: bool) -> "FFNConfig":
        """Return this config with the constants of `old`, the feed-forward of the layer that grows.

        A class to which other kinds can be converted overrides this, and `name_before` if parameters have other names
        there. reads_more: True if the layer reads a wider stream than before. Raises ValueError `field: ...` if the
        conversion would change the function.
        """
        must_stay(("kind",), old, self)
        all_must_agree(self.constant_fields or (), old, self)
        return self

    def name_before(self, old: "FFNConfig", name: str) -> str | None:
        """Return the name that a parameter of this module had in the module of `old`; None if the parameter is new."""
        return name

    def units_before(self, n_old: int, n_new: int) -> Sequence[int]:
        """Return the index of the old hidden unit at each of n_new positions, -1 for a new unit."""
        return (*range(n_old), *[-1] * (n_new - n_old))

    def growth_in_words(self, old: "FFNConfig") -> Iterator[str]:
        """Yield a line for each expansion from `old` to this config."""
        for field in self.hidden_axes:
            before, after = (getattr(config, field) for config in (old, self))
            if after != before:
                yield f"feed-forward {before} -> {after} hidden units (MLP expansion)"


class FFNTemplate(ConfigOfKind, ABC):
    """A feed-forward for layers of any width, as in a recipe."""

    @abstractmethod
    def cost(self, d_model: float, d_out: float) -> Cost:
        """Return the cost before rounding. d_model, d_out: real numbers, or NumPy arrays of them."""

    @abstractmethod
    def at_width(self, d_model: int) -> FFNConfig:
        """Return the config of a layer of width d_model. Raise ValueError if there is none for this width."""

    def adjustable(self, widths: Sequence[int]) -> Adjustable:
        """Return the field that sets the hidden size of layers of these widths. Raise ValueError if there is none."""
        raise ValueError(f"kind: {self.kind!r} declares no adjustable size")


class HiddenWidthTemplate(FFNTemplate):
    """A template whose hidden width is proportional to the layer's width, or the same in all layers.

    A subclass has a field with the name `hidden_key`: the hidden width of every layer, or None to use `ratio`. It sets
    `usual_ratio`, the default of `ratio`.
    """

    hidden_key: ClassVar[str] = "d_ff"
    usual_ratio: ClassVar[float]
    ratio: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Hidden width over d_model, rounded to the nearest multiple of `multiple_of`. null: the usual ratio of the
    kind."""
    multiple_of: Width = 1

    @pydantic.model_validator(mode="after")
    def _check_hidden(self) -> "HiddenWidthTemplate":
        if self._fixed_hidden is not None and (self.ratio is not None or self.multiple_of != 1):
            raise ValueError(f"{self.hidden_key}: conflicts with ratio or multiple_of; give the width or the rule")
        return self

    @property
    def _fixed_hidden(self) -> int | None:
        """The hidden width of every layer; None if it follows from `ratio`."""
        return getattr(self, self.hidden_key)

    def real_hidden(self, d_model: float) -> float:
        """Return the hidden width before rounding. d_model: a real number, or a NumPy array."""
        return self._fixed_hidden or (self.ratio or self.usual_ratio) * d_model

    def whole_hidden(self, d_model: int) -> int:
        """Return the hidden width in channels, rounded to a multiple of `multiple_of` greater than 0."""
        return self._fixed_hidden or max(1, round(self.real_hidden(d_model) / self.multiple_of)) * self.multiple_of

    def adjustable(self, widths: Sequence[int]) -> Adjustable:
        """Return the hidden width, in steps of 1, or `ratio`, in steps of about one `multiple_of` in one layer."""
        if self._fixed_hidden is not None:
            return Adjustable(self.hidden_key, self._fixed_hidden, step=1)
        return Adjustable("ratio", self.ratio or self.usual_ratio, step=self.multiple_of / sum(set(widths)))


FEED_FORWARDS = Component(FFNConfig, FFNTemplate)
"""Registered feed-forwards of this package and of plugins."""


def register_ffn(config: type[FFNConfig], template: type[FFNTemplate]) -> None:
    """Register a feed-forward under its `kind`, so that recipes can use it and runs with it can be read.

    config: for one layer; template: for all layers, in a recipe. Raises UserError if their kinds differ or are taken,
    or if the config does not define its hidden widths.
    """
    if not config.hidden_axes and config.hidden_widths is FFNConfig.hidden_widths:
        raise UserError(f"{config.__name__}.hidden_axes: must name the fields of hidden units; or define hidden_widths")
    FEED_FORWARDS.register(config, template)
