"""The config of a `widthwise` model: one set of sizes for all layers, and exceptions by layer.

The stream between layers is `hidden_size` wide everywhere. A layer has its own `layer_width`: it reads and writes the
first coordinates of the stream only. Whatever differs between layers is in `per_layer_config`; the value outside of it
is the largest of all layers, or the most frequent one where it is no size.
"""

from typing import Any

from transformers import PreTrainedConfig

SWIGLU = {"gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}

GATHERED = {
    "colwise": "colwise_gather_output",
    "rowwise": "rowwise_split_input",
    "replicated_with_grad_allreduce": "replicate",
}
"""Style of tensor parallelism -> the style for a matrix whose whole output every process needs."""


def gathered(plan: dict[str, str]) -> dict[str, str]:
    return {name: GATHERED.get(style, style) for name, style in plan.items()}


def within(part: str, plan: dict[str, str]) -> dict[str, str]:
    """Return the same rules for a part of each layer."""
    return {f"layers.*.{part}.{name}": style for name, style in plan.items()}


ATTENTION_PLAN = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
HEAD_NORM_PLAN = dict.fromkeys(("q_norm", "k_norm"), "replicated_with_grad_allreduce")
FEED_FORWARD_PLANS = {
    "swiglu": within("mlp", SWIGLU),
    "mlp": within("mlp", {"up_proj": "colwise", "down_proj": "rowwise"}),
    "hourglass": within("mlp.blocks.*", SWIGLU),
    "moe": within("mlp.shared", SWIGLU),
    "dynamic": within("mlp", gathered(SWIGLU)),
}
"""Kind of feed-forward -> the rules for its matrices. Every process has whole experts. The hidden units of `dynamic`
are gathered, because a width counts those of all processes."""


class WidthwiseConfig(PreTrainedConfig):
    """`config.per_layer_config[i]` has every value of layer i.

    A config is read from a file that says all of them; there is no usual model. So the defaults are null, which also
    lets `save_pretrained`, which leaves defaults out, write everything that is not null.
    """

    model_type = "widthwise"
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int | None = None
    hidden_size: int | None = None
    """Width of the stream between layers: of the widest layer, or of all slots."""
    embedding_size: int | None = None
    """Width of the embedding and of what the head reads."""
    num_hidden_layers: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool | None = None
    use_cache: bool = True
    initializer_range: float | None = None
    embedding_multiplier: float | None = None
    """Factor of the embedding."""
    logit_scale: float | None = None
    """Factor of the logits."""
    residual: dict[str, Any] | None = None
    """Access of sublayers to the stream; its `kind` is `plain` or `hyper_connections`."""
    learned_positions: bool | None = None
    """True for a row for each of max_position_embeddings positions, added to the embedding."""
    final_norm: dict[str, Any] | None = None
    """The norm before the head, as `attention_norm`."""
    final_norm_width: int | None = None
    """Coordinates of the stream that it covers, the first ones."""
    mtp: dict[str, Any] | None = None
    """MTP heads, of which the file has the weights; this model does not load them."""
    weight_init: dict[str, Any] | None = None
    """Distribution of new weights."""

    layer_width: int | None = None
    """Coordinates of the stream that the layer owns."""
    layer_in: int | None = None
    """Coordinates that its attention reads."""
    layer_out: int | None = None
    """Coordinates that its feed-forward writes."""
    norm_placement: str | None = None
    """Place of the norms: `pre`, before the sublayer, or `reordered`, on its update."""
    attention_norm: dict[str, Any] | None = None
    """`kind` (rms, layer), `eps`, `norm_dim`: divisor of the sum of squares, `stat_width`: coordinates summed, and
    `output_multiplier`."""
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
    """Radians per position of each pair, where the base does not give them."""
    attention_bias: bool | None = None
    """True for biases of queries, keys and values."""
    attention_out_bias: bool | None = None
    qk_norm: dict[str, Any] | None = None
    """Norm of queries and keys, over each head or over all of them."""
    intermediate_size: int | None = None
    """Hidden width of the feed-forward, the largest where a token passes several."""
    feed_forward: dict[str, Any] | None = None
    """The feed-forward; its `kind` is `swiglu`, `mlp`, `hourglass`, `moe` or `dynamic`."""

    def tensor_parallel_plan(self) -> dict[str, str]:
        """Return the plan of tensor parallelism; norms and mixtures of the stream are on every process.

        A rule is for all layers, so that feed-forwards get those on which all layers agree.
        """
        layers = list(self.per_layer_config)
        norms = {layer.qk_norm["over"] for layer in layers if layer.qk_norm is not None}
        attention = within("self_attn", ATTENTION_PLAN | (HEAD_NORM_PLAN if norms else {}))
        if "all_heads" in norms:
            attention = gathered(attention)
        plans = [set(FEED_FORWARD_PLANS[layer.feed_forward["kind"]].items()) for layer in layers]
        return attention | dict(sorted(set.intersection(*plans)))
