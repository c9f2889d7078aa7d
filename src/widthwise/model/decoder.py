"""The decoder: embedding, layers, norm, head, and MTP heads for later tokens."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from widthwise.kernels.dispatch import compute_dtype, soft_capped
from widthwise.kernels.linear_cross_entropy import Head, Teacher, linear_cross_entropy
from widthwise.kernels.rotary import rope_table
from widthwise.model.axes import Linear, Table, Weight
from widthwise.model.config import ModelConfig
from widthwise.model.context import Choices, KVCache, PassContext, Stream, attention_mask, padding_documents
from widthwise.model.initial_weights import initial_std, initial_weight
from widthwise.model.layer import LayerConfig
from widthwise.model.layer_module import DecoderLayer, MTPDepth
from widthwise.model.memory import allocating, check_room
from widthwise.model.recompute import KEEP_ALL
from widthwise.model.shards import put


class Loss(NamedTuple):
    """Results of `Decoder.loss`. Only the objective and the choices carry gradients."""

    objective: Tensor
    """Scalar to differentiate: the mean of loss + z_coefficient * log_normaliser^2, or with a teacher the objective of
    `linear_cross_entropy`; plus auxiliary losses of layers; plus the mean MTP objective times `mtp.coefficient`."""
    losses: Tensor
    """(B, T), nats per token, without auxiliary terms."""
    log_normalisers: Tensor
    """(B, T), the log of the softmax denominator at each position."""
    choices: tuple[Choices, ...]
    """One per layer; see `model.context.Choices`."""
    mtp_losses: tuple[Tensor, ...] = ()
    """(B, T - k) nats per token for each depth k of multi-token prediction, where position i predicts target i + k."""


class Decoder(nn.Module):
    """A language model. Create it with `build`; the constructor leaves weights uninitialised."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.recompute = KEEP_ALL
        residual = config.residual
        d_model = config.d_model
        n_columns = residual.embedding_width(d_model)
        self.embedding = Table({"vocab_size": config.vocab_size}, {"d_model": n_columns}, start=None)
        self.positions: Table | None = None
        if config.positions is not None:
            self.positions = Table({"n_positions": config.positions.n_positions}, {"d_model": n_columns}, start=None)
        self.entry = residual.build_entry(d_model)
        self.layers = nn.ModuleList()
        for i, (layer, d_before) in enumerate(zip(config.layers, config.widths_before)):
            self.layers.append(DecoderLayer(layer, residual, d_before, i))
        self.exit = residual.build_exit(d_model, config.final_norm_width, config.final_norm)
        self.head = Linear({"d_model": d_model}, {"vocab_size": config.vocab_size})
        self.mtp = nn.ModuleList()
        if config.mtp is not None:
            self.mtp.extend(MTPDepth(config.mtp, residual, d_model) for _ in range(config.mtp.n_depths))
        self.tie()

    def tie(self) -> None:
        """Tie the parameters that the config shares. Call it again after `to_empty`, which separates them."""
        if self.config.tie_embeddings:
            self.head.weight = self.embedding.weight
        for depth in self.depths:
            depth.exit.share_reduction(self.exit)

    @property
    def depths(self) -> Sequence[MTPDepth]:
        """The MTP heads, in order."""
        return cast(Sequence[MTPDepth], self.mtp)

    def named_layers(self) -> list[tuple[str, DecoderLayer]]:
        """Return every layer with its path in the order of the forward pass; layers of MTP heads come last."""
        layers = [(f"layers.{i}", cast(DecoderLayer, layer)) for i, layer in enumerate(self.layers)]
        return layers + [(f"mtp.{k}.layer", depth.layer) for k, depth in enumerate(self.depths)]

    @torch.no_grad()
    def set_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy weights, whole tensors by name, into all parameters. Each process copies the rows that it holds.

        A tied parameter has the first of its names.
        """
        missing = dict(self.named_parameters())
        for name, tensor in weights:
            put(missing.pop(name), tensor)
        assert not missing, f"no weights for {', '.join(missing)}"

    def init_weights(self, seed: int) -> None:
        """Fill every weight from the seed, equally on any device and for any dtype. See `model.initial_weights`.

        Weights are drawn one at a time, so that no process needs memory for all of them.
        """
        config = self.config
        init = config.init
        ends = (self.embedding, None if config.tie_embeddings else self.head, self.positions)
        stds: list[tuple[nn.Module, float]] = [(module, init.std) for module in ends if module is not None]
        n_additions = config.n_residual_additions
        parts = [(layer, config.d_model / width) for layer, width in zip(self.layers, config.widths)]
        parts += [(part, 1.0) for part in (self.entry, self.exit, *self.mtp)]
        for part, width_ratio in parts:
            stds += [(module, initial_std(init, module, width_ratio, n_additions)) for module in part.modules()]
        generator = torch.Generator().manual_seed(seed)
        for module, std in stds:
            if isinstance(module, Weight):
                put(module.weight, initial_weight(module, std, generator, init.truncate_at))

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Stream:
        """tokens: integers (B, T) -> the residual's stream before the first layer.

        positions: integers (B or 1, T), used only by learned positions; None: 0 to T - 1.
        """
        rows = self.embedding(tokens) * self.config.embedding_multiplier
        if self.positions is not None:
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
            rows = rows + self.positions(positions)
        return self.entry(rows)

    def hidden(self, tokens: Tensor, cache: KVCache | None = None, is_real: Tensor | None = None) -> Tensor:
        """Return the normalised hidden states (B, T, d_model) before the head. See `stream` for the arguments."""
        return self.exit(self.stream(tokens, cache, is_real))

    def stream(
        self,
        tokens: Tensor,
        cache: KVCache | None = None,
        is_real: Tensor | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Stream:
        """Return the residual's stream after the last layer. tokens: integers (B, T).

        With a cache, `tokens` continue the cached ones. is_real: bool (B, T), False on padding; windows of attention
        count padding between real tokens. documents, positions: integers (B, T), for rows of several documents without
        cache and padding, see `data.loader.Boundaries`. Attention sees only tokens of the same document; positions
        replace the positions in the row.
        """
        if cache is not None:
            cache.check_room(*tokens.shape)
        context = self._context(tokens, self.config.layers, cache, is_real, documents=documents, positions=positions)
        stream, _ = self._run_layers(self.embed(tokens, context.positions), context, cache)
        if cache is not None:
            cache.advance(tokens.shape[1], is_real)
        return stream

    def _run_layers(
        self, stream: Stream, context: PassContext, cache: KVCache | None = None
    ) -> tuple[Stream, tuple[Choices, ...]]:
        """Return the stream after the last layer, and the choices of every layer."""
        choices = []
        for i, layer in enumerate(self.layers):
            layer_cache = None if cache is None else cache.layers[i]
            stream, layer_choices = self.recompute.run(i, layer, stream, context, cache=layer_cache)
            choices.append(layer_choices)
        return stream, tuple(choices)

    def forward(self, tokens: Tensor, cache: KVCache | None = None, is_real: Tensor | None = None) -> Tensor:
        """tokens: integers (B, T) -> logits (B, T, vocab_size). See `stream` for the other arguments."""
        return self.logits(self.hidden(tokens, cache, is_real))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: (..., d_model) -> (..., vocab_size)."""
        return soft_capped(self.head(hidden) * self.config.logit_multiplier, self.config.logit_cap)

    @property
    def logit_head(self) -> Head:
        """The weight of the head, and the multiplier and cap of the logits."""
        return Head(self.head.weight, self.config.logit_multiplier, self.config.logit_cap)

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        z_coefficient: float = 0.0,
        width_fraction: float | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        teacher: Teacher | None = None,
    ) -> Loss:
        """Compute the next-token cross-entropy without keeping the logits. tokens, targets: integers (B, T).

        width_fraction: width of all tokens in dynamic-width layers, in place of the widths that they choose. documents,
        positions: see `stream`; a target counts even if it belongs to another document than its token. teacher:
        predictions to learn in addition to the targets. MTP heads learn from targets only.
        """
        layers = self.config.layers if self.config.mtp is None else (*self.config.layers, self.config.mtp.layer)
        context = self._context(tokens, layers, width_fraction=width_fraction, documents=documents, positions=positions)
        embedded = self.embed(tokens, context.positions)
        stream, choices = self._run_layers(embedded, context)
        objective, losses, log_normalisers = linear_cross_entropy(
            self.exit(stream), self.logit_head, targets, z_coefficient, teacher
        )
        for layer_choices in choices:
            objective = objective + layer_choices.get("auxiliary_loss", 0.0)
        if self.config.mtp is None:
            return Loss(objective, losses, log_normalisers, choices)
        mtp_objective, mtp_losses = self._mtp_losses(embedded, stream, targets, context)
        objective = objective + self.config.mtp.coefficient * mtp_objective
        return Loss(objective, losses, log_normalisers, choices, mtp_losses)

    def _mtp_losses(
        self, embedded: Stream, stream: Stream, targets: Tensor, context: PassContext
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the mean of the objectives of all MTP depths, and their losses.

        embedded, stream: the stream before the first layer and after the last. At position i, depth k reads token i + k
        and predicts target i + k. The last k positions of a row have no such target and are skipped, and so are depths
        without any target. The objective of a depth is its mean loss plus the auxiliary losses of its layer.
        """
        slots = self.slots(stream)
        embedded_slots = self.slots(embedded)
        n_tokens = targets.shape[1]
        total = targets.new_zeros((), dtype=torch.float32)
        losses = []
        for k, depth in enumerate(self.depths[: n_tokens - 1], start=1):
            n = n_tokens - k
            slots, choices = self.recompute.run(k - 1, depth, slots[:, :n], embedded_slots[:, k:], context.first(n))
            mean, token_losses, _ = linear_cross_entropy(depth.hidden(slots), self.logit_head, targets[:, k:])
            total = total + mean + choices.get("auxiliary_loss", 0.0)
            losses.append(token_losses)
        return total / max(1, len(losses)), tuple(losses)

    def slots(self, stream: Stream) -> Tensor:
        """Return the stream as MTP heads read it, (B, T, n_slots, slot_width)."""
        return self.config.residual.to_slots(stream, self.config.d_model)

    def mtp_slots(self, k: int, slots: Tensor, tokens: Tensor, cache: KVCache) -> Tensor:
        """Return the slots of MTP depth k at the T positions after the cached ones. The cache is not advanced.

        slots: (B, T, n_slots, slot_width) of depth k - 1 at these positions; depth 0 is the model. tokens: integers
        (B, T), the tokens k positions later. cache: from `new_cache` with of_mtp.
        """
        assert self.config.mtp is not None
        context = self._context(tokens, (self.config.mtp.layer,), cache)
        first = cache.length + k
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)[None]
        embedded_slots = self.slots(self.embed(tokens, positions))
        slots, _ = self.depths[k - 1](slots, embedded_slots, context, cache.layers[k - 1])
        return slots

    def new_cache(self, batch_size: int, capacity: int, of_mtp: bool = False) -> KVCache:
        """Return an empty cache for `capacity` tokens, in the compute dtype and on the device of the model.

        of_mtp: True for a cache of the MTP heads, False for one of the layers.
        """
        modules = [depth.layer for depth in self.depths] if of_mtp else self.layers
        heads = [layer.config.attention for layer in cast(Iterable[DecoderLayer], modules)]
        table = self.embedding.weight
        return KVCache(heads, batch_size, capacity, len(self.depths), dtype=compute_dtype(table), device=table.device)

    def _context(
        self,
        tokens: Tensor,
        layers: Sequence[LayerConfig],
        cache: KVCache | None = None,
        is_real: Tensor | None = None,
        width_fraction: float | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> PassContext:
        """Return positions, rotary tables and masks for all layers. Call it before `cache` is advanced."""
        has_documents = documents is not None or positions is not None
        assert not has_documents or (cache is None and is_real is None), "documents exclude a cache and padding"
        n_new = tokens.shape[1]
        start = 0 if cache is None else cache.length
        real = None  # bool (B, S) over cached and new tokens, False for padding; None if nothing is padding
        cached_real = None if cache is None else cache.real_tokens
        if is_real is not None or cached_real is not None:
            new_real = torch.ones_like(tokens, dtype=torch.bool) if is_real is None else is_real
            if cached_real is None:
                cached_real = new_real.new_ones(len(new_real), start)
            real = torch.cat((cached_real, new_real), dim=1)
        if positions is None and real is not None:
            positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, start:]
        elif positions is None:
            positions = torch.arange(start, start + n_new, device=tokens.device)[None]
        learned = self.config.positions
        if learned is not None:
            n_tokens = start + n_new if real is None else int(real.sum(dim=1).max())
            if n_tokens > learned.n_positions:
                raise ValueError(f"{n_tokens} tokens do not fit into {learned.n_positions} learned positions")
        ropes = {layer.attention.rope for layer in layers}
        rope_tables = {rope: rope_table(positions, rope) for rope in ropes if rope is not None}
        forced = None
        if width_fraction is not None:
            wide = torch.promote_types(self.embedding.weight.dtype, torch.float32)  # bf16 would be off by whole units
            forced = torch.tensor(width_fraction, dtype=wide, device=tokens.device)
        # With documents, masks are numbers in the dtype of the queries: torch would convert a bool mask in every layer.
        mask_dtype = torch.bool if documents is None else compute_dtype(self.embedding.weight)
        if real is not None:
            documents = padding_documents(real)
        windows = {layer.attention.window for layer in layers if layer.attention.score_cap is None}
        masks = {window: attention_mask(window, tokens, start, documents, mask_dtype) for window in windows}
        return PassContext(rope_tables, masks, forced, start, positions, documents)


def blueprint(config: ModelConfig) -> Decoder:
    """Return a decoder on the meta device, whose parameters have names, axes and shapes but no memory."""
    with torch.device("meta"):
        return Decoder(config)


def parameter_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Return a dict from parameter to shape. A tied parameter has the first of its names."""
    return {name: parameter.shape for name, parameter in blueprint(config).named_parameters()}


def build(
    config: ModelConfig, seed: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Decoder:
    """Build a decoder with initial weights from the seed.

    Raises UserError if the weights do not fit into memory, and TypeError for a template.
    """
    if not isinstance(config, ModelConfig):
        raise TypeError(
            f"build: got a {type(config).__name__}; expected a ModelConfig, which has every layer written out: "
            "recipe.explicit_model, or template.resolve(seq_len)"
        )
    model = blueprint(config).to(dtype)
    allocate(model, device)
    model.init_weights(seed)
    return model


def allocate(model: Decoder, device: torch.device | str, n_shards: int = 1) -> None:
    """Allocate the memory of a blueprint on the device without setting weights. Raise UserError if they do not fit.

    n_shards: number of processes that divide the parameters.
    """
    n_params = sum(parameter.numel() for parameter in model.parameters())
    too_large = f"model: {n_params:,} parameters do not fit into memory"
    with allocating(too_large):
        if torch.device(device).type == "cpu":
            check_room(n_params * model.embedding.weight.dtype.itemsize // n_shards, too_large)
        model.to_empty(device=device)
        model.tie()
