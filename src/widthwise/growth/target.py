"""The config of a grown model: the requested sizes, and the constants that preserve the function.

A recipe derives the attention scale, norm divisors and rotary frequencies from widths. A grown model keeps the old
values, written out; `bake` restores the usual form if there is one. The eps of every norm is kept too, because a baked
or imported model has another one than the recipe.
"""

from typing import Any

from widthwise.config_io import checked_copy, mistakes_at
from widthwise.growth.correspondence import AttentionMaps, Correspondence, frequency_places
from widthwise.growth.stream import StreamMap, stream_map
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.kinds import all_must_agree, may_be_added, must_agree, must_stay
from widthwise.model.layer import LayerConfig, MTPConfig
from widthwise.model.norm import PLACEMENTS, NormConfig, QKNormConfig
from widthwise.model.residual.interface import PrefixLayout, ResidualConfig


def grown_config(old: ModelConfig, wanted: ModelConfig, correspondence: Correspondence) -> ModelConfig:
    """Return `wanted` with the constants of `old`. Raises UserError if that would change the function."""
    _check(old, wanted)
    wanted = wanted.model_copy(update={"residual": _residual(old, wanted)})
    stream = stream_map(old, wanted, correspondence.pairs())
    if wanted.residual.always_mixes and type(old.residual) is type(wanted.residual) and None in correspondence.layers:
        raise UserError(
            f"layers: cannot be added to a residual of kind {old.residual.kind}, because even a layer that writes "
            "nothing would mix the slots"
        )
    layers = list(wanted.layers)
    for i, j in correspondence.pairs():
        layers[j] = _layer(old.layers[i], wanted.layers[j], stream, f"layers.{j}")
    kept_layers = [j for _, j in correspondence.pairs()]
    for j, source in enumerate(correspondence.layers):
        if source is None:
            # Of two kept layers at the same distance, the earlier one.
            nearest = min(kept_layers, key=lambda i: (abs(i - j), i > j))
            layers[j] = _added_layer(wanted.layers[j], wanted.layers[nearest], layers[nearest])
    must_agree("final_norm.kind", old.final_norm.kind, wanted.final_norm.kind)
    final_norm = _norm(old.final_norm, stream, old.final_norm_width, wanted.final_norm_width)
    mtp = _mtp(old, wanted, stream)
    return checked_copy(wanted, "model", layers=tuple(layers), final_norm=final_norm, mtp=mtp)


def _check(old: ModelConfig, wanted: ModelConfig) -> None:
    """Raise UserError for components that growth does not know, cannot change or cannot remove."""
    for model in (old, wanted):
        residual = model.residual
        if residual.constant_fields is None or residual.layout is None:
            raise UserError(
                f"residual: growth does not know `{residual.kind}`; it must set `constant_fields` and `layout`"
            )
        if isinstance(residual.layout, PrefixLayout) and residual.layout.resize != "carry":
            raise UserError(f"residual.resize: got {residual.layout.resize}; a stream grows only with carry")
        for where, layer in model.named_layers():
            if layer.ffn.constant_fields is None:
                raise UserError(f"{where}.ffn: growth does not know `{layer.ffn.kind}`; it must set `constant_fields`")
    all_must_agree(("vocab_size", "embedding_multiplier", "logit_multiplier", "logit_cap"), old, wanted)
    must_stay(("tie_embeddings", "positions"), old, wanted)
    may_be_added("mtp", old.mtp, wanted.mtp)


def _residual(old: ModelConfig, wanted: ModelConfig) -> ResidualConfig:
    """Return the requested residual with the constants of the old one. Raises UserError if they are incompatible."""
    before = old.residual
    must_agree("residual.multiplier", before.multiplier, wanted.residual.multiplier)
    with mistakes_at("residual"):
        grown = wanted.residual.with_constants_of(before, old.d_model, old.widths)
    slot_width = grown.slot_shape(old.d_model)[1]
    has_other_slots = type(before) is not type(wanted.residual) and slot_width != before.slot_shape(old.d_model)[1]
    if old.mtp is not None and has_other_slots:
        raise UserError(
            f"residual.slot_width: got {slot_width}; must be d_model, {old.d_model}, because MTP heads cannot join "
            "narrower slots with the same matrix"
        )
    return grown


def _norm(old: NormConfig, stream: StreamMap, n_old: int, n_new: int) -> NormConfig:
    """Return a norm that read n_old coordinates of the stream and now reads n_new."""
    return old.model_copy(update={"stat_width": stream.stat_width(n_old, n_new, old.stat_width)})


