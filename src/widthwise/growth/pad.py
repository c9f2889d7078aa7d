"""Head sizes rounded up for hardware: the same function, with entries that are 0 and stay 0.

Kernels need whole tiles, and tensor parallelism needs equally many heads on every device. Padding is growth in which
all new entries are 0. Real growth avoids that, because a product of two zeros has no gradient.
"""

from torch import nn

from widthwise.growth.correspondence import AttentionMaps, AxisMap, Correspondence, product
from widthwise.growth.plan import GrowthPlan
from widthwise.growth.resizing import with_layers
from widthwise.growth.target import kept_rotation
from widthwise.growth.tensor_plan import TensorPlan
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.attention_module import Attention
from widthwise.model.axes import Weight, size
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import blueprint, parameter_shapes

KERNEL_MULTIPLE = 8
"""Fast kernels of attention need head sizes that are multiples of this."""


def pad_heads_plan(model: ModelConfig, multiple: int = KERNEL_MULTIPLE) -> GrowthPlan:
    """Return the plan that pads all heads, including value heads, to the largest size rounded up to a multiple.

    New coordinates are 0 in queries, keys and values, so that no score and no sum changes. The softmax scale and the
    divisors of query/key norms stay, and each rotary pair keeps its frequency. Raises UserError if all heads have that
    size already, or if multiple is not a multiple of KERNEL_MULTIPLE.
    """
    if multiple < 1 or multiple % KERNEL_MULTIPLE:
        raise UserError(f"pad_heads: got {multiple}; allowed: multiples of {KERNEL_MULTIPLE}")
    largest = max(max(layer.attention.head_dim, layer.attention.value_dim) for _, layer in model.named_layers())
    head_dim = -(-largest // multiple) * multiple
    new = with_layers(model, lambda _, layer: {"attention": _with_head_dim(layer.attention, head_dim)})
    if new == model:
        raise UserError(f"pad_heads: got {multiple}; all heads have {largest} coordinates already, so omit it")
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
                        product([AxisMap.of(n, index.get(axis, range(n)), zero=True) for axis, n in axes.items()])
                        for axes in weight.dimensions
                    )
                    source = f"{name}.{leaf}.weight"
                    tensors[source] = TensorPlan(source, maps)
    return GrowthPlan(model, new, Correspondence.same(model), tensors)


def _with_head_dim(old: AttentionConfig, head_dim: int) -> AttentionConfig:
    """Resize heads, and write out constants of the old heads that would otherwise follow from the size."""
    if old.head_dim == old.value_dim == head_dim:
        return old
    norm = old.qk_norm
    if norm is not None:
        q_dim, k_dim = (size(norm.axes(heads)) for heads in (old.queries, old.keys))
        dims = {"q_norm_dim": norm.q_norm_dim or q_dim, "k_norm_dim": norm.k_norm_dim or k_dim}
        norm = norm.model_copy(update=dims)
    sized = old.model_copy(update={"head_dim": head_dim, "v_head_dim": None, "rope_frequencies": None})
    return sized.model_copy(update={**kept_rotation(old, sized), "qk_norm": norm})
