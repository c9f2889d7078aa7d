# pyright: reportMissingImports=false
"""A `widthwise` model in vLLM: the layers of `modeling_widthwise` with vLLM's matrices, attention and paged cache.

The tokens of all requests are in one row: the stream is (T, hidden_size), a layer reads and writes slices of it, and
the cache has different heads for every layer. Norms, residuals and rotations are the modules that transformers runs. A
matrix is split over the devices of `tensor_parallel_size`; every device has the whole stream.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper
from vllm.sequence import IntermediateTensors

from widthwise.interop.modeling_widthwise import (
    FeedForward,
    Norm,
    Rope,
    WidthwiseAttention,
    WidthwiseDecoderLayer,
    rope_of,
    rope_table,
    rotate,
)
from widthwise.interop.vllm_plugin import SKIPPED, STACKED, check_supported


class Rotary(nn.Module):
    """Rotation of queries and keys, by a table of the angles at all positions."""

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: Rope, n_positions: int):
        super().__init__()
        cos, sin = rope_table(torch.arange(n_positions)[None], rope)
        self.register_buffer("cos", cos[0, 0][:, None], persistent=False)
        self.register_buffer("sin", sin[0, 0][:, None], persistent=False)

    def forward(self, positions: Tensor, heads: Tensor) -> Tensor:
        """positions: (T,), heads: (T, n, head_dim) -> the same shape."""
        return rotate(heads, (self.cos[positions], self.sin[positions]))


class SplitAttention(nn.Module):
    """Grouped-query attention with the heads of its layer, divided among the devices."""

    def __init__(self, plain: WidthwiseAttention, rotary: Rotary | None, vllm_config: VllmConfig, prefix: str):
        super().__init__()
        self.norm = plain.norm
        self.q_norm = plain.q_norm
        self.k_norm = plain.k_norm
        self.rotary = rotary
        self.head_dim = plain.head_dim
        options = {"quant_config": vllm_config.quant_config, "return_bias": False}
        n_heads, n_kv_heads = (matrix.out_features // self.head_dim for matrix in (plain.q_proj, plain.k_proj))
        qkv_sizes = (plain.q_proj.in_features, self.head_dim, n_heads, n_kv_heads)
        has_bias = plain.q_proj.bias is not None
        self.qkv_proj = QKVParallelLinear(*qkv_sizes, bias=has_bias, prefix=f"{prefix}.qkv_proj", **options)
        o_sizes = (n_heads * self.head_dim, plain.o_proj.out_features)
        has_bias = plain.o_proj.bias is not None
        self.o_proj = RowParallelLinear(*o_sizes, bias=has_bias, prefix=f"{prefix}.o_proj", **options)
        kv_size = self.qkv_proj.num_kv_heads * self.head_dim
        self.sizes = [self.qkv_proj.num_heads * self.head_dim, kv_size, kv_size]
        self.attn = Attention(
            self.qkv_proj.num_heads,
            self.head_dim,
            plain.scaling,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            cache_config=vllm_config.cache_config,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.attn",
        )

    def _normed_and_rotated(self, x: Tensor, norm: Norm | None, positions: Tensor) -> Tensor:
        """Normalise and rotate queries or keys (T, n * head_dim)."""
        if norm is not None:
            x = norm(x.unflatten(-1, (-1, len(norm.weight)))).flatten(-2)
        if self.rotary is not None:
            x = self.rotary(positions, x.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        return x

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: (T, layer_in), the stream -> the update (T, layer_width)."""
        query, key, value = self.qkv_proj(self.norm.before(x)).split(self.sizes, dim=-1)
        query = self._normed_and_rotated(query, self.q_norm, positions)
        key = self._normed_and_rotated(key, self.k_norm, positions)
        return self.norm.after(self.o_proj(self.attn(query, key, value)))


class SplitSwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), with its norm; the hidden units are divided among the devices."""

    def __init__(self, plain: FeedForward, vllm_config: VllmConfig, prefix: str):
        super().__init__()
        self.norm = plain.norm
        d_model = plain.up_proj.in_features
        d_ff = plain.up_proj.out_features
        options = {"bias": False, "quant_config": vllm_config.quant_config, "return_bias": False}
        self.gate_up_proj = MergedColumnParallelLinear(d_model, [d_ff] * 2, prefix=f"{prefix}.gate_up_proj", **options)
        self.activation = SiluAndMul()
        d_out = plain.down_proj.out_features
        self.down_proj = RowParallelLinear(d_ff, d_out, prefix=f"{prefix}.down_proj", **options)

    def forward(self, x: Tensor) -> Tensor:
        """x: (T, layer_width), the stream -> the update (T, layer_out)."""
        return self.norm.after(self.down_proj(self.activation(self.gate_up_proj(self.norm.before(x)))))


def split_feed_forward(plain: nn.Module, vllm_config: VllmConfig, prefix: str) -> nn.Module:
    """Split every SwiGLU in a feed-forward: itself, or the blocks of an hourglass."""
    if isinstance(plain, FeedForward):
        return SplitSwiGLU(plain, vllm_config, prefix)
    for name, child in plain.named_children():
        setattr(plain, name, split_feed_forward(child, vllm_config, f"{prefix}.{name}"))
    return plain


class SplitLayer(nn.Module):
    """Attention and feed-forward, with access to the stream."""

    def __init__(self, plain: WidthwiseDecoderLayer, rotary: Rotary | None, vllm_config: VllmConfig, prefix: str):
        super().__init__()
        self.attention_residual = plain.attention_residual
        self.ffn_residual = plain.ffn_residual
        self.self_attn = SplitAttention(plain.self_attn, rotary, vllm_config, f"{prefix}.self_attn")
        self.mlp = split_feed_forward(plain.mlp, vllm_config, f"{prefix}.mlp")

    def forward(self, stream: Tensor, positions: Tensor) -> Tensor:
        """stream: (T, hidden_size) -> the same shape."""
        x, state = self.attention_residual.read(stream)
        stream = self.attention_residual.write(state, self.self_attn(x, positions))
        x, state = self.ffn_residual.read(stream)
        return self.ffn_residual.write(state, self.mlp(x))


@support_torch_compile
class WidthwiseModel(nn.Module):
    """The embedding, the layers and the last norm."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config: Any = vllm_config.model_config.hf_config
        self.hidden_size = config.hidden_size
        self.d_model = config.embedding_size
        self.multiplier = config.embedding_multiplier
        self.final_norm_width = config.final_norm_width
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, self.d_model, quant_config=vllm_config.quant_config, prefix=f"{prefix}.embed_tokens"
        )
        self.embed_positions = None
        if config.learned_positions:
            self.embed_positions = nn.Embedding(config.max_position_embeddings, self.d_model)
        ropes = [rope_of(layer) for layer in config.per_layer_config]
        n_positions = vllm_config.model_config.max_model_len
        rotaries = {rope: None if rope is None else Rotary(rope, n_positions) for rope in ropes}
        before = [self.d_model, *(layer.layer_out for layer in config.per_layer_config)]
        self.layers = nn.ModuleList(
            SplitLayer(WidthwiseDecoderLayer(config, i, before[i]), rotaries[rope], vllm_config, f"{prefix}.layers.{i}")
            for i, rope in enumerate(ropes)
        )
        self.norm = Norm(config.final_norm_width, **config.final_norm)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """input_ids, positions: (T,) -> normalised hidden states (T, embedding_size)."""
        rows = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        rows = rows * self.multiplier
        if self.embed_positions is not None:
            rows = rows + self.embed_positions(positions)
        stream = pad(rows, (0, self.hidden_size - self.d_model))
        for layer in self.layers:
            stream = layer(stream, positions)
        n = self.final_norm_width
        return torch.cat((self.norm(stream[..., :n]), stream[..., n:]), dim=-1)[..., : self.d_model]


class WidthwiseForCausalLM(nn.Module):
    """The model with its head. Raises UserError for an unsupported model; see `vllm_plugin.check_supported`."""

    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_stacked=STACKED, orig_to_new_prefix=SKIPPED)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config: Any = vllm_config.model_config.hf_config
        check_supported(config, vllm_config.model_config.model, get_tensor_model_parallel_world_size())
        within = f"{prefix}." if prefix else ""
        self.config = config
        self.model = WidthwiseModel(vllm_config=vllm_config, prefix=f"{within}model")
        self.lm_head = ParallelLMHead(
            config.vocab_size, config.embedding_size, quant_config=vllm_config.quant_config, prefix=f"{within}lm_head"
        )
        if config.tie_word_embeddings:
            self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
        self.logits_processor = LogitsProcessor(config.vocab_size, scale=config.logit_scale)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """input_ids, positions: (T,) -> normalised hidden states (T, embedding_size)."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """hidden_states: (T, embedding_size) -> logits (T, vocab_size)."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Return the names of the loaded parameters. Raises ValueError for an unknown tensor."""
        return AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
