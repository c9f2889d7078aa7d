"""The choices that a growth leaves open, as a recipe or `widthwise grow` says them, and the config that they ask for.

Sizes that are not named stay. Constants that followed from a size, such as a norm's divisor or the attention scale,
follow the new size here; growth then reports where it keeps the old constant instead.
"""

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, checked_copy, mistakes_at
from widthwise.model.attention import SCALES, AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn import FFN
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig
from widthwise.model.residual.interface import SlotLayout
from widthwise.sizes import MOST_LAYERS, Count

Reset = Literal["none", "new", "all"]
"""State that the optimizer forgets; see `growth.plan.grown_states`."""
RewarmupOf = Literal["all", "new"]
"""Entries whose rates rise again from 0."""


class NewSizes(Config):
    """Sizes and form of a larger model; None leaves each as it is."""

    d_model: pydantic.PositiveInt | None = None
    """Width of embedding and head; every other width of the stream grows in proportion."""
    n_heads: pydantic.PositiveInt | None = None
    """Heads of every layer; without other key-value heads, their groups keep their size."""
    n_kv_heads: pydantic.PositiveInt | None = None
    """Key-value heads of every layer."""
    head_dim: pydantic.PositiveInt | None = None
    """Size of every head: of queries and keys, and of values unless `v_head_dim` is set."""
    d_ff: pydantic.PositiveInt | None = None
    """Hidden units of every feed-forward, expert or block."""
    add_layers: int = Field(default=0, ge=0, le=MOST_LAYERS)
    """Layers to add, spread evenly between the first and the last, each configured as its predecessor."""
    to_shape: Literal["x", "diamond", "growing", "narrowing"] | None = None
    """Shape of the layers: the smallest whose narrowest layer is as wide as those of the run."""
    turn_layer: float | None = None
    """Depth of the narrowest (or widest) layer of that shape, as a share of n_layers."""
    turn_width: float | None = None
    """Width of that layer, as a share of the new d_model."""
    virtual_width: float | None = Field(default=None, gt=1, le=1024)
    """Width of the stream over d_model, such as 1.5; layers stay as wide as they are."""
    ffn: Literal["hourglass"] | None = None
    """Feed-forward whose first block the present one becomes."""


_AddedLayer = pydantic.BeforeValidator(lambda name: None if name == "new" else name)
OldLayer = Annotated[pydantic.NonNegativeInt | None, _AddedLayer]


class GrowthChoices(Config):
    """The choices that a growth leaves open beside the sizes."""

    layers: tuple[OldLayer, ...] | None = None
    """For each layer of the larger model the old one it comes from, counted from 0, or new (null) for one that is
    added, such as 0,1,new,2; default: added layers lie evenly among the others."""
    reset: Reset = "none"
    """State to forget of the optimizer: nothing, where new entries of a tensor get no momentum and the mean of the
    squares of the old ones; of new entries also the squares; or everything."""
    rewarmup_steps: pydantic.NonNegativeInt | None = None
    """Steps over which learning rates rise again from 0; default: the steps that the optimizer's averages look back
    (`settling_steps`), but no more than are left."""
    rewarmup_of: RewarmupOf = "all"
    """Whose learning rates rise: those of all entries, or of the new ones alone."""
    freeze_steps: pydantic.NonNegativeInt = 0
    """Steps in which the old entries stay as they are, and only the new ones learn."""


class GrowOptions(GrowthChoices):
    """The choices for the growth of a run; the recipe gives the sizes."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the new entries that are drawn."""
    allow_change: bool = False
    """Take constants from the recipe, although the function changes."""


class Multiples(Config):
    """The multiples that `widthwise pad` rounds sizes up to; 1 leaves a size unchanged."""

    d_ff_multiple: Count = 1
    """Round hidden units of every feed-forward, expert and block up to a multiple of this."""
    head_dim_multiple: Count = 1
    """Round head sizes of queries and keys, and of values, up to a multiple of this."""
    heads_multiple: Count = 1
    """Round heads up to a multiple of this, in whole groups, since a new head on an old key-value head would learn;
    key-value heads to a multiple or divisor of it, so that as many devices share them evenly."""
    d_model_multiple: Count = 1
    """Round all widths of the stream up to a multiple of this."""


