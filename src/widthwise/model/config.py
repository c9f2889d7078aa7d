"""The resolved model: explicit layers, every size and every multiplier written out."""

from collections.abc import Sequence
from typing import Any

import pydantic

from widthwise.config_io import Config
from widthwise.model.cost import Cost, linear, rms_norm
from widthwise.model.init import InitConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.residual import Residual
from widthwise.model.residual.plain import PlainResidualConfig

PARTS = ("embedding", "attention", "ffn", "norm", "residual", "head")


def check_vocabulary(layers: Sequence[LayerConfig], vocab_size: int) -> None:
    """Raises ValueError where a layer tells tokens apart by the ids of another vocabulary."""
    for index, layer in enumerate(layers):
        if layer.ffn.vocab_size not in (None, vocab_size):
            raise ValueError(
                f"layers.{index}.ffn: its vocab_size is {layer.ffn.vocab_size}; must be the model's, {vocab_size}"
            )


class ModelConfig(Config):
    """A decoder. `d_model` is the width of embedding and head only; no layer's size is read from it."""

    vocab_size: pydantic.PositiveInt
    d_model: pydantic.PositiveInt
    layers: tuple[LayerConfig, ...] = pydantic.Field(min_length=1)
    residual: Residual = PlainResidualConfig()
    final_norm_eps: pydantic.PositiveFloat = 1e-5
    final_norm_width: pydantic.PositiveInt
    """Coordinates the final norm covers: d_model, or the last layer's width as in the paper's release."""
    tie_embeddings: bool = False
    embedding_multiplier: pydantic.PositiveFloat = 1.0
    logit_multiplier: pydantic.PositiveFloat = 1.0
    init: InitConfig = InitConfig()

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        check_vocabulary(self.layers, self.vocab_size)
        return self

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_residual_additions(self) -> int:
        """Updates the stream receives: one from each attention, one or more from each feed-forward."""
        return sum(1 + layer.ffn.n_residual_additions for layer in self.layers)

    @property
    def widths(self) -> list[int]:
        return [layer.d_model for layer in self.layers]

    @property
    def stream_widths(self) -> list[int]:
        """Width of the stream as it arrives at each layer."""
        return [self.d_model, *(layer.d_out for layer in self.layers[:-1])]

    def layer_costs(self) -> list[dict[str, Cost]]:
        """Cost of every layer by part."""
        return [layer.costs(self.residual, d_before) for layer, d_before in zip(self.layers, self.stream_widths)]

    def costs(self) -> dict[str, Cost]:
        """Cost of the whole model by part, see PARTS.

        A tied head has no parameters of its own but the FLOPs of the product. The head keeps the gradient of its input,
        because the loss forms gradients in the forward pass; the gradient of its weight is formed there too, but is not
        an activation.
        """
        parts: dict[str, Cost] = dict.fromkeys(PARTS, Cost())
        table = self.vocab_size * self.d_model
        parts["embedding"] = Cost(params=table, active_params=table)
        head = linear(self.d_model, self.vocab_size)
        parts["head"] = Cost(flops=head.flops) if self.tie_embeddings else head
        parts["head"] += Cost(activation_elements=self.d_model)
        for layer in self.layer_costs():
            parts = {part: cost + layer.get(part, Cost()) for part, cost in parts.items()}
        parts["norm"] += rms_norm(self.final_norm_width)
        return parts

    def cost(self) -> Cost:
        return sum(self.costs().values(), Cost())


def cost_summary(config: ModelConfig, seq_len: int) -> dict[str, Any]:
    """Sizes and costs as plain data: what `inspect --json` prints and what a run's result keeps."""
    parts, total = config.costs(), config.cost()
    return {
        "d_model": config.d_model,
        "n_layers": config.n_layers,
        "vocab_size": config.vocab_size,
        "seq_len": seq_len,
        "widths": config.widths,
        "average_width": sum(config.widths) / config.n_layers,
        "n_heads": [layer.attention.n_heads for layer in config.layers],
        "n_kv_heads": [layer.attention.n_kv_heads for layer in config.layers],
        "head_dim": [layer.attention.head_dim for layer in config.layers],
        "hidden_widths": [list(layer.ffn.hidden_widths) for layer in config.layers],
        "params": {
            "total": total.params,
            **{part: cost.params for part, cost in parts.items()},
            "active": total.active_params,
        },
        "flops_per_token": {
            "forward": total.forward_flops(seq_len),
            "training": total.training_flops(seq_len),
            "forward_causal": total.forward_flops(seq_len, causal=True),
        },
        "kv_bytes_per_token": total.kv_bytes(),
        "activation_bytes_per_token": total.activation_bytes(),
    }


def pflops_days(training_flops_per_token: float, n_tokens: int) -> float:
    """Training compute in PFLOP/s-days, as the variable-width paper's Table 2 counts it."""
    return training_flops_per_token * n_tokens / (1e15 * 86400)
