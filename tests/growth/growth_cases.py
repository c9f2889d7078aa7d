"""Small models of every kind, expansions of each, and what is measured of them and of models made by a plan."""

from dataclasses import dataclass, replace
from typing import Any

import expansions
import torch
from torch import Tensor

from widthwise.config_io import parse
from widthwise.growth.certificate import certify, decoder_of
from widthwise.growth.correspondence import AxisMap
from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.growth.tensor_plan import FreshEntries, filled
from widthwise.model import initial_weights
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint, build
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
LAYER_NORMS = {"norm": {"kind": "layer"}}
MTP = {"mtp": {"n_depths": 1}}
MOE = {"ffn": {"kind": "moe", "n_experts": 3, "top_k": 2, "d_expert": 4, "n_shared_experts": 1}}
UNSHARED = {"ffn": {**MOE["ffn"], "n_shared_experts": 0}}
HOURGLASS = {"ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 4}}
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
SILU_MLP = {"kind": "mlp", "d_ff": 11, "activation": "silu"}
BIASED = {"attention": {"bias": True, "out_bias": True}, "ffn": {**SILU_MLP, "bias": True}}
BLOCKS = {"ffn": {"kind": "hourglass", "n_blocks": 3, "d_hidden": 10}}
WIDER_BLOCKS = {"ffn": {**BLOCKS["ffn"], "d_hidden": 13}}
CHOSEN = {"ffn": {"kind": "dynamic", "d_ff": 10, "start": 0.7, "min_fraction": 0.25}}
NOT_CHOSEN = {"ffn": {**CHOSEN["ffn"], "mask": {"kind": "none"}}}
NARROW = {"n_layers": 3, "shape": {"kind": "explicit", "widths": [16, 8, 12]}}
STATIC = {**SLOTS["residual"], "n_slots": 5, "dynamic": False, "group_norm": "none"}
HIGHER_BASE = {"layers": {1: {"attention": {"head_dim": 6, "v_head_dim": 4, "rope_base": 10000.0 ** (6 / 4)}}}}
"""A recipe whose base gives larger heads the frequencies of the small ones, and more."""
ALL_AT_ONCE = {"d_model": 20, "n_layers": 5, "mtp": {"n_depths": 2, "coefficient": 0.0}}


EXPANSIONS: dict[str, tuple] = {
    "units": ({}, expansions.widen_ffn, [0, 2], 13),
    "units_with_biases": (GPT2, expansions.widen_ffn, [1], 11),
    "units_of_experts": (MOE, expansions.widen_ffn, [0], 7),
    "units_of_blocks": (HOURGLASS, expansions.widen_ffn, [0], 6),
    "units_of_any_rank": (DYNAMIC, expansions.widen_ffn, [0], 14),
    "groups": (GQA, expansions.add_heads, [0], 12, 4),
    "more_and_wider_groups": (GQA, expansions.add_heads, [0], 12, 3),
    "more_and_divided_groups": (GQA, expansions.add_heads, [0], 8, 8),
    "divided_groups": (GQA, expansions.add_heads, [0], 6, 6),
    "heads_under_one_norm": (ONE_QK_NORM, expansions.add_heads, [0], 6, 6),
    "values": (GQA, expansions.widen_values, [1], 5),
    "keys": ({"attention": {"bias": True}}, expansions.widen_keys, [1], 6),
    "divided_groups_under_one_norm": (merge(GQA, ONE_QK_NORM), expansions.add_heads, [0], 6, 6),
    "keys_behind_norms": (QK_NORM, expansions.widen_keys, [1], 12),
    "keys_and_groups_behind_norms": (QK_NORM, {"attention": {"head_dim": 8, "d_attention": 40}}),
    "keys_between_norms": (GEMMA, expansions.widen_keys, [1], 12),
    "keys_that_do_not_turn": (GPT2, expansions.widen_keys, [1], 5),
    "stream": ({}, expansions.widen_stream, 3),
    "stream_tied": ({"tie_embeddings": True}, expansions.widen_stream, 3),
    "stream_of_layer_norms": (GPT2, expansions.widen_stream, 3),
    "stream_with_further_heads": (MTP, expansions.widen_stream, 3),
    "stream_of_layer_norms_and_heads": ({**MTP, **LAYER_NORMS}, expansions.widen_stream, 3),
    "stream_behind_norms": (REORDERED, expansions.widen_stream, 3),
    "stream_between_norms": (GEMMA, expansions.widen_stream, 3),
    "stream_of_narrow_layers": (NARROW, expansions.widen_stream, 3),
    "stream_of_mixtures": (MOE, expansions.widen_stream, 3),
    "stream_of_slots": (SLOTS, expansions.widen_stream, 6),
    "stream_of_wide_attention": ({"attention": {"d_attention": 20}}, expansions.widen_stream, 3),
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
    "capped_keys_with_further_heads": ({**GEMMA2, **MTP}, expansions.widen_keys, [1], 6),
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
    "copied_slots_with_further_heads": ({**MANIFOLD, **MTP}, expansions.add_slots, 4),
    "stream_of_manifold_slots": (MANIFOLD, expansions.widen_stream, 6),
    "manifold_of_a_plain_stream": ({}, expansions.to_manifold, 3),
    "permutations_of_a_plain_stream": (MTP, lambda m: expansions.to_manifold(m, 4, carry="permutations")),
    "slots_of_a_plain_stream": (NARROW, expansions.to_slots, 4, 5),
    "coefficients_that_follow_the_state": ({"residual": STATIC}, {"residual": {"dynamic": True, "n_slots": 6}}),
    "hourglass": ({}, WIDER_BLOCKS),
    "hourglass_behind_norms": (REORDERED, BLOCKS),
    "hourglass_between_norms": (BETWEEN, BLOCKS),
    "hourglass_under_layer_norms_and_slots": ({**LAYER_NORMS, "residual": STATIC}, BLOCKS),
    "dynamic": ({}, merge(CHOSEN, {"ffn": {"d_ff": 13}})),
    "dynamic_that_begins_to_choose": (NOT_CHOSEN, {"ffn": {"mask": {"kind": "ste"}}}),
    "keys_with_the_old_frequencies_at_a_higher_base": ({}, HIGHER_BASE),
    "all_at_once": ({}, {**WIDER_BLOCKS, **ALL_AT_ONCE}),
}
"""What the old model has, and what the new one has beside it, or the expansion with its sizes."""


def growth(base: dict[str, Any], change: Any, *sizes: Any) -> GrowthPlan:
    """The growth of the small model with `base` by an entry of EXPANSIONS."""
    old = small_model(**base)
    return plan_growth(old, *(change(old, *sizes) if callable(change) else [small_model(**merge(base, change))]))


def planned(case: str) -> GrowthPlan:
    """The growth of a case of EXPANSIONS."""
    return growth(*EXPANSIONS[case])


def with_random_weights(config: ModelConfig, seed: int) -> Weights:
    """Weights of a model in which no gain, bias or coefficient stands where it started."""
    generator = torch.Generator().manual_seed(seed)
    model = blueprint(config)
    weights = {}
    for name, parameter in model.named_parameters():
        start = initial_weights.initial_weight(model.get_submodule(name.removesuffix(".weight")), 0.0, generator, None)
        noise = torch.empty(parameter.shape, dtype=torch.float64).normal_(0.0, 0.3, generator=generator)
        weights[name] = start.double() + noise
    return weights


def drawn(config: ModelConfig) -> Decoder:
    """A model with such weights, in float64, in evaluation mode."""
    return decoder_of(config, with_random_weights(config, seed=1), torch.float64)


def tokens_for(seed: int) -> Tensor:
    return torch.randint(VOCAB_SIZE, (2, SEQ_LEN + 1), generator=torch.Generator().manual_seed(seed))


FIRST_CARRY = "layers.0.attention_residual.mixing."
"""Whatever it mixes are copies of the embedding, so that it may never learn."""


@dataclass(frozen=True)
class Constant(FreshEntries):
    """One number for all free entries."""

    value: float

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        return filled(grown, (axis.is_free for axis in maps), self.value)


def with_free_entries(plan: GrowthPlan, value: float) -> GrowthPlan:
    """The plan with that number in every free entry of tensors that the old model has."""
    tensors = {
        name: replace(tensor, fresh=Constant(value)) if tensor.source else tensor
        for name, tensor in plan.tensors.items()
    }
    return replace(plan, tensors=tensors)


def check(plan: GrowthPlan, weights: Weights, seed: int = 2) -> Weights:
    """The growth is exact in logits and gradients, and all that is new learns but for what the shape forbids."""
    new = dict(plan.weights(weights, seed))
    found = certify(plan, weights, new, seq_len=SEQ_LEN, lr=1e-3, seed=seed)
    assert found.dtype == "float64"
    assert found.logit_difference <= 1e-12 * found.largest_logit
    assert found.stored_logit_difference <= 1e-12 * found.largest_logit
    assert found.gradient_difference <= 1e-12
    n_new = {name: int(is_new.sum()) for name, is_new in plan.is_new().items() if is_new.any()}
    assert {name: each.n_new for name, each in found.liveness.items()} == n_new
    dead = {name: n_dead for name, n_dead in found.dead.items() if not name.startswith(FIRST_CARRY)}
    assert sum(dead.values()) <= plan.new.n_dead_params, dead
    return new


def difference(before: Tensor, after: Tensor) -> float:
    """Largest, relative to the largest entry before."""
    if not before.numel():
        return 0.0
    return float((before - after).detach().abs().max() / before.detach().abs().max().clamp(min=1e-300))


def applied(plan: GrowthPlan, model: Decoder, seed: int = 3) -> Decoder:
    new = build(plan.new, 0, dtype=model.embedding.weight.dtype)
    new.set_weights(plan.weights(model.state_dict(), seed))
    return new


def grown(model: Decoder, *expansions) -> Decoder:
    """expansions: config -> (config, correspondence), applied one after the other."""
    for expand in expansions:
        model = applied(plan_growth(model.config, *expand(model.config)), model)
    return model


def step(model: Decoder, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    """One step on the whole of a batch of rows; the objective before it."""
    optimizer.zero_grad()
    objective = model.loss(tokens[:, :-1], tokens[:, 1:]).objective
    objective.backward()
    optimizer.step()
    return objective.item()
