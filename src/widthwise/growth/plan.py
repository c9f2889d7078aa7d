"""The plan of a growth: where the entries of every tensor come from.

It yields the grown weights, the grown optimizer state, which entries are new, and the old weights back.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from widthwise.config_io import UserError
from widthwise.growth.added import SUBLAYERS, copied_plan, drawn_plan, starter
from widthwise.growth.choices import NewLayers
from widthwise.growth.correspondence import Correspondence, align
from widthwise.growth.rules import Owner, slot_plan, weight_plan
from widthwise.growth.stream import StreamMap, stream_map
from widthwise.growth.target import grown_config
from widthwise.growth.tensor_plan import Fresh, Split, TensorPlan
from widthwise.model.axes import Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint, parameter_shapes
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.layer_module import DecoderLayer
from widthwise.model.memory import allocating


@dataclass(frozen=True)
class GrowthPlan:
    """The growth of one model into another."""

    old: ModelConfig
    new: ModelConfig
    correspondence: Correspondence
    tensors: dict[str, TensorPlan | Split]
    """By parameter of the grown model; tied parameters appear under their first name only."""

    def tensor(self, name: str, weights: Mapping[str, Tensor], seed: int, fresh: Fresh | None = None) -> Tensor:
        """One grown tensor. weights: the old model's, by name; seed, fresh: see `weights`."""
        plan = self.tensors[name]
        # Without a source any tensor will do: only its dtype and device are used.
        old = weights[plan.source] if plan.source else next(iter(weights.values()))
        return plan.grow(old, torch.Generator().manual_seed(self._seed_of(name, seed)), fresh)

    def _seed_of(self, name: str, seed: int) -> int:
        """A different seed for each tensor, and for each growth of a model that grows repeatedly."""
        # torch's generator takes 32 bits of a seed, the lowest.
        return zlib.crc32(f"{seed} {self._n_old_params} {name}".encode())

    @cached_property
    def _n_old_params(self) -> int:
        return int(self.old.cost().params)

    def weights(
        self, weights: Mapping[str, Tensor], seed: int = 0, fresh: Fresh | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """The grown weights one at a time, so that the caller decides how many are held in memory.

        seed: of the random entries; each tensor derives its own, so that the order does not matter. fresh: fills free
        entries instead of the plan's own rule, for padding, or to show that any value preserves the function.
        """
        for name in self.tensors:
            yield name, self.tensor(name, weights, seed, fresh)

    def is_new(self, was_new: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """bool, for every parameter: the entries that growth added. was_new: those of an earlier growth, still new."""
        before = was_new or {}
        return {name: plan.is_new(before.get(plan.source)) for name, plan in self.tensors.items()}

    def shrunk(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The old weights recovered from the grown ones, bitwise unless a tensor was scaled or mirrored."""
        return {
            plan.source: plan.shrink(weights[name])
            for name, plan in self.tensors.items()
            if plan.source and not plan.is_alien
        }


def plan_growth(
    old: ModelConfig,
    wanted: ModelConfig,
    correspondence: Correspondence | None = None,
    new_layers: NewLayers = "drawn",
) -> GrowthPlan:
    """Return the plan by which a model grows to the sizes of `wanted` while it keeps its own constants.

    correspondence: the old layer and block of each new one, by default from `align`; new_layers: whether added layers
    are drawn or copied, see `NewLayers`. Raises UserError if the function cannot be preserved.
    """
    correspondence = correspondence or align(old, wanted)
    new = grown_config(old, wanted, correspondence)
    with allocating(f"growth: the plan of a model of {new.cost().params:,.0f} parameters does not fit into memory"):
        models = blueprint(old), blueprint(new)
        stream = stream_map(old, new, correspondence.pairs())
        planner = _Planner(*models, correspondence, stream, copies_layers=new_layers == "copied")
        tensors = {name: planner.plan(name) for name, _ in models[1].named_parameters()}
        _check_nothing_lost(models[0], tensors)
        return GrowthPlan(old, new, correspondence, tensors)


def _check_nothing_lost(old: Decoder, tensors: Mapping[str, TensorPlan | Split]) -> None:
    kept = {plan.source for plan in tensors.values() if not plan.is_alien}
    lost = {name for name, _ in old.named_parameters()} - kept
    if lost:
        raise UserError(f"{min(lost)}: has no place in the grown model; growth takes nothing away")


@dataclass(frozen=True)
class _Planner:
    old: Decoder
    new: Decoder
    correspondence: Correspondence
    stream: StreamMap
    copies_layers: bool

    @cached_property
    def old_modules(self) -> dict[str, nn.Module]:
        return dict(self.old.named_modules(remove_duplicate=False))

    @cached_property
    def new_modules(self) -> dict[str, nn.Module]:
        return dict(self.new.named_modules(remove_duplicate=False))

    def plan(self, name: str) -> TensorPlan | Split:
        """The plan of one parameter of the grown model."""
        owner, old_name = _weight(self.new_modules, name), self._old_name(name)
        assert owner is not None, f"{name} has no named axes"
        if old_name is None:
            return self._added(name, owner)
        before = _weight(self.old_modules, old_name)
        assert before is not None
        parents = self.new_modules[_parent(name)], self.old_modules[_parent(old_name)]
        ffn = _ffn_of(self.new_modules, name)
        place = Owner(name.removesuffix(".weight"), before, owner, *parents, ffn)
        of_slots = slot_plan(old_name, place, self.stream, starter(name, self.new, owner))
        return weight_plan(old_name, place, self.stream) if of_slots is None else of_slots

    def _old_name(self, name: str) -> str | None:
        """The parameter's name in the old model; None if it has no such parameter."""
        old_name = self.correspondence.old_name(name)
        if old_name is not None:
            old_name = self._as_old_ffn(name, old_name)
        return None if old_name is None or _weight(self.old_modules, old_name) is None else old_name

    def _as_old_ffn(self, name: str, old_name: str) -> str | None:
        """`old_name` as the old feed-forward calls it, which may be of another kind. Other names are returned as is."""
        old, new = _ffn_of(self.old_modules, old_name), _ffn_of(self.new_modules, name)
        if old is None or new is None:
            return old_name
        layer, ffn, leaf = old_name.partition(".ffn.")
        found = re.match(r"layers\.(\d+)\.", name)
        blocks = self.correspondence.blocks_of(int(found[1]) if found else None, old, new)
        before = new.name_before(old, leaf, blocks)
        return None if before is None else f"{layer}{ffn}{before}"

    def _is_added(self, name: str) -> bool:
        return self._old_name(name) is None

    def _added(self, name: str, owner: Weight) -> TensorPlan:
        copied = self._copied_from(name) if self.copies_layers else None
        source = None if copied is None else _weight(self.old_modules, copied)
        if copied is None or source is None or source.weight.shape != owner.weight.shape:
            return drawn_plan(name, owner, self.new, self._is_added)
        return copied_plan(name, copied, owner, self.new, self._is_added)

    def _copied_from(self, name: str) -> str | None:
        """The parameter of the old model that one of an added layer is a copy of; None if it is none."""
        path = name.split(".")
        if path[0] != "layers" or self.correspondence.layers[int(path[1])] is not None:
            return None
        if path[2] not in SUBLAYERS:
            return None  # residual sites act from the start, so a copied one would change the function
        return ".".join(("layers", str(self.correspondence.nearest(int(path[1]))[0]), *path[2:]))


def _weight(modules: Mapping[str, nn.Module], name: str) -> Weight | None:
    """The module that holds the parameter of that name."""
    owner = modules.get(name.removesuffix(".weight"))
    return owner if isinstance(owner, Weight) else None


def _ffn_of(modules: Mapping[str, nn.Module], name: str) -> FFNConfig | None:
    """The config of the feed-forward that a parameter belongs to."""
    layer, _, inside = name.partition(".ffn.")
    owner = modules.get(layer)
    return owner.config.ffn if inside and isinstance(owner, DecoderLayer) else None


def _parent(name: str) -> str:
    """The name of the module around the parameter's owner; for a bias, around its matrix or norm."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[0]


def with_constants_of(wanted: ModelConfig, plan: GrowthPlan) -> GrowthPlan:
    """The same tensors in the model as its recipe describes it, which is another function.

    Raises UserError where the tensors of that model have other shapes.
    """
    if parameter_shapes(plan.new) != parameter_shapes(wanted):
        raise UserError("preserve: false needs a model whose tensors are those of the growth that preserves")
    return replace(plan, new=wanted)
