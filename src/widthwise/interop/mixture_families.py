"""The families of transformers with mixtures of experts."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from widthwise.interop.architecture import Fields, HFTensor
from widthwise.interop.dense_families import SwitchedWindow, Windowed
from widthwise.interop.family import FEED_FORWARD, RotaryDecoder
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.sizes import WIDEST


class _Mixture(RotaryDecoder):
    """A family with mixtures of experts."""

    router: ClassVar[str]
    """Name of the router in a layer."""
    experts: ClassVar[str]
    """Name of the list of experts in a layer."""
    expert_matrices: ClassVar[Mapping[str, str]]
    """Our names of the matrices of an expert -> theirs."""
    size_keys: ClassVar[Mapping[str, str]]
    """Our names of the sizes of a mixture -> theirs."""

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        mixture = next((layer.ffn for layer in config.layers if isinstance(layer.ffn, MoEConfig)), None)
        sizes = {} if mixture is None else {key: getattr(mixture, name) for name, key in self.size_keys.items()}
        return {**super().write(config, n_positions), **sizes}

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


class _NamedMixture(_Mixture):
    """A mixture whose matrices are named as in a dense feed-forward."""

    router = "mlp.gate"
    experts = "mlp.experts"
    expert_matrices: ClassVar = FEED_FORWARD
    size_keys: ClassVar = {"n_experts": "num_experts", "top_k": "num_experts_per_tok", "normalised": "norm_topk_prob"}

    def mixture(self, fields: Fields, d_expert: str) -> MoEConfig:
        """Read a mixture. d_expert: name of the key with the width of an expert."""
        name = "num_experts" if fields.has("num_experts") else "num_local_experts"  # before and in transformers 5
        return MoEConfig(
            n_experts=fields.size(name, most=WIDEST),
            top_k=fields.size("num_experts_per_tok", most=WIDEST),
            d_expert=fields.size(d_expert, most=WIDEST),
            normalised=fields.flag("norm_topk_prob", False),
        )


class OLMoE(_NamedMixture):
    """A Llama with a mixture in every layer, and QK-norm over all heads."""

    model_type = "olmoe"
    class_name = "OlmoeForCausalLM"
    usual_positions = 4096
    default_eps = 1e-5
    qk_norm = "all_heads"
    fixed: ClassVar = {**RotaryDecoder.fixed, "clip_qkv": None}

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MoEConfig:
        return self.mixture(fields, "intermediate_size")

    def check_written(self, fields: Fields) -> None:
        d_model = fields.size("hidden_size")
        width = fields.size("num_attention_heads") * fields.size("head_dim")
        if width != d_model:
            raise UserError(
                f"n_heads * head_dim: got {width}; must be d_model = {d_model} for an olmoe of transformers; grow "
                "heads with the width"
            )


class Mixtral(Windowed, _Mixture):
    model_type = "mixtral"
    class_name = "MixtralForCausalLM"
    usual_positions = 131072
    biases = "none"
    default_eps = 1e-5
    usual_rope_base = 1e6
    router = "block_sparse_moe.gate"
    experts = "block_sparse_moe.experts"
    expert_matrices: ClassVar = {"w_gate": "w1", "w_up": "w3", "w_down": "w2"}
    size_keys: ClassVar = {"n_experts": "num_local_experts", "top_k": "num_experts_per_tok"}

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MoEConfig:
        return MoEConfig(
            n_experts=fields.size("num_local_experts", 8, most=WIDEST),
            top_k=fields.size("num_experts_per_tok", 2, most=WIDEST),
            d_expert=fields.size("intermediate_size", most=WIDEST),
        )


class Qwen3MoE(Windowed, _NamedMixture):
    """A Qwen 3 in which some or all layers have a mixture."""

    model_type = "qwen3_moe"
    class_name = "Qwen3MoeForCausalLM"
    usual_positions = 32768
    qk_norm = "head"
    usual_window = 4096
    size_keys: ClassVar = {**_NamedMixture.size_keys, "d_expert": "moe_intermediate_size"}

    def window(self, fields: Fields, layer: int) -> int | None:
        return super().window(fields, layer) if fields.flag("use_sliding_window", False) else None

    def ffn(self, fields: Fields, d_model: int, layer: int) -> SwiGLUConfig | MoEConfig:
        dense = fields.get("mlp_only_layers", [])
        if not isinstance(dense, list):
            fields.refuse("mlp_only_layers", "a list of layers")
        if layer in dense or (layer + 1) % fields.size("decoder_sparse_step", 1):
            return SwiGLUConfig(d_ff=fields.size("intermediate_size", most=WIDEST))
        return self.mixture(fields, "moe_intermediate_size")

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = {**super().write(config, n_positions), "decoder_sparse_step": 1, "mlp_only_layers": []}
        for i, layer in enumerate(config.layers):
            if not isinstance(layer.ffn, MoEConfig):
                written["mlp_only_layers"].append(i)
                written["intermediate_size"] = layer.ffn.hidden_widths[0]
        return {**written, "use_sliding_window": written["sliding_window"] is not None}


class Qwen2MoE(SwitchedWindow, Qwen3MoE):
    """A Qwen 2 in which some or all layers have a mixture with a gated shared expert."""

    model_type = "qwen2_moe"
    class_name = "Qwen2MoeForCausalLM"
    biases = "qkv"
    qk_norm = None
    fixed: ClassVar = {**RotaryDecoder.fixed, "qkv_bias": True}
    size_keys: ClassVar = {**Qwen3MoE.size_keys, "d_shared": "shared_expert_intermediate_size"}

    def slides(self, fields: Fields, layer: int) -> bool:
        is_low = layer < fields.size("max_window_layers", 28, least=0)
        return super().slides(fields, layer) and is_low and layer % 2 == 0

    def mixture(self, fields: Fields, d_expert: str) -> MoEConfig:
        shared = {"d_shared": fields.size("shared_expert_intermediate_size", most=WIDEST), "gated_shared": True}
        return super().mixture(fields, d_expert).model_copy(update=shared)

    def ffn_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        yield from super().ffn_tensors(layer)
        if isinstance(layer.ffn, MoEConfig):
            yield HFTensor("mlp.shared_expert_gate.weight", ("ffn.w_shared_gate.weight",))
            for ours, theirs in FEED_FORWARD.items():
                yield HFTensor(f"mlp.shared_expert.{theirs}.weight", (f"ffn.shared.{ours}.weight",))


MIXTURES = (Mixtral, OLMoE, Qwen2MoE, Qwen3MoE)
