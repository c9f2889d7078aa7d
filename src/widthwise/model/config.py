"""The resolved model: explicit layers, with all sizes and multipliers written out."""

import math
from itertools import accumulate, groupby

import pydantic

from widthwise.config_io import Config, mistakes_at
from widthwise.model.cost import Cost, linear, vector
from widthwise.model.layer import LayerConfig, MTPConfig
from widthwise.model.norm import NormConfig
from widthwise.model.residual import Residual
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.records.cost import PARTS, CostSummary, FlopsPerToken
from widthwise.sizes import MOST_LAYERS, NTokens, VocabSize, Width


class InitConfig(Config):
    """Standard deviations of the initial weights."""

    std: pydantic.PositiveFloat = 0.02
    """Standard deviation of embedding and head. The others are derived from it."""
    width_multiplier: pydantic.PositiveFloat = 1.0
    """m_width: hidden matrices have std / sqrt(m_width), and their learning rate is divided by it."""
    depth_scaled: bool = True
    """Divide matrices that write the stream by the root of the number of updates it receives, 2 * n_layers
    in a plain decoder (GPT-2) and n_layers * (1 + n_blocks) with hourglass feed-forwards."""
    truncate_at: pydantic.PositiveFloat | None = None
    """Number of standard deviations at which the distribution is truncated, 3 in OLMo 2; null: not truncated."""


class LearnedPositionsConfig(Config):
    """A learned row for each position, added to the token embedding.

    Sources: Gehring et al. 2017, arXiv:1705.03122; GPT-2, Radford et al. 2019.
    """

    n_positions: NTokens
    """Number of rows, and the longest context of the model."""


class ModelConfig(Config):
    """A decoder. `d_model` is the width of embedding and head only; no layer's size is read from it."""

    vocab_size: VocabSize
    d_model: Width
    layers: tuple[LayerConfig, ...] = pydantic.Field(min_length=1, max_length=MOST_LAYERS)
    residual: Residual = PlainResidualConfig()
    final_norm: NormConfig
    """The norm before the head."""
    final_norm_width: Width
    """Coordinates the final norm covers: d_model, or the last layer's width as in the paper's release."""
    mtp: MTPConfig | None = None
    """MTP heads, which predict later tokens."""
    positions: LearnedPositionsConfig | None = None
    """Learned positions, added to the embedding; null: rotary positions only."""
    tie_embeddings: bool = False
    embedding_multiplier: pydantic.PositiveFloat = 1.0
    logit_multiplier: pydantic.PositiveFloat = 1.0
    logit_cap: pydantic.PositiveFloat | None = None
    """Logits become cap * tanh(logits / cap); null: no cap."""
    init: InitConfig = InitConfig()

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        d_model = self.d_model
        residual = self.residual
        if self.mtp is not None and set(self.mtp.layer.widths) != {d_model}:
            raise ValueError(f"mtp.layer.d_model: got {self.mtp.layer.d_model}; must be the model's, {d_model}")
        with mistakes_at("residual"):
            residual.check_widths(d_model, [width for layer in self.layers for width in layer.widths])
        n_columns = residual.embedding_width(d_model)
        if self.tie_embeddings and n_columns != d_model:
            raise ValueError(
                f"tie_embeddings: the embedding has {n_columns} columns and the head {d_model}; "
                "use residual.embedding: expand, slot or pad"
            )
        width = self.final_norm_width
        if width != d_model and not residual.final_norm_spans_layer:
            raise ValueError(f"final_norm_width: got {width}; with {residual.kind} it is d_model, {d_model}")
        return self

    def width_of(self, name: str) -> int:
        """Return the width of the layer that contains a parameter; d_model for a parameter outside of layers."""
        return self.layers[int(name.split(".")[1])].d_model if name.startswith("layers.") else self.d_model

    def named_layers(self) -> list[tuple[str, LayerConfig]]:
        """Return every layer with its path in the config, including the one layer of all MTP heads."""
        layers = [(f"layers.{i}", layer) for i, layer in enumerate(self.layers)]
        return layers if self.mtp is None else [*layers, ("mtp.layer", self.mtp.layer)]

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_residual_additions(self) -> int:
        """Number of updates of the stream: one from each attention, one or more from each feed-forward."""
        return sum(1 + layer.ffn.n_residual_additions for layer in self.layers)

    def resolve(self, seq_len: int) -> "ModelConfig":
        """Return the model unchanged, for callers that may also have a `ModelTemplate`."""
        return self

    @property
    def widths(self) -> list[int]:
        return [layer.d_model for layer in self.layers]

    @property
    def widths_before(self) -> list[int]:
        """Width of the stream before each layer: what its predecessor writes, or d_model for the first layer."""
        return [self.d_model, *(layer.d_out for layer in self.layers[:-1])]

    @property
    def stream_width(self) -> int:
        """Coordinates of the stream: all slots, or without slots the widest prefix."""
        return max(math.prod(self.residual.slot_shape(self.d_model)), *self.widths)

    def layer_costs(self) -> list[dict[str, Cost]]:
        """Return the cost of every layer by part. Equal consecutive layers are counted once, because it is slow."""
        costs = []
        for (layer, d_before), equal_layers in groupby(zip(self.layers, self.widths_before)):
            costs += [layer.costs(self.residual, d_before)] * len(list(equal_layers))
        return costs

    def end_costs(self) -> dict[str, Cost]:
        """Return the cost by part of the modules before and after the layers.

        A tied head adds FLOPs but no parameters. The forward pass of the loss computes the gradients of the head's
        input and weight. Only the first counts as an activation.
        """
        n_columns = self.residual.embedding_width(self.d_model)
        embedding = vector(self.vocab_size * n_columns) + self.residual.entry_cost(self.d_model)
        if self.positions is not None:
            embedding += vector(self.positions.n_positions * n_columns)  # nothing is kept for the backward pass
        head = linear(self.d_model, self.vocab_size)
        return {
            "embedding": embedding,
            "head": (head.shared() if self.tie_embeddings else head) + Cost(activation_elements=self.d_model),
            "norm": self.final_norm.cost(self.final_norm_width, is_read=False),
            "residual": self.residual.exit_cost(self.d_model),
        }

    def costs(self) -> dict[str, Cost]:
        """Return the cost of the whole model by part, see `records.cost.PARTS`. `mtp`: MTP heads in training."""
        parts: dict[str, Cost] = dict.fromkeys(PARTS, Cost())
        for costs in (self.end_costs(), *self.layer_costs()):
            parts = {part: cost + costs.get(part, Cost()) for part, cost in parts.items()}
        if self.mtp is not None:
            parts["mtp"] = self.mtp.cost(self.residual, self.d_model, linear(self.d_model, self.vocab_size))
        return parts

    def exit_flops(self, seq_len: int) -> list[float]:
        """Return the forward FLOPs per token with early exit after each layer, including the last norm and the head.

        The first number is for an exit before all layers, the last for the whole model without MTP heads.
        """
        layers = (sum(costs.values(), Cost()).forward_flops(seq_len) for costs in self.layer_costs())
        return list(accumulate(layers, initial=sum(self.end_costs().values(), Cost()).forward_flops(seq_len)))

    def block_exit_flops(self, seq_len: int) -> list[list[float]]:
        """Return the forward FLOPs per token with early exit after each feed-forward block except a layer's last.

        They include the last norm and the head. One list per layer, empty unless its feed-forward has several blocks.
        """
        flops = []
        for layer, after in zip(self.layers, self.exit_flops(seq_len)[1:]):
            blocks = [cost.forward_flops(seq_len) for cost in layer.ffn.block_costs(layer.d_model, layer.d_out)]
            flops.append([after - sum(blocks[n_passed:]) for n_passed in range(1, len(blocks))])
        return flops

    def cost(self) -> Cost:
        """Return the cost of training, including MTP heads."""
        return sum(self.costs().values(), Cost())

    @property
    def n_dead_params(self) -> int:
        """Parameters that receive no gradient because of the shape.

        They read coordinates of the stream that nothing writes, or write coordinates that nothing reads. Some shapes
        have them by design, such as growing shapes and full ends.
        """
        sites = [site for layer, d_before in zip(self.layers, self.widths_before) for site in layer.sites(d_before)]
        idle = self.residual.idle(self.d_model, sites, self.final_norm_width)
        n_dead_gains = max(self.final_norm_width - self.d_model, 0)
        n_dead = idle.n_params + self.final_norm.cost(n_dead_gains).params
        for layer, attention_site, ffn_site in zip(self.layers, idle.sites[::2], idle.sites[1::2]):
            n_dead += layer.n_dead_params(n_unwritten=attention_site[0], n_unread=ffn_site[1])
        if not self.tie_embeddings and self.mtp is None:  # otherwise the head or the MTP heads use the whole embedding
            n_dead += self.vocab_size * idle.n_unread
        return int(n_dead)

    def inference_cost(self) -> Cost:
        """Return the cost of the model without MTP heads, which inference does not need."""
        return _without_mtp(self.costs())


