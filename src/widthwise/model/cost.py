"""Costs of the parts of a model, counted from their structure.

Every matrix product of a model is a `linear`, the scores of an attention, or the head, so a sum of these is the whole:
the parameters equal `numel` of the built model and the FLOPs equal torch's counter (2 FLOPs per multiply-add; norms,
softmax, rotary embedding and the embedding lookup are not counted, as in the papers). The functions take real sizes
too: the shape solver counts before it rounds.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A sum of parts. Everything but the parameters is per token."""

    params: float = 0
    active_params: float = 0
    """Parameters one token uses; fewer than `params` only with routed experts."""
    flops: float = 0
    """Forward FLOPs that do not depend on the context length."""
    flops_per_context_token: float = 0
    """Forward FLOPs for each token attended to; full attention attends to seq_len tokens."""
    kv_elements: float = 0
    """Numbers the KV cache keeps."""
    activation_elements: float = 0
    """Numbers of the compute type that autograd keeps from forward to backward, nothing recomputed."""
    activation_fp32_elements: float = 0
    """The same for numbers kept in fp32 for any compute dtype: norm and softmax statistics."""

    def __add__(self, other: "Cost") -> "Cost":
        theirs = vars(other)
        return Cost(**{name: value + theirs[name] for name, value in vars(self).items()})

    def shared(self) -> "Cost":
        """The cost of using parameters that are counted elsewhere."""
        return replace(self, params=0, active_params=0)

    def forward_flops(self, seq_len: int, causal: bool = False) -> float:
        """Forward FLOPs per token; `causal` counts only the half of the scores that a causal kernel computes."""
        return self.flops + self.flops_per_context_token * (seq_len / 2 if causal else seq_len)

    def training_flops(self, seq_len: int) -> float:
        """Forward and backward FLOPs per token; the backward pass of a matrix product is two products."""
        return 3 * self.forward_flops(seq_len)

    def kv_bytes(self, bytes_per_element: int = 2) -> float:
        """Bytes the KV cache keeps per token; 2 bytes an element is bf16."""
        return self.kv_elements * bytes_per_element

    def activation_bytes(self, bytes_per_element: int = 2) -> float:
        """Bytes autograd keeps per token; 2 bytes an element is bf16."""
        return self.activation_elements * bytes_per_element + self.activation_fp32_elements * 4


def linear(n_in: float, n_out: float, n_vectors: float = 1) -> Cost:
    """A weight matrix that maps n_vectors of each token; what it keeps for the backward pass (its input) is counted by
    whoever produces it.
    """
    params = n_in * n_out
    return Cost(params=params, active_params=params, flops=2 * params * n_vectors)


def vector(n: float) -> Cost:
    """Parameters without matrix products: a gain, or a table in which rows are looked up."""
    return Cost(params=n, active_params=n)


Axes = dict[str, int]
"""Axis names with their sizes, outermost first: {"n_heads": 16, "head_dim": 40} is an axis of 640 entries."""


def size(axes: Axes) -> int:
    """Number of entries along the flattened axes."""
    n = 1
    for entries in axes.values():  # math.prod would break the graph of a compiled layer
        n *= entries
    return n
