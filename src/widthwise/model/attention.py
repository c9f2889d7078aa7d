"""Grouped-query attention with rotary positions."""

from typing import Literal

import pydantic
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from widthwise.config_io import Config
from widthwise.model.axes import Axes, Linear, RMSNorm, size
from widthwise.model.context import PassContext
from widthwise.model.cost import Cost, linear, vector
from widthwise.model.kv_cache import LayerCache
from widthwise.model.norm import NormSite
from widthwise.model.rope import rotate


class QKNormConfig(Config):
    """RMSNorm of queries and keys before the rotation. Sources: Dehghani et al. 2023 (per head), OLMo 2 (all heads)."""

    eps: pydantic.PositiveFloat = 1e-5
    over: Literal["head", "all_heads"] = "head"
    """Whether each head is normalised alone (Qwen 3) or all heads together (OLMo 2)."""

    def axes(self, n_heads: int, head_dim: int) -> Axes:
        return {"head_dim": head_dim} if self.over == "head" else {"n_heads": n_heads, "head_dim": head_dim}

    def cost(self, n_heads: int, head_dim: int) -> Cost:
        """The gain, the output, and one reciprocal root mean square per norm."""
        n_norms = n_heads if self.over == "head" else 1
        gain = vector(size(self.axes(n_heads, head_dim)))
        return gain + Cost(activation_elements=n_heads * head_dim, activation_fp32_elements=n_norms)

    def build(self, n_heads: int, head_dim: int) -> RMSNorm:
        axes = self.axes(n_heads, head_dim)
        return RMSNorm(axes, self.eps, norm_dim=size(axes))


def attention_cost(d_in: float, d_model: float, query_width: float, kv_width: float, n_heads: float) -> Cost:
    """Four projections, the scores and the weighted sum; query_width and kv_width are head counts times head_dim.

    Kept for the backward pass: rotated queries and keys, values, the output, and the log-sum-exp of each head.
    """
    projections = linear(d_in, query_width) + linear(d_in, kv_width) + linear(d_in, kv_width)
    scores = Cost(
        flops_per_context_token=4 * query_width,
        kv_elements=2 * kv_width,
        activation_elements=2 * query_width + 2 * kv_width,
        activation_fp32_elements=n_heads,
    )
    return projections + scores + linear(query_width, d_model)


def check_head_dim(head_dim: int) -> None:
    """Raises ValueError where a head cannot be turned."""
    if head_dim % 2:
        raise ValueError(f"head_dim: got {head_dim}; rotary positions turn pairs, so it must be even")


class AttentionConfig(Config):
    """Attention of one layer; every number explicit, none derived from a width later."""

    n_heads: pydantic.PositiveInt
    n_kv_heads: pydantic.PositiveInt
    head_dim: pydantic.PositiveInt
    scale: pydantic.PositiveFloat
    """Factor of the scores before the softmax."""
    rope_base: pydantic.PositiveFloat = 10000.0
    qk_norm: QKNormConfig | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> "AttentionConfig":
        check_head_dim(self.head_dim)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads: got {self.n_kv_heads}; must divide n_heads = {self.n_heads}")
        return self

    def cost(self, d_model: int, d_in: int) -> Cost:
        """Projections and scores of a layer of width d_model that reads d_in coordinates; norms are counted apart."""
        n_heads, n_kv_heads, head_dim = self.n_heads, self.n_kv_heads, self.head_dim
        return attention_cost(d_in, d_model, n_heads * head_dim, n_kv_heads * head_dim, n_heads)

    def norm_cost(self, d_model: int, d_in: int, norm: NormSite) -> Cost:
        """The sublayer's norm, and QK-norm of queries and keys."""
        cost = norm.cost(d_in, d_model)
        if self.qk_norm is None:
            return cost
        qk_cost = self.qk_norm.cost(self.n_heads, self.head_dim) + self.qk_norm.cost(self.n_kv_heads, self.head_dim)
        return cost + qk_cost

    def build(self, d_model: int, d_in: int, norm: NormSite) -> "Attention":
        """The arguments are those of `norm_cost`."""
        return Attention(self, d_model, d_in, norm)


