"""What was measured of a machine, from which the time of a training step is predicted."""

from widthwise.records.record import Number, Record


class Rates(Record):
    """Seconds of a machine for what a training step consists of, the backward pass included.

    All are of one number of threads and one precision, and those of products add up: one that is small takes longer
    than its FLOPs say, because it moves more numbers for each of them.
    """

    machine: str
    """The name of its CPU."""
    torch: str
    """The version that computed."""
    n_threads: int
    precision: str
    """fp32 or bf16."""
    seconds_per_flop: Number
    """For every FLOP of a matrix product, in the limit of large ones."""
    seconds_per_product_element: Number
    """For every number that a product of the forward pass reads or writes; see `Cost.product_elements`."""
    seconds_per_product: Number
    """For every product of the forward pass, however small: calling the operations around it."""
    seconds_per_score_flop: Number
    """For every forward FLOP below the diagonal in the products of causal attention."""
    seconds_per_score: Number
    """For every pair of tokens below the diagonal and head: the softmax."""
    seconds_per_kept_byte: Number
    """For every byte kept for the backward pass: norms, activations, residual additions."""
    seconds_per_logit: Number
    """For every token and entry of the vocabulary: the loss beside its products."""
    seconds_per_param: Number
    """AdamW's update, clipping, and the weights and gradients in the type of the products and back."""
