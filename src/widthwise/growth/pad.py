"""Sizes rounded up for hardware: the same function, with entries that are 0 and stay 0.

Kernels want whole tiles, and tensor parallelism wants as many heads on every device. Padding is growth in which all new
entries are 0. Real growth avoids just that, because a product of two zeros has no gradient.
"""

from widthwise.config_io import UserError, checked_copy
from widthwise.growth.choices import Multiples
from widthwise.growth.maps.correspondence import Correspondence
from widthwise.growth.plan.fresh import Constant
from widthwise.growth.plan.model_plan import GrowthPlan, plan_growth
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn import FFN
from widthwise.model.layer import LayerConfig
from widthwise.model.residual.interface import SlotLayout

PADDING = Constant(0.0)
"""The `fresh` to give to `GrowthPlan.weights` for padding."""


def pad_plan(model: ModelConfig, multiples: Multiples) -> GrowthPlan:
    """The plan that pads a model; its weights are `plan.weights(old, fresh=PADDING)`.

    Raises UserError if a size cannot be padded.
    """
    return plan_growth(model, padded(model, multiples), Correspondence.same(model))


def padded(model: ModelConfig, multiples: Multiples) -> ModelConfig:
    """The config with its sizes rounded up. Raises UserError if one cannot be."""
    d_model = multiples.d_model_multiple
    if d_model > 1 and isinstance(model.residual.layout, SlotLayout):
        raise UserError(f"d_model: cannot be padded in a stream of slots ({model.residual.kind}); pad the other sizes")
    if d_model > 1 and model.final_norm.kind == "layer":
        raise UserError(
            "d_model: cannot be padded under layer norms, whose means count zeros; pad other sizes, or grow"
        )
    layers = tuple(_layer(layer, multiples, f"layers.{i}") for i, layer in enumerate(model.layers))
    mtp = model.mtp
    if mtp is not None:
        mtp = mtp.model_copy(update={"layer": _layer(mtp.layer, multiples, "mtp.layer")})
    return checked_copy(
        model,
        "model",
        d_model=_up(model.d_model, d_model),
        final_norm_width=_up(model.final_norm_width, d_model),
        layers=layers,
        mtp=mtp,
    )


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _layer(layer: LayerConfig, multiples: Multiples, where: str) -> LayerConfig:
    widths = {name: _up(getattr(layer, name), multiples.d_model_multiple) for name in ("d_model", "d_in", "d_out")}
    return layer.model_copy(
        update={
            **widths,
            "attention": _attention(layer.attention, multiples, f"{where}.attention"),
            "ffn": _ffn(layer.ffn, multiples.d_ff_multiple, f"{where}.ffn"),
        }
    )


def _attention(old: AttentionConfig, multiples: Multiples, where: str) -> AttentionConfig:
    head_dim, value_dim = (_up(size, multiples.head_dim_multiple) for size in (old.head_dim, old.value_dim))
    if old.rope is not None and head_dim % 2:
        raise UserError(f"{where}.head_dim: {head_dim} is odd, which rotary heads cannot be; pad to an even multiple")
    group = old.n_heads // old.n_kv_heads
    n_kv_heads = _shared_evenly(old.n_kv_heads, group, multiples.heads_multiple)
    n_heads = n_kv_heads * group
    if old.qk_norm is not None and head_dim != old.head_dim:
        raise UserError(
            f"{where}.head_dim: cannot be padded behind a norm of queries and keys, which would measure zeros"
        )
    if old.qk_norm is not None and old.qk_norm.over == "all_heads" and n_heads != old.n_heads:
        raise UserError(f"{where}.n_heads: cannot be padded behind a norm over all heads, which would measure zeros")
    sizes: dict[str, int | None] = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    if old.v_head_dim is not None:
        sizes["v_head_dim"] = value_dim
    if head_dim != old.head_dim:
        sizes["rope_frequencies"] = None  # growth keeps those of the old pairs
    return old.model_copy(update=sizes)


def _shared_evenly(n_kv_heads: int, group: int, n_devices: int) -> int:
    """The smallest number of key-value heads, at least n_kv_heads, that n_devices can share evenly.

    Each device gets equally many of them, or a copy of one, and equally many of the query heads that read them.
    """
    for n in range(n_kv_heads, _up(n_kv_heads, n_devices)):
        if (n % n_devices == 0 or n_devices % n == 0) and n * group % n_devices == 0:
            return n
    return _up(n_kv_heads, n_devices)


def _ffn(old: FFN, multiple: int, where: str) -> FFN:
    sizes = {field: _padded_hidden(getattr(old, field), multiple) for field in old.hidden_axes}
    return checked_copy(old, where, **sizes)


def _padded_hidden(size: int | tuple[int, ...], multiple: int) -> int | tuple[int, ...]:
    return tuple(_up(each, multiple) for each in size) if isinstance(size, tuple) else _up(size, multiple)
