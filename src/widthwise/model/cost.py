"""Costs of the parts of a model, counted from their structure.

Every matrix product of a model is a `linear`, the scores of an attention, or the head. Their sum is exact: parameters
equal `numel` of the built model, and FLOPs equal torch's counter (2 FLOPs per multiply-add; norms, softmax, rotary
embedding and the embedding lookup are not counted, as in the papers). The functions also accept real sizes, because the
shape solver counts before it rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class ContextCost(NamedTuple):
    """Costs of attention that grow with the context length."""

    flops: float
    """Forward FLOPs of a token per token that it attends to."""
    kv_elements: float
    """Numbers in the KV cache per token that it holds."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of a part of a model. All fields except the parameters are per token."""

    params: float = 0
    active_params: float = 0
    """Parameters one token uses; fewer than `params` only with routed experts."""
    flops: float = 0
    """Forward FLOPs that do not depend on the context length."""
    contexts: Mapping[int | None, ContextCost] = field(default_factory=dict)
    """Window of attention -> costs of all layers with this window; None: attention to all seq_len tokens."""
    activation_elements: float = 0
    """Numbers in the compute dtype that autograd keeps from forward to backward, without recomputation."""
    activation_fp32_elements: float = 0
    """Numbers that autograd keeps in fp32 for any compute dtype: norm and softmax statistics."""

    def __add__(self, addend: "Cost") -> "Cost":
        sums = {name: value + getattr(addend, name) for name, value in vars(self).items() if name != "contexts"}
        if not (self.contexts and addend.contexts):
            return Cost(**sums, contexts=self.contexts or addend.contexts)
        contexts = dict(self.contexts)
        for window, added in addend.contexts.items():
            flops, kv_elements = contexts.get(window, (0, 0))
            contexts[window] = ContextCost(flops + added.flops, kv_elements + added.kv_elements)
        return Cost(**sums, contexts=contexts)

    def shared(self) -> "Cost":
        """Return the cost without parameters, which are counted elsewhere."""
        return replace(self, params=0, active_params=0)

    def forward_flops(self, seq_len: int, causal: bool = False) -> float:
        """Return the forward FLOPs per token. causal: count half of the scores, as a causal kernel computes them.

        Scores outside of a window are not counted, although some kernels compute them.
        """
        flops = self.flops
        for window, context in self.contexts.items():
            n = seq_len if window is None else min(window, seq_len)
            # Token i attends to min(i, n) tokens: n - n^2 / (2 seq_len) on average.
            flops += context.flops * (n - n * n / (2 * seq_len) if causal else n)
        return flops

    def training_flops(self, seq_len: int) -> float:
        """Return the forward and backward FLOPs per token. The backward pass of a product is two products."""
        return 3 * self.forward_flops(seq_len)

    def kv_bytes(self, seq_len: int, bytes_per_element: int = 2) -> float:
        """Return the bytes per token of a KV cache of seq_len tokens, by default in bf16.

        A layer with a window caches only the tokens in the window.
        """
        n_elements: float = 0
        for window, context in self.contexts.items():
            n_elements += context.kv_elements * (1 if window is None else min(window / seq_len, 1))
        return n_elements * bytes_per_element

    def activation_bytes(self, bytes_per_element: int = 2) -> float:
        """Return the bytes that autograd keeps per token, by default in bf16."""
        return self.activation_elements * bytes_per_element + self.activation_fp32_elements * 4


def linear(n_in: float, n_out: float, n_vectors: float = 1) -> Cost:
    """Return the cost of a matrix that maps n_vectors of each token.

    The input that it keeps for the backward pass is counted with the part that produces it.
    """
    params = n_in * n_out
    return Cost(params=params, active_params=params, flops=2 * params * n_vectors)


def vector(n: float) -> Cost:
    """Return the cost of parameters without matrix products: a gain, or a lookup table."""
    return Cost(params=n, active_params=n)


Axes = dict[str, int]
"""Names and sizes of flattened axes, outermost first: {"n_heads": 16, "head_dim": 40} has 640 entries."""


def size(axes: Axes) -> int:
    """Return the number of entries of the flattened axes."""
    n = 1
    for entries in axes.values():  # math.prod would break the graph of a compiled layer
        n *= entries
    return n
