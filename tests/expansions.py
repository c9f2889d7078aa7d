"""The expansions by name, each a change of the config; growth reads what becomes of the weights from it.

Sizes are of the grown model. Layers are counted from 0. The first six are those of the paper, arXiv:2308.06103.
"""

from collections.abc import Callable, Iterable
from typing import Any

from widthwise.config_io import checked_copy, mistakes_at
from widthwise.growth.correspondence import Correspondence
from widthwise.model.config import ModelConfig
from widthwise.model.ffn import FFN
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.residual import Residual
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.model.residual.manifold import ManifoldConfig
from widthwise.model.residual.slots import SlotsConfig

Expansion = tuple[ModelConfig, Correspondence]
"""The config wanted, and which layer is which."""


def changed(model: ModelConfig, **changes: Any) -> ModelConfig:
    """A checked copy. Raises UserError for what does not fit."""
    return checked_copy(model, "model", **changes)


def with_residual(model: ModelConfig, residual: Residual) -> Expansion:
    return changed(model, residual=residual), Correspondence.same(model)


def _layers(model: ModelConfig, layers: Iterable[int], change: Callable[[LayerConfig], dict[str, Any]]) -> Expansion:
    grown = list(model.layers)
    for i in layers:
        with mistakes_at(f"layers.{i}"):
            grown[i] = grown[i].model_copy(update=change(grown[i]))
    return changed(model, layers=tuple(grown)), Correspondence.same(model)


def _ffn(model: ModelConfig, layers: Iterable[int], change: Callable[[Any], dict[str, Any]]) -> Expansion:
    return _layers(model, layers, lambda layer: {"ffn": checked_copy(layer.ffn, "ffn", **change(layer.ffn))})


def _attention(model: ModelConfig, layers: Iterable[int], **changes: int | None) -> Expansion:
    return _layers(model, layers, lambda layer: {"attention": checked_copy(layer.attention, "attention", **changes)})


def widen_ffn(model: ModelConfig, layers: Iterable[int], d_ff: int) -> Expansion:
    """MLP expansion (Definition 3.1): hidden units, of every kind of feed-forward; of each expert, of each block."""
    return _ffn(model, layers, lambda ffn: {next(iter(ffn.hidden_axes)): d_ff})


def add_heads(model: ModelConfig, layers: Iterable[int], n_heads: int, n_kv_heads: int) -> Expansion:
    """Head addition (Definition 3.2): more groups, wider ones, or groups divided among copies of key-value heads."""
    return _attention(model, layers, n_heads=n_heads, n_kv_heads=n_kv_heads)


def widen_values(model: ModelConfig, layers: Iterable[int], v_head_dim: int) -> Expansion:
    """Heads expansion (Definition 3.3): coordinates of values."""
    return _attention(model, layers, v_head_dim=v_head_dim)


def widen_keys(model: ModelConfig, layers: Iterable[int], head_dim: int) -> Expansion:
    """Attention expansion (Definition 3.4): coordinates of queries and keys."""
    (value_dim,) = {layer.attention.value_dim for layer in model.layers}
    return _attention(model, layers, head_dim=head_dim, v_head_dim=value_dim, rope_frequencies=None)


