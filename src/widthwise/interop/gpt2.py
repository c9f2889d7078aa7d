"""The family GPT-2."""

from collections.abc import Iterator
from typing import Any, ClassVar

from widthwise.interop.architecture import Fields, HFTensor
from widthwise.interop.family import Family, Keys
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.mlp import Activation, MLPConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig
from widthwise.sizes import WIDEST


class GPT2(Family):
    """Learned positions, layer norms, a plain feed-forward, biases everywhere; matrices are stored (in, out).

    Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners.
    """

    model_type = "gpt2"
    class_name = "GPT2LMHeadModel"
    base_prefix = "transformer."
    buffers = r".*\.attn\.(bias|masked_bias)"
    positions_key = "n_positions"
    default_positions = 1024
    keys = Keys("n_embd", "n_inner", "n_layer", "n_head", "layer_norm_epsilon", "wte", "h", "ln_f")
    norm_kind = "layer"
    default_eps = 1e-5
    ties_by_default = True
    depth_scaled = True
    learns_positions = True
    heads_divide_width = True
    fixed: ClassVar = {"add_cross_attention": False}
    activations: ClassVar[dict[str, Activation]] = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu": "gelu",
        "relu": "relu",
        "relu2": "relu2",
        "silu": "silu",
        "swish": "silu",
    }
    """Names of transformers -> our names. `write` takes the first of several names for one function."""
    matrices: ClassVar = {
        "attn.c_attn": ("attention.w_q", "attention.w_k", "attention.w_v"),
        "attn.c_proj": ("attention.w_o",),
        "mlp.c_fc": ("ffn.w_up",),
        "mlp.c_proj": ("ffn.w_down",),
    }
    """Name of a stored matrix -> our matrices that it stacks."""
    norms: ClassVar = {"ln_1": ("attention.norm",), "ln_2": ("ffn.norm",)}

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MLPConfig:
        name = fields.get("activation_function", "gelu_new")
        if not isinstance(name, str) or name not in self.activations:
            fields.refuse("activation_function", ", ".join(self.activations))
        d_ff = fields.size("n_inner", 4 * d_model, most=WIDEST)
        return MLPConfig(d_ff=d_ff, activation=self.activations[name], bias=True)

    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        n_heads = fields.size("n_head")
        d_model = norm.norm_dim
        if d_model % n_heads:
            fields.refuse("n_head", f"a divisor of n_embd = {d_model}")
        head_dim = d_model // n_heads
        scale = head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
        if fields.flag("scale_attn_by_inverse_layer_idx", False):
            scale /= layer + 1
        sizes: dict[str, Any] = {"n_heads": n_heads, "n_kv_heads": n_heads, "head_dim": head_dim}
        return AttentionConfig(**sizes, scale=scale, rope_base=None, bias=True, out_bias=True)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        names = {ours: theirs for theirs, ours in reversed(self.activations.items())}  # the first name overrides
        return {
            **super().write(config, n_positions),
            "n_positions": n_positions if config.positions is None else config.positions.n_positions,
            "activation_function": names[getattr(config.layers[0].ffn, "activation", "gelu_tanh")],
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        }

    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        for name, parts in (self.norms | self.matrices).items():
            yield HFTensor(f"{name}.weight", tuple(f"{part}.weight" for part in parts), name in self.matrices)
            yield HFTensor(f"{name}.bias", tuple(f"{part}.bias.weight" for part in parts))
