"""The plan of a growth: the old entry that each entry of every tensor comes from.

It yields the grown weights, the grown optimizer state, and the masks of new entries.

Growth can add layers, blocks, residual sites, routers and shared experts. An added part that writes the stream starts
silent: its last matrix is 0, or, if a new norm follows that matrix, the gain of the norm. A zero matrix before a norm
would not do, because the norm would scale even a tiny first optimizer step to full size.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from widthwise.growth.correspondence import AxisMap, Correspondence, align
from widthwise.growth.rules import GrownWeight, slot_plan, weight_plan
from widthwise.growth.stream import StreamMap, stream_map
from widthwise.growth.target import grown_config
from widthwise.growth.tensor_plan import InitialValues, TensorPlan
from widthwise.mistakes import UserError
from widthwise.model.axes import Linear, Norm, Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint, parameter_shapes
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.initial_weights import initial_std, initial_weight
from widthwise.model.layer_module import DecoderLayer
from widthwise.model.memory import allocating
from widthwise.model.mup import grouped_parameters


@dataclass(frozen=True)
class GrowthPlan:
    """The growth of one model into another."""

    old: ModelConfig
    new: ModelConfig
    correspondence: Correspondence
    tensors: dict[str, TensorPlan]
    """By parameter of the grown model; tied parameters appear under their first name only."""

    def weights(self, weights: Mapping[str, Tensor], seed: int = 0) -> Iterator[tuple[str, Tensor]]:
        """Yield the grown weights one at a time, so that the caller decides how many are held in memory.

        weights: of the old model, by name; seed: of the random entries; the seed of each tensor is derived from it, so
        that the order does not matter.
        """
        n_old_params = int(self.old.cost().params)
        for name, plan in self.tensors.items():
            # Without a source any tensor will do: only its dtype and device are used.
            old = weights[plan.source] if plan.source else next(iter(weights.values()))
            # The seed differs between tensors, and between repeated growths of a model; torch takes 32 bits.
            tensor_seed = zlib.crc32(f"{seed} {n_old_params} {name}".encode())
            yield name, plan.grow(old, torch.Generator().manual_seed(tensor_seed))

    def is_new(self) -> dict[str, Tensor]:
        """Return bool by parameter: True at entries that growth added."""
        return {name: plan.is_new() for name, plan in self.tensors.items()}


def plan_growth(old: ModelConfig, wanted: ModelConfig, correspondence: Correspondence | None = None) -> GrowthPlan:
    """Return the plan by which a model grows to the sizes of `wanted` and keeps its constants.

    correspondence: the old layer of each new one, by default from `align`. Raises UserError if the function cannot be
    preserved.
    """
    correspondence = correspondence or align(old, wanted)
    new = grown_config(old, wanted, correspondence)
    with allocating(f"growth: the plan of a model of {new.cost().params:,.0f} parameters does not fit into memory"):
        old_model = blueprint(old)
        new_model = blueprint(new)
        old_modules = dict(old_model.named_modules(remove_duplicate=False))
        new_modules = dict(new_model.named_modules(remove_duplicate=False))
        stream = stream_map(old, new, correspondence.pairs())
        planner = _Planner(new_model, old_modules, new_modules, correspondence, stream)
        tensors = {name: planner.plan(name) for name, _ in new_model.named_parameters()}
        lost = {name for name, _ in old_model.named_parameters()} - {plan.source for plan in tensors.values()}
        if lost:
            raise UserError(f"{min(lost)}: is missing in the grown model; growth takes nothing away")
        return GrowthPlan(old, new, correspondence, tensors)


@dataclass(frozen=True)
class _Planner:
    """The modules of both models by name, and the maps between the models."""

    new: Decoder
    old_modules: Mapping[str, nn.Module]
    new_modules: Mapping[str, nn.Module]
    correspondence: Correspondence
    stream: StreamMap

    def plan(self, name: str) -> TensorPlan:
        """Return the plan of one parameter of the grown model.

        A parameter that the old model lacks is 0 if it silences its part, otherwise drawn.
        """
        owner = _weight(self.new_modules, name)
        old_name = self.old_name(name)
        assert owner is not None, f"{name} has no named axes"
        config = self.new.config
        width_ratio = config.d_model / config.width_of(name)
        std = initial_std(config.init, owner, width_ratio, config.n_residual_additions)
        draw = partial(initial_weight, owner, std, truncate_at=config.init.truncate_at)
        if old_name is None:
            is_zero = is_silent(name, self.new, lambda parameter: self.old_name(parameter) is None)
            if is_zero and isinstance(owner, Norm) and owner.gain_offset:
                # The gain is the weight plus gain_offset, so this weight makes it 0.
                silent = InitialValues(lambda _: torch.full(owner.weight.shape, -owner.gain_offset))
                return TensorPlan("", (AxisMap.of(0, [-1] * len(owner.weight)),), silent)
            maps = tuple(AxisMap.of(0, [-1] * n, zero=is_zero) for n in owner.weight.shape)
            return TensorPlan("", maps, InitialValues(draw))
        old_owner = _weight(self.old_modules, old_name)
        assert old_owner is not None
        weight = GrownWeight(
            name=name.removesuffix(".weight"),
            source=old_name,
            old=old_owner,
            new=owner,
            parent=_parent(self.new_modules, name),
            old_parent=_parent(self.old_modules, old_name),
            ffn=_ffn_of(self.new_modules, name),
            stream=self.stream,
        )
        plan = slot_plan(weight, draw)
        return weight_plan(weight) if plan is None else plan

    def old_name(self, name: str) -> str | None:
        """Return the parameter's name in the old model; None if it has no such parameter."""
        old_name = self.correspondence.old_name(name)
        if old_name is None:
            return None
        old_ffn = _ffn_of(self.old_modules, old_name)
        new_ffn = _ffn_of(self.new_modules, name)
        if old_ffn is not None and new_ffn is not None:  # the old feed-forward may be of another kind
            layer, _, inside = old_name.partition(".ffn.")
            old_inside = new_ffn.name_before(old_ffn, inside)
            if old_inside is None:
                return None
            old_name = f"{layer}.ffn.{old_inside}"
        return None if _weight(self.old_modules, old_name) is None else old_name


