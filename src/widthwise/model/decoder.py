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
from widthwise.model.context import Choices, KVCache, PassContext, Stream, mask_of, padding_documents
from widthwise.model.initial_weights import drawn, initial_std
from widthwise.model.layer import LayerConfig
from widthwise.model.layer_module import DecoderLayer, MTPDepth
from widthwise.model.memory import allocating, check_room
from widthwise.model.recompute import KEEP_ALL
from widthwise.model.shards import put


class Loss(NamedTuple):
    """Results of `Decoder.loss`. Only the objective and the choices carry gradients."""

    objective: Tensor
    """Scalar to differentiate: the mean of loss + z_coefficient * log_normaliser^2, or of the objective with a teacher,
    plus auxiliary losses of layers, plus the mean objective of the MTP heads times its coefficient."""
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
        layers = enumerate(zip(config.layers, config.widths_before))
        self.layers = nn.ModuleList(DecoderLayer(layer, residual, d_before, i) for i, (layer, d_before) in layers)
        self.exit = residual.build_exit(d_model, config.final_norm_width, config.final_norm)
        self.head = Linear({"d_model": d_model}, {"vocab_size": config.vocab_size})
        mtp = config.mtp
        depths = [] if mtp is None else [MTPDepth(mtp, residual, d_model) for _ in range(mtp.n_depths)]
        self.mtp = nn.ModuleList(depths)
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
        return [*layers, *((f"mtp.{k}.layer", depth.layer) for k, depth in enumerate(self.depths))]

    @torch.no_grad()
    def set_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy a whole tensor into every parameter. Each process copies the rows that it holds.

        Tied parameters have the first of their names.
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
        widths = dict(zip(self.layers, config.widths))
        for part in (*self.layers, self.entry, self.exit, *self.mtp):
            ratio = config.d_model / widths.get(part, config.d_model)
            for module in part.modules():
                stds.append((module, initial_std(init, module, ratio, config.n_residual_additions)))
        generator = torch.Generator().manual_seed(seed)
        for module, std in stds:
            if isinstance(module, Weight):
                put(module.weight, drawn(module, std, generator, init.truncate_at))

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Stream:
        """tokens: integers (B, T) -> the residual's stream before the first layer.

        positions: integers (B or 1, T), for learned positions only; None: from 0 on.
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
        choices = []
        for i, layer in enumerate(self.layers):
            cached = None if cache is None else cache.layers[i]
            stream, chosen = self.recompute.run(i, layer, stream, context, cache=cached)
            choices.append(chosen)
        return stream, tuple(choices)

    def forward(self, tokens: Tensor, cache: KVCache | None = None, is_real: Tensor | None = None) -> Tensor:
        """tokens: integers (B, T) -> logits (B, T, vocab_size). See `stream` for the other arguments."""
        return self.logits(self.hidden(tokens, cache, is_real))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: (..., d_model) -> (..., vocab_size)."""
        return soft_capped(self.head(hidden) * self.config.logit_multiplier, self.config.logit_cap)

    @property
    def output(self) -> Head:
        """The head with its constants."""
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

        width_fraction: forced on all tokens in dynamic-width layers. documents, positions: see `stream`; a target
        counts even if it belongs to another document than its token. teacher: predictions to learn in addition to the
        targets. MTP heads learn from targets only.
        """
        layers = self.config.layers if self.config.mtp is None else (*self.config.layers, self.config.mtp.layer)
        context = self._context(tokens, layers, width_fraction=width_fraction, documents=documents, positions=positions)
        entered = self.embed(tokens, context.positions)
        stream, choices = self._run_layers(entered, context)
        hidden = self.exit(stream)
        objective, losses, log_normalisers = linear_cross_entropy(hidden, self.output, targets, z_coefficient, teacher)
        for chosen in choices:
            objective = objective + chosen.get("auxiliary_loss", 0.0)
        if self.config.mtp is None:
            return Loss(objective, losses, log_normalisers, choices)
        mtp_objective, mtp_losses = self._mtp_losses(entered, stream, targets, context)
        objective = objective + self.config.mtp.coefficient * mtp_objective
        return Loss(objective, losses, log_normalisers, choices, mtp_losses)

    def _mtp_losses(
        self, entered: Stream, stream: Stream, targets: Tensor, context: PassContext
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the mean of the objectives of all MTP depths, and their losses.

        entered, stream: before the first layer and after the last. Depth k reads the token k places ahead and predicts
        the next one. The last k positions of a row have no such target and are skipped. The objective of a depth is its
        mean loss over the other positions plus the auxiliary losses of its layer. Depths without targets are skipped.
        """
        slots, later = (self.slots(x) for x in (stream, entered))
        n_tokens = targets.shape[1]
        total = targets.new_zeros((), dtype=torch.float32)
        losses = []
        for k, depth in enumerate(self.depths[: n_tokens - 1], start=1):
            shorter = context.first(n_tokens - k)
            slots, chosen = self.recompute.run(k - 1, depth, slots[:, : n_tokens - k], later[:, k:], shorter)
            mean, token_losses, _ = linear_cross_entropy(depth.hidden(slots), self.output, targets[:, k:])
            total = total + mean + chosen.get("auxiliary_loss", 0.0)
            losses.append(token_losses)
        return total / max(1, len(losses)), tuple(losses)

    def slots(self, stream: Stream) -> Tensor:
        """Return the stream as MTP heads read it, (B, T, n_slots, slot_width)."""
        return self.config.residual.to_slots(stream, self.config.d_model)

    def mtp_slots(self, k: int, slots: Tensor, tokens: Tensor, cache: KVCache) -> Tensor:
        """Return the slots of depth k for tokens that continue the cache of the depths, without advancing it.

        slots: (B, T, n_slots, slot_width) of depth k - 1; depth 0 is the model. tokens: integers (B, T), k places ahead
        of these positions.
        """
        assert self.config.mtp is not None
        context = self._context(tokens, (self.config.mtp.layer,), cache)
        first = cache.length + k
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)[None]
        later = self.slots(self.embed(tokens, positions))
        joined, _ = self.depths[k - 1](slots, later, context, cache.layers[k - 1])
        return joined

    def new_cache(self, batch_size: int, capacity: int, of_mtp: bool = False) -> KVCache:
        """Return an empty cache for `capacity` tokens in the model's dtype, on its device. of_mtp: for MTP heads."""
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
        """Return positions, rotary tables and mask for all layers. The cache still has its length before this pass."""
        assert cache is is_real is None or documents is positions is None, (
            "rows of documents need neither cache nor padding"
        )
        n_new = tokens.shape[1]
        start = 0 if cache is None else cache.length
        real = None  # bool (B, S) over cached and new tokens, False for padding; None if nothing is padding
        seen = None if cache is None else cache.seen
        if is_real is not None or seen is not None:
            new = torch.ones_like(tokens, dtype=torch.bool) if is_real is None else is_real
            real = torch.cat((new.new_ones(len(new), start) if seen is None else seen, new), dim=1)
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
        tables = {rope: rope_table(positions, rope) for rope in ropes if rope is not None}
        forced = None
        if width_fraction is not None:
            wide = torch.promote_types(self.embedding.weight.dtype, torch.float32)  # bf16 would be off by whole units
            forced = torch.tensor(width_fraction, dtype=wide, device=tokens.device)
        # Of documents numbers in the dtype of the queries: torch would convert a bool mask, and copy it per layer.
        mask_dtype = torch.bool if documents is None else compute_dtype(self.embedding.weight)
        if real is not None:
            documents = padding_documents(real)
        windows = {layer.attention.window for layer in layers if layer.attention.score_cap is None}
        masks = {window: mask_of(window, tokens, start, documents, mask_dtype) for window in windows}
        return PassContext(tables, masks, forced, start, positions, documents)


def blueprint(config: ModelConfig) -> Decoder:
    """Return a decoder on the meta device, with names, axes and shapes but no memory."""
    with torch.device("meta"):
        return Decoder(config)


def parameter_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Return the shape of every parameter by name. Tied parameters have the first of their names."""
    return {name: parameter.shape for name, parameter in blueprint(config).named_parameters()}


def build(
    config: ModelConfig, seed: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Decoder:
    """Build a decoder with initial weights.

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
    """Allocate a blueprint's memory without setting weights. Raise UserError if they do not fit.

    n_shards: number of processes that divide its parameters.
    """
    n_params = sum(parameter.numel() for parameter in model.parameters())
    too_large = f"model: {n_params:,} parameters do not fit into memory"
    with allocating(too_large):
        if torch.device(device).type == "cpu":
            check_room(n_params * model.embedding.weight.dtype.itemsize // n_shards, too_large)
        model.to_empty(device=device)
        model.tie()
