"""The feed-forward variants. A new one is one file and one line in each of the two unions.

A config has `d_ff`, `cost(d_model, d_out)` and `build(d_model, d_out)`; its module maps (B, T, d_model) to
(B, T, d_out). A template is what a recipe says for all layers: `at_width(d_model)` makes the config of one layer, and
`cost` accepts real widths. Both are told apart by `kind`.
"""

from typing import Annotated

from pydantic import Field

from widthwise.model.ffn.swiglu import SwiGLUConfig, SwiGLUTemplate

FFN = Annotated[SwiGLUConfig, Field()]
FFNTemplate = Annotated[SwiGLUTemplate, Field()]
