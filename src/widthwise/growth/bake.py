"""Other forms of the same function for export: standard constants, and heads of one padded size.

A grown model keeps the attention scale, norm divisors and rotary frequencies of the model it comes from. The standard
forms are 1 / sqrt(head_dim), the width, and base^(-2i / head_dim); with them the model computes the same function once
some tensors are multiplied by constants. The optimizer must know these factors (`plan.grown_factors`).

In formats with one eps for all norms, changed gains are not enough, because gains do not scale eps. For them the whole
stream is multiplied by one factor c: norms then see c^2 times the sum of squares over a divisor c^2 times as large, so
that an unchanged eps keeps its relative size.

Kernels need whole tiles, and tensor parallelism needs equally many heads on every device. Padding of heads is growth in
which all new entries are 0 and stay 0. Real growth avoids that, because a product of two zeros has no gradient.
"""

import math
from collections.abc import Iterator

from widthwise.growth.correspondence import AttentionMaps, AxisMap, Correspondence, product
from widthwise.growth.plan import GrowthPlan
from widthwise.growth.resizing import norms_of, with_layers, with_norms
from widthwise.growth.target import kept_rotation
from widthwise.growth.tensor_plan import TensorPlan
from widthwise.kernels.rotary import base_of
from widthwise.mistakes import UserError
from widthwise.model.attention import SCALES, AttentionConfig
from widthwise.model.attention_module import Attention
from widthwise.model.axes import LayerNorm, Linear, Norm, Weight
from widthwise.model.config import ModelConfig
from widthwise.model.cost import size
from widthwise.model.decoder import Decoder, blueprint, parameter_shapes
from widthwise.model.ffn.interface import FEED_FORWARDS
from widthwise.model.kinds import kind_of
from widthwise.model.norm import NormConfig

TOLERANCE = 1e-12
"""Relative difference below which two numbers are equal up to rounding."""


def bake_plan(config: ModelConfig, one_eps: bool = False) -> GrowthPlan:
    """Return the plan that gives a model the constants its sizes imply; unaffected tensors stay bitwise equal.

    Attention: the scale becomes 1 / sqrt(head_dim), compensated in the keys or the gain of their norm; a scale of
    1 / head_dim stays, unless one_eps. A query/key norm divides by the number of coordinates it covers. Rotary
    frequencies become a base if one generates them. Every other norm divides by its width, compensated in gain and eps.

    one_eps: keep eps, for formats with a single eps for the whole model; weights that write the stream are multiplied
    instead (see `stream_factors`). Raises UserError if that is impossible.

    Not changed: `stat_width`, frequency tables that no base generates, and `grown_from`.
    """

    def baked(where: str, norm: NormConfig, width: int) -> NormConfig:
        """Return the norm with the divisor `width`, which it has in a model that never grew."""
        if one_eps:
            return norm.model_copy(update={"norm_dim": width})
        if norm.stat_width is not None or norm.norm_dim == width:
            return norm
        # S / n + eps = (width / n) (S / width + eps n / width), where S is the sum of squares and n the divisor.
        return norm.model_copy(update={"norm_dim": width, "eps": norm.eps * norm.norm_dim / width})

    c = _stream_scale(config) if one_eps else 1.0
    new = with_layers(config, lambda _, layer: {"attention": _attention(layer.attention, one_eps)})
    new = with_norms(new, baked, residual=config.residual.baked())
    old_model = blueprint(config)
    new_model = blueprint(new)
    parameters = dict(new_model.named_parameters())
    factors = dict.fromkeys(parameters, 1.0)
    norm_factors = _norm_factors(old_model, new_model) if c == 1.0 else stream_factors(new_model, c)
    for name, factor in (*norm_factors, *_attention_factors(old_model, new_model)):
        factors[name] *= factor
    tensors: dict[str, TensorPlan] = {}
    for name, parameter in parameters.items():
        # Factors that cancel up to rounding are exactly 1, so that their tensors are not touched.
        scale = 1.0 if math.isclose(factors[name], 1.0, rel_tol=TOLERANCE) else factors[name]
        owner = new_model.get_submodule(name.rpartition(".")[0])
        offset = owner.gain_offset if isinstance(owner, Norm) else 0.0
        tensors[name] = TensorPlan.same(name, parameter.shape, scale=scale, shift=offset * (scale - 1.0))
    return GrowthPlan(config, new, Correspondence.same(config), tensors)


def _attention(attention: AttentionConfig, one_eps: bool) -> AttentionConfig:
    """Return attention with its usual scale, divisors of query/key norms, and rotary base."""
    rules = ("1/sqrt(head_dim)",) if one_eps else ("1/sqrt(head_dim)", "1/head_dim")
    usual_scales = [SCALES[rule](attention.head_dim) for rule in rules]
    is_usual = any(math.isclose(attention.scale, scale, rel_tol=TOLERANCE) for scale in usual_scales)
    qk_norm = attention.qk_norm
    if qk_norm is not None:
        qk_norm = qk_norm.model_copy(update={"q_norm_dim": None, "k_norm_dim": None})
    base = attention.rope_base
    if base is not None and attention.rope_frequencies is not None:
        base = base_of(attention.rope_frequencies, base)
    rotation = {} if base is None else {"rope_base": base, "rope_frequencies": None}
    scale = attention.scale if is_usual else usual_scales[0]
    return attention.model_copy(update={"scale": scale, "qk_norm": qk_norm, **rotation})


