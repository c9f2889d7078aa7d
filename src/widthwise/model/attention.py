"""Grouped-query attention with rotary positions."""

import math
from collections.abc import Sequence
from fractions import Fraction
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, options_of
from widthwise.mistakes import shortened
from widthwise.model.cost import Axes, ContextCost, Cost, linear, size, vector
from widthwise.model.norm import NormSite, QKNormConfig
from widthwise.sizes import Count, Width

if TYPE_CHECKING:
    from widthwise.kernels.rotary import Rope


MAX_DENOMINATOR = 64
"""Largest denominator of the fraction that replaces `ratio` of a template."""
MAX_RATIO_ERROR = 0.01
"""Largest relative difference between a ratio and that fraction."""
SCALES = {"1/sqrt(head_dim)": lambda head_dim: head_dim**-0.5, "1/head_dim": lambda head_dim: 1.0 / head_dim}
"""Option `scale` of a template -> function that returns the factor of the scores from head_dim."""


class AttentionOptions(Config):
    """Options that a recipe and a resolved model share."""

    rope_base: pydantic.PositiveFloat | None = 10000.0
    """Base of the rotary frequencies; null: no rotary positions, and heads may have an odd size."""
    bias: bool = False
    """Give w_q, w_k and w_v biases."""
    out_bias: bool = False
    """Give w_o a bias."""
    qk_norm: QKNormConfig | None = None
    window: Count | None = None
    """Number of tokens that a token attends to: itself and the tokens right before it; null: all before it."""
    score_cap: pydantic.PositiveFloat | None = None
    """Scores become cap * tanh(scores / cap) before the softmax, as in Gemma 2; null: no cap."""

    def attention_cost(self, d_in: float, d_model: float, widths: Sequence[float], n_heads: float) -> Cost:
        """Return the cost of four projections with their biases, the scores and the weighted sum.

        widths: n_heads times head_dim of queries, keys, values, and the output of attention, before rounding. Kept for
        the backward pass: queries and keys after the rotation, values, the output, and the log-sum-exp of every head,
        which attention in blocks (for capped scores) does not keep.
        """
        queries, keys, values, attended = widths
        projections = linear(d_in, queries) + linear(d_in, keys) + linear(d_in, values)
        biases = vector(queries + keys + values if self.bias else 0)
        biases += vector(d_model if self.out_bias else 0)
        scores = Cost(
            contexts={self.window: ContextCost(2 * queries + 2 * attended, keys + values)},
            activation_elements=sum(widths),
            activation_fp32_elements=n_heads if self.score_cap is None else 0,
        )
        return projections + scores + linear(attended, d_model) + biases

    def check_head_dim(self, head_dim: int) -> None:
        """Raise ValueError for rotary heads of an odd size."""
        if self.rope_base is not None and head_dim % 2:
            raise ValueError(f"head_dim: got {head_dim}; rotary positions rotate pairs, so it must be even")


def _check_one_size(value: Any) -> Any:
    """Return the value. Raise ValueError for a list of head sizes, which the paper on growth allows."""
    if isinstance(value, (list, tuple)):
        raise ValueError(
            f"got {shortened(list(value))}; heads of different sizes in one layer are not available, because all are "
            "computed in one product; give one number, or one for each layer (model.layers.0.attention.head_dim)"
        )
    return value


HeadDim = Annotated[Width, pydantic.BeforeValidator(_check_one_size)]
"""The size of every head of a layer; a list of sizes is refused."""


