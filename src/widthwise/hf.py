"""`import widthwise.hf` makes transformers know the models that `widthwise export` writes as `widthwise`.

transformers offers packages no entry point for that. `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` then load
such folders like any other, without code from the folder. Needs the extra [hf].
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from widthwise.interop.widthwise_model.configuration_widthwise import WidthwiseConfig
from widthwise.interop.widthwise_model.modeling_widthwise import WidthwiseForCausalLM, WidthwiseModel

AutoConfig.register(WidthwiseConfig.model_type, WidthwiseConfig)
AutoModel.register(WidthwiseConfig, WidthwiseModel)
AutoModelForCausalLM.register(WidthwiseConfig, WidthwiseForCausalLM)

__all__ = ["WidthwiseConfig", "WidthwiseForCausalLM", "WidthwiseModel"]
