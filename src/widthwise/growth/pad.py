"""Sizes rounded up for hardware: the same function, with entries that are 0 and stay 0.

Kernels want whole tiles, and tensor parallelism wants as many heads on every device. Padding is growth in which all new
entries are 0. Real growth avoids just that, because a product of two zeros has no gradient.
"""

from collections.abc import Iterator

from torch import nn

from widthwise.config_io import UserError, checked_copy
from widthwise.growth.axis_maps import AttentionMaps, AxisMap, product
from widthwise.growth.choices import Multiples
from widthwise.growth.correspondence import Correspondence
from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.growth.resized import with_layers
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
"""What the fast kernels of attention want a head size to be a multiple of."""


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
    layers = [_layer(layer, multiples, where) for where, layer in model.named_layers()]
    mtp = model.mtp and model.mtp.model_copy(update={"layer": layers.pop()})
    return checked_copy(
        model,
        "model",
        d_model=_up(model.d_model, d_model),
        final_norm_width=_up(model.final_norm_width, d_model),
        layers=tuple(layers),
        mtp=mtp,
    )


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _layer(layer: LayerConfig, multiples: Multiples, where: str) -> LayerConfig:
    widths = {name: _up(getattr(layer, name), multiples.d_model_multiple) for name in ("d_model", "d_in", "d_out")}
    hidden = {name: _hidden(getattr(layer.ffn, name), multiples.d_ff_multiple) for name in layer.ffn.hidden_axes}
    attention = _attention(layer.attention, multiples, f"{where}.attention")
    ffn = checked_copy(layer.ffn, f"{where}.ffn", **hidden)
    return layer.model_copy(update={**widths, "attention": attention, "ffn": ffn})


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


def _hidden(size: int | tuple[int, ...], multiple: int) -> int | tuple[int, ...]:
    return tuple(_up(each, multiple) for each in size) if isinstance(size, tuple) else _up(size, multiple)


def pad_heads_plan(model: ModelConfig, multiple: int = KERNEL_MULTIPLE) -> GrowthPlan:
    """The plan that gives all heads, of values too, the smallest multiple of `multiple` that holds the largest.

    What a head gains is 0 in queries, keys and values, so that no score and no sum changes. The softmax scale and the
    divisors of query/key norms stay those of the true size, and each rotary pair keeps its frequency. Raises UserError
    where all have that size already, and for a multiple that no kernel has.
    """
    if multiple < 1 or multiple % KERNEL_MULTIPLE:
        raise UserError(f"pad_heads: got {multiple}; allowed: multiples of {KERNEL_MULTIPLE}")
    largest = max(max(layer.attention.head_dim, layer.attention.value_dim) for _, layer in model.named_layers())
    head_dim = _up(largest, multiple)
    new = with_layers(model, lambda layer: {"attention": _with_head_dim(layer.attention, head_dim)})
    if new == model:
        raise UserError(f"pad_heads: got {multiple}; all heads have {largest} coordinates already, so leave it out")
    models = blueprint(model), blueprint(new)
    maps = dict(_attention_maps(*models))
    tensors: dict[str, TensorPlan | Split] = {
        name: TensorPlan(name, maps.get(name) or tuple(AxisMap.same(n) for n in parameter.shape))
        for name, parameter in models[1].named_parameters()
    }
    return GrowthPlan(model, new, Correspondence.same(model), tensors)


def _with_head_dim(old: AttentionConfig, head_dim: int) -> AttentionConfig:
    """With the constants of the old one written out, where they would follow from its size."""
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
    """The maps of every parameter whose axes are those of heads, by name."""
    before: dict[str, nn.Module] = dict(old.named_modules())
    for name, attention in new.named_modules():
        was = before[name]
        if isinstance(attention, Attention) and isinstance(was, Attention):
            heads = AttentionMaps.of(was.config, attention.config)
            for leaf, weight in was.named_modules():
                if isinstance(weight, Weight) and leaf.partition(".")[0] != "norm":
                    yield f"{name}.{leaf}.weight", _maps(weight, heads)


def _maps(weight: Weight, heads: AttentionMaps) -> tuple[AxisMap, ...]:
    """The maps of a matrix's rows and columns, or of a vector's entries."""
    sizes = {"head_dim": heads.head_dim, "v_head_dim": heads.v_head_dim}

    def along(axes: Axes) -> AxisMap:
        return product([AxisMap.of(n, sizes.get(name, range(n)), zero=True) for name, n in axes.items()])

    rows = along(weight.out_axes)
    return (rows,) if weight.weight.ndim == 1 else (rows, along(weight.in_axes))