def _weight(modules: Mapping[str, nn.Module], name: str) -> Weight | None:
    """Return the module that holds the parameter of that name."""
    owner = modules.get(name.removesuffix(".weight"))
    return owner if isinstance(owner, Weight) else None


def _parent(modules: Mapping[str, nn.Module], name: str) -> nn.Module:
    """Return the module around the module of a parameter; for a bias, the one around its matrix or norm."""
    return modules[name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[0]]


def _ffn_of(modules: Mapping[str, nn.Module], name: str) -> FFNConfig | None:
    """Return the config of the feed-forward that a parameter belongs to, if any."""
    layer, _, inside = name.partition(".ffn.")
    owner = modules.get(layer)
    return owner.config.ffn if inside and isinstance(owner, DecoderLayer) else None


def is_silent(name: str, model: Decoder, is_added: Callable[[str], bool]) -> bool:
    """Return True if a parameter of a new part must start at 0 so that the part writes nothing.

    is_added: True for a parameter that the old model lacks.
    """
    path = name.removesuffix(".weight").split(".")
    if path[0] == "mtp" and is_added(f"mtp.{path[1]}.w_join.weight"):
        return False  # a new MTP head affects only its loss
    depth = next((i for i, part in enumerate(path) if part in ("attention", "ffn")), None)
    if depth is None:
        return False  # only attention and feed-forwards write the stream
    is_bias = path[-1] == "bias"
    if is_bias:  # continue with its matrix or norm
        path.pop()
    owner = model.get_submodule(".".join(path))
    if is_bias and isinstance(owner, Norm):
        return owner.is_after  # its bias is written to the stream
    output_norm = None  # the added norm through which the part writes
    for end in range(depth + 1, len(path)):
        part = ".".join(path[:end])
        norm = getattr(model.get_submodule(part), "norm", None)
        if isinstance(norm, Norm) and norm.output_norm and is_added(f"{part}.norm.weight"):
            output_norm = norm.output_norm
            break
    if isinstance(owner, Norm) and owner.is_after:
        return owner is output_norm
    return output_norm is None and isinstance(owner, Linear) and owner.writes_stream


def with_recipe_constants(plan: GrowthPlan, wanted: ModelConfig) -> GrowthPlan:
    """Return the plan with the constants of the recipe's model, `wanted`, which change the function.

    Raises UserError if the tensors of the recipe's model have other shapes.
    """
    if parameter_shapes(plan.new) != parameter_shapes(wanted):
        raise UserError("preserve: got false; needs a recipe whose tensors have the shapes that preserve: true gives")
    return replace(plan, new=wanted)


State = Mapping[str, Mapping[str, Tensor]]
"""By parameter: exp_avg, exp_avg_sq and step for AdamW, or momentum_buffer for Muon."""


def grown_states(plan: GrowthPlan, state: State) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the AdamW or Muon state of the new model, one parameter at a time, with its name.

    Moments of old entries scale like their gradients, and `step` is kept: multiplying an entry by c divides its
    gradient by c, and n equal copies share its gradient. First moments and momentum of new entries are 0. Their second
    moments are the mean of the old ones in the same tensor: with 0, which Adam's bias correction does not correct
    because it follows `step`, they would move at several times the learning rate.

    Tensors without an old entry get no state, nor do matrices that move from Muon to AdamW, such as the matrices of a
    feed-forward that became experts; the optimizer starts them at step 0.
    """
    groups = grouped_parameters(blueprint(plan.new))
    for_muon = {name for group in groups if group.are_hidden_matrices for name in group.names}
    for name, tensor in plan.tensors.items():
        old = state.get(tensor.source, {})
        if not old or ("momentum_buffer" in old and name not in for_muon):
            continue
        # Equal copies each get 1 / n_copies of the old gradient. The gradients of copies that differ are assumed to be
        # independent, so that their squares add up to the old square.
        gradient_factor = 1 / (tensor.scale * tensor.n_copies)
        square_factor = gradient_factor**2 * (tensor.n_copies if tensor.copies_differ else 1)
        grown = {}
        for part, value in old.items():
            if part == "exp_avg_sq":
                grown[part] = tensor.carry(value, square_factor, float(value.double().mean()) * square_factor)
            elif part in ("exp_avg", "momentum_buffer"):
                grown[part] = tensor.carry(value, gradient_factor, 0.0)
            else:
                assert part == "step", part
                grown[part] = value.clone()
        yield name, grown


def grown_factors(plan: GrowthPlan, factors: Mapping[str, float]) -> dict[str, float]:
    """Return the factor by which each parameter of the new model has been multiplied, for `optimizer.scaled`.

    factors: the same for the old model. Factors of 1 are omitted.
    """
    grown = {name: tensor.scale * factors.get(tensor.source, 1.0) for name, tensor in plan.tensors.items()}
    return {name: factor for name, factor in grown.items() if factor != 1.0}