BUDGETS = ("params", "flops", "kv_bytes")
"""Costs of which a smaller model keeps a share."""
Score = Literal["taylor", "activation", "magnitude"]
"""taylor: how much the loss changes to first order if an entry becomes 0, the size of gradient times value (Molchanov
et al. 2019, arXiv:1906.10771); activation: mean size of an entry times the norm of the column that reads it (Minitron,
arXiv:2407.14679); magnitude: the norm of that column alone."""


class ShrinkOptions(Config):
    """The request for a smaller model: one budget, and how its layers meet it."""

    params: float | None = Field(default=None, gt=0, le=1)
    """Parameters of the smaller model, as a share of the model's."""
    flops: float | None = Field(default=None, gt=0, le=1)
    """Forward FLOPs per token, as a share."""
    kv_bytes: float | None = Field(default=None, gt=0, le=1)
    """Bytes of the KV cache per token, as a share."""
    shape: Literal["found", "x", "uniform"] = "found"
    """Cut each layer where least is lost, or in proportion: less towards a narrow layer at 0.75 of the depth, or all
    layers alike."""
    parts: Literal["all", "stream"] = "all"
    """Cut heads and hidden units too, or only what layers read and write of the stream."""
    score: Score = "taylor"
    """Judge heads and hidden units by the loss to first order, by their activation, or by their weights."""
    stream: Literal["turned", "sorted"] = "turned"
    """Turn the stream so that its leading coordinates hold most, where that leaves the function as it is; or sort its
    coordinates."""
    multiple: Count = 8
    """Widths and hidden units are multiples of this."""
    calibration_batches: Count = 8
    """Batches of training text on which the need of the parts is measured."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ShrinkOptions":
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]}: got {' and '.join(given)}; give one of params, flops, kv_bytes")
        return self

    @property
    def budget(self) -> str | None:
        """The one of params, flops and kv_bytes that is given; None where sizes are given instead."""
        return next((name for name in BUDGETS if getattr(self, name) is not None), None)


SAME_SIZES = NewSizes()


def resized(model: ModelConfig, sizes: NewSizes) -> ModelConfig:
    """Return the model with these sizes. Raises UserError if layers differ in a size given as a single number."""
    if sizes.d_model is not None:
        model = _with_d_model(model, sizes.d_model)
    if sizes.d_ff is not None:
        d_ff, key = sizes.d_ff, f"ffn.{_hidden_key(model.layers[0].ffn)}"
        _check_alike(model, "d_ff", d_ff, lambda layer: getattr(layer.ffn, _hidden_key(layer.ffn)), key)
        model = with_layers(
            model, lambda _, layer: {"ffn": checked_copy(layer.ffn, "ffn", **{_hidden_key(layer.ffn): d_ff})}
        )
    heads = {name: size for name in ("n_heads", "n_kv_heads", "head_dim") if (size := getattr(sizes, name)) is not None}
    for name, size in heads.items():
        _check_alike(model, name, size, lambda layer, name=name: getattr(layer.attention, name), f"attention.{name}")
    if heads:
        model = with_layers(model, lambda _, layer: {"attention": _attention(layer.attention, **heads)})
    return _with_added_layers(model, sizes.add_layers)


def _hidden_key(ffn: FFN) -> str:
    """Return the name of the field that holds the hidden units. Raises UserError if the config names none."""
    if not ffn.hidden_axes:
        raise UserError(f"d_ff: growth does not know hidden units of feed-forward `{ffn.kind}`; give --to RECIPE")
    return next(iter(ffn.hidden_axes))


def _check_alike(model: ModelConfig, name: str, size: int, found_in: Callable[[LayerConfig], Any], key: str) -> None:
    """Raise UserError if layers have different values, which one number cannot replace. key: of a layer's config."""
    found = sorted({found_in(layer) for _, layer in model.named_layers()}, key=str)
    if len(found) > 1:
        raise UserError(
            f"{name}: got {size} for all layers, which have {', '.join(map(str, found))}; name single ones, as "
            f"model.layers.0.{key}={size}, or give --to RECIPE"
        )


