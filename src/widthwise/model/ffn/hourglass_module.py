"""The module of an hourglass feed-forward."""

from collections.abc import Sequence
from itertools import product
from typing import cast

from torch import Tensor, nn

from widthwise.model.axes import Linear
from widthwise.model.context import Choices, FeedForward, PassContext
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.mlp_module import MLP
from widthwise.model.ffn.swiglu_module import SwiGLU
from widthwise.model.norm import NormSite


class Hourglass(FeedForward):
    """The stack of blocks. It returns the sum of their updates, which the layer adds to the stream once."""

    def __init__(self, config: HourglassConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.config = config
        shared, sites = config.norm_sites(d_model, d_out, norm)
        self.norm = nn.Identity() if shared is None else shared.build(d_model, d_out)
        blocks = zip(config.hidden_widths, config.block_outputs(d_model, d_out), sites)
        self.blocks = nn.ModuleList(config.block(n).build(d_model, d_write, site) for n, d_write, site in blocks)
        if config.share_weights:
            matrices = [(name, child) for name, child in self.blocks[0].named_children() if isinstance(child, Linear)]
            for block, (name, matrix) in product(self.blocks, matrices):
                setattr(block, name, matrix)
        self.d_out = d_out

    @property
    def stack(self) -> Sequence[SwiGLU | MLP]:
        """The blocks, first to last."""
        return cast(Sequence[SwiGLU | MLP], self.blocks)

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        entered = self.norm(x)
        total, _ = self.blocks[0](entered, context)
        for block in self.blocks[1:]:
            total = total.to(x.dtype)  # sum in the dtype of the stream, not of the matrix products
            update, _ = block(entered.add(total, alpha=self.config.block_multiplier), context)
            total = total[..., : update.shape[-1]] + update
        return total[..., : self.d_out], {}