def _without_mtp(costs: dict[str, Cost]) -> Cost:
    """Return the sum of the costs of all parts except MTP heads."""
    return sum((cost for part, cost in costs.items() if part != "mtp"), Cost())


def cost_summary(config: ModelConfig, seq_len: int) -> CostSummary:
    """Return the sizes and costs of a model, for `inspect --json` and the result of a run."""
    parts = config.costs()
    total = sum(parts.values(), Cost())
    inference = _without_mtp(parts)
    n_slots, slot_width = config.residual.slot_shape(config.d_model)
    return CostSummary(
        d_model=config.d_model,
        residual=config.residual.kind,
        stream_width=config.stream_width,
        virtual_width=n_slots * slot_width / config.d_model,
        n_slots=n_slots,
        slot_width=slot_width,
        n_mtp_depths=0 if config.mtp is None else config.mtp.n_depths,
        n_layers=config.n_layers,
        vocab_size=config.vocab_size,
        seq_len=seq_len,
        widths=config.widths,
        average_width=sum(config.widths) / config.n_layers,
        n_heads=[layer.attention.n_heads for layer in config.layers],
        n_kv_heads=[layer.attention.n_kv_heads for layer in config.layers],
        head_dim=[layer.attention.head_dim for layer in config.layers],
        hidden_widths=[list(layer.ffn.hidden_widths) for layer in config.layers],
        params={
            "total": total.params,
            **{part: cost.params for part, cost in parts.items()},
            "active": inference.active_params,
            "dead": config.n_dead_params,
        },
        flops_per_token=FlopsPerToken(
            forward=inference.forward_flops(seq_len),
            training=total.training_flops(seq_len),
            training_mtp=parts["mtp"].training_flops(seq_len),
            forward_causal=inference.forward_flops(seq_len, causal=True),
        ),
        flops_by_part={part: cost.forward_flops(seq_len) for part, cost in parts.items()},
        kv_bytes_per_token=inference.kv_bytes(seq_len),
        activation_bytes_per_token=total.activation_bytes(),
    )


def pflops_days(training_flops_per_token: float, n_tokens: int) -> float:
    """Return the training compute in PFLOP/s-days, as in Table 2 of the variable-width paper."""
    return training_flops_per_token * n_tokens / (1e15 * 86400)
