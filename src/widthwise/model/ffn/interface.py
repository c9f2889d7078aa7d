"""What every feed-forward variant is: a config with sizes and costs, a module that returns an update, a template."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pydantic
from pydantic import Field
from torch import Tensor, nn

from widthwise.config_io import Config
from widthwise.model.agreement import all_must_agree, must_agree
from widthwise.model.context import PassContext
from widthwise.model.cost import Cost
from widthwise.model.kinds import Component
from widthwise.model.norm import NormSite
from widthwise.sizes import Width

Choices = dict[str, Tensor]
"""What a feed-forward decided for its tokens, beside the update; empty where there is nothing to decide.

auxiliary_loss: scalar that joins the objective, coefficients included; never part of a reported loss.
width_fraction: (B, T) fp32, the hidden width each token asks for, over d_ff, with its gradient.
expert_load: (n_experts,) share of the routed choices, without gradient.
balance_loss, router_z_loss: scalars without gradient, to report.
"""


Blocks = Sequence[int | None]
"""For each block of a grown feed-forward the old one it comes from, None where it is added. Those that are no stack
have one block.
"""


class FeedForward(nn.Module, ABC):
    """A feed-forward with its norm."""

    @abstractmethod
    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        """x: (B, T, d_model), the stream before the norm -> the update (B, T, d_out), and what was decided."""


class FFNConfig(Config, ABC):
    """One layer's feed-forward with explicit sizes.

    What growth needs to know of it stands at the end. Unless a class sets `kept`, growth and padding refuse it.
    """

    if TYPE_CHECKING:
        kind: Any  # a Literal of each class

    kept: ClassVar[tuple[str, ...] | None] = None
    """Fields that growth leaves as they are, because another value would be another function. None: growth does not
    know this feed-forward."""
    hidden_axes: ClassVar[dict[str, str]] = {}
    """Fields that count hidden units -> the axis of the module's matrices that they size. New units of such an axis
    read what they like and are not heard at first; padding rounds the fields up."""
    heard: ClassVar[tuple[str, ...]] = ()
    """Parts of the module that leave the function as it is only where they start as untrained ones do, if they join a
    feed-forward that was there. All other new parts may be anything."""
    bakes_with_one_eps: ClassVar[bool] = False
    """Whether it reads the stream through one norm, or as it is, and writes a multiple of its last matrix, so that a
    factor of the stream passes through it."""

    @property
    @abstractmethod
    def hidden_widths(self) -> tuple[int, ...]:
        """Hidden channels of every gated map a token passes, in order."""

    @property
    def vocab_size(self) -> int | None:
        """Of the tokens it tells apart by their ids; None where it looks at none."""
        return None

    @property
    def n_residual_additions(self) -> int:
        """How often the feed-forward adds to a residual stream, its own included."""
        return 1

    @abstractmethod
    def cost(self, d_model: int, d_out: int) -> Cost:
        """Of a layer of width d_model whose output is written to the first d_out coordinates; without norms."""

    def norm_cost(self, d_model: int, d_out: int, norm: NormSite) -> Cost:
        """Of the norms."""
        return norm.cost(d_model, d_out)

    @abstractmethod
    def build(self, d_model: int, d_out: int, norm: NormSite) -> FeedForward:
        """The module. norm: where the layer's feed-forward norm stands."""

    def norm_placement(self, placement: str) -> str:
        """Where its norms stand in a layer whose norms stand at `placement`."""
        return placement

    def with_constants_of(self, old: "FFNConfig", reads_more: bool) -> "FFNConfig":
        """This config with the constants of `old`, from which its layer grows.

        A conversion from another kind begins here: a class that can become one overrides this, and `name_before` where
        parameters are called otherwise. reads_more: whether the layer reads a wider stream than before. Raises
        ValueError `field: ...` where `old` cannot become this without changing the function.
        """
        must_agree("kind", old.kind, self.kind)
        all_must_agree(self.kept or (), old, self)
        return self

    def name_before(self, old: "FFNConfig", name: str, blocks: Blocks) -> str | None:
        """What a parameter of the module was called in that of `old`; None where it is new."""
        return name

    def units_before(self, n_old: int, n_new: int) -> Sequence[int]:
        """For each of n_new hidden units the old one that stands there, -1 where there was none."""
        return (*range(n_old), *[-1] * (n_new - n_old))

    def growth_in_words(self, old: "FFNConfig", blocks: Blocks) -> Iterator[str]:
        """A line for each expansion that makes this of `old`."""
        for field in self.hidden_axes:
            before, after = getattr(old, field), getattr(self, field)
            if after != before:
                yield f"feed-forward {before} -> {after} hidden units (MLP expansion)"

    def left_by_bake(self) -> Iterator[str]:
        """The constants of a grown feed-forward that have no usual form, each as `field: why`."""
        yield from ()


class FFNTemplate(Config, ABC):
    """A feed-forward for a layer of any width: what a recipe says for all layers."""

    @abstractmethod
    def cost(self, d_model: float, d_out: float) -> Cost:
        """Before rounding, at any real widths; numpy arrays of widths too."""

    @abstractmethod
    def at_width(self, d_model: int) -> FFNConfig:
        """The config of a layer. Raises ValueError where the width does not allow one."""


class HiddenWidthTemplate(FFNTemplate):
    """A template whose hidden width follows the layer's, or is the same in all layers.

    A subclass has a field whose name is `hidden_key`: the hidden width of every layer, in place of `ratio`, or None.
    """

    hidden_key: ClassVar[str]
    usual_ratio: ClassVar[float]
    ratio: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Hidden width over d_model, rounded to the nearest multiple of `multiple_of`. null: the kind's usual one."""
    multiple_of: Width = 1

    @pydantic.model_validator(mode="after")
    def _check_hidden(self) -> "HiddenWidthTemplate":
        if self._given is not None and (self.ratio is not None or self.multiple_of != 1):
            raise ValueError(
                f"{self.hidden_key}: conflicts with ratio or multiple_of; give the width or the rule, not both"
            )
        return self

    @property
    def _given(self) -> int | None:
        return getattr(self, self.hidden_key)

    def real_hidden(self, d_model: float) -> float:
        """Before rounding, at any real width; numpy arrays of widths too."""
        return self._given or (self.ratio or self.usual_ratio) * d_model

    def whole_hidden(self, d_model: int) -> int:
        """In channels, at least one unit of `multiple_of`."""
        return self._given or max(1, round(self.real_hidden(d_model) / self.multiple_of)) * self.multiple_of


FEED_FORWARDS = Component(FFNConfig, FFNTemplate)
"""Those of this folder, and those that plugins register."""


def register_ffn(config: type[FFNConfig], template: type[FFNTemplate]) -> None:
    """Makes a feed-forward known by its `kind`: recipes may say it, and runs with it can be read.

    config: the feed-forward of one layer; template: what a recipe says for all layers. Raises UserError where they are
    not of one kind, or where another feed-forward has that kind.
    """
    FEED_FORWARDS.register(config, template)
