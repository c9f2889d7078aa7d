"""The units in which a model is split over processes, and what each process holds of them.

They are those of PyTorch's `fully_shard` on every decoder layer, on the layer of every further head, and on the rest:
what a unit holds is gathered and freed together. Every parameter is cut along its first axis into as many blocks of
ceil(rows / n) rows as there are processes; the last ones may be shorter or empty, but memory and collectives are laid
out for full blocks, so the difference is padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from widthwise.model.decoder import Decoder

ROOT = "root"
"""Name of the unit of what is in no layer: embedding, head, positions, entry, exit, what joins further heads."""


def block_entries(shape: Sequence[int], n_shards: int) -> int:
    """Entries of a parameter's block, padding included: ceil(rows / n_shards) rows of it."""
    n_rows, *row = shape
    return -(-n_rows // n_shards) * torch.Size(row).numel()


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered and freed together."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    """In no other unit, each once: a tied head is the embedding."""

    @property
    def n_params(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def block_entries(self, n_shards: int) -> int:
        """Entries that each of n_shards processes holds, padding included."""
        return sum(block_entries(parameter.shape, n_shards) for parameter in self.parameters)

    def gathered_entries(self, n_shards: int) -> int:
        """Entries of the unit gathered from n_shards processes, padding included."""
        return n_shards * self.block_entries(n_shards)


def sharded_units(model: Decoder) -> list[Unit]:
    """The units in the order in which a forward pass comes to their layers; the root is the last.

    A parameter belongs to the first unit that reaches it, as with `fully_shard` called in this order.
    """
    layers = {f"layers.{i}": layer for i, layer in enumerate(model.layers)}
    heads = {f"mtp.{k}.layer": depth.layer for k, depth in enumerate(model.depths)}
    units, taken = [], set[nn.Parameter]()
    for name, module in (*layers.items(), *heads.items(), (ROOT, model)):
        own = tuple(parameter for parameter in module.parameters() if parameter not in taken)
        taken.update(own)
        units.append(Unit(name, own))
    return units
