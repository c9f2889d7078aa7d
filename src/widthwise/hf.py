"""`import widthwise.hf` makes transformers know the models that `widthwise export` writes as `widthwise`.

transformers offers packages no entry point for that. `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` then load
such folders like any other, without code from the folder. Raises UserError without the extra [hf].
"""

from widthwise.config_io import require

require("transformers", "hf")

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM  # noqa: E402

from widthwise.interop.configuration_widthwise import WidthwiseConfig  # noqa: E402
from widthwise.interop.modeling_widthwise import WidthwiseForCausalLM, WidthwiseModel  # noqa: E402

AutoConfig.register(WidthwiseConfig.model_type, WidthwiseConfig)
AutoModel.register(WidthwiseConfig, WidthwiseModel)
AutoModelForCausalLM.register(WidthwiseConfig, WidthwiseForCausalLM)

__all__ = ["WidthwiseConfig", "WidthwiseForCausalLM", "WidthwiseModel"]
