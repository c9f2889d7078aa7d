"""GPT-2: learned positions, layer norms, a plain feed-forward, biases everywhere; matrices are stored (in, out).

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners.
"""

from collections.abc import Iterator
from typing import Any

from widthwise.config_io import UserError
from widthwise.interop.architecture import Architecture, Fields, HFTensor
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import InitConfig, ModelConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.input_tables import LearnedPositionsConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
"""Names of transformers -> ours; of several names for one function the first is written."""

MATRICES = {
    "attn.c_attn": ("attention.w_q", "attention.w_k", "attention.w_v"),
    "attn.c_proj": ("attention.w_o",),
    "mlp.c_fc": ("ffn.w_up",),
    "mlp.c_proj": ("ffn.w_down",),
}
NORMS = {"ln_1": "attention.norm", "ln_2": "ffn.norm"}


class GPT2(Architecture):
    model_type = "gpt2"
    class_name = "GPT2LMHeadModel"
    base_prefix = "transformer."
    buffers = r".*\.attn\.(bias|masked_bias)"

    def claims(self, config: ModelConfig) -> bool:
        return config.positions is not None or config.final_norm.kind == "layer"

    def n_positions(self, fields: Fields) -> int:
        return fields.size("n_positions", 1024)

    def read(self, fields: Fields) -> ModelConfig:
        d_model = fields.width("n_embd")
        fields.only("add_cross_attention", False)
        norm = NormConfig(kind="layer", eps=fields.positive("layer_norm_epsilon", 1e-5), norm_dim=d_model)
        return ModelConfig(
            vocab_size=fields.size("vocab_size"),
            d_model=d_model,
            layers=tuple(self._layer(fields, norm, i) for i in range(fields.n_layers("n_layer"))),
            final_norm=norm,
            final_norm_width=d_model,
            positions=LearnedPositionsConfig(n_positions=self.n_positions(fields)),
            tie_embeddings=fields.flag("tie_word_embeddings", True),
            init=InitConfig(std=fields.positive("initializer_range", 0.02)),
        )

    def _layer(self, fields: Fields, norm: NormConfig, i: int) -> LayerConfig:
        d_model = norm.norm_dim
        activation = ACTIVATIONS[fields.choice("activation_function", ACTIVATIONS, "gelu_new")]
        d_ff = fields.width("n_inner", 4 * d_model)
        return LayerConfig(
            d_model=d_model,
            d_in=d_model,
            d_out=d_model,
            attention_norm=norm,
            attention=self._attention(fields, d_model, i),
            ffn_norm=norm,
            ffn=MLPConfig(d_ff=d_ff, activation=activation, bias=True),  # pyright: ignore[reportArgumentType]
        )

    def _attention(self, fields: Fields, d_model: int, i: int) -> AttentionConfig:
        n_heads = fields.size("n_head")
        if d_model % n_heads:
            fields.refuse("n_head", f"a divisor of n_embd = {d_model}")
        head_dim = d_model // n_heads
        scale = head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
        if fields.flag("scale_attn_by_inverse_layer_idx", False):
            scale /= i + 1
        return AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=head_dim,
            scale=scale,
            rope_base=None,
            bias=True,
            out_bias=True,
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        layer = config.layers[0]
        names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
        return {
            "vocab_size": config.vocab_size,
            "n_positions": n_positions if config.positions is None else config.positions.n_positions,
            "n_embd": config.d_model,
            "n_layer": config.n_layers,
            "n_head": layer.attention.n_heads,
            "n_inner": layer.ffn.hidden_widths[0],
            "activation_function": names[getattr(layer.ffn, "activation", "gelu_tanh")],
            "layer_norm_epsilon": config.final_norm.eps,
            "initializer_range": config.init.std,
            "tie_word_embeddings": config.tie_embeddings,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        }

    def check_written(self, fields: Fields) -> None:
        d_model, n_heads = fields.width("n_embd"), fields.size("n_head")
        if d_model % n_heads:
            raise UserError(f"d_model: got {d_model}; in gpt2 it is n_heads * head_dim, with n_heads = {n_heads}")

    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        yield HFTensor("transformer.wte.weight", ("embedding.weight",))
        yield HFTensor("transformer.wpe.weight", ("positions.weight",))
        for i in range(config.n_layers):
            theirs, ours = f"transformer.h.{i}", f"layers.{i}"
            for name, norm in NORMS.items():
                yield from _norm(f"{theirs}.{name}", f"{ours}.{norm}")
            for name, parts in MATRICES.items():
                weights = tuple(f"{ours}.{part}.weight" for part in parts)
                biases = tuple(f"{ours}.{part}.bias.weight" for part in parts)
                yield HFTensor(f"{theirs}.{name}.weight", weights, is_transposed=True)
                yield HFTensor(f"{theirs}.{name}.bias", biases)
        yield from _norm("transformer.ln_f", "exit.norm")
        if not config.tie_embeddings:
            yield HFTensor("lm_head.weight", ("head.weight",))


def _norm(theirs: str, ours: str) -> Iterator[HFTensor]:
    yield HFTensor(f"{theirs}.weight", (f"{ours}.weight",))
    yield HFTensor(f"{theirs}.bias", (f"{ours}.bias.weight",))