class AttentionConfig(AttentionOptions):
    """Attention of one layer, with all numbers explicit."""

    n_heads: Count
    n_kv_heads: Count
    head_dim: HeadDim
    """Size of a query or key head."""
    v_head_dim: HeadDim | None = None
    """Size of a value head; null: head_dim."""
    scale: pydantic.PositiveFloat
    """Factor of the scores before the softmax."""
    rope_frequencies: tuple[pydantic.PositiveFloat, ...] | None = None
    """Radians per position of each of the head_dim / 2 pairs, instead of those from rope_base; null:
    rope_base^(-2i / head_dim) for pair i. A head that has grown keeps the frequencies of its old pairs."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "AttentionConfig":
        self.check_head_dim(self.head_dim)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads: got {self.n_kv_heads}; must divide n_heads = {self.n_heads}")
        if self.rope_frequencies is not None:
            if self.rope_base is None:
                raise ValueError("rope_frequencies: conflicts with rope_base: null, which means no rotary positions")
            n_frequencies, n_pairs = len(self.rope_frequencies), self.head_dim // 2
            if n_frequencies != n_pairs:
                raise ValueError(f"rope_frequencies: got {n_frequencies} numbers; must be head_dim / 2 = {n_pairs}")
        return self

    @property
    def value_dim(self) -> int:
        """The size of a value head: v_head_dim, or head_dim if it is null."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def rope(self) -> "Rope | None":
        """The rotary positions of the heads; None without rotary positions."""
        if self.rope_base is None:
            return None
        return resolve_name("widthwise.kernels.rotary:Rope")(self.head_dim, self.rope_base, self.rope_frequencies)

    @property
    def queries(self) -> Axes:
        """The axes of the queries of a token."""
        return {"n_heads": self.n_heads, "head_dim": self.head_dim}

    @property
    def keys(self) -> Axes:
        """The axes of the keys of a token."""
        return {"n_kv_heads": self.n_kv_heads, "head_dim": self.head_dim}

    @property
    def values(self) -> Axes:
        """The axes of the values of a token."""
        return {"n_kv_heads": self.n_kv_heads, "v_head_dim": self.value_dim}

    @property
    def attended(self) -> Axes:
        """The axes of the weighted sums of values, which w_o reads."""
        return {"n_heads": self.n_heads, "v_head_dim": self.value_dim}

    def cost(self, d_model: int, d_in: int) -> Cost:
        """Return the cost, without norms, in a layer of width d_model that reads d_in coordinates."""
        widths = [size(axes) for axes in (self.queries, self.keys, self.values, self.attended)]
        cost = self.attention_cost(d_in, d_model, widths, self.n_heads)
        if self.head_dim == self.value_dim or self.score_cap is not None:
            return cost
        # Torch's fused function also keeps the padding of queries, keys and values, and the padded output. With one
        # head, or values of size 1, the output needs no memory, and less is kept. Attention in blocks pads nothing.
        padded = max(self.head_dim, self.value_dim)
        key_padding = (self.n_heads + self.n_kv_heads) * (padded - self.head_dim)
        value_padding = self.n_kv_heads * (padded - self.value_dim)
        return cost + Cost(activation_elements=key_padding + value_padding + self.n_heads * padded)

    def norm_cost(self, d_model: int, d_in: int, norm: NormSite) -> Cost:
        """Return the cost of the sublayer's norm, and of QK-norm for queries and keys."""
        cost = norm.cost(d_in, d_model)
        if self.qk_norm is None:
            return cost
        is_padded = self.score_cap is None and self.value_dim > self.head_dim  # see `cost`
        for heads in (self.queries, self.keys):
            cost += self.qk_norm.cost(heads, is_kept_by_attention=self.rope_base is None and not is_padded)
        return cost


