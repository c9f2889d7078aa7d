"""All heads of a model at one size, as kernels and servers want them: the same function, with entries that are 0.

What a head gains is 0 in queries, keys and values, so that no score and no sum changes. The softmax scale and the
divisors of query/key norms stay those of the true size, and each rotary pair keeps its frequency.
"""

from collections.abc import Iterator

from torch import nn

from widthwise.config_io import UserError, checked_copy
from widthwise.growth.maps.attention import AttentionMaps
from widthwise.growth.maps.axis_map import AxisMap, product
from widthwise.growth.maps.correspondence import Correspondence
from widthwise.growth.plan.model_plan import GrowthPlan
from widthwise.growth.plan.tensor_plan import Split, TensorPlan
from widthwise.growth.target.attention import kept_rotation
from widthwise.model.attention import AttentionConfig
from widthwise.model.attention_module import Attention
from widthwise.model.axes import Axes, Weight, size
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.layer import LayerConfig
from widthwise.model.qk_norm import QKNormConfig

KERNEL_MULTIPLE = 8
"""What the fast kernels of attention want a head size to be a multiple of."""


def pad_heads_plan(model: ModelConfig, multiple: int = KERNEL_MULTIPLE) -> GrowthPlan:
    """The plan that gives all heads, of values too, the smallest multiple of `multiple` that holds the largest.

    Raises UserError where all have that size already, and for a multiple that no kernel has.
    """
    if multiple < 1 or multiple % KERNEL_MULTIPLE:
        raise UserError(f"pad_heads: got {multiple}; allowed: multiples of {KERNEL_MULTIPLE}")
    largest = max(max(layer.attention.head_dim, layer.attention.value_dim) for _, layer in model.named_layers())
    new = _with_heads_of(model, -(-largest // multiple) * multiple)
    if new == model:
        raise UserError(f"pad_heads: got {multiple}; all heads have {largest} coordinates already, so leave it out")
    models = blueprint(model), blueprint(new)
    maps = dict(_attention_maps(*models))
    tensors: dict[str, TensorPlan | Split] = {
        name: TensorPlan(name, maps.get(name) or tuple(AxisMap.same(n) for n in parameter.shape))
        for name, parameter in models[1].named_parameters()
    }
    return GrowthPlan(model, new, Correspondence.same(model), tensors)


def _with_heads_of(model: ModelConfig, head_dim: int) -> ModelConfig:
    mtp = model.mtp
    if mtp is not None:
        mtp = mtp.model_copy(update={"layer": _layer(mtp.layer, head_dim)})
    return checked_copy(model, "model", layers=tuple(_layer(layer, head_dim) for layer in model.layers), mtp=mtp)


def _layer(layer: LayerConfig, head_dim: int) -> LayerConfig:
    return layer.model_copy(update={"attention": _attention(layer.attention, head_dim)})


def _attention(old: AttentionConfig, head_dim: int) -> AttentionConfig:
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