LayerChange = Callable[[str, LayerConfig], dict[str, Any]]
"""(path, layer) -> the changed fields of the layer."""


def with_layers(model: ModelConfig, change: LayerChange, **changes: Any) -> ModelConfig:
    """Return the model with changed fields of every layer, that of the MTP heads included, and of its own."""
    layers = []
    for where, layer in model.named_layers():
        with mistakes_at(where):
            layers.append(layer.model_copy(update=change(where, layer)))
    mtp = model.mtp and model.mtp.model_copy(update={"layer": layers.pop()})
    return checked_copy(model, "model", layers=tuple(layers), mtp=mtp, **changes)


def _with_d_model(model: ModelConfig, d_model: int) -> ModelConfig:
    def wider(where: str, width: int) -> int:
        found, rest = divmod(width * d_model, model.d_model)
        if rest:
            raise UserError(
                f"d_model: got {d_model}; {where} would grow in proportion from {width} to "
                f"{width * d_model / model.d_model:g}, which is no whole number; give --to RECIPE"
            )
        return found

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
    """Yield (path, norm, divisor in a model that never grew) of every norm with a separate config.

    These are all norms over coordinates of the stream or of a slot.
    """
    for where, layer in model.named_layers():
        for name, norm_dim in layer.usual_norm_dims.items():
            yield f"{where}.{name}", getattr(layer, name), norm_dim
    yield "final_norm", model.final_norm, model.final_norm_width
    if model.mtp is not None:
        yield "mtp.slot_norm", model.mtp.slot_norm, model.residual.slot_shape(model.d_model)[1]
        yield "mtp.final_norm", model.mtp.final_norm, model.d_model


def with_norms(model: ModelConfig, change: Callable[[str, NormConfig, int], NormConfig], **changes: Any) -> ModelConfig:
    """Return the model with every norm changed, and fields of its own. change: takes what `norms_of` yields."""
    norms = {where: change(where, norm, norm_dim) for where, norm, norm_dim in norms_of(model)}
    if model.mtp is not None:
        of_heads = {name: norms[f"mtp.{name}"] for name in ("slot_norm", "final_norm")}
        model = model.model_copy(update={"mtp": model.mtp.model_copy(update=of_heads)})

    def of_layer(where: str, layer: LayerConfig) -> dict[str, Any]:
        return {name: norms[f"{where}.{name}"] for name in layer.usual_norm_dims}

    return with_layers(model, of_layer, final_norm=norms["final_norm"], **changes)


def _attention(
    old: AttentionConfig, n_heads: int | None = None, n_kv_heads: int | None = None, head_dim: int | None = None
) -> AttentionConfig:
    n_heads = n_heads or old.n_heads
    if n_kv_heads is None:
        n_kv_heads, rest = divmod(n_heads * old.n_kv_heads, old.n_heads)
        if rest:
            group = old.n_heads // old.n_kv_heads
            raise UserError(f"n_heads: got {n_heads}; must be whole groups of {group}, or give n_kv_heads too")
    changes: dict[str, Any] = {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
    if head_dim not in (None, old.head_dim):
        rule = next((rule for rule in SCALES.values() if math.isclose(old.scale, rule(old.head_dim))), None)
        scale = old.scale if rule is None else rule(head_dim)
        changes |= {"head_dim": head_dim, "rope_frequencies": None, "scale": scale}
    return checked_copy(old, "attention", **changes)


def _with_added_layers(model: ModelConfig, n_added: int) -> ModelConfig:
    """Keep the first and last layers at the ends, because they may read or write less than their whole width."""
    n_old, n_new = model.n_layers, model.n_layers + n_added
    kept = {(2 * i * (n_new - 1) + n_old - 1) // (2 * (n_old - 1)) for i in range(n_old)} if n_old > 1 else {0}
    old, layers = iter(model.layers), []
    for position in range(n_new):
        if position in kept:
            layers.append(next(old))
        else:  # reads and writes its whole width, as inner layers do
            before = layers[-1]
            layers.append(before.model_copy(update={"d_in": before.d_model, "d_out": before.d_model}))
    return checked_copy(model, "model", layers=tuple(layers))