def _attention_factors(old: Decoder, new: Decoder) -> Iterator[tuple[str, float]]:
    """Yield (parameter name, factor) to fold the score scale into keys, and new divisors into queries, keys and gains.

    The input of a norm is multiplied by the root of the ratio of its divisors, and its gain is divided by it. The eps,
    which queries and keys share, then keeps its effect.
    """
    for name, before in old.named_modules():
        if not isinstance(before, Attention):
            continue
        after = new.get_submodule(name)
        assert isinstance(after, Attention)
        score_factor = before.config.scale / after.config.scale
        if before.config.qk_norm is None:
            yield from scaled(f"{name}.w_k", before.w_k, score_factor)
            continue
        for letter, factor in (("q", 1.0), ("k", score_factor)):
            norm = f"{letter}_norm"
            root = math.sqrt(getattr(after, norm).norm_dim / getattr(before, norm).norm_dim)
            yield from scaled(f"{name}.w_{letter}", getattr(before, f"w_{letter}"), root)
            yield f"{name}.{norm}.weight", factor / root


def _norm_factors(old: Decoder, new: Decoder) -> Iterator[tuple[str, float]]:
    """Yield (parameter name, factor) of the gains of all norms except query/key norms.

    Gain and eps compensate a new divisor.
    """
    parts = dict(new.named_modules())
    for name, before in old.named_modules():
        if not isinstance(before, Norm) or name.rpartition(".")[2] in ("q_norm", "k_norm"):
            continue
        after = parts[name]
        assert isinstance(after, Norm)
        if not math.isclose(before.eps * before.norm_dim, after.eps * after.norm_dim, rel_tol=TOLERANCE):
            raise UserError(
                f"{name}: divides by {before.norm_dim} and shares its eps with norms that divide by another size; no "
                "standard form fits them all"
            )
        yield f"{name}.weight", before.gain_factor(after)


def _stream_scale(config: ModelConfig) -> float:
    """Return the factor c of the stream; 1 if every norm divides by its width. Raises UserError if none suits all."""
    is_usual = all(norm.norm_dim == width for _, norm, width in norms_of(config))
    if is_usual and config.residual.baked() == config.residual:
        return 1.0
    if not config.residual.is_sum:
        raise UserError(f"residual.kind: got {config.residual.kind}; one eps needs norms of a plain residual")
    if config.mtp is not None:
        raise UserError("mtp: MTP heads have separate norms; one eps needs a model without MTP heads")
    for where, norm, width in norms_of(config):
        if norm.stat_width is not None:
            raise UserError(f"{where}.stat_width: got {norm.stat_width}; one eps needs norms that measure all {width}")
    widths = {config.d_model, config.final_norm_width}
    widths |= {width for layer in config.layers for width in layer.widths}
    if len(widths) > 1:
        raise UserError(f"d_model: got widths {sorted(widths)}; one eps needs layers that are all equally wide")
    divisors = {norm.norm_dim for _, norm, _ in norms_of(config)}
    if len(divisors) > 1:
        raise UserError(
            f"norm_dim: got {sorted(divisors)}; one eps needs norms that all divide by the same number, because one "
            "factor scales the whole stream"
        )
    for where, layer in config.named_layers():
        if not layer.ffn.bakes_with_one_eps:
            allowed = ", ".join(kind_of(config) for config in FEED_FORWARDS.configs if config.bakes_with_one_eps)
            raise UserError(f"{where}.ffn.kind: got {layer.ffn.kind}; one eps needs one of {allowed}")
    return math.sqrt(config.d_model / config.final_norm.norm_dim)


def scaled(name: str, matrix: Linear, factor: float) -> Iterator[tuple[str, float]]:
    """Yield (parameter name, factor) of a matrix, and of its bias if it has one. name: of the matrix."""
    yield f"{name}.weight", factor
    if matrix.bias is not None:
        yield f"{name}.bias.weight", factor


def stream_factors(model: Decoder, c: float) -> Iterator[tuple[str, float]]:
    """Yield (parameter name, factor) to multiply all that writes the stream by c, and divide all that reads it by c."""
    yield "embedding.weight", c
    if model.positions is not None:
        yield "positions.weight", c
    for i, layer in enumerate(model.layers):
        for part in ("attention", "ffn"):
            name = f"layers.{i}.{part}"
            sublayer = layer.get_submodule(part)
            # A norm after the sublayer sees c times the update over c^2 times the divisor, so that eps keeps its
            # effect. Its output is then c times as large with an unchanged gain; only its bias must be multiplied.
            is_normed_after = isinstance(sublayer.norm, Norm) and sublayer.norm.is_after
            if not is_normed_after:
                yield f"{name}.norm.weight", 1 / c
            for leaf, matrix in sublayer.named_modules():
                if isinstance(matrix, LayerNorm) and matrix.is_after:
                    yield f"{name}.{leaf}.bias.weight", c
                elif isinstance(matrix, Linear) and "d_model" in matrix.out_axes:
                    yield from scaled(f"{name}.{leaf}", matrix, c)
                elif isinstance(matrix, Linear) and is_normed_after and "d_model" in matrix.in_axes:
                    yield f"{name}.{leaf}.weight", 1 / c
    head_factor = c if model.config.tie_embeddings else 1.0
    yield "exit.norm.weight", 1 / (c * head_factor)
    if model.config.final_norm.kind == "layer":
        yield "exit.norm.bias.weight", 1 / head_factor


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
    padded = blueprint(new)
    tensors = {name: TensorPlan.same(name, shape) for name, shape in parameter_shapes(model).items()}
    for name, attention in blueprint(model).named_modules():
        wider = padded.get_submodule(name)
        if not (isinstance(attention, Attention) and isinstance(wider, Attention)):
            continue
        heads = AttentionMaps.of(attention.config, wider.config)
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
