"""All costs of a model that a search compares, for one model or for thousands at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from widthwise.model.config import ModelConfig


def totals(config: ModelConfig, seq_len: int) -> dict[str, float]:
    """Return the costs of a model that a search compares. FLOPs and bytes are per token, in bf16.

    layer_params: parameters without embedding, heads and norm gains: the size of a model in the hourglass paper. flops:
    forward, with attention to all seq_len tokens; flops_causal: to half of them, the mean of a causal model.
    activation_bytes: kept for the backward pass, without recomputation. n_residual_additions: sequential updates of the
    stream. MTP heads count only in params and activation_bytes, as in `cost_summary`.
    """
    parts = config.costs()
    total = config.cost()
    inference = config.inference_cost()
    return {
        "params": total.params,
        "layer_params": sum(parts[part].params for part in ("attention", "ffn", "residual")),
        "attention_params": parts["attention"].params,
        "flops": inference.forward_flops(seq_len),
        "flops_causal": inference.forward_flops(seq_len, causal=True),
        "kv_bytes": inference.kv_bytes(seq_len),
        "activation_bytes": total.activation_bytes(),
        "n_residual_additions": config.n_residual_additions,
    }


class Sizes(NamedTuple):
    """The sizes of a uniform model with hourglass feed-forwards, or of many such models as arrays."""

    n_blocks: Any
    n_layers: Any
    d_model: Any
    d_hidden: Any
    d_attention: Any
    """n_heads * head_dim"""

    def at(self, index: Any) -> "Sizes":
        """Return the sizes at an index or several indices."""
        return Sizes(*(size[index] for size in self))


class UniformTotals:
    """The totals of all models that differ only in their `Sizes`, interpolated from the totals of 48 small models.

    Every total is a polynomial: affine in n_blocks, n_layers, d_hidden and d_attention, and quadratic in d_model. It
    follows from the models with one and two blocks, layers, hidden channels and units of heads, and with one, two and
    three quanta of d_model. In Newton's form all steps are whole numbers, so counts are exact.
    """

    def __init__(self, build: Callable[[Sizes], ModelConfig], quantum: int, unit: int, seq_len: int):
        """build: sizes -> model. quantum: an allowed d_model, of which multiples are allowed too. unit: the same for
        d_attention.
        """
        self.build = build
        self.quantum = quantum
        self.unit = unit
        self.seq_len = seq_len
        n_nodes = (2, 2, 3, 2, 2)
        counted = []
        for node in np.ndindex(n_nodes):
            n_blocks, n_layers, n_quanta, d_hidden, n_units = (index + 1 for index in node)
            sizes = Sizes(n_blocks, n_layers, n_quanta * quantum, d_hidden, n_units * unit)
            counted.append(totals(build(sizes), seq_len))
        self._names = list(counted[0])
        values = np.array([list(at_node.values()) for at_node in counted]).reshape(*n_nodes, -1)
        steps = (DIFFERENCES[:n, :n] for n in n_nodes)
        self._coefficients = np.einsum("ai,bj,ck,dl,em,ijklmf->fabcde", *steps, values)

    def __call__(self, name: str, sizes: Sizes) -> np.ndarray:
        """Return one total of n models, (n,). Sizes may be real numbers."""
        n_quanta = np.divide(sizes.d_model, self.quantum)
        n_units = np.divide(sizes.d_attention, self.unit)
        at = (sizes.n_blocks, sizes.n_layers, n_quanta, sizes.d_hidden, n_units)
        steps = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) - 1 for size in at))
        # Newton's basis 1, t, t(t-1)/2; axes with two nodes use the first two.
        k, n, d, h, a = (np.stack([np.ones_like(step), step, step * (step - 1) / 2]) for step in steps)
        coefficients = self._coefficients[self._names.index(name)]
        return np.einsum("abcde,a...,b...,c...,d...,e...->...", coefficients, k[:2], n[:2], d, h[:2], a[:2])

    def d_model(
        self,
        name: str,
        target: float,
        n_blocks: np.ndarray,
        n_layers: np.ndarray,
        ratio: np.ndarray,
        attention: Callable[[float], Any],
    ) -> np.ndarray:
        """Return the real widths at which a total reaches the target with d_hidden = ratio * d_model, (n,).

        attention: affine function from d_model to d_attention. The widths are roots of a quadratic function, which is
        linear if the total counts no matrices, as the KV cache.
        """
        unit = 64.0 * self.quantum  # about the size of a solution, to avoid cancellation
        at_0, at_1, at_2 = (
            self(name, Sizes(n_blocks, n_layers, d, ratio * d, attention(d))) for d in (0.0, unit, 2 * unit)
        )
        square = (at_2 - 2 * at_1 + at_0) / 2
        slope = at_1 - at_0 - square
        rest = np.maximum(target - at_0, 0)
        return unit * 2 * rest / (slope + np.sqrt(slope**2 + 4 * square * rest))

    def d_hidden(self, name: str, target: float, sizes: Sizes) -> np.ndarray:
        """Return the real hidden widths at which a total reaches the target, (n,); infinite if it does not depend on
        them.

        `sizes.d_hidden` is ignored.
        """
        at_0, at_1 = (self(name, sizes._replace(d_hidden=d_hidden)) for d_hidden in (0.0, 1.0))
        slope = at_1 - at_0
        return np.divide(target - at_0, slope, out=np.full_like(slope, np.inf), where=slope > 0)


DIFFERENCES = np.array([[1.0, 0, 0], [-1, 1, 0], [1, -2, 1]])
"""Maps values at equal steps to the first value, the first difference and the second difference."""
