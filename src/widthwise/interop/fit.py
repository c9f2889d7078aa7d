"""Whether a format can say all of a model: what it would read back is compared with what the model is.

So no list of what a format lacks can fall behind the formats or the models.
"""

import math
from typing import Any, NamedTuple

from widthwise.config_io import UserError, to_data
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig

TOLERANCE = 1e-12
"""Relative; of two numbers that are one."""

REASONS = {
    "v_head_dim": "it has one head size for queries, keys and values, so that head_dim and v_head_dim grow together",
    "norm_dim": "its norms divide by the width they cover",
    "q_norm_dim": "its norms divide by the width they cover",
    "k_norm_dim": "its norms divide by the width they cover",
    "stat_width": "its norms measure all they cover",
    "output_multiplier": "its norms have no factor of their own; the format `widthwise` has",
    "scale": "its scores have one factor, 1/sqrt(head_dim)",
    "eps": "it has one eps for all norms",
    "residual": "it has one stream, to which every update is added",
    "mtp": "it has no place for further heads",
    "d_in": "every layer is as wide as the embedding",
    "d_out": "every layer is as wide as the embedding",
    "d_model": "every layer is as wide as the embedding",
    "d_ff": "one number stands for all layers",
    "n_heads": "one number stands for all layers, and in gpt2 n_heads * head_dim is the width",
    "n_kv_heads": "one number stands for all layers, and in gpt2 it is n_heads",
    "head_dim": "one number stands for all layers, and in gpt2 n_heads * head_dim is the width",
    "rope_frequencies": "it turns queries and keys, those of all layers alike",
}


class Difference(NamedTuple):
    """The first place where two configs are not one."""

    path: tuple[str, ...]
    ours: Any
    theirs: Any


def check_fit(config: ModelConfig, read_back: ModelConfig, model_type: str) -> None:
    """Raises UserError with the reason where a format says less than the model is."""
    found = _difference(_comparable(config), _comparable(read_back))
    if found is None:
        return
    reason = next((REASONS[key] for key in reversed(found.path) if key in REASONS), None)
    raise UserError(_in_words(found, model_type) + (f", because {reason}" if reason else ""))


def _comparable(config: ModelConfig) -> dict[str, Any]:
    """As plain data in which equal models are equal; without what only new weights are drawn from."""
    data = to_data(config)
    del data["init"]
    for layer, said in zip(config.layers, data["layers"]):
        said["attention"] = _attention(layer.attention, said["attention"])
    return data


def _attention(attention: AttentionConfig, said: dict[str, Any]) -> dict[str, Any]:
    """With every null that stands for a number as that number."""
    said = {**said, "v_head_dim": attention.value_dim}
    if attention.rope is not None:
        del said["rope_base"]  # only a way to say the frequencies
        said["rope_frequencies"] = list(attention.rope.pair_frequencies)
    norm = attention.qk_norm
    if norm is not None:
        n_heads = (1, 1) if norm.over == "head" else (attention.n_heads, attention.n_kv_heads)
        dims = {
            "q_norm_dim": norm.q_norm_dim or n_heads[0] * attention.head_dim,
            "k_norm_dim": norm.k_norm_dim or n_heads[1] * attention.head_dim,
        }
        said["qk_norm"] = {**said["qk_norm"], **dims}
    return said


def _difference(ours: Any, theirs: Any, path: tuple[str, ...] = ()) -> Difference | None:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("kind") != theirs.get("kind"):
            return Difference((*path, "kind"), ours.get("kind"), theirs.get("kind"))
        pairs = [(key, ours.get(key), theirs.get(key)) for key in ours | theirs]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(str(i), *pair) for i, pair in enumerate(zip(ours, theirs))]
    else:
        return None if _are_equal(ours, theirs) else Difference(path, ours, theirs)
    found = (_difference(a, b, (*path, key)) for key, a, b in pairs)
    return next((difference for difference in found if difference is not None), None)


def _are_equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=TOLERANCE)
    return ours == theirs


def _in_words(found: Difference, model_type: str) -> str:
    """What a format has in the place where the model has something else."""
    path = ".".join(found.path)
    if isinstance(found.ours, dict) and found.theirs is None:
        return f"{path}: the model has it, {model_type} has none"
    if isinstance(found.theirs, dict) and found.ours is None:
        return f"{path}: the model has none, {model_type} has it"
    return f"{path}: got {_short(found.ours)}; {model_type} has {_short(found.theirs)} there"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
