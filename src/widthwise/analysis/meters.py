"""Statistics of activations, attention, the stream and predictions over a text, in constant memory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from widthwise.analysis.hooks import AttentionCall
from widthwise.records.analysis import Activations, BlockExit, LensPoint, Sink, StreamState, Valley


@dataclass(eq=False)
class Moments:
    """Running mean and variance of many quantities at once, in fp64 and constant memory."""

    n: int = 0
    mean: Tensor = field(default_factory=partial(torch.zeros, (), dtype=torch.float64))
    _squares: Tensor | float = 0.0

    @property
    def variance(self) -> Tensor:
        """Mean squared distance from the mean."""
        return torch.as_tensor(self._squares / self.n)

    def add(self, values: Tensor) -> None:
        """Add values (n, ...) of the same quantities."""
        values = values.double()
        n = len(values)
        n_all = self.n + n
        mean = values.mean(dim=0)
        shift = mean - self.mean
        # Means and squared distances merge without the cancellation of a sum of squares (Chan, Golub, LeVeque 1979).
        self._squares = self._squares + (values - mean).square().sum(dim=0) + shift.square() * (self.n * n / n_all)
        self.mean = self.mean + shift * (n / n_all)
        self.n = n_all


ROWS_AT_ONCE = 4096
"""Tokens that are converted to fp32 or fp64 at a time."""


@dataclass(eq=False)
class ActivationMeter:
    """Sums over the tokens of one feed-forward block, in constant memory."""

    thresholds: Sequence[float]
    utilisation_threshold: float
    _n_tokens: int = 0
    _n_active: Tensor | int = 0
    """(n_thresholds,): number of activations above each threshold, over all units."""
    _n_used: Tensor | int = 0
    """(d_ff,): number of tokens that activate each unit."""
    _energy: Tensor | float = 0.0
    """(d_ff,) fp64: sums of squares."""

    def add(self, activations: Tensor) -> None:
        """Add n tokens. activations: (n, d_ff)."""
        for rows in activations.split(ROWS_AT_ONCE):
            magnitudes = rows.to(torch.promote_types(rows.dtype, torch.float32)).abs()
            self._n_tokens += len(magnitudes)
            self._n_active += torch.stack([(magnitudes > threshold).sum() for threshold in self.thresholds])
            self._n_used += (magnitudes > self.utilisation_threshold).sum(dim=0)
            self._energy += magnitudes.square().sum(dim=0, dtype=torch.float64)

    def summary(self, layer: int, block: int) -> Activations:
        """Return the statistics. layer, block: from 0 on; the record counts them from 1."""
        n_used = torch.as_tensor(self._n_used)
        d_ff = len(n_used)
        participation = participation_ratio(torch.as_tensor(self._energy))
        return Activations(
            layer=layer + 1,
            block=block + 1,
            d_ff=d_ff,
            density=(torch.as_tensor(self._n_active).double() / (self._n_tokens * d_ff)).tolist(),
            utilisation=(n_used.double() / self._n_tokens).tolist(),
            dead_share=float((n_used == 0).double().mean()),
            participation=participation,
            participation_share=None if participation is None else participation / d_ff,
        )


def participation_ratio(energies: Tensor) -> float | None:
    """Return (sum e)^2 / sum e^2, the effective number of energies e; None if all are 0."""
    total = energies.sum()
    return float(1 / (energies / total).square().sum()) if total > 0 else None


class MatrixEntropy:
    """The matrix entropy of the stream at one depth. Holds width^2 numbers."""

    def __init__(self, width: int, device: torch.device):
        self._gram = torch.zeros(width, width, dtype=torch.float64, device=device)
        self._n_tokens = 0

    def add(self, states: Tensor) -> None:
        """Add n tokens. states: (n, width)."""
        for rows in states.split(ROWS_AT_ONCE):
            # In fp64, because a few coordinates are usually huge, and rounding would hide the others.
            wide = rows.double()
            self._gram.addmm_(wide.T, wide)
            self._n_tokens += len(rows)

    def summary(self, depth: int) -> StreamState:
        """Return the matrix entropy -sum p log p, divided by its maximum log(rank), and the participation ratio.

        p: eigenvalues of the Gram matrix, divided by their sum; rank: the smaller of width and number of tokens. The
        entropy is None for a rank of 1, and both are None if all states are 0.
        """
        width = len(self._gram)
        rank = min(self._n_tokens, width)
        energies = torch.linalg.eigvalsh(self._gram).clamp(min=0)
        is_defined = rank > 1 and energies.sum() > 0
        entropy = float(torch.special.entr(energies / energies.sum()).sum()) / math.log(rank) if is_defined else None
        participation = participation_ratio(energies)
        return StreamState(depth=depth, width=width, rank=rank, entropy=entropy, participation=participation)


def valley(entropies: Sequence[float | None]) -> Valley | None:
    """Return the compression valley, the inner depth of lowest entropy.

    None if no earlier depth, or no later one, has a higher entropy. entropies: of all depths from 0 on. Source: Skean
    et al. 2025, arXiv:2502.02013.
    """
    points = [(entropy, depth) for depth, entropy in enumerate(entropies) if entropy is not None]
    if len(points) < 3:
        return None
    entropy, depth = min(points[1:-1])
    before = max(value for value, other_depth in points if other_depth < depth)
    after = max(value for value, other_depth in points if other_depth > depth)
    if entropy >= min(before, after):
        return None
    return Valley(depth=depth, entropy=entropy, drop=before - entropy, rise=after - entropy)


TOKENS_AT_ONCE = 256
"""Tokens whose distributions are held in memory, at two depths."""


@dataclass(eq=False)
class LogitLens:
    """The next-token predictions that the head makes from the stream at each depth: sums over tokens, in fp64."""

    _n_tokens: int = 0
    _sums: Tensor | float = 0.0
    """(n_depths, 3): log probabilities of the targets, entropies, and symmetric KL divergences from the depth before;
    the first depth has its divergence from itself."""

    def add(self, hidden: Sequence[Tensor], targets: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Add n tokens.

        hidden: (n, d_model) of each depth, normalised for the head; targets: integers (n,), the next tokens; logits:
        (m, d_model) -> (m, vocab_size).
        """
        for start in range(0, len(targets), TOKENS_AT_ONCE):
            chunk = slice(start, start + TOKENS_AT_ONCE)
            sums = []
            before = None
            for states in hidden:  # two depths are held in memory
                log_probs = _log_probs(logits(states[chunk]))
                probs = log_probs.exp()
                probs_before, log_probs_before = before or (probs, log_probs)
                target_log_probs = log_probs.gather(1, targets[chunk, None])
                entropies = -(probs * log_probs).sum(dim=-1)
                # Both directions at once: (KL(p|q) + KL(q|p)) / 2 = sum (p - q) (log p - log q) / 2.
                divergences = ((probs - probs_before) * (log_probs - log_probs_before)).sum(dim=-1) / 2
                for values in (target_log_probs, entropies, divergences):
                    sums.append(values.sum(dtype=torch.float64))
                before = (probs, log_probs)
            self._sums += torch.stack(sums).view(-1, 3)
        self._n_tokens += len(targets)

    def summary(self) -> list[LensPoint]:
        """Return means in nats for each depth."""
        log_probs, entropies, divergences = (torch.as_tensor(self._sums) / self._n_tokens).T.tolist()
        points = zip(log_probs, entropies, [*divergences[1:], None])
        return [
            LensPoint(depth=depth, target_log_prob=log_prob, entropy=entropy, kl_to_next=divergence)
            for depth, (log_prob, entropy, divergence) in enumerate(points)
        ]


