"""The decoder: embed, layers, norm, head."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from widthwise.kernels import linear_cross_entropy
from widthwise.kernels.dispatch import compute_dtype
from widthwise.model.axes import Embedding, Linear, RMSNorm
from widthwise.model.config import ModelConfig
from widthwise.model.context import PassContext
from widthwise.model.ffn.interface import Choices
from widthwise.model.init import fill, matrix_std
from widthwise.model.kv_cache import KVCache
from widthwise.model.rope import rope_table


class Loss(NamedTuple):
    """What `Decoder.loss` finds. Only the objective and the choices carry gradients."""

    objective: Tensor
    """Scalar to differentiate: mean(loss + z_coefficient * log_normaliser^2) and the layers' auxiliary losses."""
    losses: Tensor
    """(B, T), nats per token, without any auxiliary term."""
    log_normalisers: Tensor
    """(B, T)"""
    choices: tuple[Choices, ...]
    """One a layer; see `model.ffn.interface`."""


class Decoder(nn.Module):
    """A language model. Build with `build`; made directly, its weights are uninitialised."""

    progress: Tensor
    """How far training is, from 0 to 1, for what changes on the way; set by who trains."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, {"d_model": config.d_model})
        self.layers = nn.ModuleList(
            layer.build(config.residual, d_before) for layer, d_before in zip(config.layers, config.stream_widths)
        )
        self.norm = RMSNorm({"d_model": config.final_norm_width}, config.final_norm_eps, config.final_norm_width)
        self.head = Linear({"d_model": config.d_model}, {"vocab_size": config.vocab_size})
        self.register_buffer("progress", torch.ones(()), persistent=False)
        self.tie()

    def tie(self) -> None:
        """Makes head and embedding one parameter where the config says so; needed again after `to_empty`."""
        if self.config.tie_embeddings:
            self.head.weight = self.embedding.weight

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Fills every weight from the seed, the same on any device and for any dtype."""
        generator = torch.Generator().manual_seed(seed)
        self.progress.fill_(1.0)  # `to_empty` left it without a value
        init, n_additions = self.config.init, self.config.n_residual_additions
        for module in (self.embedding, self.norm):
            fill(module, init.std, generator, init.truncate_at)
        if not self.config.tie_embeddings:
            fill(self.head, init.std, generator, init.truncate_at)
        for layer_config, layer in zip(self.config.layers, self.layers):
            width_ratio = self.config.d_model / layer_config.d_model
            for module in layer.modules():
                std = matrix_std(init, module, width_ratio, n_additions) if isinstance(module, Linear) else init.std
                fill(module, std, generator, init.truncate_at)

    def hidden(self, tokens: Tensor, cache: KVCache | None = None, is_real: Tensor | None = None) -> Tensor:
        """tokens: integers (B, T) -> normalised hidden states (B, T, d_model) before the head.

        With a cache, `tokens` continue what it holds. is_real: bool (B, T), False on left padding.
        """
        return self._trunk(tokens, cache, is_real)[0]

    def _trunk(
        self,
        tokens: Tensor,
        cache: KVCache | None = None,
        is_real: Tensor | None = None,
        width_fraction: float | None = None,
    ) -> tuple[Tensor, tuple[Choices, ...]]:
        if cache is not None:
            cache.check_room(*tokens.shape)
        context = self._context(tokens, cache, is_real, width_fraction)
        stream = self.config.residual.open(self.embedding(tokens) * self.config.embedding_multiplier)
        choices: list[Choices] = []
        for i, layer in enumerate(self.layers):
            stream, chosen = layer(stream, context, None if cache is None else cache.layers[i])
            choices.append(chosen)
        if cache is not None:
            cache.advance(torch.ones_like(tokens, dtype=torch.bool) if is_real is None else is_real)
        return self._final_norm(stream), tuple(choices)

    def forward(self, tokens: Tensor, cache: KVCache | None = None, is_real: Tensor | None = None) -> Tensor:
        """tokens: integers (B, T) -> logits (B, T, vocab_size). For the other arguments see `hidden`."""
        return self.logits(self.hidden(tokens, cache, is_real))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: (..., d_model) -> (..., vocab_size)."""
        return self.head(hidden) * self.config.logit_multiplier

    def loss(
        self, tokens: Tensor, targets: Tensor, z_coefficient: float = 0.0, width_fraction: float | None = None
    ) -> Loss:
        """Next-token cross-entropy without keeping the logits. tokens, targets: integers (B, T).

        width_fraction: what every dynamic-width layer uses instead of choosing token by token.
        """
        hidden, choices = self._trunk(tokens, width_fraction=width_fraction)
        multiplier = self.config.logit_multiplier
        objective, losses, log_normalisers = linear_cross_entropy(
            hidden, self.head.weight, targets, multiplier, z_coefficient
        )
        for chosen in choices:
            objective = objective + chosen.get("auxiliary_loss", 0.0)
        return Loss(objective, losses, log_normalisers, choices)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache for `capacity` tokens in the model's type, on its device."""
        shapes = [(layer.attention.n_kv_heads, layer.attention.head_dim) for layer in self.config.layers]
        weight = self.embedding.weight
        return KVCache(shapes, batch_size, capacity, dtype=compute_dtype(weight), device=weight.device)

    def _context(
        self, tokens: Tensor, cache: KVCache | None, is_real: Tensor | None, width_fraction: float | None
    ) -> PassContext:
        """Positions, rotary tables and mask, once for all layers, from the cache's length before any layer writes."""
        n_new, start = tokens.shape[1], 0 if cache is None else cache.length
        seen = None if cache is None or start == 0 else cache.is_real[:, :start]
        real = _all_real(tokens, seen, is_real)
        if real is None:
            positions = torch.arange(start, start + n_new, device=tokens.device)[None]
        else:
            positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, start:]
        kinds = {(layer.attention.head_dim, layer.attention.rope_base) for layer in self.config.layers}
        rope = {kind: rope_table(positions, *kind) for kind in kinds}
        wide = torch.promote_types(self.progress.dtype, torch.float32)  # in bf16 a fraction is off by whole units
        forced = None if width_fraction is None else torch.full_like(self.progress, width_fraction, dtype=wide)
        mask = _mask(real, start, n_new, tokens.device)
        return PassContext(tokens, rope, mask, self.progress, width_fraction=forced, start=start)

    def _final_norm(self, stream: Any) -> Tensor:
        d_model, n = self.config.d_model, self.config.final_norm_width
        x = self.config.residual.close(stream, max(n, d_model))
        if n >= d_model:
            return self.norm(x)[..., :d_model]
        # As the release does: coordinates the last layer did not own join the head without being normalised.
        normalised = self.norm(x[..., :n])
        return torch.cat((normalised, x[..., n:].to(normalised.dtype)), dim=-1)


