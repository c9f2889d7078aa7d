"""Sizes rounded up for hardware: the same function, with entries that are 0 and stay 0.

Kernels want whole tiles, and tensor parallelism wants as many heads on every device. Padding is growth in which all new
entries are 0. Real growth avoids just that, because a product of two zeros has no gradient.
"""

from typing import Any

from torch import nn

from widthwise.config_io import UserError, checked_copy
from widthwise.growth.choices import Multiples
from widthwise.growth.correspondence import AttentionMaps, AxisMap, Correspondence, product
from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.growth.resizing import with_layers
from widthwise.growth.target import kept_rotation
from widthwise.growth.tensor_plan import Constant, TensorPlan
from widthwise.model.attention import AttentionConfig
from widthwise.model.attention_module import Attention
from widthwise.model.axes import Weight, size
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import blueprint, parameter_shapes
from widthwise.model.layer import LayerConfig
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
        raise UserError("d_model: cannot be padded under layer norms, whose means count zeros; pad other sizes or grow")
    widths = {name: _up(getattr(model, name), d_model) for name in ("d_model", "final_norm_width")}
    return with_layers(model, lambda _, layer: _padded_layer(layer, multiples), **widths)


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
    # Each device gets equally many key-value heads, or a copy of one, and equally many query heads that read them.
    n_devices = multiples.heads_multiple
    most = _up(old.n_kv_heads, n_devices)
    shared = (n for n in range(old.n_kv_heads, most) if n % n_devices == 0 or n_devices % n == 0)
    n_kv_heads = next((n for n in shared if n * group % n_devices == 0), most)
    n_heads = n_kv_heads * group
    if old.qk_norm is not None and head_dim != old.head_dim:
        raise UserError("attention.head_dim: cannot be padded behind a norm of queries and keys, which measures zeros")
    if old.qk_norm is not None and old.qk_norm.over == "all_heads" and n_heads != old.n_heads:
        raise UserError("attention.n_heads: cannot be padded behind a norm over all heads, which would measure zeros")
    sizes: dict[str, int | None] = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    if old.v_head_dim is not None:
        sizes["v_head_dim"] = value_dim
    if head_dim != old.head_dim:
        sizes["rope_frequencies"] = None  # growth keeps those of the old pairs
    return old.model_copy(update=sizes)


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
    new = with_layers(model, lambda _, layer: {"attention": _with_head_dim(layer.attention, head_dim)})
    if new == model:
        raise UserError(f"pad_heads: got {multiple}; all heads have {largest} coordinates already, so leave it out")
    new_modules: dict[str, nn.Module] = dict(blueprint(new).named_modules())
    tensors = {name: TensorPlan.same(name, shape) for name, shape in parameter_shapes(model).items()}
    for name, attention in blueprint(model).named_modules():
        grown = new_modules[name]
        if isinstance(attention, Attention) and isinstance(grown, Attention):
            heads = AttentionMaps.of(attention.config, grown.config)
            index = {"head_dim": heads.head_dim, "v_head_dim": heads.v_head_dim}
            for leaf, weight in attention.named_modules():
                if isinstance(weight, Weight) and leaf.partition(".")[0] != "norm":
                    maps = tuple(
                        product([AxisMap.of(n, index.get(axis, range(n)), zero=True) for axis, n in each.items()])
                        for each in weight.dimensions
                    )
                    source = f"{name}.{leaf}.weight"
                    tensors[source] = TensorPlan(source, maps)
    return GrowthPlan(model, new, Correspondence.same(model), tensors)


def _with_head_dim(old: AttentionConfig, head_dim: int) -> AttentionConfig:
    """Resize heads, and write out the constants of the old ones that would follow from their size."""
    if old.head_dim == old.value_dim == head_dim:
        return old
    norm = old.qk_norm
    if norm is not None:
        q_dim, k_dim = (size(norm.axes(heads)) for heads in (old.queries, old.keys))
        dims = {"q_norm_dim": norm.q_norm_dim or q_dim, "k_norm_dim": norm.k_norm_dim or k_dim}
        norm = norm.model_copy(update=dims)
    sized = old.model_copy(update={"head_dim": head_dim, "v_head_dim": None, "rope_frequencies": None})
    return sized.model_copy(update={**kept_rotation(old, sized), "qk_norm": norm})
