"""Random small models of every kind, and random expansions of them."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import expansions
import torch
from expansions import Expansion, changed, same_layers
from torch import Tensor

from widthwise.config_io import parse, to_data
from widthwise.growth.choices import ZeroSide
from widthwise.growth.maps.correspondence import Correspondence
from widthwise.growth.plan.model_plan import GrowthPlan, plan_growth
from widthwise.merging import merge
from widthwise.model.attention import AttentionConfig
from widthwise.model.axes import Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.shape.template import ModelTemplate

VOCAB_SIZE = 17
SEQ_LEN = 6
N_POSITIONS = 7
Weights = dict[str, Tensor]
Random = random.Random


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


def with_random_weights(config: ModelConfig, seed: int, embedding_std: float = 0.3) -> Weights:
    """Weights of a model in which no gain, bias or coefficient stands where it started."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = Decoder(config)
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
    with torch.device("meta"):
        model = Decoder(config)
    model = model.to(torch.float64).to_empty(device="cpu")
    model.tie()
    parameters = dict(model.named_parameters())
    assert set(parameters) == set(weights)
    with torch.no_grad():
        model.progress.fill_(1.0)
        for name, weight in weights.items():
            parameters[name].copy_(weight)
    return model


def pulled_back(leaves: Weights, grown: Weights, gradients: Weights) -> Weights:
    """Gradients of what `leaves` became, as gradients of the leaves."""
    names = [name for name, weight in grown.items() if weight.requires_grad]
    found = torch.autograd.grad(
        [grown[name] for name in names],
        list(leaves.values()),
        [gradients[name] for name in names],
    )
    return dict(zip(leaves, found))


