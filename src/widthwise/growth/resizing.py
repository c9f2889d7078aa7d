"""The config of a model with other sizes, and changes to all of its layers or norms.

Constants that followed from a size, such as the divisor of a norm or the attention scale, follow the new size here;
growth then reports where it keeps the old constant.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from widthwise.config_io import checked_copy, mistakes_at
from widthwise.growth.choices import NewSizes
from widthwise.mistakes import UserError
from widthwise.model.attention import SCALES, AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn import FFN
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig
from widthwise.model.residual.interface import SlotLayout


def resized(model: ModelConfig, sizes: NewSizes) -> ModelConfig:
    """Return the model with these sizes. Raises UserError if layers differ in a size given as a single number."""
    if sizes.d_model is not None:
        _check_enlarges("d_model", sizes.d_model, model.d_model)
        model = _with_d_model(model, sizes.d_model)
    if sizes.d_ff is not None:
        key = f"ffn.{_hidden_key(model.layers[0].ffn)}"
        _check_equal(model, "d_ff", sizes.d_ff, lambda layer: getattr(layer.ffn, _hidden_key(layer.ffn)), key)
        model = with_layers(
            model, lambda _, layer: {"ffn": checked_copy(layer.ffn, "ffn", **{_hidden_key(layer.ffn): sizes.d_ff})}
        )
    heads = sizes.model_dump(include={"n_heads", "n_kv_heads", "head_dim"}, exclude_none=True)
    for name, size in heads.items():
        _check_equal(model, name, size, lambda layer, name=name: getattr(layer.attention, name), f"attention.{name}")
    if heads:
        model = with_layers(model, lambda _, layer: {"attention": _attention(layer.attention, **heads)})
    return _with_added_layers(model, sizes.add_layers)


def _hidden_key(ffn: FFN) -> str:
    """Return the name of the field with the number of hidden units. Raises UserError if the config names none."""
    if not ffn.hidden_axes:
        raise UserError(f"d_ff: growth does not know the hidden units of feed-forward `{ffn.kind}`; give --to RECIPE")
    return next(iter(ffn.hidden_axes))


def _check_equal(model: ModelConfig, name: str, size: int, value_of: Callable[[LayerConfig], Any], key: str) -> None:
    """Raise UserError if layers have different values, which one number cannot replace. key: path in a layer."""
    values = sorted({value_of(layer) for _, layer in model.named_layers()}, key=str)
    if len(values) > 1:
        raise UserError(
            f"{name}: got {size} for all layers, which have {', '.join(map(str, values))}; set single layers, as "
            f"model.layers.0.{key}={size}, or give --to RECIPE"
        )
    _check_enlarges(name, size, values[0])


def _check_enlarges(name: str, size: int, old: int) -> None:
    """Raise UserError for a size below the model's."""
    if size < old:
        raise UserError(f"{name}: got {size}, and the model has {old}; grow only enlarges: use `widthwise shrink`")


def with_layers(
    model: ModelConfig, change: Callable[[str, LayerConfig], dict[str, Any]], **changes: Any
) -> ModelConfig:
    """Return the model with changed fields of every layer, including the layer of MTP heads, and of the model.

    change: (path, layer) -> the changed fields of the layer; changes: the changed fields of the model.
    """
    layers = []
    for where, layer in model.named_layers():
        with mistakes_at(where):
            layers.append(layer.model_copy(update=change(where, layer)))
    mtp = model.mtp and model.mtp.model_copy(update={"layer": layers.pop()})
    return checked_copy(model, "model", layers=tuple(layers), mtp=mtp, **changes)


