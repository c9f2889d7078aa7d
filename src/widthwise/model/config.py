"""The resolved model: explicit layers, every size and every multiplier written out."""

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
    """Standard deviation of embedding and head; the other matrices' derives from it."""
    width_multiplier: pydantic.PositiveFloat = 1.0
    """m_width: hidden matrices have std / sqrt(m_width), and their learning rate is divided by it."""
    depth_scaled: bool = True
    """Divide matrices that write the stream by the root of the number of updates it receives, 2 * n_layers
    in a plain decoder (GPT-2) and n_layers * (1 + n_blocks) with hourglass feed-forwards."""
    truncate_at: pydantic.PositiveFloat | None = None
    """Standard deviations beyond which nothing is drawn, 3 in OLMo 2; null: all is."""


class LearnedPositionsConfig(Config):
    """A table as wide as the token embedding, with a row per position, which is added to the embedding of a token.

    Sources: Gehring et al. 2017, arXiv:1705.03122; GPT-2, Radford et al. 2019.
    """

    n_positions: NTokens
    """Rows, which is the longest context the model can read."""

    def cost(self, width: int) -> Cost:
        """width: columns of the table. The sum keeps nothing for the backward pass."""
        return vector(self.n_positions * width)


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
    """Further heads that predict later tokens."""
    positions: LearnedPositionsConfig | None = None
    """Learned positions, added to the embedding; null: none, rotary positions alone."""
    tie_embeddings: bool = False
    embedding_multiplier: pydantic.PositiveFloat = 1.0
    logit_multiplier: pydantic.PositiveFloat = 1.0
    init: InitConfig = InitConfig()

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if self.mtp is not None:
            layer = self.mtp.layer
            if set(layer.widths) != {self.d_model}:
                raise ValueError(f"mtp.layer.d_model: got {layer.d_model}; must be the model's, {self.d_model}")
        d_model, residual = self.d_model, self.residual
        widths = [width for layer in self.layers for width in layer.widths]
        with mistakes_at("residual"):
            residual.check_widths(d_model, widths)
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
        """Return the width of the layer that holds the parameter of that name; d_model for one outside of layers."""
        return self.layers[int(name.split(".")[1])].d_model if name.startswith("layers.") else self.d_model

    def named_layers(self) -> list[tuple[str, LayerConfig]]:
        """Every layer with its path, including the layer of further heads."""
        named = [(f"layers.{i}", layer) for i, layer in enumerate(self.layers)]
        return named if self.mtp is None else [*named, ("mtp.layer", self.mtp.layer)]

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_residual_additions(self) -> int:
        """Updates the stream receives: one from each attention, one or more from each feed-forward."""
        return sum(1 + layer.ffn.n_residual_additions for layer in self.layers)

    def resolve(self, seq_len: int) -> "ModelConfig":
        """The model itself, so that a recipe asks it as it asks a template, which writes its layers out."""
        return self

    @property
    def widths(self) -> list[int]:
        return [layer.d_model for layer in self.layers]

    @property
    def widths_before(self) -> list[int]:
        """Coordinates that the predecessor of each layer wrote; d_model for the first layer."""
        return [self.d_model, *(layer.d_out for layer in self.layers[:-1])]

    @property
    def n_coordinates(self) -> int:
        """Coordinates of the whole stream, which are the coordinates of all slots."""
        return math.prod(self.residual.slot_shape(self.d_model))

    @property
    def stream_width(self) -> int:
        """Coordinates of the stream: of all slots, or of the widest layer where layers write a prefix of one vector."""
        return max(self.n_coordinates, *self.widths)

    def layer_costs(self) -> list[dict[str, Cost]]:
        """Cost of every layer by part; a layer equal to the one before it is not counted again, which takes long."""
        costs = []
        for (layer, d_before), equal in groupby(zip(self.layers, self.widths_before)):
            costs += [layer.costs(self.residual, d_before)] * len(list(equal))
        return costs

    def end_costs(self) -> dict[str, Cost]:
        """Cost by part of what comes before and after the layers.

        A tied head has no additional parameters but the FLOPs of the product. The head keeps the gradient of its input,
        because the loss forms gradients in the forward pass; the gradient of its weight is formed there too, but is not
        an activation.
        """
        residual, d_model = self.residual, self.d_model
        n_columns = residual.embedding_width(d_model)
        embedding = vector(self.vocab_size * n_columns) + residual.entry_cost(d_model)
        if self.positions is not None:
            embedding += self.positions.cost(n_columns)
        head = self.head_cost.shared() if self.tie_embeddings else self.head_cost
        return {
            "embedding": embedding,
            "head": head + Cost(activation_elements=d_model),
            "norm": self.final_norm.cost(self.final_norm_width, is_read=False),
            "residual": residual.exit_cost(d_model),
        }

    @property
    def head_cost(self) -> Cost:
        """Cost of the head's matrix."""
        return linear(self.d_model, self.vocab_size)

    def costs(self) -> dict[str, Cost]:
        """Cost of the whole model by part, see PARTS. `mtp` holds what further heads add in training."""
        parts: dict[str, Cost] = dict.fromkeys(PARTS, Cost())
        for costs in (self.end_costs(), *self.layer_costs()):
            parts = {part: cost + costs.get(part, Cost()) for part, cost in parts.items()}
        if self.mtp is not None:
            parts["mtp"] = self.mtp.cost(self.residual, self.d_model, self.head_cost)
        return parts

    def exit_flops(self, seq_len: int) -> list[float]:
        """Forward FLOPs of a token that leaves the model after each depth, through the last norm and the head; depth 0
        is before the first layer, the last belongs to the whole model without further heads."""
        layers = (sum(costs.values(), Cost()).forward_flops(seq_len) for costs in self.layer_costs())
        return list(accumulate(layers, initial=_without_mtp(self.end_costs()).forward_flops(seq_len)))

    def block_exit_flops(self, seq_len: int) -> list[list[float]]:
        """Forward FLOPs of a token that leaves each layer after each feed-forward block but the last, through the last
        norm and the head: a list for each layer, empty where its feed-forward is no stack."""
        flops = []
        for layer, after in zip(self.layers, self.exit_flops(seq_len)[1:]):
            blocks = [cost.forward_flops(seq_len) for cost in layer.ffn.block_costs(layer.d_model, layer.d_out)]
            flops.append([after - sum(blocks[n_passed:]) for n_passed in range(1, len(blocks))])
        return flops

    def cost(self) -> Cost:
        """The cost of training, the further heads included."""
        return sum(self.costs().values(), Cost())

    @property
    def n_dead_params(self) -> int:
        """Parameters whose gradient is 0 by construction: they read coordinates of the stream that nothing wrote, or
        write coordinates that nothing reads. The design of some shapes, such as growing ones, and of full ends.
        """
        sites = [site for layer, d_before in zip(self.layers, self.widths_before) for site in layer.sites(d_before)]
        idle = self.residual.idle(self.d_model, sites, self.final_norm_width)
        of_layers = sum(
            layer.n_dead_params(n_unwritten, n_unread)
            for layer, (n_unwritten, _), (_, n_unread) in zip(self.layers, idle.sites[::2], idle.sites[1::2])
        )
        has_other_reader = self.tie_embeddings or self.mtp is not None
        of_embedding = 0 if has_other_reader else self.vocab_size * idle.n_unread
        of_last_norm = self.final_norm.cost(max(self.final_norm_width - self.d_model, 0)).params
        return int(of_layers + of_embedding + of_last_norm + idle.n_params)

    def inference_cost(self) -> Cost:
        """The cost of the model without the further heads, which its function does not need."""
        return _without_mtp(self.costs())