def _layer(old: LayerConfig, new: LayerConfig, stream: StreamMap, where: str) -> LayerConfig:
    must_agree(f"{where}.norm_placement", old.norm_placement, new.norm_placement)
    is_before = PLACEMENTS[old.norm_placement].is_before
    norms = {}
    for name, width in (("attention_norm", "d_in"), ("ffn_norm", "d_model")):
        norm = getattr(old, name)
        must_agree(f"{where}.{name}.kind", norm.kind, getattr(new, name).kind)
        # A norm after a sublayer reads the update, which is 0 at new coordinates, so it may measure all of them.
        norms[name] = _norm(norm, stream, getattr(old, width), getattr(new, width)) if is_before else norm
    path = f"{where}.attention"
    with mistakes_at(path):
        all_must_agree(("window", "score_cap"), old.attention, new.attention)
        must_stay(("bias", "out_bias"), old.attention, new.attention)
    # Softmax scale, rotary frequencies and norm divisors are kept.
    constants = {"scale": old.attention.scale, **kept_rotation(old.attention, new.attention)}
    constants["qk_norm"] = _qk_norm(old.attention, new.attention, path)
    attention = new.attention.model_copy(update=constants)
    with mistakes_at(where):
        AttentionMaps.of(old.attention, attention)
    with mistakes_at(f"{where}.ffn"):
        ffn = new.ffn.with_constants_of(old.ffn, reads_more=old.d_model != new.d_model)
    return new.model_copy(update={**norms, "attention": attention, "ffn": ffn})


def _added_layer(layer: LayerConfig, neighbour: LayerConfig, grown: LayerConfig) -> LayerConfig:
    """Return an added layer with the constants of the nearest kept layer, where the recipe gives both the same.

    The function does not need this, because the layer is silent; but exported formats, and `bake` with one eps, have
    one divisor and one scale for all layers. neighbour, grown: the kept layer in the recipe, and after growth.
    """
    constants: dict[str, Any] = {}
    if layer.attention.scale == neighbour.attention.scale:
        constants["scale"] = grown.attention.scale
    if layer.attention.rope == neighbour.attention.rope:
        constants |= {name: getattr(grown.attention, name) for name in ("rope_base", "rope_frequencies")}
    changes: dict[str, Any] = {"attention": layer.attention.model_copy(update=constants)}
    for name in ("attention_norm", "ffn_norm"):
        norm = getattr(grown, name)
        is_same = getattr(layer, name) == getattr(neighbour, name) and layer.norm_placement == neighbour.norm_placement
        if is_same and norm.stat_width is None:  # a norm over part of the stream has the divisor of that part
            changes[name] = norm
    return layer.model_copy(update=changes)


def _mtp(old: ModelConfig, wanted: ModelConfig, stream: StreamMap) -> MTPConfig | None:
    before = old.mtp
    after = wanted.mtp
    if before is None or after is None:
        return after
    with mistakes_at("mtp"):
        must_stay(("n_depths",), before, after)
    for name in ("slot_norm", "final_norm"):
        must_agree(f"mtp.{name}.kind", getattr(before, name).kind, getattr(after, name).kind)
    slots = old.residual.slot_shape(old.d_model)[1], wanted.residual.slot_shape(wanted.d_model)[1]
    changes = {
        "layer": _layer(before.layer, after.layer, stream, "mtp.layer"),
        "slot_norm": _norm(before.slot_norm, stream.slot, *slots),
        "final_norm": _norm(before.final_norm, stream, old.d_model, wanted.d_model),
    }
    return after.model_copy(update=changes)


def kept_rotation(old: AttentionConfig, new: AttentionConfig) -> dict[str, Any]:
    """Return changes to `new` that keep the old rotary frequencies.

    Empty if they are among the requested ones, as at a multiple of head_dim, or if the recipe changes the base or lists
    frequencies. Otherwise a table: the old frequencies, continued downwards at their ratio.
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
    """Return the old norm, with divisors that keep its statistic.

    Queries get orthogonal copies, which multiply their sum of squares (see `tensor_plan.OrthogonalCopies`). New
    coordinates of keys are 0 and add nothing; new key heads under one norm over all heads are orthogonal copies too.
    """
    before = old.qk_norm
    after = new.qk_norm
    if before is None or after is None:
        must_agree(f"{where}.qk_norm", before, after)
        return None
    must_agree(f"{where}.qk_norm.over", before.over, after.over)
    if before.over == "head":
        n_query = _multiple(old.head_dim, new.head_dim, f"{where}.head_dim")
        n_key = 1
        q_dim = k_dim = old.head_dim
    else:
        q_dim = old.n_heads * old.head_dim
        k_dim = old.n_kv_heads * old.head_dim
        n_query = _multiple(q_dim, new.n_heads * new.head_dim, f"{where}.n_heads times head_dim")
        n_key = _multiple(old.n_kv_heads, new.n_kv_heads, f"{where}.n_kv_heads")
        if n_key > 1 and new.head_dim != old.head_dim:
            raise UserError(
                f"{where}.head_dim: got {new.head_dim} with n_kv_heads {new.n_kv_heads}; under one norm over all heads "
                "they cannot grow at once; grow twice"
            )
    dims = {"q_norm_dim": (before.q_norm_dim or q_dim) * n_query, "k_norm_dim": (before.k_norm_dim or k_dim) * n_key}
    return before.model_copy(update=dims)


def _multiple(n_old: int, n_new: int, what: str) -> int:
    """Return n_new / n_old. Raises UserError unless it is whole."""
    if n_new % n_old:
        raise UserError(
            f"{what}: got {n_new}, before {n_old}; must be a multiple of {n_old}, because the norm of queries and keys "
            "cannot divide by another size; or grow v_head_dim or the feed-forward"
        )
    return n_new // n_old
