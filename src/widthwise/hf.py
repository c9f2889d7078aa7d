"""Registration of `widthwise` models in transformers, by `import widthwise.hf`.

`AutoConfig`, `AutoModel` and `AutoModelForCausalLM` then load the `widthwise` folders of `widthwise export`, without
code from the folder. transformers has no entry point for packages. Raises UserError without the extra [hf].
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
