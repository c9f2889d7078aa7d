"""Choice of a token's width, in feed-forwards where the score of a token says how many units it uses.

A width, a centre or a temperature is measured in hidden units.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import pydantic
from pydantic import Field

from widthwise.config_io import Config, mistakes_at
from widthwise.model.cost import Cost, linear, vector
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.ffn.width_mask import AnyWidthMask, StraightThroughMaskConfig
from widthwise.model.kinds import must_stay
from widthwise.sizes import VocabSize, Width

if TYPE_CHECKING:
    from widthwise.model.ffn.width_choice_module import WidthScore


class WidthScoreConfig(Config, ABC):
    """A kind of score and its options."""

    n_kept: ClassVar[int] = 0
    """Numbers kept for the backward pass in fp32 besides x, from which the score is recomputed."""
    is_stream_mean: ClassVar[bool] = False
    """True if it is a mean over the coordinates of the stream, which changes when the stream becomes wider."""
    starts_at_zero: ClassVar[bool] = False
    """True if the score, and its gradient with respect to the features, is 0 for every token before training."""

    def cost(self, d_model: float) -> Cost:
        """Return the cost of the score, without what the feed-forward keeps anyway."""
        return Cost(activation_fp32_elements=self.n_kept)

    def build(self, d_model: int) -> "WidthScore":
        """Build the module, whose class has the name of this one without `Config`."""
        name = type(self).__name__.removesuffix("Config")
        return resolve_name(f"widthwise.model.ffn.width_choice_module:{name}")(self, d_model)


class ConstScoreConfig(WidthScoreConfig):
    """Always 0, which leaves only the bias: a learned width of the layer, the same for all tokens."""

    starts_at_zero, n_kept = True, 1
    kind: Literal["const"] = "const"


class GainedScoreConfig(WidthScoreConfig, ABC):
    """A score with a gain, which decides how much the widths of tokens differ."""

    learn_gain: bool = True
    """Learn the gain, as exp(theta) with theta starting at 0; otherwise it is 1."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(1 if self.learn_gain else 0)


class TokenScoreConfig(GainedScoreConfig):
    """A learned number for each vocabulary entry: the best that can be decided without the context."""

    starts_at_zero = True
    kind: Literal["token"] = "token"
    vocab_size: VocabSize
    """Must equal the model's."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(self.vocab_size)


class RandomScoreConfig(GainedScoreConfig):
    """logit(u) with u ~ U(0, 1) for each token; with gain 1 and bias 0 the level is uniform.

    A control: the same budget and spread of widths, but no information in them. Random in evaluation as well.
    """

    n_kept = 1
    kind: Literal["random"] = "random"


class FeatureScoreConfig(GainedScoreConfig, ABC):
    """A score computed from a token's features."""

    detach: bool = False
    """Stop the gradient at the features, so that choosing widths does not shape them."""


class LayerNormMeanScoreConfig(FeatureScoreConfig):
    """mean(LayerNorm(x)), as the paper writes it.

    Degenerate: the mean is 0 until the norm's gains differ, and then stays within a few thousandths of the mean of its
    biases.
    """

    is_stream_mean = True
    kind: Literal["ln_mean"] = "ln_mean"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(2 * d_model)

    def build(self, d_model: int) -> "WidthScore":
        """Build the module, with a warning that the score has no variance."""
        warnings.warn(
            "ffn.score ln_mean: score has no variance, because the mean of a LayerNorm's output is 0: every token gets "
            "the same width; with score linear the width depends on the token",
            stacklevel=2,
        )
        return super().build(d_model)


class RMSMeanScoreConfig(FeatureScoreConfig):
    """mean(x) / rms(x), between -1 and 1: the paper's score without the centring."""

    is_stream_mean = True
    kind: Literal["rms_mean"] = "rms_mean"


class RawMeanScoreConfig(FeatureScoreConfig):
    """The mean of the residual stream before the norm: the paper's score without its norm. Unbounded."""

    is_stream_mean, n_kept = True, 1
    kind: Literal["raw_mean"] = "raw_mean"


