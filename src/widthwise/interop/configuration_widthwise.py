"""The config of a `widthwise` model: one set of sizes for all layers, and exceptions by layer.

The stream between layers is `hidden_size` wide everywhere. Every layer has a `layer_width`: it reads and writes the
first coordinates of the stream only. Values that differ between layers are in `per_layer_config`; the value outside of
it is the largest of all layers for sizes, and otherwise the most frequent one.
"""

from typing import Any

from transformers import PreTrainedConfig

SWIGLU = {"gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}

GATHERED = {
    "colwise": "colwise_gather_output",
    "rowwise": "rowwise_split_input",
    "replicated_with_grad_allreduce": "replicate",
}
"""Style of tensor parallelism -> style for a matrix whose whole output is needed on every process."""


def gathered(plan: dict[str, str]) -> dict[str, str]:
    return {name: GATHERED.get(style, style) for name, style in plan.items()}


def within(part: str, plan: dict[str, str]) -> dict[str, str]:
    """Return a plan for a part of each layer."""
    return {f"layers.*.{part}.{name}": style for name, style in plan.items()}


ATTENTION_PLAN = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
HEAD_NORM_PLAN = dict.fromkeys(("q_norm", "k_norm"), "replicated_with_grad_allreduce")
FEED_FORWARD_PLANS = {
    **dict.fromkeys(("swiglu", "mlp"), within("mlp", SWIGLU)),
    "hourglass": within("mlp.blocks.*", SWIGLU),
    "moe": within("mlp.shared", SWIGLU),
    "dynamic": within("mlp", gathered(SWIGLU)),
}
"""Kind of feed-forward -> plan of its matrices. Every process has whole experts. The hidden units of `dynamic` are
gathered, because a width counts the units of all processes."""


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
    coordinates), `output_multiplier` and `gain_offset`, which is added to the weight."""
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

    def tensor_parallel_plan(self) -> dict[str, str]:
        """Return the plan of tensor parallelism. Norms and mixtures of the stream are on every process.

        A rule applies to all layers, so feed-forwards have only the rules that all layers share.
        """
        layers = list(self.per_layer_config)
        norms = {layer.qk_norm["over"] for layer in layers if layer.qk_norm is not None}
        attention = within("self_attn", ATTENTION_PLAN | (HEAD_NORM_PLAN if norms else {}))
        if "all_heads" in norms:
            attention = gathered(attention)
        plans = [set(FEED_FORWARD_PLANS[layer.feed_forward["kind"]].items()) for layer in layers]
        return attention | dict(sorted(set.intersection(*plans)))
