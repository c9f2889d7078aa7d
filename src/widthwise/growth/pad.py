"""Sizes rounded up for hardware: the same function, with entries that are 0 and stay 0.

Kernels want whole tiles, and tensor parallelism wants as many heads on every device. Padding is growth in which all new
entries are 0. Real growth avoids just that, because a product of two zeros has no gradient.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from widthwise.config_io import UserError, checked_copy
from widthwise.growth.axis_maps import AttentionMaps, AxisMap, product
from widthwise.growth.choices import Multiples, with_layers
from widthwise.growth.correspondence import Correspondence
from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.growth.target import kept_rotation
from widthwise.growth.tensor_plan import Constant, Split, TensorPlan
from widthwise.model.attention import AttentionConfig
from widthwise.model.attention_module import Attention
from widthwise.model.axes import Axes, Weight, size
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import QKNormConfig
from widthwise.model.residual.interface import SlotLayout

PADDING = Constant(0.0)
"""The `fresh` to give to `GrowthPlan.weights` for padding."""
KERNEL_MULTIPLE = 8
"""Fast kernels of attention need head sizes that are multiples of this."""


def pad_plan(model: ModelConfig, multiples: Multiples) -> GrowthPlan:
    """Return the plan that pads a model; its weights are `plan.weights(old, fresh=PADDING)`.

    Raises UserError if a size cannot be padded.
    """
    return plan_growth(model, padded(model, multiples), Correspondence.same(model))


def padded(model: ModelConfig, multiples: Multiples) -> ModelConfig:
    """Return the config with its sizes rounded up. Raises UserError if one cannot be."""
    d_model = multiples.d_model_multiple
    if d_model > 1 and isinstance(model.residual.layout, SlotLayout):
        raise UserError(f"d_model: cannot be padded in a stream of slots ({model.residual.kind}); pad the other sizes")
    if d_model > 1 and model.final_norm.kind == "layer":
        raise UserError(
            "d_model: cannot be padded under layer norms, whose means count zeros; pad other sizes, or grow"
        )
    return with_layers(
        model,
        lambda layer: _padded_layer(layer, multiples),
        d_model=_up(model.d_model, d_model),
        final_norm_width=_up(model.final_norm_width, d_model),
    )


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _padded_layer(layer: LayerConfig, multiples: Multiples) -> dict[str, Any]:
    widths = {name: _up(getattr(layer, name), multiples.d_model_multiple) for name in ("d_model", "d_in", "d_out")}
    hidden: dict[str, Any] = {}
    for name in layer.ffn.hidden_axes:
        size, multiple = getattr(layer.ffn, name), multiples.d_ff_multiple
        hidden[name] = tuple(_up(each, multiple) for each in size) if isinstance(size, tuple) else _up(size, multiple)
    attention = _padded_attention(layer.attention, multiples)
    return {**widths, "attention": attention, "ffn": checked_copy(layer.ffn, "ffn", **hidden)}


def _padded_attention(old: AttentionConfig, multiples: Multiples) -> AttentionConfig:
    head_dim, value_dim = (_up(size, multiples.head_dim_multiple) for size in (old.head_dim, old.value_dim))
    if old.rope is not None and head_dim % 2:
        raise UserError(f"attention.head_dim: {head_dim} is odd, which rotary heads cannot be; pad to an even multiple")
    group = old.n_heads // old.n_kv_heads
    n_kv_heads = _shared_evenly(old.n_kv_heads, group, multiples.heads_multiple)
    n_heads = n_kv_heads * group
    if old.qk_norm is not None and head_dim != old.head_dim:
        raise UserError(
            "attention.head_dim: cannot be padded behind a norm of queries and keys, which would measure zeros"
        )
    if old.qk_norm is not None and old.qk_norm.over == "all_heads" and n_heads != old.n_heads:
        raise UserError("attention.n_heads: cannot be padded behind a norm over all heads, which would measure zeros")
    sizes: dict[str, int | None] = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    if old.v_head_dim is not None:
        sizes["v_head_dim"] = value_dim
    if head_dim != old.head_dim:
        sizes["rope_frequencies"] = None  # growth keeps those of the old pairs
    return old.model_copy(update=sizes)


def _shared_evenly(n_kv_heads: int, group: int, n_devices: int) -> int:
    """Return the smallest number of key-value heads, at least n_kv_heads, that n_devices can share evenly.

    Each device gets equally many of them, or a copy of one, and equally many of the query heads that read them.
    """
    for n in range(n_kv_heads, _up(n_kv_heads, n_devices)):
        if (n % n_devices == 0 or n_devices % n == 0) and n * group % n_devices == 0:
            return n
    return _up(n_kv_heads, n_devices)


def pad_heads_plan(model: ModelConfig, multiple: int = KERNEL_MULTIPLE) -> GrowthPlan:
    """Return the plan that pads all heads, of values too, to one size: the largest rounded up to a multiple.

    New coordinates are 0 in queries, keys and values, so that no score and no sum changes. The softmax scale and the
    divisors of query/key norms stay those of the true size, and each rotary pair keeps its frequency. Raises UserError
    if all heads have that size already, and for a multiple that no kernel has.
    """
    if multiple < 1 or multiple % KERNEL_MULTIPLE:
        raise UserError(f"pad_heads: got {multiple}; allowed: multiples of {KERNEL_MULTIPLE}")
    largest = max(max(layer.attention.head_dim, layer.attention.value_dim) for _, layer in model.named_layers())
    head_dim = _up(largest, multiple)
    new = with_layers(model, lambda layer: {"attention": _with_head_dim(layer.attention, head_dim)})
    if new == model:
        raise UserError(f"pad_heads: got {multiple}; all heads have {largest} coordinates already, so leave it out")
    models = blueprint(model), blueprint(new)
    tensors: dict[str, TensorPlan | Split] = {
        name: TensorPlan.same(name, parameter.shape) for name, parameter in models[1].named_parameters()
    }
    tensors |= {name: TensorPlan(name, maps) for name, maps in _attention_maps(*models)}
    return GrowthPlan(model, new, Correspondence.same(model), tensors)


def _with_head_dim(old: AttentionConfig, head_dim: int) -> AttentionConfig:
    """Resize heads, and write out the constants of the old ones that would follow from their size."""
    if old.head_dim == old.value_dim == head_dim:
        return old
    sized = old.model_copy(update={"head_dim": head_dim, "v_head_dim": None, "rope_frequencies": None})
    return sized.model_copy(update={**kept_rotation(old, sized), "qk_norm": _qk_norm(old)})


def _qk_norm(old: AttentionConfig) -> QKNormConfig | None:
    norm = old.qk_norm
    if norm is None:
        return None
    q_dim, k_dim = (size(norm.axes(heads)) for heads in (old.queries, old.keys))
    return norm.model_copy(update={"q_norm_dim": norm.q_norm_dim or q_dim, "k_norm_dim": norm.k_norm_dim or k_dim})


def _attention_maps(old: Decoder, new: Decoder) -> Iterator[tuple[str, tuple[AxisMap, ...]]]:
    """Yield the maps of every parameter whose axes are those of heads, by name."""
    before: dict[str, nn.Module] = dict(old.named_modules())
    for name, attention in new.named_modules():
        was = before[name]
        if isinstance(attention, Attention) and isinstance(was, Attention):
            heads = AttentionMaps.of(was.config, attention.config)
            for leaf, weight in was.named_modules():
                if isinstance(weight, Weight) and leaf.partition(".")[0] != "norm":
                    yield f"{name}.{leaf}.weight", _maps(weight, heads)


def _maps(weight: Weight, heads: AttentionMaps) -> tuple[AxisMap, ...]:
    """Return the maps of a matrix's rows and columns, or of a vector's entries."""
    sizes = {"head_dim": heads.head_dim, "v_head_dim": heads.v_head_dim}

    def along(axes: Axes) -> AxisMap:
        return product([AxisMap.of(n, sizes.get(name, range(n)), zero=True) for name, n in axes.items()])

    rows = along(weight.out_axes)
    return (rows,) if weight.weight.ndim == 1 else (rows, along(weight.in_axes))
