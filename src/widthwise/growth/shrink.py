"""A smaller model out of a trained one: parts brought into an order of need, then the last ones cut off.

Hidden units, groups of heads and coordinates of a plain stream may stand in any order, and under RMS norms whose gains
are folded into the matrices behind them the stream may be turned by any orthogonal matrix: neither changes the
function. So all that is lost is lost by the cut, which keeps the leading entries of every axis.

A layer narrower than the stream reads and writes its first coordinates; the rest is carried past it (arXiv:2606.18246),
so that later layers lose nothing of it. SliceGPT (arXiv:2401.15024) turns the stream in the same way and cuts the same
coordinates out of all layers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from widthwise.config_io import UserError, checked_copy, mistakes_at
from widthwise.growth.correspondence import AxisMap, product
from widthwise.growth.rules import TABLES
from widthwise.model.axes import Norm, Vector, Weight
from widthwise.model.config import ModelConfig
from widthwise.model.cost import Axes
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.layer import LayerConfig
from widthwise.model.residual.interface import PrefixLayout

ROWS_AT_ONCE = 2048
"""Rows that are turned in float64 at a time."""


class LayerSizes(NamedTuple):
    """The sizes of one layer that a cut can reduce."""

    d_model: int
    n_kv_heads: int
    """Groups of query heads, which are kept or cut whole."""
    n_hidden: int


class Order(NamedTuple):
    """The new order of the parts of a model; of an index, the old position at each new one."""

    stream: Tensor | None = None
    """int64 (d_model,), or an orthogonal matrix (d_model, d_model) whose column j is the new coordinate j; None: as it
    is."""
    groups: Sequence[Tensor] = ()
    """int64 (n_kv_heads,) for each layer; empty: as they are."""
    units: Sequence[Tensor] = ()
    """int64 (n_hidden,) for each layer; empty: as they are."""


def hidden_field(layer: LayerConfig) -> str:
    """Return the field that counts hidden units. Raises UserError where their order matters, or there are several."""
    fields = layer.ffn.hidden_axes
    if list(fields.values()) != ["d_ff"] or not layer.ffn.bakes_with_one_eps:
        raise UserError(f"ffn.kind: got {layer.ffn.kind}; only feed-forwards of one row of like units are cut")
    return next(iter(fields))


def layer_sizes(model: ModelConfig) -> list[LayerSizes]:
    """Return the sizes of every layer, first to last."""
    return [
        LayerSizes(layer.d_model, layer.attention.n_kv_heads, getattr(layer.ffn, hidden_field(layer)))
        for layer in model.layers
    ]


def check_can_shrink(model: ModelConfig) -> None:
    """Raise UserError for a model whose parts stand in an order that matters, or whose stream has several slots."""
    layout = model.residual.layout
    if not (isinstance(layout, PrefixLayout) and layout.resize == "carry"):
        raise UserError(
            f"residual.kind: got {model.residual.kind}; only models of a plain residual with resize carry are cut"
        )
    if model.mtp is not None:
        raise UserError("mtp: further heads cannot be cut; the model without them can be exported and imported")
    for where, layer in model.named_layers():
        with mistakes_at(where):
            hidden_field(layer)
        if layer.attention.qk_norm is not None and layer.attention.qk_norm.over == "all_heads":
            raise UserError(f"{where}.attention.qk_norm.over: got all_heads; without some of them it is another norm")


def why_not_turned(model: ModelConfig) -> str | None:
    """Return the reason for which the stream cannot be turned, only put into another order; None if it can."""
    if model.tie_embeddings:
        return "tie_embeddings: the gains of the last norm cannot be folded into a head that is also the embedding"
    if model.final_norm.kind != "rms" or model.final_norm.stat_width is not None:
        return f"final_norm.kind: got {model.final_norm.kind}; only an rms norm of the whole stream is blind to turning"
    for where, layer in model.named_layers():
        if layer.norm_placement != "pre" or layer.ffn.norm_placement("pre") != "pre":
            return f"{where}.norm_placement: gains behind a sublayer cannot be folded into a matrix"
        if {layer.d_in, layer.d_model, layer.d_out} != {model.d_model}:
            return f"{where}.d_model: got {layer.d_model}; a layer that owns part of the stream must keep that part"
        if any(norm.kind != "rms" or norm.stat_width for norm in (layer.attention_norm, layer.ffn_norm)):
            return f"{where}.attention_norm.kind: only an rms norm of the whole stream is blind to turning"
    return None


def readers(sublayer: nn.Module) -> list[Weight]:
    """Return the matrices of a sublayer that read the stream."""
    found = (each for each in sublayer.modules() if isinstance(each, Weight))
    return [each for each in found if "d_model" in each.in_axes and "d_model" not in each.out_axes]


@torch.no_grad()
def fold_gains(model: Decoder) -> None:
    """Multiply the gains of all norms of the stream into the matrices that read it, in place; the gains become 1.

    The function stays the same. Raises UserError where it could not; see `why_not_turned`.
    """
    if reason := why_not_turned(model.config):
        raise UserError(reason)
    sites = [(part.norm, readers(part)) for part in sublayers(model).values()]
    for norm, matrices in [*sites, (model.exit.norm, [model.head])]:
        for matrix in matrices:
            matrix.weight.mul_(norm.weight)
        norm.weight.fill_(1.0)


def sublayers(model: Decoder) -> dict[str, nn.Module]:
    """Return attention and feed-forward of every layer, first to last, by their names in the model."""
    names = [f"layers.{i}.{part}" for i in range(model.config.n_layers) for part in ("attention", "ffn")]
    return {name: model.get_submodule(name) for name in names}


@torch.no_grad()
def reorder(model: Decoder, order: Order) -> None:
    """Bring the parts of a model into another order, in place, which leaves its function as it is.

    A stream is turned by a matrix only after `fold_gains`.
    """
    turn = order.stream if order.stream is not None and order.stream.dim() == 2 else None
    done: set[int] = set()  # a tied head shares its parameter with the embedding
    for name, owner in model.named_modules():
        if not isinstance(owner, Weight) or id(owner.weight) in done:
            continue
        done.add(id(owner.weight))
        places = {} if turn is not None or order.stream is None else {"d_model": order.stream}
        if (layer := _layer_of(name)) is not None:
            places |= _places_in_layer(model.config.layers[layer], order, layer)
        weight = owner.weight
        for dim, axes in enumerate(dimensions(owner)):
            if places.keys() & axes.keys():
                maps = [AxisMap.of(n, places.get(axis, torch.arange(n))) for axis, n in axes.items()]
                weight.copy_(weight.index_select(dim, product(maps).index.to(weight.device)))
            if turn is not None and list(axes) == ["d_model"] and not isinstance(owner, Norm):
                for rows in torch.atleast_2d(weight.movedim(dim, -1)).split(ROWS_AT_ONCE):  # in float64 a few at a time
                    rows.copy_(rows.double() @ turn.to(weight.device))


def _places_in_layer(layer: LayerConfig, order: Order, index: int) -> dict[str, Tensor]:
    places = {}
    if order.groups:
        groups, size = order.groups[index], layer.attention.n_heads // layer.attention.n_kv_heads
        places = {"n_kv_heads": groups, "n_heads": (groups[:, None] * size + torch.arange(size)).flatten()}
    if order.units:
        places["d_ff"] = order.units[index]
    return places


def _layer_of(name: str) -> int | None:
    path = name.split(".")
    return int(path[1]) if path[0] == "layers" else None


def dimensions(owner: Weight) -> tuple[Axes, ...]:
    """Return the named axes of each dimension of a weight."""
    if isinstance(owner, (Vector, Norm)):
        return (owner.out_axes,)
    return (owner.in_axes, owner.out_axes) if isinstance(owner, TABLES) else (owner.out_axes, owner.in_axes)


def smaller_layer(layer: LayerConfig, size: LayerSizes, where: str) -> LayerConfig:
    """Return a layer with these sizes. Raises UserError for one that is larger than it was. where: its path."""
    attention, field = layer.attention, hidden_field(layer)
    before = LayerSizes(layer.d_model, attention.n_kv_heads, getattr(layer.ffn, field))
    for name, n_new, n_old in zip(LayerSizes._fields, size, before):
        if n_new > n_old:
            raise UserError(f"{where}.{name}: got {n_new} where there are {n_old}; a cut adds nothing")
    n_heads = attention.n_heads // attention.n_kv_heads * size.n_kv_heads
    changes = {name: min(getattr(layer, name), size.d_model) for name in ("d_in", "d_model", "d_out")}
    norms = {
        name: getattr(layer, name).model_copy(update={"norm_dim": size.d_model, "stat_width": None})
        for name in ("attention_norm", "ffn_norm")
        if size.d_model < layer.d_model
    }
    heads = {"n_heads": n_heads, "n_kv_heads": size.n_kv_heads}
    parts = {
        "attention": checked_copy(attention, f"{where}.attention", **heads),
        "ffn": checked_copy(layer.ffn, f"{where}.ffn", **{field: size.n_hidden}),
    }
    return checked_copy(layer, where, **changes, **norms, **parts)


def smaller_config(model: ModelConfig, sizes: Sequence[LayerSizes], d_model: int | None = None) -> ModelConfig:
    """Return the model with these sizes of its layers, and with the whole stream cut to d_model if given.

    Raises UserError for sizes that are larger than they were, and for a model that cannot be cut.
    """
    check_can_shrink(model)
    if len(sizes) != model.n_layers:
        raise UserError(f"n_layers: got sizes of {len(sizes)} layers; the model has {model.n_layers}, and all stay")
    d_model = d_model or model.d_model
    layers = tuple(
        smaller_layer(layer, size._replace(d_model=min(size.d_model, d_model)), f"layers.{i}")
        for i, (layer, size) in enumerate(zip(model.layers, sizes, strict=True))
    )
    width, final = min(model.final_norm_width, d_model), model.final_norm
    if width < model.final_norm_width:
        final = final.model_copy(update={"norm_dim": width})
    return checked_copy(model, "model", d_model=d_model, layers=layers, final_norm=final, final_norm_width=width)


def cut(model: Decoder, smaller: ModelConfig, energy_kept: Mapping[str, float]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of the smaller model: the leading entries of every axis.

    energy_kept: by norm, the share of the squares of its input that lie in the coordinates that it still reads; its
    gain then makes its output as large as it was. 1 where not given.
    """
    old = dict(model.named_modules())
    seen: set[int] = set()
    for name, owner in blueprint(smaller).named_modules():
        if not isinstance(owner, Weight) or id(owner.weight) in seen:
            continue
        seen.add(id(owner.weight))
        before = old[name]
        assert isinstance(before, Weight)
        weight = before.weight.detach()
        for dim, (axes, kept) in enumerate(zip(dimensions(before), dimensions(owner), strict=True)):
            if axes == kept:
                continue
            index = product([AxisMap.of(n, torch.arange(kept[axis])) for axis, n in axes.items()]).index
            weight = weight.index_select(dim, index.to(weight.device))
        if isinstance(owner, Norm) and isinstance(before, Norm) and owner.norm_dim != before.norm_dim:
            weight = weight * math.sqrt(energy_kept.get(name, 1.0) * before.norm_dim / owner.norm_dim)
        yield f"{name}.weight", weight