def widen_stream(model: ModelConfig, n_more: int) -> Expansion:
    """Hidden dimension expansion (Definition 3.5): every layer n_more coordinates wider, of whatever shape.

    A stream of slots grows by wider slots, so that n_more must be whole coordinates for every slot of d_model.
    """
    residual = model.residual
    if not isinstance(residual, SlotsConfig):
        return _with_widths(model, lambda width: width + n_more), Correspondence.same(model)
    slot_width = residual.slot_width
    wider = checked_copy(residual, "residual", slot_width=slot_width + n_more // (model.d_model // slot_width))
    grown = _with_widths(model, lambda width: width // slot_width * wider.slot_width, residual=wider)
    return grown, Correspondence.same(model)


def _with_widths(model: ModelConfig, wider: Callable[[int], int], **changes: Any) -> ModelConfig:
    """Every width of the stream passed through a function."""

    def widened(layer: LayerConfig) -> LayerConfig:
        sizes = {name: wider(getattr(layer, name)) for name in ("d_model", "d_in", "d_out")}
        return checked_copy(layer, "layer", **sizes)

    if model.mtp is not None:
        changes["mtp"] = checked_copy(model.mtp, "mtp", layer=widened(model.mtp.layer))
    return changed(
        model,
        d_model=wider(model.d_model),
        final_norm_width=wider(model.final_norm_width),
        layers=tuple(map(widened, model.layers)),
        **changes,
    )


def widen_layers(model: ModelConfig, widths: dict[int, int]) -> Expansion:
    """Variable width: single layers reach further into the stream, or all of the widest extend it.

    Ends that were slim stay slim. The stream itself, and with it the embedding, stays. widths: by layer.
    """
    grown = list(model.layers)
    for i, width in widths.items():
        layer = grown[i]
        is_slim_start = i == 0 and layer.d_in <= model.d_model
        is_slim_end = i == model.n_layers - 1 and layer.d_out <= model.d_model
        d_in = width if layer.d_in == layer.d_model and not is_slim_start else layer.d_in
        d_out = width if layer.d_out == layer.d_model and not is_slim_end else layer.d_out
        grown[i] = checked_copy(layer, f"layers.{i}", d_model=width, d_in=d_in, d_out=d_out)
    return changed(model, layers=tuple(grown)), Correspondence.same(model)


def add_layers(model: ModelConfig, positions: Iterable[int], like: int | None = None) -> Expansion:
    """Layer addition (Definition 3.6): at each position of the grown model one more layer.

    It has the sizes of the layer before it (of the one behind, at the front), or of layer `like` of the old model, but
    reads and writes its whole width.
    """
    added = set(positions)
    old = iter(range(model.n_layers))
    sources = tuple(None if i in added else next(old) for i in range(model.n_layers + len(added)))
    layers, before = [], 0
    for source in sources:
        before = before if source is None else source
        layer = model.layers[before if source is not None or like is None else like]
        whole = {} if source is not None else {"d_in": layer.d_model, "d_out": layer.d_model}
        layers.append(layer.model_copy(update=whole))
    return changed(model, layers=tuple(layers)), Correspondence(sources)


def add_block(model: ModelConfig, layer: int, d_hidden: int | None = None) -> Expansion:
    """Hourglass: one more block at the end of one layer's feed-forward, by default as wide as the one before it."""
    old = model.layers[layer].ffn.hidden_widths
    widths = (*old, d_hidden or old[-1])
    return _ffn(model, [layer], lambda _: {"n_blocks": len(widths), "d_hidden": widths})


def duplicate_experts(model: ModelConfig, layers: Iterable[int], n_copies: int) -> Expansion:
    """Mixture: every expert n_copies times, and n_copies times as many for each token."""
    return _ffn(model, layers, lambda ffn: {"n_experts": ffn.n_experts * n_copies, "top_k": ffn.top_k * n_copies})


def split_experts(model: ModelConfig, layers: Iterable[int], n_parts: int) -> Expansion:
    """Mixture: every expert cut into n_parts narrower ones, and n_parts times as many for each token."""
    grown, correspondence = duplicate_experts(model, layers, n_parts)
    return _ffn(grown, layers, lambda ffn: {"d_expert": ffn.d_expert // n_parts})[0], correspondence


def widen_shared_expert(model: ModelConfig, layers: Iterable[int], d_shared: int) -> Expansion:
    """Mixture: a shared expert, or a wider one."""
    return _ffn(model, layers, lambda _: {"d_shared": d_shared})


def upcycle(model: ModelConfig, layers: Iterable[int], n_experts: int, top_k: int) -> Expansion:
    """A dense feed-forward as a mixture of equal experts, told apart by where a new router sends what."""

    def experts(ffn: FFN) -> MoEConfig:
        return MoEConfig(n_experts=n_experts, top_k=top_k, d_expert=ffn.hidden_widths[0])

    return _layers(model, layers, lambda layer: {"ffn": experts(layer.ffn)})


def add_slots(model: ModelConfig, n_slots: int) -> Expansion:
    """Virtual width: more slots, which no old sublayer reads yet."""
    return with_residual(model, checked_copy(model.residual, "residual", n_slots=n_slots))


def to_slots(model: ModelConfig, slot_width: int, n_slots: int, **options: Any) -> Expansion:
    """A plain residual as slots with hyper-connections, and spare slots beyond.

    Tied embeddings need another `embedding` than direct.
    """
    n_owned_slots = max(model.d_model, *model.widths) // slot_width
    sizes = {"slot_width": slot_width, "n_slots": n_slots, "n_owned_slots": n_owned_slots, "group_norm": None}
    return with_residual(model, HyperConnectionsConfig(**sizes, multiplier=model.residual.multiplier, **options))


def to_manifold(model: ModelConfig, n_slots: int, **options: Any) -> Expansion:
    """A plain residual as equal slots with doubly stochastic carries."""
    sizes = {"slot_width": model.d_model, "n_slots": n_slots}
    return with_residual(model, ManifoldConfig(**sizes, multiplier=model.residual.multiplier, **options))
