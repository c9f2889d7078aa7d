"""Small models of every kind for the tests: odd sizes, weights large enough that the logits vary."""

import torch
from hypothesis import strategies as st

from widthwise.config_io import merge, parse
from widthwise.model.axes import Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.shape.template import ModelTemplate

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
SHAPES_AND_ENDPOINTS = [(shape, endpoints) for shape in WIDTHS for endpoints in ("slim", "full")]

VARIANTS = {
    "plain": {},
    "gqa": {"attention": {"n_heads": None, "head_dim": 2, "kv_group_size": 2}},
    "qk_norm": {"attention": {"qk_norm": {"over": "head"}}},
    "qk_norm_all_heads": {
        "attention": {"n_heads": None, "head_dim": 2, "kv_group_size": 2, "qk_norm": {"over": "all_heads"}}
    },
    "reordered": {"norm": {"placement": "reordered"}},
    "tied": {"tie_embeddings": True},
    "released_recipe": {
        "attention": {"scale": "1/head_dim"},
        "residual": {"multiplier": 0.22},
        "logit_multiplier": 0.125,
    },
    "hourglass": {"ffn": {"kind": "hourglass", "n_blocks": 3, "ratio": 0.4}},
    "hourglass_reordered": {
        "ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 7, "block_multiplier": 0.22},
        "norm": {"placement": "reordered"},
    },
    "hourglass_shared_norm": {"ffn": {"kind": "hourglass", "n_blocks": 3, "d_hidden": 5, "norm": "shared"}},
    "hourglass_without_norm": {"ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 5, "norm": "none"}},
    "hourglass_shared_weights": {"ffn": {"kind": "hourglass", "n_blocks": 3, "d_hidden": 5, "share_weights": True}},
    "moe": {"ffn": {"kind": "moe", "n_experts": 5, "top_k": 2, "ratio": 0.5, "n_shared_experts": 1}},
    "moe_reordered": {
        "ffn": {"kind": "moe", "n_experts": 3, "top_k": 1, "d_expert": 7},
        "norm": {"placement": "reordered"},
    },
    "dynamic": {"ffn": {"kind": "dynamic", "ratio": 1.7, "mask": {"kind": "soft", "temperature": 2.0}}},
    "dynamic_reordered": {
        "ffn": {"kind": "dynamic", "d_ff": 11, "min_fraction": 0.1, "start": 0.5},
        "norm": {"placement": "reordered"},
    },
    "one_layer_changed": {"layers": {2: {"ffn": {"d_ff": 11}, "attention": {"rope_base": 100.0}}}},
}


def template(shape: str = "x", endpoints: str = "slim", **changes) -> ModelTemplate:
    """A small template with hand-made widths; `changes` are laid over it as a child recipe would be."""
    data = {
        "vocab_size": 61,
        "d_model": D_MODEL,
        "n_layers": len(WIDTHS[shape]),
        "shape": {"kind": "explicit", "widths": WIDTHS[shape], "endpoints": endpoints},
        "attention": {"n_heads": 2},
        "ffn": {"kind": "swiglu", "ratio": 1.7},
        "embedding_multiplier": 3.0,
        "init": {"std": 0.3, "depth_scaled": False},
    }
    return parse(ModelTemplate, merge(data, changes), "model")


def config(shape: str = "x", endpoints: str = "slim", **changes) -> ModelConfig:
    return template(shape, endpoints, **changes).resolve(SEQ_LEN)


def decoder(resolved: ModelConfig, seed: int = 5, dtype: torch.dtype = torch.float64) -> Decoder:
    """A model with weights of that seed; gains and what else starts alike are made to differ."""
    model = build(resolved, seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Weight) and module.start is not None:
                noise = torch.empty(module.weight.shape, dtype=torch.float32).normal_(0, 0.3, generator=generator)
                module.weight += noise.to(dtype)
    return model


def random_tokens(batch: int, length: int, vocab_size: int = 61, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


FEED_FORWARDS = [
    {"kind": "swiglu", "ratio": 2.6},
    {"kind": "swiglu", "ratio": 2.5, "multiple_of": 3},
    {"kind": "swiglu", "d_ff": 7},
    {"kind": "hourglass", "n_blocks": 1, "d_hidden": 9},
    {"kind": "hourglass", "n_blocks": 3, "ratio": 0.6, "share_weights": True},
    {"kind": "hourglass", "n_blocks": 2, "ratio": 0.5, "norm": "shared"},
    {"kind": "moe", "n_experts": 4, "top_k": 2, "ratio": 0.5, "n_shared_experts": 2},
]


@st.composite
def templates(draw) -> ModelTemplate:
    """Any template of the model section: every kind of shape, heads, norms, endpoints, resize, changes to single
    layers.
    """
    by_count = draw(st.booleans())
    n = draw(st.integers(1, 4))
    attention = {"n_heads": n} if by_count else {"head_dim": 2 * n}
    group = draw(st.sampled_from([size for size in (1, 2, 4) if not by_count or n % size == 0]))
    quantum = 2 * n if by_count else 2 * n * group
    n_layers = draw(st.integers(1, 5))
    multiples = st.integers(1, 6).map(lambda k: k * quantum)
    widths = draw(st.lists(multiples, min_size=n_layers, max_size=n_layers))
    attention |= {
        "kv_group_size": group,
        "scale": draw(st.sampled_from(["1/sqrt(head_dim)", "1/head_dim"])),
        "qk_norm": draw(st.sampled_from([None, {"over": "head"}, {"over": "all_heads", "eps": 1e-6}])),
    }
    ffn = draw(st.sampled_from(FEED_FORWARDS))
    changes = draw(
        st.dictionaries(
            st.integers(0, n_layers - 1),
            st.sampled_from(
                [
                    {"ffn": {"kind": "swiglu", "d_ff": 5}},
                    {"ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": [5, 3], "share_weights": False}},
                    {"d_model": 3 * quantum},
                    {"attention": {"n_heads": 3, "n_kv_heads": 1, "rope_base": 50.0}},
                    {"attention": {"qk_norm": None}},
                ]
            ),
            max_size=2,
        )
    )
    data = {
        "vocab_size": draw(st.integers(3, 40)),
        "d_model": draw(multiples),
        "n_layers": n_layers,
        "shape": {"kind": "explicit", "widths": widths, "endpoints": draw(st.sampled_from(["slim", "full"]))},
        "attention": attention,
        "ffn": ffn,
        "residual": {
            "resize": draw(st.sampled_from(["carry", "zero", "projection"])),
            "multiplier": draw(st.sampled_from([1.0, 0.22])),
        },
        "norm": {"placement": draw(st.sampled_from(["pre", "reordered"])), "eps": draw(st.sampled_from([1e-5, 1e-6]))},
        "tie_embeddings": draw(st.booleans()),
        "embedding_multiplier": draw(st.sampled_from([1.0, 12])),
        "logit_multiplier": draw(st.sampled_from([1.0, 0.125])),
        "init": {"std": draw(st.sampled_from([0.02, 0.1])), "width_multiplier": draw(st.sampled_from([1.0, 8]))},
        "layers": changes,
    }
    return parse(ModelTemplate, data, "model")
