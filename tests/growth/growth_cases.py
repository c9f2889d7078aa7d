"""Small models of every kind, expansions and conversions of each, random ones too, and what is measured of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import expansions
import torch
from expansions import Expansion
from torch import Tensor

from widthwise.config_io import parse
from widthwise.growth.certificate import decoder_of
from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.model.axes import Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.residual.manifold import ManifoldConfig
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import merge

VOCAB_SIZE = 17
SEQ_LEN = 6
Weights = dict[str, Tensor]


def small_model(**changes) -> ModelConfig:
    """Three layers of width 12 with two heads; `changes` are laid over it as a child recipe would be."""
    data = {
        "vocab_size": VOCAB_SIZE,
        "d_model": 12,
        "n_layers": 3,
        "attention": {"head_dim": 4},
        "ffn": {"kind": "swiglu", "d_ff": 10},
        "init": {"std": 0.3, "depth_scaled": False},
    }
    return parse(ModelTemplate, merge(data, changes), "model").resolve(SEQ_LEN)


def shaped(widths: list[int], endpoints: str = "slim", **changes) -> ModelConfig:
    """The same with layers of these widths."""
    shape = {"kind": "explicit", "widths": widths, "endpoints": endpoints}
    return small_model(**merge({"n_layers": len(widths), "shape": shape}, changes))


GQA = {"attention": {"head_dim": 2, "kv_group_size": 3}}
GPT2 = {
    "attention": {"rope_base": None, "bias": True, "out_bias": True},
    "norm": {"kind": "layer"},
    "ffn": {"kind": "mlp", "activation": "gelu_tanh", "bias": True, "d_ff": 10},
    "positions": {"n_positions": 9},
    "tie_embeddings": True,
}
MOE = {"ffn": {"kind": "moe", "n_experts": 3, "top_k": 2, "d_expert": 4, "n_shared_experts": 1}}
UNSHARED = {"ffn": {**MOE["ffn"], "n_shared_experts": 0}}
HOURGLASS = {"ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 4}}
SHARED_BLOCKS = {"ffn": {**HOURGLASS["ffn"], "share_weights": True}}
DYNAMIC = {"ffn": {"kind": "dynamic", "d_ff": 9, "start": 0.8, "mask": {"kind": "soft", "temperature": 2.0}}}
SLOTS = {"residual": {"kind": "hyper_connections", "slot_width": 4}}
MANIFOLD = {"residual": {"kind": "manifold", "n_slots": 2, "n_iterations": 4}}
REORDERED = {"norm": {"placement": "reordered"}}
BETWEEN = {"norm": {"placement": "both", "gain_offset": 1.0}}
GEMMA = {
    **BETWEEN,
    "attention": {"qk_norm": {"over": "head", "gain_offset": 1.0}},
    "ffn": {"kind": "mlp", "activation": "gelu_tanh", "gated": True, "d_ff": 10},
    "tie_embeddings": True,
}
GEMMA2 = {**GEMMA, "attention": {"score_cap": 0.6, "window": 4}, "logit_cap": 1.5}
QK_NORM = {"attention": {"qk_norm": {"over": "head"}, "bias": True}}
ONE_QK_NORM = {"attention": {"qk_norm": {"over": "all_heads"}}}
UNGATED = {"ffn": {**HOURGLASS["ffn"], "gated": False, "activation": "relu2"}}
SILU_MLP = {"kind": "mlp", "d_ff": 11, "activation": "silu"}
BIASED = {"attention": {"bias": True, "out_bias": True}, "ffn": {**SILU_MLP, "bias": True}}
BLOCKS = {"kind": "hourglass", "n_blocks": 3, "d_hidden": 10}
CHOSEN = {"kind": "dynamic", "d_ff": 10, "start": 0.7, "min_fraction": 0.25}
NARROW = {"n_layers": 3, "shape": {"kind": "explicit", "widths": [16, 8, 12]}}


def _projected(resize: str) -> dict:
    return {**NARROW, "residual": {"kind": "plain", "resize": resize}}


EXPANSIONS: dict[str, tuple] = {
    "units": ({}, expansions.widen_ffn, [0, 2], 13),
    "units_with_biases": (GPT2, expansions.widen_ffn, [1], 11),
    "units_of_experts": (MOE, expansions.widen_ffn, [0], 7),
    "units_of_blocks": (HOURGLASS, expansions.widen_ffn, [0], 6),
    "units_of_shared_blocks": (SHARED_BLOCKS, expansions.widen_ffn, [0], 6),
    "units_of_any_rank": (DYNAMIC, expansions.widen_ffn, [0], 14),
    "groups": (GQA, expansions.add_heads, [0], 12, 4),
    "wider_groups": (GQA, expansions.add_heads, [0], 8, 2),
    "divided_groups": (GQA, expansions.add_heads, [0], 6, 6),
    "heads_under_one_norm": (ONE_QK_NORM, expansions.add_heads, [0], 6, 6),
    "values": (GQA, expansions.widen_values, [1], 5),
    "keys": ({"attention": {"bias": True}}, expansions.widen_keys, [1], 6),
    "divided_groups_under_one_norm": (merge(GQA, ONE_QK_NORM), expansions.add_heads, [0], 6, 6),
    "keys_behind_norms": (QK_NORM, expansions.widen_keys, [1], 12),
    "keys_between_norms": (GEMMA, expansions.widen_keys, [1], 12),
    "keys_that_do_not_turn": (GPT2, expansions.widen_keys, [1], 5),
    "stream": ({}, expansions.widen_stream, 3),
    "stream_tied": ({"tie_embeddings": True}, expansions.widen_stream, 3),
    "stream_of_layer_norms": (GPT2, expansions.widen_stream, 3),
    "stream_with_further_heads": ({"mtp": {"n_depths": 1}}, expansions.widen_stream, 3),
    "stream_of_layer_norms_and_heads": (
        {"mtp": {"n_depths": 1}, "norm": {"kind": "layer"}},
        expansions.widen_stream,
        3,
    ),
    "stream_behind_norms": (REORDERED, expansions.widen_stream, 3),
    "stream_between_norms": (GEMMA, expansions.widen_stream, 3),
    "stream_of_narrow_layers": (NARROW, expansions.widen_stream, 3),
    "stream_of_mixtures": (MOE, expansions.widen_stream, 3),
    "stream_of_slots": (SLOTS, expansions.widen_stream, 6),
    "stream_of_wide_attention": ({"attention": {"d_attention": 20}}, expansions.widen_stream, 3),
    "stream_of_ungated_blocks": (UNGATED, expansions.widen_stream, 3),
    "stream_projected": (_projected("projection"), expansions.widen_stream, 2),
    "stream_projected_whole": (_projected("full_projection"), expansions.widen_stream, 2),
    "narrow_layer": (NARROW, expansions.widen_layers, {1: 10}),
    "narrow_layer_behind_norms": ({**NARROW, **REORDERED}, expansions.widen_layers, {1: 10}),
    "narrow_layer_between_norms": ({**NARROW, **BETWEEN}, expansions.widen_layers, {1: 10}),
    "narrow_layer_of_slots": ({**NARROW, **SLOTS}, expansions.widen_layers, {1: 12}),
    "layers": ({}, expansions.add_layers, [0, 4]),
    "layers_with_biases": (GPT2, expansions.add_layers, [2]),
    "layers_with_biases_behind_norms": ({**BIASED, **REORDERED}, expansions.add_layers, [1]),
    "layers_behind_norms": (REORDERED, expansions.add_layers, [1]),
    "layers_between_norms": ({**GEMMA, **BIASED}, expansions.add_layers, [1]),
    "capped_layers": (GEMMA2, expansions.add_layers, [1]),
    "capped_keys_with_further_heads": (merge(GEMMA2, {"mtp": {"n_depths": 1}}), expansions.widen_keys, [1], 6),
    "capped_groups": (merge(GQA, {"attention": {"score_cap": 0.4}}), expansions.add_heads, [0], 6, 6),
    "capped_stream": (GEMMA2, expansions.widen_stream, 3),
    "units_between_norms": (GEMMA, expansions.widen_ffn, [1], 13),
    "layers_of_slots": (SLOTS, expansions.add_layers, [1]),
    "layers_of_experts": (MOE, expansions.add_layers, [1]),
    "narrow_layers": (NARROW, expansions.add_layers, [1], 1),
    "block": (HOURGLASS, expansions.add_block, 1),
    "block_behind_norms": ({**HOURGLASS, **REORDERED}, expansions.add_block, 1, 3),
    "block_between_norms": ({**HOURGLASS, **BETWEEN}, expansions.add_block, 1, 3),
    "more_experts": (MOE, expansions.duplicate_experts, [0], 2),
    "narrower_experts": (MOE, expansions.split_experts, [0], 2),
    "shared_expert": (UNSHARED, expansions.widen_shared_expert, [0], 3),
    "shared_expert_behind_norms": ({**UNSHARED, **REORDERED}, expansions.widen_shared_expert, [0], 3),
    "shared_expert_between_norms": ({**UNSHARED, **BETWEEN}, expansions.widen_shared_expert, [0], 3),
    "experts_of_a_dense_layer": ({}, expansions.upcycle, [1], 3, 2),
    "slots": (SLOTS, expansions.add_slots, 5),
    "copied_slots": (MANIFOLD, expansions.add_slots, 6),
    "copied_slots_with_further_heads": ({**MANIFOLD, "mtp": {"n_depths": 1}}, expansions.add_slots, 4),
    "stream_of_manifold_slots": (MANIFOLD, expansions.widen_stream, 6),
    "manifold_of_a_plain_stream": ({}, expansions.to_manifold, 3),
    "permutations_of_a_plain_stream": ({"mtp": {"n_depths": 1}}, expansions.to_manifold, 4, "permutations"),
    "slots_of_a_plain_stream": (NARROW, expansions.to_slots, 4, 5),
}
"""What is laid over the small model, the expansion, and its sizes."""


def planned(case: str) -> GrowthPlan:
    """The growth of a case of EXPANSIONS."""
    changes, expand, *sizes = EXPANSIONS[case]
    old = small_model(**changes)
    return plan_growth(old, *expand(old, *sizes))


def with_random_weights(config: ModelConfig, seed: int, embedding_std: float = 0.3) -> Weights:
    """Weights of a model in which no gain, bias or coefficient stands where it started."""
    generator = torch.Generator().manual_seed(seed)
    model = blueprint(config)
    # Blocks without norms square what they read, and attention would take one token only, with a gradient of 0.
    std_of_matrices = 0.1 if any(getattr(layer.ffn, "norm", None) == "none" for layer in config.layers) else 0.3
    weights = {}
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.removesuffix(".weight"))
        assert isinstance(owner, Weight)
        start = torch.zeros(parameter.shape, dtype=torch.float32)
        if isinstance(owner.start, float):
            start.fill_(owner.start)
        elif owner.start is not None:
            owner.start(start, generator)
        std = embedding_std if name in ("embedding.weight", "positions.weight") else std_of_matrices
        drawn = torch.empty(parameter.shape, dtype=torch.float64).normal_(0.0, std, generator=generator)
        weights[name] = start.double() + drawn
    return weights


def drawn(config: ModelConfig) -> Decoder:
    """A model with such weights, in float64, in evaluation mode."""
    return decoder_of(config, with_random_weights(config, seed=1), torch.float64)


def tokens_for(seed: int, batch: int = 2) -> Tensor:
    return torch.randint(VOCAB_SIZE, (batch, SEQ_LEN + 1), generator=torch.Generator().manual_seed(seed))


class Measured:
    """What a model makes of tokens (B, T + 1), all but the last of a row, and of the tokens behind them."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], tokens: Tensor):
        model = model_of(config, weights)
        with torch.no_grad():
            self.logits = model.eval()(tokens[:, :-1])
        loss = model.train().loss(tokens[:, :-1], tokens[:, 1:])
        self.further_losses = loss.mtp_losses
        loss.objective.backward()
        self.gradients = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in model.named_parameters()
        }