def logits_of(config: ModelConfig, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model_of(config, weights).eval()(tokens)


def unmoved(config: ModelConfig, weights: Weights, tokens: Tensor, n_steps: int = 2) -> dict[str, Tensor]:
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


UNUSED_UNITS = ("moe", "dynamic")
"""Feed-forwards of which a token may leave units out."""


def unreachable(config: ModelConfig, weights: Weights, tokens: Tensor) -> dict[str, Tensor]:
    """bool, of every parameter: entries that these tokens could not move whatever they were.

    They have no gradient even where nothing is exactly 0: rows of tokens and places that do not occur, experts and
    units that no token uses, coordinates that nobody has written or that nobody reads.
    """
    found = unmoved(config, noisy(weights, 1e-6, seed=1), tokens, n_steps=0)
    has_narrow_layers = len({config.stream_width, config.d_model, *config.widths}) > 1
    for name, entries in found.items():
        is_table = name in ("embedding.weight", "positions.weight")
        is_known = is_table or has_narrow_layers or _has_unused_units(config, name) or _is_heard_alike(config, name)
        assert is_known or not entries.any(), name
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
    if path[0] != "layers" or path[2] != "ffn" or path[-2] != "w_down":
        return found
    number = int(path[1])
    ffn, later = config.layers[number].ffn, [layer.d_model for layer in config.layers[number + 1 :]]
    n_matrices = ffn.n_experts if isinstance(ffn, MoEConfig) and "shared" not in path else 1
    found.unflatten(0, (n_matrices, -1))[:, max(config.d_model, config.final_norm_width, *later) :] = True
    return found


def noisy(weights: Weights, std: float, seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: weight.detach() + torch.empty_like(weight).normal_(0.0, std, generator=generator)
        for name, weight in weights.items()
    }


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
    zero_side: ZeroSide = "outputs"

    @property
    def now(self) -> ModelConfig:
        return self.plans[-1].new if self.plans else self.config

    def grow(self, expansion: Expansion, new_layers: str = "drawn") -> GrowthPlan:
        can_choose = all(layer.ffn.zero_input for layer in expansion[0].layers)
        zero_side = self.zero_side if can_choose else "outputs"
        self.plans.append(plan_growth(self.now, *expansion, new_layers=new_layers, zero_side=zero_side))
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

    def correspondence(self) -> Correspondence:
        """Which layer of the first model each layer of the last one is, over all growths."""
        layers = tuple(range(self.config.n_layers))
        blocks: dict[int, tuple[int | None, ...]] = {}
        for plan in self.plans:
            step, before = plan.correspondence, blocks
            blocks = {}
            for new, old in enumerate(step.layers):
                if old is None:
                    continue
                a, b = plan.old.layers[old].ffn, plan.new.layers[new].ffn
                if isinstance(a, HourglassConfig) and isinstance(b, HourglassConfig):
                    earlier = before.get(old, tuple(range(a.n_blocks)))
                    now = step.blocks_of(new, a, b)
                    blocks[new] = tuple(None if block is None else earlier[block] for block in now)
            layers = tuple(None if old is None else layers[old] for old in step.layers)
        return Correspondence(layers, {new: found for new, found in blocks.items() if layers[new] is not None})


def random_model(rng: Random) -> ModelConfig:
    """Three layers or fewer, no wider than 24."""
    head_dim, group = rng.choice([(2, 1), (4, 1), (2, 2)])
    quantum = head_dim * group
    n_layers = rng.choice([1, 1, 2, 2, 3])
    is_even = rng.random() < 0.5
    d_model = quantum * rng.randint(2, 12 // quantum + 1)
    widths = [d_model if is_even else quantum * rng.randint(1, 24 // quantum) for _ in range(n_layers)]
    residual = _random_residual(rng, quantum, d_model, widths)
    can_tie = residual["kind"] == "plain" or residual["embedding"] != "direct"
    data = {
        "vocab_size": VOCAB_SIZE,
        "d_model": d_model,
        "n_layers": n_layers,
        "shape": {"kind": "explicit", "widths": widths, "endpoints": rng.choice(["slim", "full"])},
        "attention": {
            "head_dim": head_dim,
            "kv_group_size": group,
            "rope_base": rng.choice([10000.0, 100.0, None]),
            "bias": rng.random() < 0.3,
            "out_bias": rng.random() < 0.3,
            "qk_norm": rng.choice([None, None, {"over": "head"}, {"over": "all_heads", "eps": 1e-6}]),
        },
        "ffn": rng.choice([_swiglu, _swiglu, _mlp, _hourglass, _moe, _dynamic])(rng),
        "residual": residual,
        "norm": {
            "kind": rng.choice(["rms", "rms", "layer"]),
            "placement": rng.choice(["pre", "pre", "reordered"]),
            "eps": rng.choice([1e-5, 1e-6]),
        },
        "mtp": rng.choice([None, None, None, {"n_depths": 2}, {"n_depths": 1, "share_reduce": False}]),
        "positions": rng.choice([None, None, {"n_positions": N_POSITIONS}]),
        "tie_embeddings": can_tie and rng.random() < 0.4,
        "embedding_multiplier": rng.choice([1.0, 3.0]),
        "logit_multiplier": rng.choice([1.0, 0.25]),
        "init": {"std": 0.3, "depth_scaled": False},
        "layers": {rng.randrange(n_layers): {"attention": {"v_head_dim": 3}}} if rng.random() < 0.3 else {},
    }
    return parse(ModelTemplate, data, "model").resolve(SEQ_LEN)


def _random_residual(rng: Random, quantum: int, d_model: int, widths: list[int]) -> dict:
    multiplier = rng.choice([1.0, 0.22])
    if rng.random() < 0.6:
        return {
            "kind": "plain",
            "resize": rng.choice(["carry", "carry", "zero", "projection", "full_projection"]),
            "multiplier": multiplier,
        }
    n_owned, n_fractions = max(d_model, *widths) // quantum, d_model // quantum
    n_slots = rng.choice([None, n_owned + 1, -(-n_owned // n_fractions) * n_fractions])
    tiles = n_slots is not None and n_slots % n_fractions == 0
    return {
        "kind": "hyper_connections",
        "slot_width": quantum,
        "n_slots": n_slots,
        "dynamic": rng.random() < 0.6,
        "write_init": rng.choice(["tail_cyclic", "slice"]),
        "embedding": rng.choice(["direct", "expand", "slot", *(["pad"] if n_slots is None else [])]),
        "reduce": rng.choice(["full", "slot"]),
        "group_norm": rng.choice(["none", *(["rms", "layer"] if tiles else [])]),
        "multiplier": multiplier,
    }


def _swiglu(rng: Random) -> dict:
    return {"kind": "swiglu", "d_ff": rng.randint(3, 12)}


def _mlp(rng: Random) -> dict:
    activation = rng.choice(["gelu", "gelu_tanh", "relu", "relu2", "silu"])
    return {"kind": "mlp", "d_ff": rng.randint(3, 12), "activation": activation, "bias": rng.random() < 0.5}


def _hourglass(rng: Random) -> dict:
    return {
        "kind": "hourglass",
        "n_blocks": rng.randint(1, 3),
        "d_hidden": rng.randint(2, 6),
        "norm": rng.choice([None, None, "pre", "reordered", "shared", "none"]),
        "share_weights": rng.random() < 0.2,
        "block_multiplier": rng.choice([1.0, 0.22]),
    }


def _moe(rng: Random) -> dict:
    n_experts = rng.randint(2, 4)
    return {
        "kind": "moe",
        "n_experts": n_experts,
        "top_k": rng.randint(1, n_experts),
        "d_expert": rng.choice([2, 4, 6]),
        "n_shared_experts": rng.choice([0, 0, 1]),
        "balance_coefficient": 0.0,
        "z_coefficient": 0.0,
    }


def _dynamic(rng: Random) -> dict:
    kind = rng.choice(["hard", "ste", "soft", "linear_ramp"])
    score = rng.choice(["const", "linear", "linear", "mlp", "rms_mean", "raw_mean"])
    return {
        "kind": "dynamic",
        "d_ff": rng.randint(5, 12),
        "min_fraction": rng.choice([0.1, 1 / 3]),
        "start": rng.choice([0.5, 0.9]),
        "mask": {"kind": kind} if kind == "hard" else {"kind": kind, "temperature": 1.5},
        "score": {"kind": score},
    }


Operation = Callable[[Random, ModelConfig], Expansion | None]
"""A random expansion of a model; None where it has none of that kind, by a rule of the model's own."""


def _layer_with(rng: Random, model: ModelConfig, suits: Callable[[LayerConfig], bool]) -> int | None:
    found = [i for i, layer in enumerate(model.layers) if suits(layer)]
    return rng.choice(found) if found else None


def widen_ffn(rng: Random, model: ModelConfig) -> Expansion | None:
    i = rng.randrange(model.n_layers)
    ffn = model.layers[i].ffn
    width = ffn.d_expert if isinstance(ffn, MoEConfig) else max(ffn.hidden_widths)
    return expansions.widen_ffn(model, [i], width + rng.randint(1, 4))


def widen_shared_expert(rng: Random, model: ModelConfig) -> Expansion | None:
    i = _layer_with(rng, model, lambda layer: isinstance(layer.ffn, MoEConfig))
    if i is None:
        return None
    return expansions.widen_shared_expert(model, [i], model.layers[i].ffn.d_shared + rng.randint(1, 4))


def duplicate_experts(rng: Random, model: ModelConfig) -> Expansion | None:
    i = _layer_with(rng, model, lambda layer: isinstance(layer.ffn, MoEConfig) and layer.ffn.n_experts <= 4)
    return None if i is None else expansions.duplicate_experts(model, [i], rng.choice([2, 3]))


def split_experts(rng: Random, model: ModelConfig) -> Expansion | None:
    def suits(layer: LayerConfig) -> bool:
        ffn = layer.ffn
        return isinstance(ffn, MoEConfig) and ffn.n_experts <= 4 and ffn.d_expert % 2 == 0

    i = _layer_with(rng, model, suits)
    return None if i is None else expansions.split_experts(model, [i], 2)


def upcycle(rng: Random, model: ModelConfig) -> Expansion | None:
    i = _layer_with(rng, model, lambda layer: isinstance(layer.ffn, SwiGLUConfig))
    if i is None:
        return None
    wanted, layers = expansions.upcycle(model, [i], n_experts := rng.randint(2, 3), rng.randint(1, n_experts))
    ffn = wanted.layers[i].ffn.model_copy(update={"balance_coefficient": 0.0, "z_coefficient": 0.0})
    return _with_layer(wanted, i, ffn=ffn), layers


def _with_layer(model: ModelConfig, i: int, **changes) -> ModelConfig:
    layers = list(model.layers)
    layers[i] = layers[i].model_copy(update=changes)
    return changed(model, layers=tuple(layers))


def _are_heads_under_one_norm(attention: AttentionConfig) -> bool:
    return attention.qk_norm is not None and attention.qk_norm.over == "all_heads"


def add_heads(rng: Random, model: ModelConfig) -> Expansion | None:
    i = _layer_with(rng, model, lambda layer: layer.attention.n_heads <= 6)
    if i is None:
        return None
    attention = model.layers[i].attention
    n_kv, group = attention.n_kv_heads, attention.n_heads // attention.n_kv_heads
    if _are_heads_under_one_norm(attention):
        sizes = [(2 * n_kv, group), (n_kv, 2 * group)]
    else:
        sizes = [(n_kv + rng.randint(1, 2), group), (n_kv, group + rng.randint(1, 2)), (n_kv + 1, group + 1)]
    if group > 1:
        sizes += [(n_kv * group, 1)] * 2
    n_kv, group = rng.choice(sizes)
    return expansions.add_heads(model, [i], n_kv * group, n_kv)


def widen_values(rng: Random, model: ModelConfig) -> Expansion | None:
    i = rng.randrange(model.n_layers)
    return expansions.widen_values(model, [i], model.layers[i].attention.value_dim + rng.randint(1, 3))


def widen_keys(rng: Random, model: ModelConfig) -> Expansion | None:
    i = _layer_with(rng, model, lambda layer: layer.attention.head_dim <= 6)
    if i is None:
        return None
    attention = model.layers[i].attention
    if attention.qk_norm is not None:
        head_dim = attention.head_dim * rng.choice([2, 3])
    elif attention.rope_base is None:
        head_dim = attention.head_dim + rng.randint(1, 3)
    else:
        head_dim = attention.head_dim + 2 * rng.randint(1, 3)
    return expansions.widen_keys(model, [i], head_dim)


def _norm_kinds(model: ModelConfig) -> set[str]:
    return {norm.kind for layer in model.layers for norm in (layer.attention_norm, layer.ffn_norm)}


def _group_norm(model: ModelConfig) -> str | None:
    return model.residual.group_norm if isinstance(model.residual, HyperConnectionsConfig) else None


def _has_mean_scores(layers) -> bool:
    return any(
        isinstance(layer.ffn, DynamicConfig) and layer.ffn.score.kind in ("rms_mean", "raw_mean", "ln_mean")
        for layer in layers
    )


def widen_stream(rng: Random, model: ModelConfig) -> Expansion | None:
    layers = (*model.layers, *([] if model.mtp is None else [model.mtp.layer]))
    if _has_mean_scores(layers):
        return None
    slot_widths = model.residual.slot_width if isinstance(model.residual, HyperConnectionsConfig) else None
    if "layer" in {*_norm_kinds(model), _group_norm(model)}:
        widths = {width for layer in layers for width in (layer.d_model, layer.d_in, layer.d_out)}
        has_own_means = any(layer.norm_placement != "pre" for layer in layers) or any(
            isinstance(layer.ffn, HourglassConfig) and layer.ffn.norm not in (None, "pre") for layer in layers
        )
        if slot_widths is not None or has_own_means or widths | {model.final_norm_width} != {model.d_model}:
            return None
    n_blocks = 1 if slot_widths is None else model.d_model // slot_widths
    return expansions.widen_stream(model, n_blocks * rng.randint(1, 3 if n_blocks == 1 else 1))


def widen_layers(rng: Random, model: ModelConfig) -> Expansion | None:
    if "layer" in {*_norm_kinds(model), _group_norm(model)}:
        return None
    residual, widest = model.residual, max(model.widths)
    if isinstance(residual, PlainResidualConfig):
        if residual.resize != "carry":
            return None
        step, limit = 1, widest + 2
    else:
        step, limit = residual.slot_width, residual.n_owned_slots * residual.slot_width

    def suits(layer: LayerConfig) -> bool:
        is_last = layer is model.layers[-1]
        placements = {layer.norm_placement, getattr(layer.ffn, "norm", None)}
        divides_by_its_place = isinstance(layer.ffn, HourglassConfig) and "reordered" in placements and is_last
        return layer.d_model + step <= limit and not divides_by_its_place and not _has_mean_scores([layer])

    i = _layer_with(rng, model, suits)
    if i is None:
        return None
    width = model.layers[i].d_model
    return expansions.widen_layers(model, {i: rng.randrange(width + step, limit + 1, step)})


def add_layers(rng: Random, model: ModelConfig) -> Expansion | None:
    if model.n_layers > 2:
        return None
    resize = model.residual.resize if isinstance(model.residual, PlainResidualConfig) else "carry"
    if resize != "carry" and len({model.d_model, *model.widths}) > 1:
        return None
    n_added = rng.randint(1, 3 - model.n_layers)
    positions = rng.sample(range(model.n_layers + n_added), n_added)
    like = rng.choice([None, rng.randrange(model.n_layers)])
    return expansions.add_layers(model, positions, like)


def add_block(rng: Random, model: ModelConfig) -> Expansion | None:
    def suits(layer: LayerConfig) -> bool:
        return isinstance(layer.ffn, HourglassConfig) and not layer.ffn.share_weights and layer.ffn.n_blocks < 5

    i = _layer_with(rng, model, suits)
    if i is None:
        return None
    layer = model.layers[i]
    n_blocks = layer.ffn.n_blocks
    # Behind a last block that writes less, its norm would have to divide by more.
    last = n_blocks - 1 if layer.d_out != layer.d_model else n_blocks
    return expansions.add_block(model, i, rng.randint(0, last), rng.choice([None, 3]))


def add_slots(rng: Random, model: ModelConfig) -> Expansion | None:
    residual = model.residual
    if not isinstance(residual, HyperConnectionsConfig) or residual.embedding == "pad" or residual.n_slots > 14:
        return None
    step = 1 if residual.group_norm is None else model.d_model // residual.slot_width
    return expansions.add_slots(model, residual.n_slots + step * rng.randint(1, 2))


def to_slots(rng: Random, model: ModelConfig) -> Expansion | None:
    residual = model.residual
    widths = [width for layer in model.layers for width in (layer.d_model, layer.d_in, layer.d_out)]
    if not isinstance(residual, PlainResidualConfig) or model.final_norm_width != model.d_model:
        return None
    if residual.resize != "carry" and set(widths) != {model.d_model}:
        return None
    divisors = [n for n in (2, 3, 4, model.d_model) if all(width % n == 0 for width in (model.d_model, *widths))]
    if model.mtp is not None:
        divisors = [n for n in divisors if n == model.d_model]
    if not divisors:
        return None
    slot_width = rng.choice(divisors)
    n_owned = max(model.d_model, *widths) // slot_width
    n_slots = n_owned if model.tie_embeddings else n_owned + rng.randint(0, 2)
    embedding = "pad" if model.tie_embeddings else "direct"
    return expansions.to_slots(model, slot_width, n_slots, rng.random() < 0.5, embedding)


def lengthen_positions(rng: Random, model: ModelConfig) -> Expansion | None:
    if model.positions is None:
        return None
    n_positions = model.positions.n_positions + rng.randint(1, 3)
    return changed(model, positions=type(model.positions)(n_positions=n_positions)), same_layers(model)


RARE = ("add_block", "duplicate_experts", "split_experts", "widen_shared_expert", "to_slots", "widen_layers")
"""Expansions that few models have, which are tried more often."""
OPERATIONS: dict[str, Operation] = {
    operation.__name__: operation
    for operation in (
        widen_ffn,
        add_heads,
        widen_values,
        widen_keys,
        widen_stream,
        add_layers,
        widen_layers,
        add_block,
        add_slots,
        to_slots,
        duplicate_experts,
        split_experts,
        widen_shared_expert,
        upcycle,
        lengthen_positions,
    )
}


def random_growth(rng: Random, n_operations: int, zero_side: ZeroSide = "outputs") -> tuple[Grown, list[str]]:
    """A random model grown so many times, and the names of the expansions."""
    grown, names = Grown(random_model(rng), zero_side=zero_side), []
    while len(names) < n_operations:
        name = rng.choice([*OPERATIONS, *3 * RARE])
        expansion = OPERATIONS[name](rng, grown.now)
        if expansion is not None:
            grown.grow(expansion, rng.choice(["drawn", "copied"]))
            names.append(name)
    return grown, names


def changed_anyhow(rng: Random, model: ModelConfig) -> ModelConfig | None:
    """A model with some sizes and options changed without any rule; None where there is no such model."""
    data = to_data(model)
    numbers = _numbers(data, ())
    sizes = [(path, value) for path, value in numbers if isinstance(value, int) and path[-1] != "vocab_size"]
    for path, value in rng.sample(sizes, min(len(sizes), rng.randint(1, 5))):
        _put(data, path, value + rng.choice([-1, 1, 2, 2, 3, 4, 4, value, value]))
    if rng.random() < 0.1:
        path, value = rng.choice(numbers)
        _put(data, path, 2 * value)
    try:
        return parse(ModelConfig, data, "model")
    except ValueError:
        return None


def _put(data, path: tuple, value: float) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def _numbers(data, path: tuple) -> list[tuple[tuple, int | float]]:
    if isinstance(data, dict):
        return [found for key, value in data.items() for found in _numbers(value, (*path, key))]
    if isinstance(data, (list, tuple)):
        return [found for i, value in enumerate(data) for found in _numbers(value, (*path, i))]
    is_number = isinstance(data, (int, float)) and not isinstance(data, bool)
    return [(path, data)] if is_number and path[0] != "init" else []
