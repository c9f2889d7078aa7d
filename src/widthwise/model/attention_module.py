"""The module of attention. See `attention.py` for sizes and costs."""

from torch import Tensor, nn

from widthwise.kernels.attention import attention
from widthwise.kernels.attention_in_blocks import Scoring
from widthwise.kernels.rotary import rotate
from widthwise.model.attention import AttentionConfig
from widthwise.model.axes import Linear, Norm
from widthwise.model.context import LayerCache, PassContext
from widthwise.model.cost import size
from widthwise.model.norm import NormSite


class Attention(nn.Module):
    """Causal attention softmax(scale * q k^T) v with its projections and norms."""

    def __init__(self, config: AttentionConfig, d_model: int, d_in: int, norm: NormSite):
        super().__init__()
        self.config = config
        self.norm = norm.build(d_in, d_model)
        self.rope = config.rope
        self.scoring = Scoring(config.scale, config.window, config.score_cap)
        self.w_q = Linear({"d_model": d_in}, config.queries, has_bias=config.bias)
        self.w_k = Linear({"d_model": d_in}, config.keys, has_bias=config.bias)
        self.w_v = Linear({"d_model": d_in}, config.values, has_bias=config.bias)
        self.w_o = Linear(config.attended, {"d_model": d_model}, has_bias=config.out_bias)
        qk_norm = config.qk_norm
        self.q_norm = None if qk_norm is None else qk_norm.build(config.queries, qk_norm.q_norm_dim)
        self.k_norm = None if qk_norm is None else qk_norm.build(config.keys, qk_norm.k_norm_dim)

    def forward(self, x: Tensor, context: PassContext, cache: LayerCache | None = None) -> Tensor:
        """x: (B, T, d_in), the stream -> the update (B, T, d_model).

        With a cache, the T tokens are added to it and attend to the tokens that it holds.
        """
        x = self.norm.before(x)
        queries = self._heads(self.w_q(x), self.q_norm, context)
        keys = self._heads(self.w_k(x), self.k_norm, context)
        values = self.w_v(x).unflatten(-1, (-1, self.config.value_dim)).transpose(1, 2)
        if cache is not None:
            keys, values = cache.write(context.start, keys, values)
        mask = context.masks.get(self.scoring.window)
        attended = attention(queries, keys, values, self.scoring, context.documents, mask)
        return self.norm.after(self.w_o(attended.transpose(1, 2).flatten(2)))

    def _heads(self, x: Tensor, norm: Norm | None, context: PassContext) -> Tensor:
        """Return queries or keys, normalised and rotated: (B, T, n_heads * head_dim) -> (B, n_heads, T, head_dim)."""
        if norm is not None:
            x = norm(x.unflatten(-1, (-1, size(norm.in_axes)))).flatten(-2)
        x = x.unflatten(-1, (-1, self.config.head_dim))
        if self.rope is not None:
            x = rotate(x, *context.rope[self.rope])
        return x.transpose(1, 2)
