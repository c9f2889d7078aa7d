"""Costs of the parts of a model, counted from their structure.

Every matrix product of a model is a `linear`, the scores of an attention, or the head. Their sum is exact: parameters
equal `numel` of the built model, and FLOPs equal torch's counter (2 FLOPs per multiply-add; norms, softmax, rotary
embedding and the embedding lookup are not counted, as in the papers). The functions also accept real sizes, because the
shape solver counts before it rounds.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of a part of a model. All fields except the parameters are per token."""

    params: float = 0
    active_params: float = 0
    """Parameters one token uses; fewer than `params` only with routed experts."""
    flops: float = 0
    """Forward FLOPs that do not depend on the context length."""
    flops_per_context_token: float = 0
    """Forward FLOPs per attended token; full attention attends to seq_len tokens."""
    kv_elements: float = 0
    """Numbers in the KV cache."""
    activation_elements: float = 0
    """Numbers in the compute dtype that autograd keeps from forward to backward, without recomputation."""
    activation_fp32_elements: float = 0
    """Numbers that autograd keeps in fp32 for any compute dtype: norm and softmax statistics."""

    def __add__(self, addend: "Cost") -> "Cost":
        return Cost(**{name: value + getattr(addend, name) for name, value in vars(self).items()})

    def shared(self) -> "Cost":
        """Return the cost without parameters, which are counted elsewhere."""
        return replace(self, params=0, active_params=0)

    def forward_flops(self, seq_len: int, causal: bool = False) -> float:
        """Return the forward FLOPs per token. causal: count half of the scores, as a causal kernel computes them."""
        return self.flops + self.flops_per_context_token * (seq_len / 2 if causal else seq_len)

    def training_flops(self, seq_len: int) -> float:
        """Return the forward and backward FLOPs per token. The backward pass of a product is two products."""
        return 3 * self.forward_flops(seq_len)

    def kv_bytes(self, bytes_per_element: int = 2) -> float:
        """Return the bytes of the KV cache per token, by default in bf16."""
        return self.kv_elements * bytes_per_element

    def activation_bytes(self, bytes_per_element: int = 2) -> float:
        """Return the bytes that autograd keeps per token, by default in bf16."""
        return self.activation_elements * bytes_per_element + self.activation_fp32_elements * 4


def linear(n_in: float, n_out: float, n_vectors: float = 1) -> Cost:
    """Return the cost of a matrix that maps n_vectors of each token.

    Its input, which it keeps for the backward pass, is counted with the part that produces it.
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
