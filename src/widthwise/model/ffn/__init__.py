"""The feed-forward variants. To add one, write a file that registers it and import that file here."""

from typing import Annotated

from widthwise.model.ffn import dynamic, hourglass, mlp, moe, swiglu  # noqa: F401  (imported to be registered)
from widthwise.model.ffn.interface import FEED_FORWARDS, FFNConfig, register_ffn
from widthwise.model.ffn.interface import FFNTemplate as _FFNTemplate

__all__ = ["FFN", "FFNTemplate", "register_ffn"]

FFN = Annotated[FFNConfig, FEED_FORWARDS.configs]
FFNTemplate = Annotated[_FFNTemplate, FEED_FORWARDS.templates]
