"""The config of a grown model: its sizes are those asked for, its constants those that keep the function.

Attention scale, divisors of norms, frequencies of rotation: a recipe derives them from widths, and a grown model must
not. They stay what they were, written out; `bake` gives the usual form back where there is one. The eps of every norm
stays as well, whatever the recipe says: a baked or imported model brings its own.
"""

from typing import Any

from widthwise.config_io import UserError, checked_copy
from widthwise.growth.maps.correspondence import Correspondence
from widthwise.growth.maps.stream import StreamMap, check_added, stream_map
from widthwise.growth.target.agreement import all_must_agree, must_agree
from widthwise.growth.target.attention import added_attention, grown_attention
from widthwise.growth.target.ffn import grown_ffn
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.mtp import MTPConfig
from widthwise.model.norm import PLACEMENTS, NormConfig
from widthwise.model.residual import Residual
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.model.residual.plain import PlainResidualConfig


def grown_config(old: ModelConfig, wanted: ModelConfig, correspondence: Correspondence) -> ModelConfig:
    """`wanted` with the constants of `old`. Raises UserError where what is wanted would be another function."""
    for name in ("vocab_size", "tie_embeddings", "embedding_multiplier", "logit_multiplier"):
        must_agree(name, getattr(old, name), getattr(wanted, name))
    if old.positions is None or wanted.positions is None:
        must_agree("positions", old.positions, wanted.positions)
    wanted = wanted.model_copy(update={"residual": _residual(old, wanted)})
    stream = stream_map(old, wanted, correspondence.pairs())
    check_added(wanted, correspondence.layers)
    layers = list(wanted.layers)
    for i, j in correspondence.pairs():
        layers[j] = _layer(old.layers[i], wanted.layers[j], stream, f"layers.{j}")
    for j, source in enumerate(correspondence.layers):
        if source is None:
            near = correspondence.nearest(j)[1]
            layers[j] = _added_layer(wanted.layers[j], wanted.layers[near], layers[near])
    _check_norm("final_norm", old.final_norm, wanted.final_norm)
    return checked_copy(
        wanted,
        "model",
        layers=tuple(layers),
        final_norm=_norm(old.final_norm, stream, old.final_norm_width, wanted.final_norm_width),
        mtp=_mtp(old, wanted, stream),
    )


def _residual(old: ModelConfig, wanted: ModelConfig) -> Residual:
    """Raises UserError where the one residual is not the other at any size."""
    before, after = old.residual, wanted.residual
    must_agree("residual.multiplier", before.multiplier, after.multiplier)
    if isinstance(before, PlainResidualConfig) and isinstance(after, PlainResidualConfig):
        must_agree("residual.resize", before.resize, after.resize)
        return after
    if isinstance(before, HyperConnectionsConfig) and isinstance(after, HyperConnectionsConfig):
        all_must_agree("residual", ("dynamic", "embedding", "reduce"), before, after)
        if before.group_norm is None:
            after = after.model_copy(update={"group_norm": None})
        must_agree("residual.group_norm", before.group_norm, after.group_norm)
        constants = {
            "eps": before.eps,
            "slot_norm_dim": before.slot_norm_dim or before.slot_width,
            "group_norm_dim": before.group_norm_dim or old.d_model,
        }
        return after.model_copy(update=constants)
    if isinstance(before, PlainResidualConfig) and isinstance(after, HyperConnectionsConfig):
        _check_slots(old, before, after)
        # A norm of groups in front of the last norm would change the function by the eps of both.
        return after.model_copy(update={"group_norm": None})
    raise UserError(f"residual.kind: got {after.kind} where it was {before.kind}; growth takes nothing away")