@dataclass(eq=False)
class BlockExits:
    """The loss of a model that ends after a feed-forward block inside a layer: sums over tokens, in fp64."""

    _n_tokens: int = 0
    _sums: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def add(
        self, hidden: Mapping[tuple[int, int], Tensor], targets: Tensor, logits: Callable[[Tensor], Tensor]
    ) -> None:
        """Add n tokens. hidden: (n, d_model) of each (layer, block), from 0 on; targets, logits: as for LogitLens."""
        for block, states in hidden.items():
            for rows, tokens in zip(states.split(TOKENS_AT_ONCE), targets.split(TOKENS_AT_ONCE)):
                log_probs = _log_probs(logits(rows)).gather(1, tokens[:, None])
                self._sums[block] = self._sums.get(block, 0) + log_probs.sum(dtype=torch.float64)
        self._n_tokens += len(targets)

    def summary(self) -> list[BlockExit]:
        """Return the mean log probability in nats for each block."""
        return [
            BlockExit(layer=layer + 1, block=block + 1, target_log_prob=float(total) / self._n_tokens)
            for (layer, block), total in sorted(self._sums.items(), key=lambda item: item[0])
        ]


def _log_probs(logits: Tensor) -> Tensor:
    """Return log probabilities, computed in fp32 or wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)


@dataclass(eq=False)
class SinkMeter:
    """Attention to the first token in one layer, and norms of the stream after it: sums over texts."""

    _weights: Tensor | float = 0.0
    """(n_heads,) fp64: attention weight of the first token, summed over all queries."""
    _n_queries: int = 0
    _norms: Tensor | float = 0.0
    """(2,) fp64: sums of norms over first tokens, and over all other tokens."""
    _n_tokens: Tensor | float = 0.0
    """(2,) fp64: number of first tokens, and of all other tokens."""

    def add_attention(self, call: AttentionCall) -> None:
        """Add the attention of the layer to a batch of texts."""
        weights = call.first_key_weights()
        self._weights += weights.sum(dim=(0, 2), dtype=torch.float64)
        self._n_queries += weights.shape[0] * weights.shape[2]

    def add_stream(self, stream: Tensor) -> None:
        """Add the stream (B, T, width) after the layer; T >= 2."""
        norms = torch.linalg.vector_norm(stream, dim=-1, dtype=torch.promote_types(stream.dtype, torch.float32))
        parts = norms.double().tensor_split((1,), dim=1)
        self._norms += torch.stack([part.sum() for part in parts]).cpu()
        self._n_tokens += torch.tensor([part.numel() for part in parts], dtype=torch.float64)

    def summary(self, layer: int) -> Sink:
        """Return means over all queries, also of first tokens. layer: from 1 on."""
        heads = torch.as_tensor(self._weights) / self._n_queries
        first, rest = torch.as_tensor(self._norms / self._n_tokens).tolist()
        ratio = first / rest if rest > 0 else None
        return Sink(layer=layer, first_token_share=float(heads.mean()), heads=heads.tolist(), norm_ratio=ratio)
