"""Llama 1 to 3, and every model that says it is one."""

from widthwise.config_io import UserError
from widthwise.interop.fields import Fields
from widthwise.interop.rotary import RotaryDecoder
from widthwise.model.config import ModelConfig


class Llama(RotaryDecoder):
    model_type = "llama"
    class_name = "LlamaForCausalLM"

    def claims(self, config: ModelConfig) -> bool:
        return True

    def check_options(self, fields: Fields) -> None:
        super().check_options(fields)
        fields.only("mlp_bias", False)

    def check_written(self, fields: Fields) -> None:
        d_model, n_heads = fields.width("hidden_size"), fields.size("num_attention_heads")
        if d_model % n_heads:
            raise UserError(
                f"d_model: got {d_model}, which is no multiple of n_heads = {n_heads}; transformers refuses such a "
                "llama, even where head_dim is given; grow either, so that it is one"
            )
