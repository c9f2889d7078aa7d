"""The architectures that can be read and written."""

from typing import Any

from widthwise.config_io import UserError
from widthwise.interop.architecture import Architecture
from widthwise.interop.gpt2 import GPT2
from widthwise.interop.llama import Llama
from widthwise.interop.olmo2 import OLMo2
from widthwise.interop.qwen import Qwen2, Qwen3
from widthwise.interop.widthwise_format import Widthwise
from widthwise.model.config import ModelConfig

ARCHITECTURES: tuple[Architecture, ...] = (GPT2(), OLMo2(), Qwen3(), Qwen2(), Llama())
"""In the order in which they are asked whether a model is theirs."""
WIDTHWISE = Widthwise()
"""Our own, for whatever the others cannot say."""


def architecture_named(model_type: Any, where: str) -> Architecture:
    """Raises UserError for one that cannot be read. where: the file that names it, for errors."""
    known = {architecture.model_type: architecture for architecture in (*ARCHITECTURES, WIDTHWISE)}
    if not isinstance(model_type, str) or model_type not in known:
        raise UserError(f"{where}: model_type: got {model_type!r}; allowed: {', '.join(sorted(known))}")
    return known[model_type]


def architecture_of(config: ModelConfig) -> Architecture:
    """That which transformers always knows and a model of ours can be written as, if by any of them."""
    return next(architecture for architecture in ARCHITECTURES if architecture.claims(config))
