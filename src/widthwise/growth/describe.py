"""A growth in words: the expansions it consists of, and the constants that are not what its recipe says."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from widthwise.config_io import to_data
from widthwise.growth.maps.attention import AttentionMaps
from widthwise.growth.maps.correspondence import numbers_of_blocks
from widthwise.growth.maps.stream import FOREIGN, FRESH, StreamMap, stream_map
from widthwise.growth.plan.model_plan import Plan
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn import FFN
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig

Blocks = tuple[int | None, ...]
"""Of each block of a grown hourglass the one it comes from; see `Correspondence`."""


def expansions(plan: Plan) -> list[str]:
    """One line for each expansion, with all layers that it is the same in."""
    old, new = plan.old, plan.new
    stream = stream_map(old, new, plan.correspondence.pairs())
    n_blocks = numbers_of_blocks(old, new, plan.correspondence)
    by_layer = []
    for j, source in enumerate(plan.correspondence.layers):
        blocks = plan.correspondence.blocks_of(j, *n_blocks[j]) if j in n_blocks else ()
        found = [_added(new.layers[j])] if source is None else _layer(old.layers[source], new.layers[j], stream, blocks)
        by_layer.append((j, found))
    lines = [*_model(old, new), *_grouped(by_layer)]
    if old.mtp is not None and new.mtp is not None:
        blocks = (*range(old.mtp.layer.ffn.n_residual_additions),)
        lines += [f"further heads: {text}" for text in _layer(old.mtp.layer, new.mtp.layer, stream, blocks)]
    return lines


def _grouped(by_layer: Iterable[tuple[int, list[str]]]) -> list[str]:
    layers: dict[str, list[int]] = {}
    for j, texts in by_layer:
        for text in texts:
            layers.setdefault(text, []).append(j)
    return [f"{_named(members)}: {text}" for text, members in layers.items()]


def _named(layers: list[int]) -> str:
    """[0, 1, 2, 5] -> "layers 0-2, 5"."""
    spans = [[j for _, j in run] for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])]
    words = ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return f"layer{'s' if len(layers) > 1 else ''} {words}"


def _model(old: ModelConfig, new: ModelConfig) -> Iterator[str]:
    """What is of no layer."""
    if new.d_model != old.d_model:
        yield f"embedding and head: width {old.d_model} -> {new.d_model} (hidden dimension expansion)"
    before, after = old.residual, new.residual
    if isinstance(after, HyperConnectionsConfig):
        if not isinstance(before, HyperConnectionsConfig):
            yield f"residual: {before.kind} -> {after.n_slots} slots of {after.slot_width} (virtual width)"
        else:
            if after.slot_width != before.slot_width:
                yield f"residual: slots {before.slot_width} -> {after.slot_width} wide (hidden dimension expansion)"
            if after.n_slots != before.n_slots:
                yield f"residual: {before.n_slots} -> {after.n_slots} slots (virtual width)"
    n_before, n_after = (0 if m.positions is None else m.positions.n_positions for m in (old, new))
    if n_after != n_before:
        yield f"learned positions: {n_before} -> {n_after}"


def _added(layer: LayerConfig) -> str:
    attention, hidden = layer.attention, ", ".join(str(width) for width in layer.ffn.hidden_widths)
    heads = f"{attention.n_heads} heads of {attention.head_dim}"
    return (
        f"added, width {layer.d_model}, {heads}, {layer.ffn.kind} feed-forward of {hidden} hidden units, silent at "
        "first (layer addition)"
    )


def _layer(old: LayerConfig, new: LayerConfig, stream: StreamMap, blocks: Blocks) -> list[str]:
    return [*_width(old, new, stream), *_attention(old.attention, new.attention), *_ffn(old.ffn, new.ffn, blocks)]


def _width(old: LayerConfig, new: LayerConfig, stream: StreamMap) -> Iterator[str]:
    if new.d_model != old.d_model:
        index = stream.prefix(old.d_model, new.d_model)
        n_fresh, n_foreign = int((index == FRESH).sum()), int((index == FOREIGN).sum())
        names = []
        if n_fresh:
            names.append(f"{n_fresh} new coordinates: hidden dimension expansion")
        if n_foreign:
            names.append(f"{n_foreign} coordinates that wider layers had: variable width")
        yield f"width {old.d_model} -> {new.d_model} ({'; '.join(names)})"
    for name, verb in (("d_in", "reads"), ("d_out", "writes")):
        before, after = getattr(old, name), getattr(new, name)
        if after != before and not (before == old.d_model and after == new.d_model):
            yield f"{verb} {before} -> {after} coordinates"


def _attention(old: AttentionConfig, new: AttentionConfig) -> Iterator[str]:
    if new.n_heads != old.n_heads:
        yield f"attention {old.n_heads} -> {new.n_heads} heads (head addition)"
    if new.n_kv_heads != old.n_kv_heads:
        n_copies = AttentionMaps.of(old, new).n_kv_copies
        copied = f", {n_copies} copies of each: groups divided" if n_copies > 1 else ""
        yield f"attention {old.n_kv_heads} -> {new.n_kv_heads} key-value heads (head addition{copied})"
    if new.value_dim != old.value_dim:
        yield f"attention values {old.value_dim} -> {new.value_dim} a head (heads expansion)"
    if new.head_dim != old.head_dim:
        yield f"attention queries and keys {old.head_dim} -> {new.head_dim} a head (attention expansion)"


def _ffn(old: FFN, new: FFN, blocks: Blocks) -> Iterator[str]:
    if type(old) is not type(new):
        assert isinstance(new, MoEConfig)
        yield (
            f"feed-forward {old.kind} -> {new.n_experts} experts of {new.d_expert} hidden units, {new.top_k} a token "
            "(upcycling)"
        )
        return
    yield from WORDS[type(new)](old, new, blocks)


def _units(old: Any, new: Any, blocks: Blocks) -> Iterator[str]:
    if new.d_ff != old.d_ff:
        yield f"feed-forward {old.d_ff} -> {new.d_ff} hidden units (MLP expansion)"


def _blocks(old: HourglassConfig, new: HourglassConfig, blocks: Blocks) -> Iterator[str]:
    for place, (source, after) in enumerate(zip(blocks, new.hidden_widths)):
        if source is None:
            yield f"feed-forward block {place} added, {after} hidden units, silent at first (block addition)"
        elif after != old.hidden_widths[source]:
            before = old.hidden_widths[source]
            yield f"feed-forward block {place} {before} -> {after} hidden units (MLP expansion)"


def _experts(old: MoEConfig, new: MoEConfig, blocks: Blocks) -> Iterator[str]:
    n_parts = new.n_experts // old.n_experts
    is_cut = n_parts > 1 and new.d_expert * n_parts == old.d_expert
    if n_parts > 1:
        how = "experts cut" if is_cut else "experts duplicated"
        yield f"{old.n_experts} -> {new.n_experts} experts, {old.top_k} -> {new.top_k} a token ({how})"
    if new.d_expert != old.d_expert:
        name = "experts cut" if is_cut else "MLP expansion"
        yield f"experts {old.d_expert} -> {new.d_expert} hidden units ({name})"
    if new.d_shared != old.d_shared:
        yield f"shared expert {old.d_shared} -> {new.d_shared} hidden units (MLP expansion)"


WORDS: dict[type, Callable[[Any, Any, Blocks], Iterator[str]]] = {
    SwiGLUConfig: _units,
    MLPConfig: _units,
    DynamicConfig: _units,
    HourglassConfig: _blocks,
    MoEConfig: _experts,
}


@dataclass(frozen=True)
class Kept:
    """A number of a grown model that is not what its recipe says."""

    where: str
    """ "layers 0-3", or empty."""
    path: str
    """In the config of the layer or of the model."""
    value: Any
    is_kept: bool
    """Whether the old model has the same number."""
    wanted: Any
    """What the recipe says."""

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        verb = "stays" if self.is_kept else "is"
        return f"{where}{self.path} {verb} {_shown(self.value)} (the recipe would have {_shown(self.wanted)})"

    @property
    def change(self) -> str:
        """Where the recipe's number is taken: what the function's number was and is."""
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.path} {_shown(self.value)} -> {_shown(self.wanted)}"

    @property
    def is_baked(self) -> bool:
        """Whether `widthwise bake` folds it into weights."""
        return self.path.rpartition(".")[2] in BAKED


BAKED = ("scale", "norm_dim", "slot_norm_dim", "group_norm_dim", "q_norm_dim", "k_norm_dim")


def kept_constants(plan: Plan, wanted: ModelConfig) -> list[Kept]:
    """Everything in which the grown model differs from the one that was asked for. Sizes never do."""
    old, new, asked = (to_data(model) for model in (plan.old, plan.new, wanted))
    by_layer = [data.pop("layers") for data in (old, new, asked)]
    layers: dict[tuple[str, str], tuple[Kept, list[int]]] = {}
    for j, source in enumerate(plan.correspondence.layers):
        before = None if source is None else by_layer[0][source]
        for found in _differences(before, by_layer[1][j], by_layer[2][j]):
            key = found.path, repr((found.value, found.is_kept, found.wanted))
            layers.setdefault(key, (found, []))[1].append(j)
    of_layers = [Kept(_named(members), *_content(found)) for found, members in layers.values()]
    return [*of_layers, *_differences(old, new, asked)]


def _content(constant: Kept) -> tuple[str, Any, bool, Any]:
    return constant.path, constant.value, constant.is_kept, constant.wanted


def _differences(old: Any, new: Any, wanted: Any, path: str = "") -> Iterator[Kept]:
    """Leaf by leaf. old: what the old model has there, None where it has nothing."""
    if isinstance(new, dict) and isinstance(wanted, dict) and new.keys() == wanted.keys():
        for key in new:
            before = old.get(key) if isinstance(old, dict) else None
            yield from _differences(before, new[key], wanted[key], f"{path}.{key}" if path else key)
    elif new != wanted:
        yield Kept("", path, new, old == new, wanted)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        words = [_shown(item) for item in value]
        return f"[{', '.join(words)}]" if len(words) <= 4 else f"[{words[0]}, ..., {words[-1]}] ({len(words)} numbers)"
    return "null" if value is None else str(value)
