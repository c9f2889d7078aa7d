"""Small models of every kind: odd sizes, and weights so large that the logits vary."""

from itertools import cycle

import torch

from widthwise.config_io import parse
from widthwise.model.axes import Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import merge

SEQ_LEN = 13
D_MODEL = 20
WIDTHS = {
    "uniform": [20, 20, 20, 20, 20],
    "x": [36, 24, 8, 16, 28],
    "diamond": [12, 24, 36, 16, 8],
    "growing": [8, 12, 20, 28, 36],
    "narrowing": [36, 28, 20, 12, 8],
    "zigzag": [28, 4, 36, 12, 24],
}

GROUPED = {"n_heads": None, "head_dim": 2, "kv_group_size": 2}
"""Grouped-query attention: two query heads per key-value head."""
SLOTS = {"kind": "hyper_connections", "slot_width": 4}
"""Defaults: as many slots as blocks in the widest layer, an embedding as wide as the stream, a matrix as reduction."""

VARIANTS = {
    "plain": {},
    "gqa": {"attention": GROUPED},
    "qk_norm": {"attention": {"qk_norm": {"over": "head"}}},
    "qk_norm_all_heads": {"attention": {**GROUPED, "qk_norm": {"over": "all_heads"}}},
    "qk_norm_with_divisors": {
        "attention": {"rope_base": None, "qk_norm": {"over": "all_heads", "q_norm_dim": 3, "k_norm_dim": 7}}
    },
    "windows": {
        "attention": {**GROUPED, "window": 3},
        "layers": {1: {"attention": {"window": None}}, 3: {"attention": {"window": 5}}},
    },
    "biases": {"attention": {"bias": True, "out_bias": True, "qk_norm": {"over": "head", "q_norm_dim": 3}}},
    "unrotated": {"attention": {"n_heads": 4, "rope_base": None}},
    "frequencies": {
        "attention": {"n_heads": None, "head_dim": 4},
        "layers": {i: {"attention": {"rope_frequencies": [0.9 / (i + 1), 0.01]}} for i in (0, 1, 3)},
    },
    "values_of_other_sizes": {
        "attention": {**GROUPED, "bias": True},
        "layers": {
            0: {"attention": {"v_head_dim": 5}},
            1: {"attention": {"v_head_dim": 3}},
            2: {"attention": {"n_heads": 6, "n_kv_heads": 2, "head_dim": 6, "v_head_dim": 3}},
        },
    },
    "values_of_other_sizes_unrotated": {
        "attention": {"n_heads": 4, "rope_base": None, "qk_norm": {"over": "head"}},
        "layers": {i: {"attention": {"v_head_dim": n}} for i, n in enumerate([10, 2, 3])},
    },
    "reordered": {"norm": {"placement": "reordered"}},
    "gemma3": {
        "norm": {"placement": "both", "gain_offset": 1.0},
        "attention": {"qk_norm": {"over": "head", "gain_offset": 1.0}},
        "ffn": {"kind": "mlp", "activation": "gelu_tanh", "gated": True},
        "tie_embeddings": True,
        "embedding_multiplier": 4.5,
    },
    "gemma2": {
        "norm": {"placement": "both", "gain_offset": 1.0},
        "attention": {**GROUPED, "score_cap": 0.6, "window": 3},
        "layers": {i: {"attention": {"window": None}} for i in (1, 3)},
        "ffn": {"kind": "mlp", "activation": "gelu_tanh", "gated": True},
        "tie_embeddings": True,
        "embedding_multiplier": 4.5,
        "logit_cap": 2.5,
    },
    "capped_values_of_other_sizes": {
        "attention": {"n_heads": 4, "rope_base": None, "score_cap": 0.3, "qk_norm": {"over": "head"}},
        "layers": {i: {"attention": {"v_head_dim": n}} for i, n in enumerate([10, 2, 3])},
        "logit_multiplier": 2.0,
        "logit_cap": 0.7,
    },
    "layer_norms_before_and_after": {"norm": {"kind": "layer", "placement": "both"}},
    "hourglass_between_norms": {
        "norm": {"placement": "both", "gain_offset": 1.0},
        "ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 7},
    },
    "tied": {"tie_embeddings": True},
    "released_recipe": {
        "attention": {"scale": "1/head_dim"},
        "residual": {"kind": "plain", "multiplier": 0.22},
        "logit_multiplier": 0.125,
    },
    "layer_norm_reordered": {"norm": {"kind": "layer", "placement": "reordered"}},
    "layer_norm_hourglass": {"norm": {"kind": "layer"}, "ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 5}},
    "layer_norm_moe": {"norm": {"kind": "layer"}, "ffn": {"kind": "moe", "n_experts": 3, "top_k": 2, "ratio": 0.5}},
    "mlp": {"ffn": {"kind": "mlp", "activation": "relu2", "d_ff": 11}},
    "learned_positions": {"positions": {"n_positions": 19}, "tie_embeddings": True},
    "gpt2": {
        "attention": {"rope_base": None, "bias": True, "out_bias": True},
        "norm": {"kind": "layer"},
        "ffn": {"kind": "mlp", "activation": "gelu_tanh", "bias": True},
        "positions": {"n_positions": 19},
        "tie_embeddings": True,
    },
    "hourglass": {"ffn": {"kind": "hourglass", "n_blocks": 3, "ratio": 0.4}},
    "moe": {"ffn": {"kind": "moe", "n_experts": 5, "top_k": 2, "ratio": 0.5, "n_shared_experts": 1}},
    "moe_reordered": {
        "ffn": {"kind": "moe", "n_experts": 3, "top_k": 1, "d_expert": 7},
        "norm": {"placement": "reordered"},
    },
    "dynamic": {"ffn": {"kind": "dynamic", "ratio": 1.7, "mask": {"kind": "soft", "temperature": 2.0}}},
    "one_layer_changed": {"layers": {2: {"ffn": {"d_ff": 11}, "attention": {"rope_base": 100.0}}}},
    "further_heads": {"mtp": {"n_depths": 2}},
    "slots": {"residual": SLOTS},
    "slots_tied": {"residual": {**SLOTS, "n_slots": 10, "embedding": "expand"}, "tie_embeddings": True},
    "slots_static_padded": {"residual": {**SLOTS, "dynamic": False, "embedding": "pad", "multiplier": 0.22}},
    "slots_mixed_at_both_ends": {
        "residual": {**SLOTS, "n_slots": 15, "embedding": "slot", "reduce": "slot", "group_norm": "layer"}
    },
    "slots_moe_between_norms": {
        "residual": SLOTS,
        "norm": {"placement": "both"},
        "ffn": {"kind": "moe", "n_experts": 3, "top_k": 1, "ratio": 0.5},
    },
    "slots_hourglass": {"residual": SLOTS, "ffn": {"kind": "hourglass", "n_blocks": 3, "ratio": 0.4}},
    "slots_dynamic": {"residual": SLOTS, "ffn": {"kind": "dynamic", "d_ff": 11, "min_fraction": 0.1, "start": 0.5}},
    "slots_layer_norm_mlp": {
        "residual": {**SLOTS, "n_slots": 15, "embedding": "expand", "group_norm": "layer"},
        "norm": {"kind": "layer"},
        "ffn": {"kind": "mlp", "bias": True},
        "positions": {"n_positions": 19},
    },
    "slots_further_heads": {"residual": {**SLOTS, "n_slots": 10}, "mtp": {"n_depths": 1}},
    "narrow_attention": {"attention": {"n_heads": None, "head_dim": 2, "ratio": 0.5, "qk_norm": {"over": "all_heads"}}},
    "wide_attention": {"attention": {"n_heads": 3, "kv_group_size": 3, "d_attention": 42, "bias": True}},
}
"""Changes of the template for layers of any widths."""

AS_IN_THE_PAPERS = {"read_init": "in_turn", "writes": "own", "scale": "numbers", "embedding": "copies", "reduce": "sum"}
"""Options of the papers on Hyper- and Frac-Connections."""

OVER_WIDTH = {
    f"{m}_of_{n}{name}": {
        "residual": {"kind": "hyper_connections", "n_fractions": m, "n_slots": n, **options},
        **changes,
    }
    for m, n, name, options, changes in [
        (2, 3, "", {}, {}),
        (2, 4, "_expanded", {"embedding": "expand"}, {"tie_embeddings": True}),
        (2, 4, "_layer_norm", {"embedding": "expand", "group_norm": "layer"}, {}),
        (1, 4, "_mixed_at_both_ends", {"embedding": "slot", "reduce": "slot"}, {}),
        (4, 4, "", {}, {}),
        (1, 1, "", {}, {}),
        (2, 3, "_static", {"dynamic": False, "multiplier": 0.22}, {}),
        (2, 4, "_padded", {"embedding": "pad"}, {"norm": {"placement": "reordered"}}),
        (1, 3, "_as_in_the_paper", AS_IN_THE_PAPERS, {}),
        (2, 6, "_in_turn", AS_IN_THE_PAPERS, {"tie_embeddings": True}),
        (4, 4, "_as_in_the_paper", {**AS_IN_THE_PAPERS, "embedding": "direct"}, {}),
    ]
}
"""Changes for layers of one width: (m, n) of the virtual-width paper; with m = 1 Hyper-Connections, with m = n also
Frac-Connections."""

CASES = [*zip(cycle(("x", "zigzag", "diamond")), VARIANTS), *(("uniform", name) for name in OVER_WIDTH)]
"""Shapes and names for `variant`, every name once."""

_OF_EVERY_KIND = {
    "gqa", "qk_norm_with_divisors", "biases", "values_of_other_sizes_unrotated", "frequencies",
    "gemma2", "gemma3", "capped_values_of_other_sizes", "slots_moe_between_norms", "layer_norm_reordered",
    "layer_norm_moe",
    "layer_norm_hourglass", "released_recipe", "gpt2",
    "hourglass", "moe_reordered", "dynamic", "one_layer_changed", "further_heads", "slots_tied",
    "slots_static_padded", "slots_mixed_at_both_ends", "slots_layer_norm_mlp", "slots_further_heads",
    "slots_dynamic", "wide_attention", "2_of_4_layer_norm", "2_of_6_in_turn",
}  # fmt: skip
KINDS = [case for case in CASES if case[1] in _OF_EVERY_KIND]
"""The CASES that together have every kind of component, for properties that do not depend on sizes."""


STREAMS = {
    "plain": {"shape": "uniform"},
    "plain_x": {"shape": "x", "residual": {"kind": "plain", "resize": "projection", "multiplier": 0.7}},
    "plain_narrow_end": {"shape": "narrowing", "endpoints": "full"},
    "layer_norm": {"shape": "uniform", "norm": {"kind": "layer"}},
    "gqa": {"shape": "zigzag", **VARIANTS["gqa"]},
    "windows": {"shape": "zigzag", **VARIANTS["windows"]},
    "capped": {"shape": "zigzag", **VARIANTS["capped_values_of_other_sizes"]},
    "hyper": {"shape": "uniform", "residual": {"kind": "hyper_connections", "n_fractions": 1, "n_slots": 3}},
    "manifold": {"shape": "uniform", "residual": {"kind": "manifold", "n_slots": 3}},
    "virtual": {"shape": "uniform", "residual": {**SLOTS, "n_slots": 7}},
    "virtual_x": {"shape": "x", "residual": {**SLOTS, "n_slots": 10, "embedding": "expand"}},
    "virtual_static": {
        "shape": "uniform",
        "residual": {**VARIANTS["slots_mixed_at_both_ends"]["residual"], "dynamic": False},
    },
}
"""Changes of models with MTP heads: one slot of d_model coordinates, several, and narrower slots."""


def template(shape: str | list[int] = "x", endpoints: str = "slim", **changes) -> ModelTemplate:
    """Return a small template with these widths. `changes` are merged as in a child recipe."""
    widths = WIDTHS[shape] if isinstance(shape, str) else shape
    data = {
        "vocab_size": 61,
        "d_model": D_MODEL,
        "n_layers": len(widths),
        "shape": {"kind": "explicit", "widths": widths, "endpoints": endpoints},
        "attention": {"n_heads": 2},
        "ffn": {"kind": "swiglu", "ratio": 1.7},
        "embedding_multiplier": 3.0,
        "init": {"std": 0.3, "depth_scaled": False},
    }
    return parse(ModelTemplate, merge(data, changes), "model")


def config(shape: str | list[int] = "x", endpoints: str = "slim", **changes) -> ModelConfig:
    return template(shape, endpoints, **changes).resolve(SEQ_LEN)


def variant(shape: str, name: str, endpoints: str = "slim") -> ModelConfig:
    return config(shape, endpoints, **{**VARIANTS, **OVER_WIDTH}[name])


def decoder(resolved: ModelConfig, seed: int = 5, dtype: torch.dtype = torch.float64) -> Decoder:
    """Build a model from the seed, with noise added to weights that start at constants."""
    model = build(resolved, seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Weight) and module.start is not None:
                noise = torch.empty(module.weight.shape, dtype=torch.float32).normal_(0, 0.3, generator=generator)
                module.weight += noise.to(dtype)
    return model


def mtp_config(stream: str = "plain", n_depths: int = 2, mtp: dict | None = None, **changes) -> ModelConfig:
    return config(**STREAMS[stream], mtp={"n_depths": n_depths, **(mtp or {})}, **changes)


def mtp_decoder(stream: str = "plain", n_depths: int = 2, **changes) -> Decoder:
    return decoder(mtp_config(stream, n_depths, **changes))


def random_tokens(batch: int, length: int, vocab_size: int = 61, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))
