"""The config of a model with some sizes changed alike in all layers: a target for growth without a recipe.

Sizes that are not named stay. Constants that followed from a size, such as a norm's divisor or the attention scale,
follow the new size here; growth then reports where it keeps the old constant instead.
"""

import math
from collections.abc import Callable
from typing import Any

from widthwise.config_io import UserError, checked_copy, mistakes_at
from widthwise.growth.choices import NewSizes
from widthwise.model.attention import SCALES, AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn import FFN
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig
from widthwise.model.residual.interface import SlotLayout

SAME_SIZES = NewSizes()


def resized(model: ModelConfig, sizes: NewSizes) -> ModelConfig:
    """The model with these sizes. Raises UserError if layers differ in a size for which a single number is given."""
    if sizes.d_model is not None:
        model = _with_d_model(model, sizes.d_model)
    if sizes.d_ff is not None:
        d_ff, key = sizes.d_ff, f"ffn.{_hidden_key(model.layers[0].ffn)}"
        _check_alike(model, "d_ff", d_ff, lambda layer: getattr(layer.ffn, _hidden_key(layer.ffn)), key)
        model = with_layers(
            model, lambda layer: {"ffn": checked_copy(layer.ffn, "ffn", **{_hidden_key(layer.ffn): d_ff})}
        )
    heads = {name: size for name in ("n_heads", "n_kv_heads", "head_dim") if (size := getattr(sizes, name)) is not None}
    for name, size in heads.items():
        _check_alike(model, name, size, lambda layer, name=name: getattr(layer.attention, name), f"attention.{name}")
    if heads:
        model = with_layers(model, lambda layer: {"attention": _attention(layer.attention, **heads)})
    return _with_added_layers(model, sizes.add_layers)


def _hidden_key(ffn: FFN) -> str:
    """The name of the field that holds the hidden units. Raises UserError if the config names none."""
    if not ffn.hidden_axes:
        raise UserError(f"d_ff: growth does not know hidden units of feed-forward `{ffn.kind}`; give --to RECIPE")
    return next(iter(ffn.hidden_axes))


def _check_alike(model: ModelConfig, name: str, size: int, found_in: Callable[[LayerConfig], Any], key: str) -> None:
    """Raises UserError if layers have different values, which one number cannot replace. key: of a layer's config."""
    found = sorted({found_in(layer) for _, layer in model.named_layers()}, key=str)
    if len(found) > 1:
        raise UserError(
            f"{name}: got {size} for all layers, which have {', '.join(map(str, found))}; name single ones, as "
            f"model.layers.0.{key}={size}, or give --to RECIPE"
        )


def with_layers(model: ModelConfig, change: Callable[[LayerConfig], dict[str, Any]]) -> ModelConfig:
    """Return the model with changed fields of every layer, that of the MTP heads included."""

    def changed(where: str, layer: LayerConfig) -> LayerConfig:
        with mistakes_at(where):
            return layer.model_copy(update=change(layer))

    layers = [changed(where, layer) for where, layer in model.named_layers()]
    mtp = model.mtp and model.mtp.model_copy(update={"layer": layers.pop()})
    return checked_copy(model, "model", layers=tuple(layers), mtp=mtp)


def _with_d_model(model: ModelConfig, d_model: int) -> ModelConfig:
    def wider(where: str, width: int) -> int:
        found, rest = divmod(width * d_model, model.d_model)
        if rest:
            raise UserError(
                f"d_model: got {d_model}; {where} would grow in proportion from {width} to "
                f"{width * d_model / model.d_model:g}, which is no whole number; give --to RECIPE"
            )
        return found

    def widened(where: str, layer: LayerConfig) -> LayerConfig:
        sizes = {name: wider(f"{where}.{name}", getattr(layer, name)) for name in ("d_model", "d_in", "d_out")}
        grown = layer.model_copy(update=sizes)
        norms = {
            name: _norm(getattr(layer, name), usual, grown.usual_norm_dims[name])
            for name, usual in layer.usual_norm_dims.items()
        }
        return checked_copy(grown, where, **norms)

    layers = [widened(where, layer) for where, layer in model.named_layers()]
    residual, mtp, before = model.residual, model.mtp, model.residual.slot_shape(model.d_model)[1]
    if isinstance(residual.layout, SlotLayout):
        residual = checked_copy(residual, "residual", slot_width=wider("residual.slot_width", before))
    if mtp is not None:
        changes = {
            "layer": layers.pop(),
            "slot_norm": _norm(mtp.slot_norm, before, residual.slot_shape(d_model)[1]),
            "final_norm": _norm(mtp.final_norm, model.d_model, d_model),
        }
        mtp = mtp.model_copy(update=changes)
    final_norm_width = wider("final_norm_width", model.final_norm_width)
    return checked_copy(
        model,
        "model",
        d_model=d_model,
        layers=tuple(layers),
        residual=residual,
        mtp=mtp,
        final_norm=_norm(model.final_norm, model.final_norm_width, final_norm_width),
        final_norm_width=final_norm_width,
    )


def _norm(norm: NormConfig, usual: int, new_usual: int) -> NormConfig:
    """A norm of a widened stream. usual, new_usual: its default divisor before and after; an unusual one is kept."""
    return norm if norm.norm_dim != usual else norm.model_copy(update={"norm_dim": new_usual})


def _attention(
    old: AttentionConfig, n_heads: int | None = None, n_kv_heads: int | None = None, head_dim: int | None = None
) -> AttentionConfig:
    n_heads = n_heads or old.n_heads
    if n_kv_heads is None:
        n_kv_heads, rest = divmod(n_heads * old.n_kv_heads, old.n_heads)
        if rest:
            raise UserError(
                f"n_heads: got {n_heads}; no whole number of groups of {old.n_heads // old.n_kv_heads}; give "
                "n_kv_heads too"
            )
    changes: dict[str, Any] = {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
    if head_dim not in (None, old.head_dim):
        rule = next((rule for rule in SCALES.values() if math.isclose(old.scale, rule(old.head_dim))), None)
        scale = old.scale if rule is None else rule(head_dim)
        changes |= {"head_dim": head_dim, "rope_frequencies": None, "scale": scale}
    return checked_copy(old, "attention", **changes)


def _with_added_layers(model: ModelConfig, n_added: int) -> ModelConfig:
    """The first and last layers stay at the ends, because they may read or write less than their whole width."""
    n_old, n_new = model.n_layers, model.n_layers + n_added
    kept = {(2 * i * (n_new - 1) + n_old - 1) // (2 * (n_old - 1)) for i in range(n_old)} if n_old > 1 else {0}
    old, layers = iter(model.layers), []
    for position in range(n_new):
        layers.append(next(old) if position in kept else _inner(layers[-1]))
    return checked_copy(model, "model", layers=tuple(layers))


def _inner(layer: LayerConfig) -> LayerConfig:
    """The same layer reading and writing its whole width, as inner layers do."""
    return layer.model_copy(update={"d_in": layer.d_model, "d_out": layer.d_model})
