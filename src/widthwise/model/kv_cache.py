"""Keys and values of the tokens seen so far. Every layer has its own shape."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class CacheShape(NamedTuple):
    """Sizes of the keys and values that one layer keeps per token."""

    n_kv_heads: int
    head_dim: int
    """Size of a key head."""
    v_head_dim: int
    """Size of a value head."""


class LayerCache:
    """Room for `capacity` tokens of one layer."""

    def __init__(self, shape: CacheShape, batch_size: int, capacity: int, **tensor_options):
        self.keys = torch.zeros(batch_size, shape.n_kv_heads, capacity, shape.head_dim, **tensor_options)
        self.values = torch.zeros(batch_size, shape.n_kv_heads, capacity, shape.v_head_dim, **tensor_options)

    def write(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores T tokens from `start` on; returns the keys and values of all tokens up to there.

        keys: (B, n_kv_heads, T, head_dim), values: (B, n_kv_heads, T, v_head_dim) -> the same with start + T for T.
        """
        n_new = keys.shape[2]
        self.keys.narrow(2, start, n_new).copy_(keys)
        self.values.narrow(2, start, n_new).copy_(values)
        return self.keys.narrow(2, 0, start + n_new), self.values.narrow(2, 0, start + n_new)


class KVCache:
    """One `LayerCache` per layer, one length for all, and which tokens are real.

    The length counts the tokens of finished forward passes: the decoder reads it once before the first layer writes and
    moves it once after the last, so that all layers agree on the positions.
    """

    def __init__(self, shapes: Sequence[CacheShape], batch_size: int, capacity: int, **tensor_options):
        """shapes: of every layer; capacity in tokens; tensor_options: dtype and device."""
        self.layers = [LayerCache(shape, batch_size, capacity, **tensor_options) for shape in shapes]
        self.capacity = capacity
        self.length = 0
        self.has_padding = False
        device = tensor_options.get("device")
        self.is_real = torch.zeros(batch_size, capacity, dtype=torch.bool, device=device)
        self.tokens = torch.zeros(batch_size, capacity, dtype=torch.long, device=device)

    def check_room(self, batch_size: int, n_tokens: int) -> None:
        """Raises ValueError where that many more tokens of that many texts do not fit."""
        if batch_size != len(self.is_real) or self.length + n_tokens > self.capacity:
            holds = f"a cache for {len(self.is_real)} texts of {self.capacity} tokens with {self.length} of them filled"
            raise ValueError(f"{holds} cannot take {n_tokens} tokens of {batch_size} texts")

    @property
    def seen(self) -> Tensor | None:
        """bool (B, length): which of the tokens seen so far are real; None: all, which is known without a look."""
        return self.is_real[:, : self.length] if self.has_padding and self.length else None

    def last_tokens(self, n: int) -> Tensor:
        """integers (B, n): the last n tokens that were remembered, or as many as there are."""
        return self.tokens[:, max(0, self.length - n) : self.length]

    def remember(self, tokens: Tensor) -> None:
        """Keeps the ids of the tokens just written, integers (B, n_tokens), before they are counted as seen."""
        self.tokens[:, self.length : self.length + tokens.shape[1]] = tokens

    def advance(self, n_tokens: int, is_real: Tensor | None = None) -> None:
        """Counts the tokens just written as seen. is_real: bool (B, n_tokens), False on padding; None: all are real."""
        self.has_padding = self.has_padding or is_real is not None
        self.is_real[:, self.length : self.length + n_tokens] = True if is_real is None else is_real
        self.length += n_tokens

    def repeated(self, counts: Tensor, capacity: int) -> "KVCache":
        """A cache that holds each text as often as `counts`, integers (B,), says, neighbours of each other."""
        first = self.layers[0].keys
        sizes = [(layer.keys.shape, layer.values.shape) for layer in self.layers]
        shapes = [CacheShape(n_kv_heads, head_dim, values[3]) for (_, n_kv_heads, _, head_dim), values in sizes]
        found = KVCache(shapes, int(counts.sum()), capacity, dtype=first.dtype, device=first.device)
        for own, layer in zip(self.layers, found.layers):
            for before, after in ((own.keys, layer.keys), (own.values, layer.values)):
                after.narrow(2, 0, self.length).copy_(before.narrow(2, 0, self.length).repeat_interleave(counts, dim=0))
        found.remember(self.last_tokens(self.length).repeat_interleave(counts, dim=0))
        found.advance(self.length, self.seen if self.seen is None else self.seen.repeat_interleave(counts, dim=0))
        return found

    def rewind(self, length: int) -> None:
        """Forgets the tokens from `length` on. Raises ValueError where it holds fewer than that."""
        if not 0 <= length <= self.length:
            raise ValueError(f"a cache of {self.length} tokens cannot be rewound to {length}")
        self.length = length

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values at full capacity."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)