class AttentionTemplate(AttentionOptions):
    """Attention for a layer of any width. n_heads * head_dim is that width, unless `ratio` or `d_attention` is set."""

    n_heads: Count | None = None
    """The same number of heads in every layer, head_dim = width / n_heads: the variable-width paper's rule."""
    head_dim: HeadDim | None = None
    """The same head size in every layer, n_heads = width / head_dim, which suits kernels. null: 64, unless n_heads is
    set."""
    ratio: Annotated[float, Field(gt=0, le=100)] | None = None
    """n_heads * head_dim over the width of the layer, a fraction of small whole numbers. null: 1."""
    d_attention: Width | None = None
    """n_heads * head_dim of every layer, independent of its width."""
    kv_group_size: Count = 1
    """Query heads that share one key-value head: n_kv_heads = n_heads / kv_group_size."""
    n_kv_heads: Count | None = None
    """The same number of key-value heads in every layer. Converted to kv_group_size; needs n_heads."""
    scale: Literal["1/sqrt(head_dim)", "1/head_dim"] = "1/sqrt(head_dim)"
    """Factor of the scores; 1/head_dim for muP."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "AttentionTemplate":
        if self.n_kv_heads is not None:
            if self.n_heads is None:
                raise ValueError("n_kv_heads: needs n_heads; without n_heads give kv_group_size, n_heads / n_kv_heads")
            if self.n_heads % self.n_kv_heads:
                raise ValueError(f"n_kv_heads: got {self.n_kv_heads}; must divide n_heads = {self.n_heads}")
            kv_group_size = self.n_heads // self.n_kv_heads
            if self.kv_group_size not in (1, kv_group_size):
                raise ValueError("n_kv_heads: conflicts with kv_group_size; give only one of them")
            vars(self).update(kv_group_size=kv_group_size, n_kv_heads=None)
        if self.n_heads is not None and self.head_dim is not None:
            raise ValueError("n_heads: conflicts with head_dim; set one to null, and the width decides it")
        if self.d_attention is not None and self.ratio is not None:
            raise ValueError("d_attention: conflicts with ratio; give the width or the rule, not both")
        if self.ratio is not None and abs(self._fraction - self.ratio) > MAX_RATIO_ERROR * self.ratio:
            raise ValueError(
                f"ratio: got {self.ratio:g}; must be a fraction of whole numbers up to {MAX_DENOMINATOR}, such as "
                f"{self._fraction or Fraction(1, MAX_DENOMINATOR)}"
            )
        if self.d_attention is not None and self.d_attention % self.unit:
            raise ValueError(f"d_attention: got {self.d_attention}; must be a multiple of {self.unit} ({self._rule})")
        if self.n_heads is not None and self.n_heads % self.kv_group_size:
            raise ValueError(f"kv_group_size: got {self.kv_group_size}; must divide n_heads = {self.n_heads}")
        self.check_head_dim(self.constant_head_dim)
        return self

    @property
    def quantum(self) -> int:
        """Every width must be a multiple of it, so that heads fill whole groups and rotary heads have an even size."""
        if self.d_attention is not None:
            return 1
        numerator, denominator = self._fraction.as_integer_ratio()
        return self.unit * denominator // math.gcd(numerator, self.unit * denominator)

    @property
    def unit(self) -> int:
        """n_heads * head_dim must be a multiple of it."""
        if self.n_heads is None:
            return self.constant_head_dim * self.kv_group_size
        return self.n_heads if self.rope_base is None else 2 * self.n_heads

    @property
    def _rule(self) -> str:
        """The formula of `unit`, for error messages."""
        if self.n_heads is None:
            return "head_dim * kv_group_size"
        return "n_heads" if self.rope_base is None else "2 * n_heads"

    @property
    def _fraction(self) -> Fraction:
        """The ratio as a fraction with a denominator up to MAX_DENOMINATOR, so that 0.3333 means a third."""
        return Fraction(1 if self.ratio is None else self.ratio).limit_denominator(MAX_DENOMINATOR)

    @property
    def constant_head_dim(self) -> int:
        """The size of every head, unless n_heads is set."""
        return 64 if self.head_dim is None else self.head_dim

    def width(self, d_model: float) -> float:
        """Return n_heads * head_dim, before rounding, in a layer of width d_model."""
        return self.d_attention or d_model * self._fraction.numerator / self._fraction.denominator

    def cost(self, d_model: float, d_in: float) -> Cost:
        """Return the cost before rounding, in a layer of width d_model that reads d_in coordinates."""
        width = self.width(d_model)
        n_heads = width / self.constant_head_dim if self.n_heads is None else self.n_heads
        kv_width = width / self.kv_group_size
        return self.attention_cost(d_in, d_model, (width, kv_width, kv_width, width), n_heads)

    def at_width(self, d_model: int) -> AttentionConfig:
        """Return the attention of a layer of width d_model. Raise ValueError if `quantum` does not divide d_model."""
        if d_model % self.quantum:
            formula = self._rule
            if self.ratio is not None:
                formula += f", over ratio {self._fraction}"
            raise ValueError(f"d_model: got {d_model}; attention needs a multiple of {self.quantum} ({formula})")
        width = round(self.width(d_model))
        n_heads = width // self.constant_head_dim if self.n_heads is None else self.n_heads
        head_dim = width // n_heads
        return AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=n_heads // self.kv_group_size,
            head_dim=head_dim,
            scale=SCALES[self.scale](head_dim),
            **options_of(AttentionOptions, self),
        )


def with_kv_group_size(section: dict[str, Any]) -> dict[str, Any]:
    """Return an attention section of a recipe with n_kv_heads replaced by kv_group_size, so that n_heads can change."""
    if "n_kv_heads" not in section:
        return section
    group = {"kv_group_size": AttentionTemplate.model_validate(section).kv_group_size}
    return {key: value for key, value in section.items() if key != "n_kv_heads"} | group