def _check_slots(old: ModelConfig, before: PlainResidualConfig, after: HyperConnectionsConfig) -> None:
    """Raises UserError where a plain stream is not that of its slots."""
    widest, d_model = max(old.d_model, *old.widths), old.d_model
    if before.resize != "carry" and len({*old.widths, d_model}) > 1:
        raise UserError(
            f"residual.resize: got {before.resize}; slots carry coordinates, so that only carry can become slots"
        )
    if after.embedding in ("expand", "slot") and widest > d_model:
        raise UserError(
            f"residual.embedding: got {after.embedding}, which fills coordinates {d_model} to {widest} that start at "
            "0; use direct or pad"
        )
    if old.mtp is not None and after.slot_width != d_model:
        raise UserError(
            f"residual.slot_width: got {after.slot_width}; further heads join slots as wide as d_model, {d_model}, and "
            "cannot join narrower ones with the same matrix"
        )


def _check_norm(where: str, old: NormConfig, new: NormConfig) -> None:
    must_agree(f"{where}.kind", old.kind, new.kind)


def _norm(old: NormConfig, stream: StreamMap, n_old: int, n_new: int) -> NormConfig:
    """Of what read n_old coordinates of the stream and reads n_new."""
    return old.model_copy(update={"stat_width": stream.stat_width(n_old, n_new, old.stat_width)})


def _layer(old: LayerConfig, new: LayerConfig, stream: StreamMap, where: str) -> LayerConfig:
    must_agree(f"{where}.norm_placement", old.norm_placement, new.norm_placement)
    norms = {}
    for name, reads, width in (
        ("attention_norm", PLACEMENTS[old.norm_placement] is PLACEMENTS["pre"], "d_in"),
        ("ffn_norm", _reads_normed(old), "d_model"),
    ):
        norm = getattr(old, name)
        _check_norm(f"{where}.{name}", norm, getattr(new, name))
        # A norm behind a sublayer sees its update, which is 0 in coordinates that are new to it.
        norms[name] = _norm(norm, stream, getattr(old, width), getattr(new, width)) if reads else norm
    attention = grown_attention(old.attention, new.attention, where)
    ffn = grown_ffn(old.ffn, new.ffn, old.d_model != new.d_model, f"{where}.ffn")
    return new.model_copy(update={**norms, "attention": attention, "ffn": ffn})


def _added_layer(layer: LayerConfig, asked: LayerConfig, near: LayerConfig) -> LayerConfig:
    """With the constants of the nearest layer that stays, where the recipe gives both the same ones.

    The function asks for none of it, as the layer is silent; but formats, and `bake` with one eps, have one divisor and
    one scale for all layers. asked, near: that layer as the recipe has it, and as it becomes.
    """
    changes: dict[str, Any] = {"attention": added_attention(layer.attention, asked.attention, near.attention)}
    for name in ("attention_norm", "ffn_norm"):
        norm, asked_norm, near_norm = (getattr(each, name) for each in (layer, asked, near))
        is_alike = (layer.norm_placement, norm) == (asked.norm_placement, asked_norm)
        if is_alike and near_norm.stat_width is None:  # one that measures a part has the divisor of that part
            changes[name] = near_norm
    return layer.model_copy(update=changes)


def _reads_normed(layer: LayerConfig) -> bool:
    """Whether the norms of its feed-forward stand before it."""
    own = layer.ffn.norm if isinstance(layer.ffn, HourglassConfig) else None
    return (own or layer.norm_placement) in ("pre", "shared")


def _mtp(old: ModelConfig, wanted: ModelConfig, stream: StreamMap) -> MTPConfig | None:
    before, after = old.mtp, wanted.mtp
    if before is None or after is None:
        must_agree("mtp", before, after)
        return None
    all_must_agree("mtp", ("n_depths", "share_reduce"), before, after)
    for name in ("slot_norm", "final_norm"):
        _check_norm(f"mtp.{name}", getattr(before, name), getattr(after, name))
    slots = old.residual.slot_shape(old.d_model)[1], wanted.residual.slot_shape(wanted.d_model)[1]
    slot_stat = stream.slot_stat_width(*slots, before.slot_norm.stat_width)
    changes = {
        "layer": _layer(before.layer, after.layer, stream, "mtp.layer"),
        "slot_norm": before.slot_norm.model_copy(update={"stat_width": slot_stat}),
        "final_norm": _norm(before.final_norm, stream, old.d_model, wanted.d_model),
    }
    return after.model_copy(update=changes)
