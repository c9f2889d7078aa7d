"""OLMo 2: norms behind the sublayers, and one over all heads of queries and one of keys. Source: arXiv:2501.00656."""

from widthwise.interop.rotary import RotaryDecoder
from widthwise.model.config import ModelConfig
from widthwise.model.qk_norm import QKNormConfig


class OLMo2(RotaryDecoder):
    model_type = "olmo2"
    class_name = "Olmo2ForCausalLM"
    placement = "reordered"
    attention_norm_name = "post_attention_layernorm"
    ffn_norm_name = "post_feedforward_layernorm"

    def claims(self, config: ModelConfig) -> bool:
        layer = config.layers[0]
        return layer.norm_placement == "reordered"

    def qk_norm(self, eps: float) -> QKNormConfig:
        return QKNormConfig(eps=eps, over="all_heads")
