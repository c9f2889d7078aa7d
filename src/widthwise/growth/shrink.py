"""A smaller model cut out of a trained one: parts are sorted by need, then the last ones are cut off.

Hidden units, experts, groups of heads and coordinates of a plain stream may be in any order, and under RMS norms
whose gains are folded into the matrices after them the stream may be turned by any orthogonal matrix: neither changes
the function. Only the cut loses something; it keeps the leading entries of every axis. Layers stay in their order; one
without entries is removed.

A layer narrower than the stream reads and writes its first coordinates; the rest is carried past it (arXiv:2606.18246),
so that later layers can still read it. SliceGPT (arXiv:2401.15024) turns the stream in the same way and cuts the same
coordinates out of all layers, as does a cut of the whole stream here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from widthwise.config_io import checked_copy, mistakes_at
from widthwise.growth.correspondence import Correspondence
from widthwise.mistakes import UserError
from widthwise.model.axes import Norm, Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.residual.interface import PrefixLayout

ROWS_AT_ONCE = 2048
"""Rows turned in float64 at a time."""


class LayerSizes(NamedTuple):
    """The sizes of one layer that a cut can reduce; all are 0 in a removed layer."""

    d_model: int
    n_kv_heads: int
    """Groups of query heads, which are kept or cut as a whole."""
    n_hidden: int
    """Hidden units; in a mixture, of each expert."""
    n_experts: int = 1
    """Routed experts of a mixture; 1 for any other feed-forward."""


REMOVED = LayerSizes(0, 0, 0, 0)
"""The sizes of a removed layer."""


class Order(NamedTuple):
    """The new order of the parts of a model. An index holds the old position for each new one; empty: unchanged."""

    stream: Tensor | None = None
    """int64 (d_model,), or an orthogonal matrix (d_model, d_model) whose column j is the new coordinate j; None:
    unchanged."""
    groups: Sequence[Tensor] = ()
    """int64 (n_kv_heads,) for each layer."""
    experts: Sequence[Tensor] = ()
    """int64 (n_experts,) for each layer."""
    units: Sequence[Tensor] = ()
    """int64 (n_experts, n_hidden) for each layer, with the experts in their new order."""


def ffn_fields(layer: LayerConfig) -> dict[str, str]:
    """Return a dict from fields of `LayerSizes` to the fields of a feed-forward.

    Raises UserError if the order of hidden units matters, or if there are several rows of them.
    """
    ffn = layer.ffn
    if isinstance(ffn, MoEConfig):
        return {"n_hidden": "d_expert", "n_experts": "n_experts"}
    if len(ffn.hidden_axes) != 1 or not ffn.bakes_with_one_eps:
        raise UserError(f"ffn.kind: got {ffn.kind}; can be cut: feed-forwards with one row of units in any order")
    return {"n_hidden": next(iter(ffn.hidden_axes))}


def layer_size(layer: LayerConfig) -> LayerSizes:
    """Return the sizes of a layer."""
    sizes = {name: getattr(layer.ffn, field) for name, field in ffn_fields(layer).items()}
    return LayerSizes(layer.d_model, layer.attention.n_kv_heads, **sizes)


def layer_sizes(model: ModelConfig) -> list[LayerSizes]:
    """Return the sizes of every layer, first to last."""
    return [layer_size(layer) for layer in model.layers]


def check_can_shrink(model: ModelConfig) -> None:
    """Raise UserError for a model in which the order of parts matters, or whose stream has several slots."""
    layout = model.residual.layout
    if not (isinstance(layout, PrefixLayout) and layout.resize == "carry"):
        raise UserError(
            f"residual.kind: got {model.residual.kind}; needs a plain residual with resize carry, in which coordinates "
            "that a layer no longer reads stay unchanged"
        )
    if model.mtp is not None:
        raise UserError("mtp: MTP heads cannot be cut; the model without them can be exported and imported")
    for where, layer in model.named_layers():
        with mistakes_at(where):
            ffn_fields(layer)
        if layer.attention.qk_norm is not None and layer.attention.qk_norm.over == "all_heads":
            raise UserError(
                f"{where}.attention.qk_norm.over: got all_heads; that norm changes if heads are cut; cut a model with "
                "over: head or without the norm (Llama, Qwen), or train a smaller one with train.distill"
            )


def why_not_turned(model: ModelConfig) -> str | None:
    """Return the reason why the stream can be sorted but not turned; None if it can be turned."""
    if model.tie_embeddings:
        return "tie_embeddings: the gains of the last norm cannot be folded into a head that is also the embedding"
    if model.final_norm.kind != "rms" or model.final_norm.stat_width is not None:
        return f"final_norm.kind: got {model.final_norm.kind}; only an rms norm of the whole stream ignores turning"
    for where, layer in model.named_layers():
        if layer.norm_placement != "pre":
            return f"{where}.norm_placement: gains after a sublayer cannot be folded into a matrix"
        if {layer.d_in, layer.d_model, layer.d_out} != {model.d_model}:
            return f"{where}.d_model: got {layer.d_model}; a layer that owns part of the stream must keep that part"
        if any(norm.kind != "rms" or norm.stat_width for norm in (layer.attention_norm, layer.ffn_norm)):
            return f"{where}.attention_norm.kind: only an rms norm of the whole stream ignores turning"
    return None


def readers(sublayer: nn.Module) -> list[Weight]:
    """Return the matrices of a sublayer that read the stream."""
    weights = [module for module in sublayer.modules() if isinstance(module, Weight)]
    return [weight for weight in weights if "d_model" in weight.in_axes and "d_model" not in weight.out_axes]


@torch.no_grad()
def fold_gains(model: Decoder) -> None:
    """Multiply the gains of all norms of the stream into the matrices that read it, in place; the gains become 1.

    The function stays the same. Raises UserError if that is impossible; see `why_not_turned`.
    """
    if reason := why_not_turned(model.config):
        raise UserError(reason)
    sites = [(part.norm, readers(part)) for part in sublayers(model).values()]
    for norm, matrices in [*sites, (model.exit.norm, [model.head])]:
        for matrix in matrices:
            matrix.weight.mul_(norm.weight + norm.gain_offset)
        norm.weight.fill_(1.0 - norm.gain_offset)


def sublayers(model: Decoder) -> dict[str, nn.Module]:
    """Return attention and feed-forward of every layer, first to last, by their names in the model."""
    names = [f"layers.{i}.{part}" for i in range(model.config.n_layers) for part in ("attention", "ffn")]
    return {name: model.get_submodule(name) for name in names}


@torch.no_grad()
def reorder(model: Decoder, order: Order) -> None:
    """Sort the parts of a model in place, which preserves its function.

    To turn the stream by a matrix, call `fold_gains` first.
    """
    turn = order.stream if order.stream is not None and order.stream.dim() == 2 else None
    for name, _ in model.named_parameters():  # a tied head appears once, as the embedding
        owner = model.get_submodule(name.removesuffix(".weight"))
        assert isinstance(owner, Weight), name
        orders = {} if turn is not None or order.stream is None else {"d_model": order.stream}
        if name.startswith("layers."):
            layer = int(name.split(".")[1])
            orders |= _orders_in_layer(model.config.layers[layer], order, layer)
        weight = by_axis(owner)
        axes = [axis for dimension in owner.dimensions for axis in dimension]
        for axis, index in orders.items():
            for dim in _dims(axes, axis):
                rows = index.to(weight.device).view(-1, index.shape[-1])
                if len(rows) == 1:
                    weight.copy_(weight.index_select(dim, rows[0]))
                else:  # an order for each expert
                    shape = {"n_experts": len(rows), axis: rows.shape[1]}
                    weight.copy_(weight.take_along_dim(rows.view([shape.get(axis, 1) for axis in axes]), dim))
        if turn is not None and not isinstance(owner, Norm):
            for dim in _dims(axes, "d_model"):
                turned = torch.atleast_2d(weight.movedim(dim, -1))
                for rows in turned.split(max(1, ROWS_AT_ONCE // math.prod(turned.shape[1:-1]))):  # to save memory
                    rows.copy_(rows.double() @ turn.to(weight.device))


def _dims(axes: Sequence[str], name: str) -> list[int]:
    """Return the dimensions with that name; a matrix may have the stream on both sides."""
    return [dim for dim, axis in enumerate(axes) if axis == name]


def _orders_in_layer(layer: LayerConfig, order: Order, index: int) -> dict[str, Tensor]:
    """Return the new order of each axis of a layer that `order` changes. index: of the layer."""
    orders = {}
    if order.groups:
        groups = order.groups[index]
        size = layer.attention.n_heads // layer.attention.n_kv_heads
        orders = {"n_kv_heads": groups, "n_heads": (groups[:, None] * size + torch.arange(size)).flatten()}
    if order.experts:
        orders["n_experts"] = order.experts[index]
    if order.units:  # after the experts, because units belong to experts in their new order
        orders[layer.ffn.hidden_axes[ffn_fields(layer)["n_hidden"]]] = order.units[index]
    return orders


def by_axis(owner: Weight) -> Tensor:
    """Return a view of a weight with a dimension for each named axis."""
    return owner.weight.detach().view([n for axes in owner.dimensions for n in axes.values()])


def smaller_layer(layer: LayerConfig, size: LayerSizes, where: str, d_model: int | None = None) -> LayerConfig:
    """Return a layer with these sizes. Raises UserError for a larger size. where: path of the layer.

    d_model: width of the smaller stream, to which d_in and d_out of a slim layer are cut; by default the layer's width.
    """
    for name, n_new, n_old in zip(LayerSizes._fields, size, layer_size(layer)):
        check_not_more(f"{where}.{name}", n_new, n_old)
    n_heads = layer.attention.n_heads // layer.attention.n_kv_heads * size.n_kv_heads
    attention = checked_copy(layer.attention, f"{where}.attention", n_heads=n_heads, n_kv_heads=size.n_kv_heads)
    hidden = {field: getattr(size, name) for name, field in ffn_fields(layer).items()}
    ffn = checked_copy(layer.ffn, f"{where}.ffn", **hidden)
    widths = {}
    for name, width in zip(("d_model", "d_in", "d_out"), layer.widths):
        is_slim = width < layer.d_model
        widths[name] = min(width, size.d_model, d_model or size.d_model) if is_slim else size.d_model
    norms = {}
    if size.d_model < layer.d_model:
        for name in ("attention_norm", "ffn_norm"):
            norms[name] = getattr(layer, name).model_copy(update={"norm_dim": size.d_model, "stat_width": None})
    return checked_copy(layer, where, **widths, **norms, attention=attention, ffn=ffn)


def smaller_config(model: ModelConfig, sizes: Sequence[LayerSizes], d_model: int | None = None) -> ModelConfig:
    """Return the model with layers of these sizes, and with the whole stream cut to d_model if given.

    Raises UserError for larger sizes, and for a model that cannot be cut.
    """
    check_can_shrink(model)
    d_model = d_model or model.d_model
    check_not_more("d_model", d_model, model.d_model)
    layers = tuple(
        smaller_layer(layer, size, f"layers.{i}", d_model)
        for i, (layer, size) in enumerate(zip(model.layers, sizes, strict=True))
        if size != REMOVED
    )
    width = min(model.final_norm_width, d_model)
    norm = model.final_norm
    if width < model.final_norm_width:
        norm = norm.model_copy(update={"norm_dim": width, "stat_width": None})
    return checked_copy(model, "model", d_model=d_model, layers=layers, final_norm=norm, final_norm_width=width)


def check_not_more(name: str, n_new: int, n_old: int) -> None:
    """Raise UserError if a size becomes larger."""
    if n_new > n_old:
        raise UserError(f"{name}: got {n_new} where there are {n_old}; a cut adds nothing")


def layers_kept(sizes: Sequence[LayerSizes]) -> Correspondence:
    """Return the old layer of each layer of the smaller model."""
    return Correspondence(tuple(i for i, size in enumerate(sizes) if size != REMOVED))


def cut(
    model: Decoder, smaller: ModelConfig, sizes: Sequence[LayerSizes], energy_kept: Mapping[str, float]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of the smaller model of these sizes: the leading entries of every axis.

    energy_kept: by norm of the model, the share of the squares of its input in the coordinates that it still reads, by
    default 1; the gain is scaled so that the output stays as large as it was.
    """
    correspondence = layers_kept(sizes)
    smaller_model = blueprint(smaller)
    for name, _ in smaller_model.named_parameters():  # a tied head appears once, as the embedding
        owner_name = name.removesuffix(".weight")
        owner = smaller_model.get_submodule(owner_name)
        source = correspondence.old_name(owner_name)
        assert source is not None
        before = model.get_submodule(source)
        assert isinstance(owner, Weight), name
        assert isinstance(before, Weight), name
        weight = by_axis(before)
        leading = [slice(n) for axes in owner.dimensions for n in axes.values()]
        if before.weight.shape != owner.weight.shape:  # a copy, so that the original can be freed
            weight = weight[tuple(leading)].clone(memory_format=torch.contiguous_format)
        weight = weight.view(owner.weight.shape)
        if isinstance(owner, Norm) and isinstance(before, Norm):
            factor = math.sqrt(energy_kept.get(source, 1.0) * before.norm_dim / owner.norm_dim)
            weight = weight * factor + owner.gain_offset * (factor - 1.0)
        yield name, weight
