"""Qwen 2 and 2.5, whose queries, keys and values have biases, and Qwen 3, which normalises queries and keys instead."""

from typing import Any

from widthwise.interop.fields import Fields
from widthwise.interop.rotary import RotaryDecoder
from widthwise.model.config import ModelConfig
from widthwise.model.qk_norm import QKNormConfig


class _Qwen(RotaryDecoder):
    def check_options(self, fields: Fields) -> None:
        super().check_options(fields)
        n_layers = fields.n_layers("num_hidden_layers")
        if fields.get("layer_types") is not None:
            fields.only("layer_types", ["full_attention"] * n_layers)
        elif fields.flag("use_sliding_window", False) and fields.size("max_window_layers", 28, least=0) < n_layers:
            fields.refuse("use_sliding_window", "false, as attention sees all of the text")


class Qwen2(_Qwen):
    model_type = "qwen2"
    class_name = "Qwen2ForCausalLM"

    def claims(self, config: ModelConfig) -> bool:
        attention = config.layers[0].attention
        return attention.bias and not attention.out_bias

    def biases(self, fields: Fields) -> tuple[bool, bool]:
        return True, False

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        del written["attention_bias"]  # always there
        return {**written, "use_sliding_window": False}


class Qwen3(_Qwen):
    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"

    def claims(self, config: ModelConfig) -> bool:
        return config.layers[0].attention.qk_norm is not None

    def head_dim(self, fields: Fields) -> int:
        return fields.width("head_dim", 128)

    def qk_norm(self, eps: float) -> QKNormConfig:
        return QKNormConfig(eps=eps, over="head")

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        return {**super().write(config, n_positions), "use_sliding_window": False}
