"""The attention of a grown layer: heads of the sizes asked for that turn and are scaled as the old ones."""

from typing import Any

from widthwise.config_io import UserError, mistakes_at
from widthwise.growth.maps.attention import AttentionMaps, frequency_places
from widthwise.model.agreement import may_be_added, must_agree
from widthwise.model.attention import AttentionConfig
from widthwise.model.qk_norm import QKNormConfig


def grown_attention(old: AttentionConfig, new: AttentionConfig, where: str) -> AttentionConfig:
    """`new` with the scale, the frequencies and the divisors of `old`. where: the path of the layer, for messages.

    Raises UserError where the one cannot become the other.
    """
    path = f"{where}.attention"
    with mistakes_at(path):
        for name in ("bias", "out_bias"):
            may_be_added(name, getattr(old, name), getattr(new, name))
    frequencies = _rotation(old, new)
    qk_norm = _qk_norm(old, new, path)
    grown = new.model_copy(update={"scale": old.scale, **frequencies, "qk_norm": qk_norm})
    with mistakes_at(where):
        AttentionMaps.of(old, grown)
    return grown


def added_attention(new: AttentionConfig, asked: AttentionConfig, near: AttentionConfig) -> AttentionConfig:
    """That of an added layer, with the scale and the frequencies of a layer that stays, where the recipe gives both the
    same. asked, near: the attention of that layer as the recipe has it, and as it becomes.
    """
    changes = {}
    if new.scale == asked.scale:
        changes["scale"] = near.scale
    if new.rope == asked.rope:
        changes |= {"rope_base": near.rope_base, "rope_frequencies": near.rope_frequencies}
    return new.model_copy(update=changes)


def _rotation(old: AttentionConfig, new: AttentionConfig) -> dict[str, Any]:
    """What is asked for, where the old frequencies are among it, as they are at a multiple of head_dim, or where it is
    asked for by number. Else a table of the old ones, continued downwards at their ratio.
    """
    if old.rope is None or new.rope is None or new.rope_base != old.rope_base or new.rope_frequencies is not None:
        return {}
    before = list(old.rope.pair_frequencies)
    if new.head_dim <= old.head_dim:
        return {"rope_frequencies": old.rope_frequencies}
    if frequency_places(before, new.rope.pair_frequencies) is not None:
        return {}
    ratio = (before[-1] / before[0]) ** (1 / (len(before) - 1)) if len(before) > 1 else 1 / old.rope.base
    n_added = new.head_dim // 2 - len(before)
    return {"rope_frequencies": (*before, *(before[-1] * ratio ** (i + 1) for i in range(n_added)))}


def _qk_norm(old: AttentionConfig, new: AttentionConfig, where: str) -> QKNormConfig | None:
    """Queries behind a norm get turned copies, which multiply the sum of squares; new coordinates of keys are 0."""
    before, after = old.qk_norm, new.qk_norm
    if before is None or after is None:
        must_agree(f"{where}.qk_norm", before, after)
        return None
    must_agree(f"{where}.qk_norm.over", before.over, after.over)
    if before.over == "head":
        n_query, n_key = _multiple(old.head_dim, new.head_dim, f"{where}.head_dim"), 1
        q_dim = k_dim = old.head_dim
    else:
        q_dim, k_dim = old.n_heads * old.head_dim, old.n_kv_heads * old.head_dim
        n_query = _multiple(q_dim, new.n_heads * new.head_dim, f"{where}.n_heads times head_dim")
        n_key = _multiple(old.n_kv_heads, new.n_kv_heads, f"{where}.n_kv_heads")
        if n_key > 1 and new.head_dim != old.head_dim:
            raise UserError(
                f"{where}.head_dim: got {new.head_dim} beside n_kv_heads {new.n_kv_heads}; under one norm over all "
                "heads they grow one after the other, in two growths"
            )
    dims = {"q_norm_dim": (before.q_norm_dim or q_dim) * n_query, "k_norm_dim": (before.k_norm_dim or k_dim) * n_key}
    return before.model_copy(update=dims)


def _multiple(n_old: int, n_new: int, what: str) -> int:
    if n_new % n_old:
        raise UserError(
            f"{what}: got {n_new} where there were {n_old}; a norm of queries and keys would divide by another size, "
            f"which no factor undoes; it must be a multiple of {n_old}, or grow v_head_dim or the feed-forward"
        )
    return n_new // n_old
