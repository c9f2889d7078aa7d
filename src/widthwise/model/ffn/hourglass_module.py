"""The module of an hourglass feed-forward."""

from torch import Tensor, nn

from widthwise.model.context import Choices, FeedForward, PassContext
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.ffn.swiglu_module import SwiGLU
from widthwise.model.norm import NormSite


class Hourglass(FeedForward):
    """The stack of blocks. It returns the sum of their updates, which the layer adds to the stream once."""

    def __init__(self, config: HourglassConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.config = config
        self.d_out = d_out
        self.blocks = nn.ModuleList(
            SwiGLU(SwiGLUConfig(d_ff=d_hidden), d_model, d_write, norm.of_part(d_model, d_out, d_write))
            for d_hidden, d_write in zip(config.hidden_widths, config.block_outputs(d_model, d_out))
        )

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        total, _ = self.blocks[0](x, context)
        for block in self.blocks[1:]:
            total = total.to(x.dtype)  # sum in the dtype of the stream, not of the matrix products
            update, _ = block(x + total, context)
            total = total[..., : update.shape[-1]] + update
        return total, {}
