"""The feed-forward variants, told apart by `kind`. A new one is one file and one line in each of the two unions."""

from typing import Annotated

from pydantic import Field

from widthwise.model.ffn.dynamic import DynamicConfig, DynamicTemplate
from widthwise.model.ffn.hourglass import HourglassConfig, HourglassTemplate
from widthwise.model.ffn.mlp import MLPConfig, MLPTemplate
from widthwise.model.ffn.moe import MoEConfig, MoETemplate
from widthwise.model.ffn.swiglu import SwiGLUConfig, SwiGLUTemplate

FFN = Annotated[SwiGLUConfig | MLPConfig | HourglassConfig | MoEConfig | DynamicConfig, Field(discriminator="kind")]
FFNTemplate = Annotated[
    SwiGLUTemplate | MLPTemplate | HourglassTemplate | MoETemplate | DynamicTemplate, Field(discriminator="kind")
]