def model_of(config: ModelConfig, weights: Mapping[str, Tensor]) -> Decoder:
    """In training, in float64."""
    return decoder_of(config, weights, torch.float64).train()


def logits_of(config: ModelConfig, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model_of(config, weights).eval()(tokens)


def unmoved(config: ModelConfig, weights: Weights, tokens: Tensor, n_steps: int) -> dict[str, Tensor]:
    """bool, of every parameter: entries without a gradient now and after each of some steps of AdamW."""
    model = model_of(config, weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    found = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
    for _ in range(n_steps + 1):
        optimizer.zero_grad()
        model.train().loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[name] &= parameter.grad == 0
        optimizer.step()
    return found


def check_exact(
    old: ModelConfig, new: ModelConfig, weights: Weights, grow: Callable[..., Any], tokens: Tensor, what: str = ""
) -> Weights:
    """Logits, further losses, and the gradients of the old weights, pulled back; returns what `grow` makes of them.

    No gradients where auxiliary losses, which see how many experts there are, are part of the objective.
    """
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    grown = dict(grow(leaves))
    values = {name: weight.detach() for name, weight in grown.items()}
    before, after = Measured(old, weights, tokens), Measured(new, values, tokens)
    assert difference(before.logits, after.logits) <= 1e-12, what
    if old.mtp is not None:
        for losses in zip(before.further_losses, after.further_losses, strict=True):
            assert difference(*losses) <= 1e-12, what
    if not any(getattr(layer.ffn, "balance_coefficient", 0.0) for layer in new.layers):
        names = [name for name, weight in grown.items() if weight.requires_grad]
        pulled_back = torch.autograd.grad(
            [grown[name] for name in names], list(leaves.values()), [after.gradients[name] for name in names]
        )
        largest = max(gradient.abs().max() for gradient in before.gradients.values())
        for name, gradient in zip(leaves, pulled_back, strict=True):
            assert (gradient - before.gradients[name]).abs().max() <= 1e-12 * largest, (what, name)
    return values


def check_alive(
    config: ModelConfig, weights: Weights, is_new: Mapping[str, Tensor], tokens: Tensor, n_steps: int, what: str = ""
) -> bool:
    """So many steps move all that is new and that tokens reach. Returns whether they move any of it."""
    never, cannot = unmoved(config, weights, tokens, n_steps), None
    for name, entries in is_new.items():
        if (never[name] & entries).any():
            cannot = cannot or unreachable(config, weights, tokens)
            assert not (never[name] & entries & ~cannot[name]).any(), (what, name)
    return any((entries & ~never[name]).any() for name, entries in is_new.items())


UNUSED_UNITS = ("moe", "dynamic")
"""Feed-forwards of which a token may leave units out."""


def unreachable(config: ModelConfig, weights: Weights, tokens: Tensor) -> dict[str, Tensor]:
    """bool, of every parameter: entries that these tokens could not move whatever they were.

    They have no gradient even where nothing is exactly 0: rows of tokens and places that do not occur, experts and
    units that no token uses, coordinates that nobody has written or that nobody reads.
    """
    generator = torch.Generator().manual_seed(1)
    noisy = {
        name: weight + torch.empty_like(weight).normal_(0.0, 1e-6, generator=generator)
        for name, weight in weights.items()
    }
    found = unmoved(config, noisy, tokens, n_steps=0)
    has_narrow_layers = len({config.stream_width, config.d_model, *config.widths}) > 1
    for name, entries in found.items():
        is_table = name in ("embedding.weight", "positions.weight")
        is_known = is_table or has_narrow_layers or _has_unused_units(config, name) or _is_heard_alike(config, name)
        assert is_known or not entries.any(), name
        if isinstance(config.residual, ManifoldConfig) and name.startswith("layers.0.attention_residual."):
            entries |= True  # whatever it mixes are copies of the embedding, and its reads pass through a norm
        if isinstance(config.residual, PlainResidualConfig):
            entries |= _unread_rows(config, name, entries)
    return found


def _has_unused_units(config: ModelConfig, name: str) -> bool:
    path = name.split(".")
    layer = config.layers[int(path[1])] if path[0] == "layers" else config.mtp and config.mtp.layer
    if not layer or "ffn" not in path:
        return False
    return layer.ffn.kind in UNUSED_UNITS or getattr(layer.ffn, "activation", "").startswith("relu")


def _is_heard_alike(config: ModelConfig, name: str) -> bool:
    """Whether it adds the same to all scores of a query, as a bias of keys does where nothing turns."""
    return name.endswith("w_k.bias.weight") and any(layer.attention.rope_base is None for layer in config.layers)


def _unread_rows(config: ModelConfig, name: str, entries: Tensor) -> Tensor:
    """The rows of w_down that write coordinates which nothing reads after the layer: they have a gradient only through
    the norm behind them.
    """
    path = name.split(".")
    found = torch.zeros_like(entries)
    if path[0] != "layers" or path[2] != "ffn" or "w_down" not in path:
        return found
    number = int(path[1])
    ffn, later = config.layers[number].ffn, [layer.d_model for layer in config.layers[number + 1 :]]
    n_matrices = ffn.n_experts if isinstance(ffn, MoEConfig) and "shared" not in path else 1
    found.unflatten(0, (n_matrices, -1))[:, max(config.d_model, config.final_norm_width, *later) :] = True
    return found


def difference(before: Tensor, after: Tensor) -> float:
    """Largest, relative to the largest entry before."""
    if not before.numel():
        return 0.0
    before, after = before.detach(), after.detach()
    return float((before - after).abs().max() / before.abs().max().clamp(min=1e-300))


@dataclass
class Grown:
    """A model and the plans that were applied to it, one after the other."""

    config: ModelConfig
    plans: list[GrowthPlan] = field(default_factory=list)

    @property
    def now(self) -> ModelConfig:
        return self.plans[-1].new if self.plans else self.config

    def grow(self, expansion: Expansion) -> GrowthPlan:
        self.plans.append(plan_growth(self.now, *expansion))
        return self.plans[-1]

    def weights(self, weights: Mapping[str, Tensor], seed: int = 0, fresh=None) -> Weights:
        for i, plan in enumerate(self.plans):
            weights = dict(plan.weights(weights, seed + i, fresh))
        return dict(weights)

    def is_new(self) -> dict[str, Tensor]:
        found = None
        for plan in self.plans:
            found = plan.is_new(found)
        return found or {}

    def shrunk(self, weights: Mapping[str, Tensor]) -> Weights:
        for plan in reversed(self.plans):
            weights = plan.shrunk(weights)
        return dict(weights)
