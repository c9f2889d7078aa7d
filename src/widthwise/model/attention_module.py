"""The module of attention. See `attention.py` for sizes and costs."""

from torch import Tensor, nn

from widthwise.kernels.attention import attention
from widthwise.kernels.attention_in_blocks import Scoring
from widthwise.kernels.rotary import rotate
from widthwise.model.attention import AttentionConfig
from widthwise.model.axes import Linear
from widthwise.model.context import LayerCache, PassContext
from widthwise.model.cost import size
from widthwise.model.norm import NormSite


class Attention(nn.Module):
    """softmax(scale * q k^T) v, causal."""

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
        if config.qk_norm is not None:
            self.q_norm = config.qk_norm.build(config.queries, config.qk_norm.q_norm_dim)
            self.k_norm = config.qk_norm.build(config.keys, config.qk_norm.k_norm_dim)

    def forward(self, x: Tensor, context: PassContext, cache: LayerCache | None = None) -> Tensor:
        """x: (B, T, d_in), the stream -> the update (B, T, d_model).

        With a cache, the T tokens are added to it and attend to the tokens that it holds.
        """
        x = self.norm.before(x)
        queries, keys, values = (project(x) for project in (self.w_q, self.w_k, self.w_v))
        if self.config.qk_norm is not None:
            pairs = (queries, self.q_norm), (keys, self.k_norm)
            queries, keys = (norm(x.unflatten(-1, (-1, size(norm.in_axes)))).flatten(-2) for x, norm in pairs)
        queries, keys = (x.unflatten(-1, (-1, self.config.head_dim)) for x in (queries, keys))
        if self.rope is not None:
            queries, keys = (rotate(x, *context.rope[self.rope]) for x in (queries, keys))
        values = values.unflatten(-1, (-1, self.config.value_dim))
        queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))  # (B, heads, T, sizes of heads)
        if cache is not None:
            keys, values = cache.write(context.start, keys, values)
        mask = context.masks.get(self.scoring.window)
        attended = attention(queries, keys, values, self.scoring, context.documents, mask)
        return self.norm.after(self.w_o(attended.transpose(1, 2).flatten(2)))
