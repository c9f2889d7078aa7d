"""The module of attention; `attention.py` has its sizes and costs."""

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.backends.cuda import flash_sdp_enabled
from torch.nn.functional import pad, scaled_dot_product_attention

from widthwise.model.axes import Linear, RMSNorm
from widthwise.model.axis_sizes import size
from widthwise.model.context import PassContext
from widthwise.model.kv_cache import LayerCache
from widthwise.model.norm import NormSite
from widthwise.model.rope import rotate

if TYPE_CHECKING:
    from widthwise.model.attention import AttentionConfig


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(scale * q k^T) v; see `Attention` for what a mask of None means.

    queries: (B, n_heads, T, head_dim); keys: (B, n_kv_heads, S, head_dim); values: (B, n_kv_heads, S, v_head_dim);
    mask: (B or 1, 1, T, S), bool or to be added to the scores, or None -> (B, n_heads, T, v_head_dim).
    """
    head_dim, v_head_dim = keys.shape[-1], values.shape[-1]
    if head_dim != v_head_dim and flash_sdp_enabled():
        # The flash kernels take one size only; the plain form, which takes two, would keep every weight of T x S.
        # Zeros change no score and no sum.
        queries, keys, values = (_padded(x, max(head_dim, v_head_dim)) for x in (queries, keys, values))
    attended = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None and queries.shape[2] > 1,
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return attended[..., :v_head_dim]


def _padded(heads: Tensor, head_dim: int) -> Tensor:
    n_missing = head_dim - heads.shape[-1]
    return pad(heads, (0, n_missing)) if n_missing else heads


class Attention(nn.Module):
    """softmax(scale * q k^T) v, causal."""

    def __init__(self, config: "AttentionConfig", d_model: int, d_in: int, norm: NormSite):
        super().__init__()
        self.config = config
        self.norm = norm.build(d_in, d_model)
        self.rope = config.rope
        self.w_q = Linear({"d_model": d_in}, config.queries, has_bias=config.bias)
        self.w_k = Linear({"d_model": d_in}, config.keys, has_bias=config.bias)
        self.w_v = Linear({"d_model": d_in}, config.values, has_bias=config.bias)
        self.w_o = Linear(config.attended, {"d_model": d_model}, has_bias=config.out_bias)
        if config.qk_norm is not None:
            self.q_norm = config.qk_norm.build(config.queries, config.qk_norm.q_norm_dim)
            self.k_norm = config.qk_norm.build(config.keys, config.qk_norm.k_norm_dim)

    def forward(self, x: Tensor, context: PassContext, cache: LayerCache | None = None) -> Tensor:
        """x: (B, T, d_in), the stream -> the update (B, T, d_model).

        With a cache, the T tokens join it and also look at what it holds.
        """
        queries, keys, values = self._project(self.norm.before(x), context)  # (B, heads, T, sizes of heads)
        if cache is not None:
            keys, values = cache.write(context.start, keys, values)
        attended = attend(queries, keys, values, context.mask, self.config.scale)
        return self.norm.after(self.w_o(attended.transpose(1, 2).flatten(2)))

    def _project(self, x: Tensor, context: PassContext) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = self.w_q(x), self.w_k(x), self.w_v(x)
        if self.config.qk_norm is not None:
            queries = self._normalise(queries, self.q_norm)
            keys = self._normalise(keys, self.k_norm)
        queries, keys = (x.unflatten(-1, (-1, self.config.head_dim)) for x in (queries, keys))
        if self.rope is not None:
            cos, sin = context.rope[self.rope]
            queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
        values = values.unflatten(-1, (-1, self.config.value_dim))
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)

    def _normalise(self, x: Tensor, norm: RMSNorm) -> Tensor:
        return norm(x.unflatten(-1, (-1, size(norm.in_axes)))).flatten(-2)
