"""Small models with further heads, over every kind of stream."""

from model_cases import SLOTS, VARIANTS, config, decoder

from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder

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
"""Name -> what a stream changes; slots of d_model numbers, slots of a part of it, wider, narrower and as wide."""


def mtp_config(stream: str = "plain", n_depths: int = 2, mtp: dict | None = None, **changes) -> ModelConfig:
    return config(**STREAMS[stream], mtp={"n_depths": n_depths, **(mtp or {})}, **changes)


def mtp_decoder(stream: str = "plain", n_depths: int = 2, **changes) -> Decoder:
    return decoder(mtp_config(stream, n_depths, **changes))