class AttentionTemplate(Config):
    """Attention for a layer of any width: the heads follow the width. Their sizes multiply to it."""

    n_heads: pydantic.PositiveInt | None = None
    """The same number of heads in every layer, head_dim = width / n_heads: the variable-width paper's rule."""
    head_dim: pydantic.PositiveInt | None = None
    """The same head size in every layer, n_heads = width / head_dim: what kernels like. 64 where neither is given."""
    kv_group_size: pydantic.PositiveInt = 1
    """Query heads that share one key-value head: n_kv_heads = n_heads / kv_group_size."""
    scale: Literal["1/sqrt(head_dim)", "1/head_dim"] = "1/sqrt(head_dim)"
    """Factor of the scores; 1/head_dim is muP's."""
    rope_base: pydantic.PositiveFloat = 10000.0
    qk_norm: QKNormConfig | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> "AttentionTemplate":
        if self.n_heads is not None and self.head_dim is not None:
            raise ValueError("n_heads: stands beside head_dim; the width decides one of them, so give only the other")
        if self.n_heads is not None and self.n_heads % self.kv_group_size:
            raise ValueError(f"kv_group_size: got {self.kv_group_size}; must divide n_heads = {self.n_heads}")
        check_head_dim(self.constant_head_dim)
        return self

    @property
    def quantum(self) -> int:
        """Every width must be a multiple of this: whole groups of heads of an even size."""
        return 2 * self.n_heads if self.n_heads is not None else self.constant_head_dim * self.kv_group_size

    @property
    def _rule(self) -> str:
        return "head_dim * kv_group_size" if self.n_heads is None else "2 * n_heads"

    @property
    def constant_head_dim(self) -> int:
        return 64 if self.head_dim is None else self.head_dim

    def cost(self, d_model: float, d_in: float) -> Cost:
        """Before rounding, at any real width."""
        n_heads = d_model / self.constant_head_dim if self.n_heads is None else self.n_heads
        return attention_cost(d_in, d_model, d_model, d_model / self.kv_group_size, n_heads)

    def at_width(self, d_model: int) -> AttentionConfig:
        """Raises ValueError where the width holds no whole number of heads."""
        if d_model % self.quantum:
            raise ValueError(f"d_model: got {d_model}; attention needs a multiple of {self.quantum} ({self._rule})")
        n_heads = d_model // self.constant_head_dim if self.n_heads is None else self.n_heads
        head_dim = d_model // n_heads
        return AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=n_heads // self.kv_group_size,
            head_dim=head_dim,
            scale=SCALES[self.scale](head_dim),
            rope_base=self.rope_base,
            qk_norm=self.qk_norm,
        )


SCALES = {"1/sqrt(head_dim)": lambda head_dim: head_dim**-0.5, "1/head_dim": lambda head_dim: 1.0 / head_dim}


class Attention(nn.Module):
    """softmax(scale * q k^T) v, causal."""

    def __init__(self, config: AttentionConfig, d_model: int, d_in: int, norm: NormSite):
        super().__init__()
        self.config = config
        self.norm = norm.build(d_in, d_model)
        queries = {"n_heads": config.n_heads, "head_dim": config.head_dim}
        keys = {"n_kv_heads": config.n_kv_heads, "head_dim": config.head_dim}
        self.w_q = Linear({"d_model": d_in}, queries)
        self.w_k = Linear({"d_model": d_in}, keys)
        self.w_v = Linear({"d_model": d_in}, keys)
        self.w_o = Linear(queries, {"d_model": d_model})
        if config.qk_norm is not None:
            self.q_norm = config.qk_norm.build(config.n_heads, config.head_dim)
            self.k_norm = config.qk_norm.build(config.n_kv_heads, config.head_dim)

    def forward(self, x: Tensor, context: PassContext, cache: LayerCache | None = None) -> Tensor:
        """x: (B, T, d_in), the stream -> the update (B, T, d_model).

        With a cache, the T tokens join it and also look at what it holds.
        """
        queries, keys, values = self._project(self.norm.before(x), context)  # (B, heads, T, head_dim)
        if cache is not None:
            keys, values = cache.write(context.start, keys, values)
        attended = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=context.mask,
            is_causal=context.mask is None and queries.shape[2] > 1,
            scale=self.config.scale,
            enable_gqa=self.config.n_heads != self.config.n_kv_heads,
        )
        return self.norm.after(self.w_o(attended.transpose(1, 2).flatten(2)))

    def _project(self, x: Tensor, context: PassContext) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = self.w_q(x), self.w_k(x), self.w_v(x)
        if self.config.qk_norm is not None:
            queries = self._normalise(queries, self.q_norm)
            keys = self._normalise(keys, self.k_norm)
        cos, sin = context.rope[self.config.head_dim, self.config.rope_base]
        queries, keys = rotate(self._heads(queries), cos, sin), rotate(self._heads(keys), cos, sin)
        return queries.transpose(1, 2), keys.transpose(1, 2), self._heads(values).transpose(1, 2)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.head_dim))

    def _normalise(self, x: Tensor, norm: RMSNorm) -> Tensor:
        return norm(x.unflatten(-1, (-1, norm.norm_dim))).flatten(-2)
