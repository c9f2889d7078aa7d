"""What a model would predict if it ended after each layer, or after each block inside one.

Source: nostalgebraist 2020; variable-width paper, arXiv:2606.18246, section 4.3.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

TOKENS_AT_ONCE = 256
"""Whose distributions stand in memory, at two depths."""


class LogitLens:
    """Sums over tokens at every depth, in fp64."""

    def __init__(self) -> None:
        self._n_tokens = 0
        self._target_log_probs: Tensor | float = 0.0
        self._entropies: Tensor | float = 0.0
        self._divergences: Tensor | float = 0.0
        """Between each depth and the one before, the first excepted."""

    def add(self, hidden: Sequence[Tensor], targets: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """hidden: of each depth (n, d_model), normalised for the head; targets: integers (n,), the tokens that come
        next; logits: (m, d_model) -> (m, vocab_size).
        """
        for start in range(0, len(targets), TOKENS_AT_ONCE):
            piece = slice(start, start + TOKENS_AT_ONCE)
            self._add((_log_probs(logits(states[piece])) for states in hidden), targets[piece])
        self._n_tokens += len(targets)

    def _add(self, depths: Iterable[Tensor], targets: Tensor) -> None:
        """depths: log-probabilities (m, vocab_size), of which no more than two are held."""
        target_log_probs, entropies, divergences = [], [], []
        before, probs_before = None, None
        for log_probs in depths:
            probs = log_probs.exp()
            target_log_probs.append(log_probs.gather(1, targets[:, None]).sum(dtype=torch.float64))
            entropies.append(-_total(probs, log_probs))
            if before is not None and probs_before is not None:
                # Both directions at once: (KL(p|q) + KL(q|p)) / 2 = sum (p - q) (log p - log q) / 2.
                divergences.append(_total(probs - probs_before, log_probs - before) / 2)
            before, probs_before = log_probs, probs
        self._target_log_probs += torch.stack(target_log_probs)
        self._entropies += torch.stack(entropies)
        self._divergences += torch.stack(divergences)

    def summary(self) -> list[dict[str, Any]]:
        """An entry for each depth, means in nats. kl_to_next: symmetrised, null for the last depth."""
        sums = (self._target_log_probs, self._entropies, self._divergences)
        target_log_probs, entropies, divergences = ((torch.as_tensor(s) / self._n_tokens).tolist() for s in sums)
        return [
            {"depth": depth, "target_log_prob": target_log_prob, "entropy": entropy, "kl_to_next": divergence}
            for depth, (target_log_prob, entropy, divergence) in enumerate(
                zip(target_log_probs, entropies, [*divergences, None])
            )
        ]


class BlockExits:
    """The loss of a model that ends inside a layer, after one of its feed-forward blocks; sums in fp64."""

    def __init__(self) -> None:
        self._n_tokens = 0
        self._sums: dict[tuple[int, int], Tensor] = {}

    def add(
        self, hidden: Mapping[tuple[int, int], Tensor], targets: Tensor, logits: Callable[[Tensor], Tensor]
    ) -> None:
        """hidden: of each (layer, block), from 0 on, (n, d_model); the rest as for the lens."""
        for place, states in hidden.items():
            for rows, own in zip(states.split(TOKENS_AT_ONCE), targets.split(TOKENS_AT_ONCE)):
                found = _log_probs(logits(rows)).gather(1, own[:, None]).sum(dtype=torch.float64)
                self._sums[place] = self._sums.get(place, 0) + found
        self._n_tokens += len(targets)

    def summary(self) -> list[dict[str, Any]]:
        """An entry for each block but the last of a layer, the mean in nats; layers and blocks from 1 on."""
        return [
            {"layer": layer + 1, "block": block + 1, "target_log_prob": float(total) / self._n_tokens}
            for (layer, block), total in sorted(self._sums.items(), key=lambda item: item[0])
        ]


def _log_probs(logits: Tensor) -> Tensor:
    """Log probabilities, computed in fp32 or wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)


def _total(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(dim=-1).sum(dtype=torch.float64)