class LinearScoreConfig(FeatureScoreConfig):
    """v . x with a learned v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    kind: Literal["linear"] = "linear"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, 1)


class MLPScoreConfig(FeatureScoreConfig):
    """v . silu(W x) with a v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    kind: Literal["mlp"] = "mlp"
    d_hidden: Width = 16
    """Hidden width, in channels."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, self.d_hidden) + linear(self.d_hidden, 1)


_OfFeatures = LayerNormMeanScoreConfig | RMSMeanScoreConfig | RawMeanScoreConfig | LinearScoreConfig | MLPScoreConfig
_Others = TokenScoreConfig | ConstScoreConfig | RandomScoreConfig
AnyWidthScore = Annotated[_OfFeatures | _Others, Field(discriminator="kind")]


class WidthChoice(Config):
    """The options that do not depend on the width of the layer.

    level = sigmoid(score + bias), width_fraction = min_fraction + (1 - min_fraction) * level.
    """

    score: AnyWidthScore = LinearScoreConfig()
    mask: AnyWidthMask = StraightThroughMaskConfig()
    min_fraction: float = Field(default=1 / 3, ge=0, le=1)
    """The smallest width of a token, as a fraction of the width that uses all units."""
    start: float = Field(default=0.9, gt=0, lt=1)
    """The level of all tokens at the start of training. High, because units that no token uses do not learn."""
    execution: Literal["auto", "masked", "sliced"] = "auto"
    """`masked` computes all units and multiplies by the mask, `sliced` computes only units in use, `auto` takes what is
    faster, on a CPU. Slicing needs a mask that is exactly 0 with no derivative: in evaluation every mask but `soft`, in
    training `hard`, `nested` and, of hidden units, `linear_ramp`. Otherwise, and in compiled code, the layer is
    masked."""

    def choice_cost(self, d_model: float) -> Cost:
        """Cost of score, bias and mask; the width is kept for the backward pass."""
        if not self.mask.has_width:
            return Cost()
        return self.score.cost(d_model) + vector(1) + self.mask.cost() + Cost(activation_fp32_elements=1)


class WidthChoosingConfig(WidthChoice, FFNConfig, ABC):
    """One layer's feed-forward with that choice."""

    active_at_start = ("score", "bias", "mask")

    @pydantic.model_validator(mode="after")
    def _check_mask(self) -> Self:
        if self.mask != self.mask.at_width(self.full_width):
            raise ValueError("mask.temperature: is required where d_ff is given for one layer; d_ff / 32 is usual")
        return self

    @property
    @abstractmethod
    def full_width(self) -> int:
        """The width, in units, of a token that uses all of them."""

    @property
    def vocab_size(self) -> int | None:
        return self.score.vocab_size if isinstance(self.score, TokenScoreConfig) else None

    @abstractmethod
    def flops_of_units(self, n_units: float, d_model: int, d_out: int) -> float:
        """Forward FLOPs of a token that computes so many hidden units, without its score."""

    def check_choice(self, old: "WidthChoosingConfig", reads_more: bool) -> None:
        """Raises UserError or ValueError where growth from `old` would change which units a token uses."""
        with mistakes_at("mask"):
            must_stay(("kind",), old.mask, self.mask)
        if reads_more and old.score.is_stream_mean:
            raise ValueError(
                f"score: got {old.score.kind}, a mean over the stream, which is another one over a wider stream; use "
                "linear or mlp"
            )

    def begins_to_choose(self, old: "WidthChoosingConfig") -> bool:
        """Return whether growth from `old` gives a score to tokens that have used all units so far."""
        return self.mask.has_width and not old.mask.has_width

    def growth_in_words(self, old: FFNConfig) -> Iterator[str]:
        start = "every token with all units at first (conversion)"
        if isinstance(old, SwiGLUConfig):
            yield f"feed-forward {old.kind} -> {self.kind}, {start}"
        elif isinstance(old, WidthChoosingConfig) and self.begins_to_choose(old):
            yield f"mask {old.mask.kind} -> {self.mask.kind}, {start}"
        yield from super().growth_in_words(old)

    def started_whole(self, old: FFNConfig) -> Self:
        """This config with a `start` so high that the mask is exactly 1 for every unit and every token, as a layer
        without a choice is converted.

        The width then ends a quarter of a unit beyond the centre of the last unit. Raises ValueError if no level can
        achieve that.
        """
        if not self.mask.is_exact:
            raise ValueError(
                f"mask.kind: got {self.mask.kind}, which is below 1 for some units at any width, or draws widths; "
                f"{old.kind} becomes {self.kind} with ste, hard or none"
            )
        if self.mask.has_width and not self.score.starts_at_zero:
            raise ValueError(
                f"score.kind: got {self.score.kind}, which starts at another number for every token; {old.kind} "
                f"becomes {self.kind} with linear, mlp, token or const"
            )
        n_chosen = self.full_width * (1 - self.min_fraction)
        return self if n_chosen == 0 else self.model_copy(update={"start": max(self.start, 1 - 0.25 / n_chosen)})