def _all_real(tokens: Tensor, seen: Tensor | None, is_real: Tensor | None) -> Tensor | None:
    """bool (B, S) over cached and new tokens, or None where nothing is padding."""
    if is_real is None and (seen is None or bool(seen.all())):
        return None
    new = torch.ones_like(tokens, dtype=torch.bool) if is_real is None else is_real
    return new if seen is None else torch.cat((seen, new), dim=1)


def _mask(real: Tensor | None, start: int, n_new: int, device: torch.device) -> Tensor | None:
    """bool (B or 1, 1, T, S); None where plain causal attention over the new tokens says the same."""
    if real is None and (start == 0 or n_new == 1):
        return None
    queries = torch.arange(start, start + n_new, device=device)[:, None]
    keys = torch.arange(start + n_new, device=device)[None]
    causal = (keys <= queries)[None, None]
    if real is None:
        return causal
    # A padded query still looks at itself: a row without any key would be NaN and spread through the cache.
    return causal & (real[:, None, None, :] | (keys == queries))


def build(
    config: ModelConfig, seed: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Decoder:
    """A decoder with initial weights: built on the meta device, then filled where it will live."""
    with torch.device("meta"):
        model = Decoder(config)
    model = model.to(dtype).to_empty(device=device)
    model.tie()
    model.init_weights(seed)
    return model
