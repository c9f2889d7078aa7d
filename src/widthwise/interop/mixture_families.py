"""Families of mixtures of experts in transformers."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from widthwise.interop.architecture import Fields, HFTensor
from widthwise.interop.dense_families import OptionalWindow, Windowed
from widthwise.interop.family import FEED_FORWARD, RotaryDecoder
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.sizes import WIDEST


class Mixture(RotaryDecoder):
    """A family with mixtures of experts."""

    router: ClassVar[str] = "mlp.gate"
    """Name of the router in a layer."""
    experts: ClassVar[str] = "mlp.experts"
    """Name of the list of experts in a layer."""
    expert_matrices: ClassVar[Mapping[str, str]] = FEED_FORWARD
    """Our names of the matrices of an expert -> theirs."""
    mixture_keys: ClassVar[Mapping[str, str]] = {
        "n_experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "normalised": "norm_topk_prob",
        "d_expert": "intermediate_size",
    }
    """Fields of a mixture -> keys of config.json."""

    def ffn(self, fields: Fields, d_model: int, layer: int) -> FFNConfig:
        n_experts_key = "num_experts" if fields.has("num_experts") else "num_local_experts"  # of transformers 5
        return MoEConfig(
            n_experts=fields.size(n_experts_key, most=WIDEST),
            top_k=fields.size("num_experts_per_tok", most=WIDEST),
            d_expert=fields.size(self.mixture_keys["d_expert"], most=WIDEST),
            normalised=fields.flag("norm_topk_prob", False),
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        mixtures = [layer.ffn for layer in config.layers if isinstance(layer.ffn, MoEConfig)]
        if mixtures:
            written |= {key: getattr(mixtures[0], field) for field, key in self.mixture_keys.items()}
        return written

    def ffn_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        if not isinstance(layer.ffn, MoEConfig):
            yield from super().ffn_tensors(layer)
            return
        yield HFTensor(f"{self.router}.weight", ("ffn.w_router.weight",))
        n_experts = layer.ffn.n_experts
        for i in range(n_experts):
            for ours, theirs in self.expert_matrices.items():
                name = f"{self.experts}.{i}.{theirs}.weight"
                yield HFTensor(name, (f"ffn.{ours}.weight",), block=i, n_blocks=n_experts)


class OLMoE(Mixture):
    """A Llama with a mixture in every layer, and QK-norm over all heads."""

    model_type = "olmoe"
    class_name = "OlmoeForCausalLM"
    default_positions = 4096
    default_eps = 1e-5
    qk_norm = "all_heads"
    fixed: ClassVar = {**RotaryDecoder.fixed, "clip_qkv": None}

    def check_written(self, fields: Fields) -> None:
        d_model = fields.size("hidden_size")
        width = fields.size("num_attention_heads") * fields.size("head_dim")
        if width != d_model:
            raise UserError(
                f"n_heads * head_dim: got {width}; must be d_model = {d_model} for an olmoe of transformers; grow "
                "heads with the width"
            )


class Mixtral(Windowed, Mixture):
    """A Mistral with a mixture in every layer."""

    model_type = "mixtral"
    class_name = "MixtralForCausalLM"
    default_positions = 131072
    biases = "none"
    default_eps = 1e-5
    default_rope_base = 1e6
    router = "block_sparse_moe.gate"
    experts = "block_sparse_moe.experts"
    expert_matrices: ClassVar = {"w_gate": "w1", "w_up": "w3", "w_down": "w2"}
    mixture_keys: ClassVar = {"n_experts": "num_local_experts", "top_k": "num_experts_per_tok"}

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MoEConfig:
        return MoEConfig(
            n_experts=fields.size("num_local_experts", 8, most=WIDEST),
            top_k=fields.size("num_experts_per_tok", 2, most=WIDEST),
            d_expert=fields.size("intermediate_size", most=WIDEST),
        )


class Qwen3MoE(Windowed, Mixture):
    """A Qwen 3 in which some or all layers have a mixture."""

    model_type = "qwen3_moe"
    class_name = "Qwen3MoeForCausalLM"
    default_positions = 32768
    qk_norm = "head"
    default_window = 4096
    mixture_keys: ClassVar = {**Mixture.mixture_keys, "d_expert": "moe_intermediate_size"}

    def window(self, fields: Fields, layer: int) -> int | None:
        return super().window(fields, layer) if fields.flag("use_sliding_window", False) else None

    def ffn(self, fields: Fields, d_model: int, layer: int) -> FFNConfig:
        dense_layers = fields.get("mlp_only_layers", [])
        if not isinstance(dense_layers, list):
            fields.refuse("mlp_only_layers", "a list of layers")
        if layer in dense_layers or (layer + 1) % fields.size("decoder_sparse_step", 1):
            return SwiGLUConfig(d_ff=fields.size("intermediate_size", most=WIDEST))
        return super().ffn(fields, d_model, layer)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        dense_layers = [i for i, layer in enumerate(config.layers) if not isinstance(layer.ffn, MoEConfig)]
        written |= {"decoder_sparse_step": 1, "mlp_only_layers": dense_layers}
        if dense_layers:
            written["intermediate_size"] = config.layers[dense_layers[-1]].ffn.hidden_widths[0]
        return {**written, "use_sliding_window": written["sliding_window"] is not None}


class Qwen2MoE(OptionalWindow, Qwen3MoE):
    """A Qwen 2 in which some or all layers have a mixture with a gated shared expert."""

    model_type = "qwen2_moe"
    class_name = "Qwen2MoeForCausalLM"
    biases = "qkv"
    qk_norm = None
    fixed: ClassVar = {**RotaryDecoder.fixed, "qkv_bias": True}
    mixture_keys: ClassVar = {**Qwen3MoE.mixture_keys, "d_shared": "shared_expert_intermediate_size"}

    def has_default_window(self, fields: Fields, layer: int) -> bool:
        is_low = layer < fields.size("max_window_layers", 28, least=0)
        return super().has_default_window(fields, layer) and is_low and layer % 2 == 0

    def ffn(self, fields: Fields, d_model: int, layer: int) -> FFNConfig:
        ffn = super().ffn(fields, d_model, layer)
        if not isinstance(ffn, MoEConfig):
            return ffn
        d_shared = fields.size("shared_expert_intermediate_size", most=WIDEST)
        return ffn.model_copy(update={"d_shared": d_shared, "gated_shared": True})

    def ffn_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        yield from super().ffn_tensors(layer)
        if isinstance(layer.ffn, MoEConfig):
            yield HFTensor("mlp.shared_expert_gate.weight", ("ffn.w_shared_gate.weight",))
            for ours, theirs in FEED_FORWARD.items():
                yield HFTensor(f"mlp.shared_expert.{theirs}.weight", (f"ffn.shared.{ours}.weight",))


MIXTURES = (Mixtral, OLMoE, Qwen2MoE, Qwen3MoE)
