"""A growth as text: its expansions, and the constants that differ from its recipe."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from widthwise.config_io import to_data
from widthwise.growth.correspondence import AttentionMaps
from widthwise.growth.plan import GrowthPlan
from widthwise.growth.stream import FOREIGN, FRESH, StreamMap, stream_map
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.layer import LayerConfig


def expansions(plan: GrowthPlan) -> list[str]:
    """Return one line for each expansion, with all layers to which it applies."""
    old = plan.old
    new = plan.new
    stream = stream_map(old, new, plan.correspondence.pairs())

    def changes(before: LayerConfig, after: LayerConfig) -> Iterator[str]:
        yield from _width(before, after, stream)
        yield from _attention(before.attention, after.attention)
        yield from after.ffn.growth_in_words(before.ffn)

    layers_by_text: dict[str, list[int]] = {}
    for j, (source, layer) in enumerate(zip(plan.correspondence.layers, new.layers)):
        if source is None:
            hidden = ", ".join(str(width) for width in layer.ffn.hidden_widths)
            heads = f"{layer.attention.n_heads} heads of {layer.attention.head_dim}"
            sizes = f"width {layer.d_model}, {heads}, {layer.ffn.kind} feed-forward of {hidden} hidden units"
            texts = [f"added, {sizes}, silent at first (layer addition)"]
        else:
            texts = changes(old.layers[source], layer)
        for text in texts:
            layers_by_text.setdefault(text, []).append(j)
    lines = []
    if new.d_model != old.d_model:
        lines.append(f"embedding and head: width {old.d_model} -> {new.d_model} (hidden dimension expansion)")
    lines += new.residual.growth_in_words(old.residual)
    if new.mtp is not None and old.mtp is None:
        lines.append(f"MTP heads: {new.mtp.n_depths} added, which do not affect the logits (multi-token prediction)")
    lines += [f"{_spans(members)}: {text}" for text, members in layers_by_text.items()]
    if old.mtp is not None and new.mtp is not None:
        lines += [f"MTP heads: {text}" for text in changes(old.mtp.layer, new.mtp.layer)]
    return lines


def _spans(layers: list[int]) -> str:
    """Return "layers 1-3, 6" for [0, 1, 2, 5]; text counts layers from 1, paths such as layers.0 from 0."""
    runs = groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])  # the key is equal for consecutive layers
    spans = [[j + 1 for _, j in run] for _, run in runs]
    text = ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return f"layer{'s' if len(layers) > 1 else ''} {text}"


def _width(old: LayerConfig, new: LayerConfig, stream: StreamMap) -> Iterator[str]:
    if new.d_model != old.d_model:
        index = stream.prefix(old.d_model, new.d_model)
        origins = {
            "new coordinates: hidden dimension expansion": int((index == FRESH).sum()),
            "coordinates that wider layers had: variable width": int((index == FOREIGN).sum()),
        }
        counts = "; ".join(f"{n} {origin}" for origin, n in origins.items() if n)
        yield f"width {old.d_model} -> {new.d_model} ({counts})"
    for name, verb in (("d_in", "reads"), ("d_out", "writes")):
        before = getattr(old, name)
        after = getattr(new, name)
        if after != before and (before, after) != (old.d_model, new.d_model):
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


@dataclass(frozen=True)
class KeptConstant:
    """A constant that preserves the function but differs from the recipe."""

    path: str
    """Dotted path in the config of the model, or of layers, such as "layers 1-4: attention.scale"."""
    value: Any
    is_kept: bool
    """True if the old model has the same value; otherwise growth derived it."""
    wanted: Any
    """Value in the recipe."""

    def __str__(self) -> str:
        verb = "stays" if self.is_kept else "is"
        return f"{self.path} {verb} {_shown(self.value)} (the recipe would have {_shown(self.wanted)})"

    @property
    def change(self) -> str:
        """The change from the value that preserves the function to the recipe's."""
        return f"{self.path} {_shown(self.value)} -> {_shown(self.wanted)}"


def kept_constants(plan: GrowthPlan, wanted: ModelConfig) -> list[KeptConstant]:
    """List all differences between the grown config and the requested one: constants, never sizes."""
    old, new, requested = (to_data(model) for model in (plan.old, plan.new, wanted))
    old_layers, new_layers, requested_layers = (data.pop("layers") for data in (old, new, requested))
    merged: dict[str, tuple[KeptConstant, list[int]]] = {}  # by repr, because a value may be a list, without a hash
    for j, source in enumerate(plan.correspondence.layers):
        before = None if source is None else old_layers[source]
        for constant in _differences(before, new_layers[j], requested_layers[j]):
            _, layers = merged.setdefault(repr(constant), (constant, []))
            layers.append(j)
    of_layers = [replace(constant, path=f"{_spans(layers)}: {constant.path}") for constant, layers in merged.values()]
    return [*of_layers, *_differences(old, new, requested)]


def _differences(old: Any, new: Any, wanted: Any, path: str = "") -> Iterator[KeptConstant]:
    """Yield the leaves that differ. old: value of the old model at the same path, if any."""
    if isinstance(new, dict) and isinstance(wanted, dict) and new.keys() == wanted.keys():
        for key in new:
            before = old.get(key) if isinstance(old, dict) else None
            yield from _differences(before, new[key], wanted[key], f"{path}.{key}" if path else key)
    elif new != wanted:
        yield KeptConstant(path, new, old == new, wanted)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        texts = [_shown(item) for item in value]
        return f"[{', '.join(texts)}]" if len(texts) <= 4 else f"[{texts[0]}, ..., {texts[-1]}] ({len(texts)} numbers)"
    return "null" if value is None else str(value)
