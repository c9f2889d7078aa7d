"""The expansions by name, each a change of the config; growth reads what becomes of the weights from it.

Sizes are of the grown model. Layers are counted from 0. The first six are those of the paper, arXiv:2308.06103.
"""

from collections.abc import Callable, Iterable
from typing import Any

from widthwise.config_io import checked_copy, mistakes_at
from widthwise.growth.correspondence import Correspondence
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.ffn import FFN
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.model.residual.manifold import ManifoldConfig
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.model.residual.slots import SlotsConfig

Expansion = tuple[ModelConfig, Correspondence]
"""The config wanted, and which layer is which."""


def changed(model: ModelConfig, **changes: Any) -> ModelConfig:
    """A checked copy. Raises UserError for what does not fit."""
    return checked_copy(model, "model", **changes)


def same_layers(model: ModelConfig) -> Correspondence:
    """The correspondence of a growth that adds no layer."""
    return Correspondence.same(model)


def _layers(model: ModelConfig, layers: Iterable[int], change: Callable[[LayerConfig], LayerConfig]) -> Expansion:
    chosen = sorted(set(layers))
    _check_layers(model, chosen)
    grown = list(model.layers)
    for i in chosen:
        with mistakes_at(f"layers.{i}"):
            grown[i] = change(grown[i])
    return changed(model, layers=tuple(grown)), same_layers(model)


def _check_layers(model: ModelConfig, layers: Iterable[int]) -> None:
    """Raises UserError for one that the model has not."""
    for i in layers:
        if not 0 <= i < model.n_layers:
            raise UserError(f"layers: got {i}; the model has 0 to {model.n_layers - 1}")


def _ffn(
    model: ModelConfig, layers: Iterable[int], change: Callable[[Any], FFN], kind: type[FFNConfig] = FFNConfig
) -> Expansion:
    """kind: what the feed-forwards must be."""
    layers = list(layers)
    _check_layers(model, layers)
    for i in layers:
        if not isinstance(model.layers[i].ffn, kind):
            wanted = kind.model_fields["kind"].default
            raise UserError(f"layers.{i}.ffn: is a {model.layers[i].ffn.kind} feed-forward; must be {wanted}")
    return _layers(model, layers, lambda layer: layer.model_copy(update={"ffn": change(layer.ffn)}))


def _attention(model: ModelConfig, layers: Iterable[int], **changes: int) -> Expansion:
    def change(layer: LayerConfig) -> LayerConfig:
        return layer.model_copy(update={"attention": checked_copy(layer.attention, "attention", **changes)})

    return _layers(model, layers, change)


def widen_ffn(model: ModelConfig, layers: Iterable[int], d_ff: int) -> Expansion:
    """MLP expansion (Definition 3.1): hidden units, of every kind of feed-forward; of each expert, of each block."""
    return _ffn(model, layers, lambda ffn: checked_copy(ffn, "ffn", **{next(iter(ffn.hidden_axes)): d_ff}))


def add_heads(model: ModelConfig, layers: Iterable[int], n_heads: int, n_kv_heads: int) -> Expansion:
    """Head addition (Definition 3.2): more groups, wider ones, or groups divided among copies of key-value heads."""
    return _attention(model, layers, n_heads=n_heads, n_kv_heads=n_kv_heads)


def widen_values(model: ModelConfig, layers: Iterable[int], v_head_dim: int) -> Expansion:
    """Heads expansion (Definition 3.3): coordinates of values."""
    return _attention(model, layers, v_head_dim=v_head_dim)


def widen_keys(model: ModelConfig, layers: Iterable[int], head_dim: int) -> Expansion:
    """Attention expansion (Definition 3.4): coordinates of queries and keys."""

    def change(layer: LayerConfig) -> LayerConfig:
        attention = layer.attention
        changes = {"head_dim": head_dim, "v_head_dim": attention.value_dim, "rope_frequencies": None}
        return layer.model_copy(update={"attention": checked_copy(attention, "attention", **changes)})

    return _layers(model, layers, change)


