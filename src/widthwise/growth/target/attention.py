"""The attention of a grown layer: the requested head sizes with the old rotary frequencies and softmax scale."""

from typing import Any

from widthwise.config_io import UserError, mistakes_at
from widthwise.growth.maps.attention import AttentionMaps, frequency_places
from widthwise.model.agreement import may_be_added, must_agree
from widthwise.model.attention import AttentionConfig
from widthwise.model.qk_norm import QKNormConfig


def grown_attention(old: AttentionConfig, new: AttentionConfig, where: str) -> AttentionConfig:
    """`new` with the softmax scale, rotary frequencies and norm divisors of `old`. where: the layer, for errors.

    Raises UserError if `old` cannot become `new`.
    """
    path = f"{where}.attention"
    with mistakes_at(path):
        for name in ("bias", "out_bias"):
            may_be_added(name, getattr(old, name), getattr(new, name))
    frequencies = kept_rotation(old, new)
    qk_norm = _qk_norm(old, new, path)
    grown = new.model_copy(update={"scale": old.scale, **frequencies, "qk_norm": qk_norm})
    with mistakes_at(where):
        AttentionMaps.of(old, grown)
    return grown


def added_attention(new: AttentionConfig, asked: AttentionConfig, near: AttentionConfig) -> AttentionConfig:
    """The attention of an added layer.

    If the recipe gives it the scale or the rotary frequencies of the nearest kept layer, it gets what that layer keeps.
    asked, near: the attention of that layer in the recipe, and as it is grown.
    """
    changes = {}
    if new.scale == asked.scale:
        changes["scale"] = near.scale
    if new.rope == asked.rope:
        changes |= {"rope_base": near.rope_base, "rope_frequencies": near.rope_frequencies}
    return new.model_copy(update=changes)


def kept_rotation(old: AttentionConfig, new: AttentionConfig) -> dict[str, Any]:
    """Changes to `new` that keep the old rotary frequencies.

    Empty if they are among the requested ones, as at a multiple of head_dim, or if the recipe changes the base or lists
    frequencies itself. Otherwise a table: the old frequencies, continued downwards at their ratio.
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
    """The old norm, with divisors that keep its statistic.

    Queries get orthogonal copies, which multiply their sum of squares (see `plan.fresh.OrthogonalCopies`). New
    coordinates of keys are 0 and add nothing; new key heads under one norm over all heads are orthogonal copies too.
    """
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