def _with_d_model(model: ModelConfig, d_model: int) -> ModelConfig:
    def wider(where: str, width: int) -> int:
        width_after, rest = divmod(width * d_model, model.d_model)
        if rest:
            raise UserError(
                f"d_model: got {d_model}; {where} would grow in proportion from {width} to "
                f"{width * d_model / model.d_model:g}, which is not a whole number; give --to RECIPE"
            )
        return width_after

    def widths(where: str, layer: LayerConfig) -> dict[str, Any]:
        return {name: wider(f"{where}.{name}", getattr(layer, name)) for name in ("d_model", "d_in", "d_out")}

    residual = model.residual
    if isinstance(residual.layout, SlotLayout):
        slot_width = wider("residual.slot_width", residual.slot_shape(model.d_model)[1])
        residual = checked_copy(residual, "residual", slot_width=slot_width)
    final_norm_width = wider("final_norm_width", model.final_norm_width)
    usual = {where: width for where, _, width in norms_of(model)}

    def divisor(where: str, norm: NormConfig, width: int) -> NormConfig:
        return norm.model_copy(update={"norm_dim": width}) if norm.norm_dim == usual[where] else norm

    model = with_layers(model, widths, d_model=d_model, final_norm_width=final_norm_width, residual=residual)
    return with_norms(model, divisor)


def norms_of(model: ModelConfig) -> Iterator[tuple[str, NormConfig, int]]:
    """Yield (path, norm, divisor in a model that never grew) for all norms over the stream or a slot."""
    for where, layer in model.named_layers():
        for name, norm_dim in layer.usual_norm_dims.items():
            yield f"{where}.{name}", getattr(layer, name), norm_dim
    yield "final_norm", model.final_norm, model.final_norm_width
    if model.mtp is not None:
        yield "mtp.slot_norm", model.mtp.slot_norm, model.residual.slot_shape(model.d_model)[1]
        yield "mtp.final_norm", model.mtp.final_norm, model.d_model


def with_norms(model: ModelConfig, change: Callable[[str, NormConfig, int], NormConfig], **changes: Any) -> ModelConfig:
    """Return the model with changed norms and fields. change: takes the items that `norms_of` yields."""
    norms = {where: change(where, norm, norm_dim) for where, norm, norm_dim in norms_of(model)}
    if model.mtp is not None:
        mtp_norms = {name: norms[f"mtp.{name}"] for name in ("slot_norm", "final_norm")}
        model = model.model_copy(update={"mtp": model.mtp.model_copy(update=mtp_norms)})

    def layer_norms(where: str, layer: LayerConfig) -> dict[str, Any]:
        return {name: norms[f"{where}.{name}"] for name in layer.usual_norm_dims}

    return with_layers(model, layer_norms, final_norm=norms["final_norm"], **changes)


def _attention(
    old: AttentionConfig, n_heads: int | None = None, n_kv_heads: int | None = None, head_dim: int | None = None
) -> AttentionConfig:
    n_heads = n_heads or old.n_heads
    if n_kv_heads is None:
        n_kv_heads, rest = divmod(n_heads * old.n_kv_heads, old.n_heads)
        if rest:
            group = old.n_heads // old.n_kv_heads
            raise UserError(f"n_heads: got {n_heads}; must be a multiple of the group size {group}, or give n_kv_heads")
    changes: dict[str, Any] = {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
    if head_dim not in (None, old.head_dim):
        rule = next((rule for rule in SCALES.values() if math.isclose(old.scale, rule(old.head_dim))), None)
        scale = old.scale if rule is None else rule(head_dim)
        changes |= {"head_dim": head_dim, "rope_frequencies": None, "scale": scale}
    return checked_copy(old, "attention", **changes)


def _with_added_layers(model: ModelConfig, n_added: int) -> ModelConfig:
    """Add layers between the first and the last one, which alone may read or write less than their width."""
    n_old = model.n_layers
    n_new = n_old + n_added
    # Old layer i is at i * (n_new - 1) / (n_old - 1), rounded to the nearest, half up.
    last = max(1, n_old - 1)
    old_positions = {(2 * i * (n_new - 1) + last) // (2 * last) for i in range(n_old)}
    old_layers = iter(model.layers)
    layers = []
    for position in range(n_new):
        if position in old_positions:
            layers.append(next(old_layers))
        else:
            before = layers[-1]
            layers.append(before.model_copy(update={"d_in": before.d_model, "d_out": before.d_model}))
    return checked_copy(model, "model", layers=tuple(layers))