def _without_mtp(costs: dict[str, Cost]) -> Cost:
    return sum((cost for part, cost in costs.items() if part != "mtp"), Cost())


def cost_summary(config: ModelConfig, seq_len: int) -> CostSummary:
    """Sizes and costs of a model: what `inspect --json` prints and what a run's result keeps."""
    parts = config.costs()
    total, inference = sum(parts.values(), Cost()), _without_mtp(parts)
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
        kv_bytes_per_token=inference.kv_bytes(),
        activation_bytes_per_token=total.activation_bytes(),
    )


def pflops_days(training_flops_per_token: float, n_tokens: int) -> float:
    """Training compute in PFLOP/s-days, as the variable-width paper's Table 2 counts it."""
    return training_flops_per_token * n_tokens / (1e15 * 86400)


def part_of(name: str) -> str:
    """The part, one of `records.cost.PARTS`, of a decoder's parameter with this name."""
    first, *inside = name.split(".")
    if first in ("head", "mtp"):
        return first
    if first in ("embedding", "positions", "entry"):
        return "embedding"
    if first == "exit":
        return "norm" if inside[0] == "norm" else "residual"
    sublayer = inside[1]
    if sublayer.endswith("residual"):
        return "residual"
    return "norm" if name.endswith(("norm.weight", "norm.bias.weight")) else sublayer
