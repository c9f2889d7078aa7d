"""The config of a `widthwise` model: one set of sizes for all layers, and exceptions by layer.

The stream between layers is `hidden_size` wide everywhere. Every layer has a `layer_width`: it reads and writes the
first coordinates of the stream only. Values that differ between layers are in `per_layer_config`; the value outside of
it is the largest of all layers for sizes, and otherwise the most frequent one.
"""

from typing import Any

from transformers import PreTrainedConfig


class WidthwiseConfig(PreTrainedConfig):
    """Configuration of a `widthwise` model; `config.per_layer_config[i]` has all values of layer i.

    A file has all values, because there is no usual model. All defaults are null, so that `save_pretrained`, which
    omits defaults, writes every value that is not null.
    """

    model_type = "widthwise"
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int | None = None
    hidden_size: int | None = None
    """Width of the stream between layers: of the widest layer, or of all slots."""
    embedding_size: int | None = None
    """Width of the embedding and of the input of the head."""
    num_hidden_layers: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool | None = None
    use_cache: bool = True
    initializer_range: float | None = None
    embedding_multiplier: float | None = None
    """Factor of the embedding."""
    logit_scale: float | None = None
    """Factor of the logits."""
    logit_cap: float | None = None
    """Logits become cap * tanh(logits / cap); null: no cap."""
    residual: dict[str, Any] | None = None
    """Access of sublayers to the stream; its `kind` is `plain`, `hyper_connections` or `manifold`."""
    learned_positions: bool | None = None
    """True if a learned row for each of max_position_embeddings positions is added to the embedding."""
    final_norm: dict[str, Any] | None = None
    """The norm before the head, as `attention_norm`."""
    final_norm_width: int | None = None
    """Number of leading coordinates of the stream that it covers."""
    mtp: dict[str, Any] | None = None
    """MTP heads, whose weights are in the file; this model does not load them."""
    weight_init: dict[str, Any] | None = None
    """Distribution of new weights."""

    layer_width: int | None = None
    """Number of coordinates of the stream that the layer owns."""
    layer_in: int | None = None
    """Number of coordinates that its attention reads."""
    layer_out: int | None = None
    """Number of coordinates that its feed-forward writes."""
    norm_placement: str | None = None
    """Place of the norms: `pre`, before the sublayer, `reordered`, on its update, or `both`."""
    attention_norm: dict[str, Any] | None = None
    """`kind` (rms, layer), `eps`, `norm_dim` (divisor of the sum of squares), `stat_width` (number of summed
    coordinates) and `gain_offset`, which is added to the weight."""
    ffn_norm: dict[str, Any] | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    """Size of a value head; null: head_dim."""
    attention_scale: float | None = None
    """Factor of the scores."""
    rope_theta: float | None = None
    """Base of the rotary frequencies; null: no rotary positions."""
    rope_frequencies: list[float] | None = None
    """Radians per position of each pair, if the base does not give them."""
    attention_bias: bool | None = None
    """True for biases of queries, keys and values."""
    attention_out_bias: bool | None = None
    qk_norm: dict[str, Any] | None = None
    """Norm of queries and keys, over each head or over all of them."""
    attention_window: int | None = None
    """Tokens that a token attends to at most, including itself; null: all before it."""
    attention_score_cap: float | None = None
    """Scores become cap * tanh(scores / cap) before the softmax; null: no cap."""
    intermediate_size: int | None = None
    """Hidden width of the feed-forward; of several, the largest."""
    feed_forward: dict[str, Any] | None = None
    """The feed-forward; its `kind` is `swiglu`, `mlp`, `hourglass`, `moe` or `dynamic`."""