def widen_stream(model: ModelConfig, n_more: int) -> Expansion:
    """Hidden dimension expansion (Definition 3.5): every layer n_more coordinates wider, of whatever shape.

    A stream of slots grows by wider slots, so that n_more must be whole coordinates for every slot of d_model.
    """
    residual = model.residual
    if not isinstance(residual, SlotsConfig):
        return _with_widths(model, lambda width: width + n_more), same_layers(model)
    n_blocks, slot_width = model.d_model // residual.slot_width, residual.slot_width
    if n_more % n_blocks:
        raise UserError(f"d_model: got {model.d_model + n_more}; must stay a multiple of its {n_blocks} slots")
    wider = checked_copy(residual, "residual", slot_width=slot_width + n_more // n_blocks)
    grown = _with_widths(model, lambda width: width // slot_width * wider.slot_width, residual=wider)
    return grown, same_layers(model)


def _with_widths(model: ModelConfig, wider: Callable[[int], int], **changes: Any) -> ModelConfig:
    """Every width of the stream passed through a function."""

    def widened(where: str, layer: LayerConfig) -> LayerConfig:
        sizes = {name: wider(getattr(layer, name)) for name in ("d_model", "d_in", "d_out")}
        return checked_copy(layer, where, **sizes)

    if model.mtp is not None:
        changes["mtp"] = checked_copy(model.mtp, "mtp", layer=widened("mtp.layer", model.mtp.layer))
    return changed(
        model,
        d_model=wider(model.d_model),
        final_norm_width=wider(model.final_norm_width),
        layers=tuple(widened(f"layers.{i}", layer) for i, layer in enumerate(model.layers)),
        **changes,
    )


def widen_layers(model: ModelConfig, widths: dict[int, int]) -> Expansion:
    """Variable width: single layers reach further into the stream, or all of the widest extend it.

    Ends that were slim stay slim. The stream itself, and with it the embedding, stays. widths: by layer.
    """
    _check_layers(model, widths)

    def widened(i: int, layer: LayerConfig) -> LayerConfig:
        width = widths.get(i, layer.d_model)
        d_in = width if layer.d_in == layer.d_model and not (i == 0 and layer.d_in <= model.d_model) else layer.d_in
        d_out = width if layer.d_out == layer.d_model and not _is_slim_end(model, i, layer) else layer.d_out
        return checked_copy(layer, f"layers.{i}", d_model=width, d_in=d_in, d_out=d_out)

    return changed(model, layers=tuple(widened(i, layer) for i, layer in enumerate(model.layers))), same_layers(model)


def _is_slim_end(model: ModelConfig, i: int, layer: LayerConfig) -> bool:
    return i == model.n_layers - 1 and layer.d_out <= model.d_model


def add_layers(model: ModelConfig, positions: Iterable[int], like: int | None = None) -> Expansion:
    """Layer addition (Definition 3.6): at each position of the grown model one more layer.

    It has the sizes of the layer before it (of the one behind, at the front), or of layer `like` of the old model.
    """
    added = set(positions)
    n_layers = model.n_layers + len(added)
    if not added <= set(range(n_layers)):
        raise UserError(f"layers: got {sorted(added)}; positions in the grown model are 0 to {n_layers - 1}")
    _check_layers(model, () if like is None else (like,))
    old = iter(range(model.n_layers))
    sources = tuple(None if i in added else next(old) for i in range(n_layers))
    layers, before = [], 0
    for source in sources:
        before = before if source is None else source
        layers.append(
            model.layers[before] if source is not None else _inner(model.layers[before if like is None else like])
        )
    return changed(model, layers=tuple(layers)), Correspondence(sources)


def _inner(layer: LayerConfig) -> LayerConfig:
    """A layer that reads and writes its whole width, as those between the ends do."""
    return layer.model_copy(update={"d_in": layer.d_model, "d_out": layer.d_model})


def add_block(model: ModelConfig, layer: int, d_hidden: int | None = None) -> Expansion:
    """Hourglass: one more block at the end of one layer's feed-forward, by default as wide as the one before it."""
    _check_layers(model, [layer])
    ffn = model.layers[layer].ffn
    if not isinstance(ffn, HourglassConfig) or ffn.share_weights:
        raise UserError(f"layers.{layer}.ffn: must be an hourglass whose blocks have weights of their own")
    widths = (*ffn.hidden_widths, d_hidden or ffn.hidden_widths[-1])
    return _ffn(model, [layer], lambda old: checked_copy(old, "ffn", n_blocks=len(widths), d_hidden=widths))


def duplicate_experts(model: ModelConfig, layers: Iterable[int], n_copies: int) -> Expansion:
    """Mixture: every expert n_copies times, and n_copies times as many for each token."""

    def change(ffn: MoEConfig) -> FFN:
        return checked_copy(ffn, "ffn", n_experts=ffn.n_experts * n_copies, top_k=ffn.top_k * n_copies)

    return _ffn(model, layers, change, MoEConfig)


def split_experts(model: ModelConfig, layers: Iterable[int], n_parts: int) -> Expansion:
    """Mixture: every expert cut into n_parts narrower ones, and n_parts times as many for each token."""

    def change(ffn: MoEConfig) -> FFN:
        if n_parts < 1 or ffn.d_expert % n_parts:
            raise UserError(f"ffn.d_expert: got {ffn.d_expert}; cannot be cut into {n_parts} parts")
        n_experts, top_k = ffn.n_experts * n_parts, ffn.top_k * n_parts
        return checked_copy(ffn, "ffn", n_experts=n_experts, top_k=top_k, d_expert=ffn.d_expert // n_parts)

    return _ffn(model, layers, change, MoEConfig)


def widen_shared_expert(model: ModelConfig, layers: Iterable[int], d_shared: int) -> Expansion:
    """Mixture: a shared expert, or a wider one."""
    return _ffn(model, layers, lambda ffn: checked_copy(ffn, "ffn", d_shared=d_shared), MoEConfig)


def upcycle(model: ModelConfig, layers: Iterable[int], n_experts: int, top_k: int) -> Expansion:
    """A dense feed-forward as a mixture of equal experts, told apart by where a new router sends what."""

    def change(ffn: SwiGLUConfig) -> FFN:
        with mistakes_at("ffn"):
            return MoEConfig(n_experts=n_experts, top_k=top_k, d_expert=ffn.d_ff)

    return _ffn(model, layers, change, SwiGLUConfig)


def add_slots(model: ModelConfig, n_slots: int) -> Expansion:
    """Virtual width: more slots, which no old sublayer reads yet."""
    residual = model.residual
    if not isinstance(residual, SlotsConfig):
        raise UserError(f"residual: is {residual.kind}, which has no slots; see to_slots")
    return changed(model, residual=checked_copy(residual, "residual", n_slots=n_slots)), same_layers(model)


def to_slots(
    model: ModelConfig, slot_width: int, n_slots: int, dynamic: bool = True, embedding: str = "direct"
) -> Expansion:
    """A plain residual as slots with hyper-connections, and spare slots beyond.

    embedding: how a token fills the slots; tied embeddings need another than direct.
    """
    if not isinstance(model.residual, PlainResidualConfig):
        raise UserError(f"residual: is {model.residual.kind}; see add_slots")
    if slot_width < 1:
        raise UserError(f"residual.slot_width: got {slot_width}; must be at least 1")
    with mistakes_at("residual"):
        residual = HyperConnectionsConfig(
            slot_width=slot_width,
            n_slots=n_slots,
            n_owned_slots=max(model.d_model, *model.widths) // slot_width,
            group_norm=None,
            dynamic=dynamic,
            embedding=embedding,  # pyright: ignore[reportArgumentType]
            multiplier=model.residual.multiplier,
        )
    return changed(model, residual=residual), same_layers(model)


def to_manifold(model: ModelConfig, n_slots: int, carry: str = "sinkhorn") -> Expansion:
    """A plain residual as equal slots with doubly stochastic carries."""
    residual = ManifoldConfig(
        slot_width=model.d_model,
        n_slots=n_slots,
        carry=carry,
        multiplier=model.residual.multiplier,  # pyright: ignore[reportArgumentType]
    )
    return changed(model, residual=residual), same_layers(model)
