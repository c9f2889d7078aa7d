"""The need that a model has of its parts, measured on text: what the cut of `growth.shrink` goes by."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from widthwise.growth.choices import Score
from widthwise.growth.shrink import LayerSizes, Order, readers, sublayers
from widthwise.model.axes import Linear
from widthwise.model.decoder import Decoder


@dataclass
class Entries:
    """Sums over tokens of what the entries of one activation hold; float64 (n,)."""

    energy: Tensor | float = 0.0
    """Sum of squares."""
    size: Tensor | float = 0.0
    """Sum of absolute values."""
    taylor: Tensor | float = 0.0
    """Sum over batches of the first-order change of the loss, in nats and with its sign removed."""
    n_tokens: int = 0
    n_batches: int = 0

    def add(self, x: Tensor) -> None:
        """x: (..., n); its gradient is added when it is known."""
        rows = x.detach().flatten(0, -2).double()
        self.energy += rows.square().sum(dim=0)
        self.size += rows.abs().sum(dim=0)
        self.n_tokens += len(rows)
        self.n_batches += 1
        if x.requires_grad:
            x.register_hook(lambda gradient: self._add_gradient(rows, gradient))

    def _add_gradient(self, rows: Tensor, gradient: Tensor) -> None:
        self.taylor += (rows * gradient.flatten(0, -2).double()).sum(dim=0).abs()


@dataclass
class Need:
    """The activations of a model by the name of the sublayer: what it reads of the stream, what it makes of it, and
    what it writes."""

    read: defaultdict[str, Entries] = field(default_factory=lambda: defaultdict(Entries))
    inner: defaultdict[str, Entries] = field(default_factory=lambda: defaultdict(Entries))
    """Attended values of all heads, (n_heads * v_head_dim,), or hidden units."""
    written: defaultdict[str, Entries] = field(default_factory=lambda: defaultdict(Entries))
    covariance: Tensor | float = 0.0
    """float64 (d_model, d_model): of all that is read, summed over sublayers and tokens; 0 where not asked for."""


def writer(sublayer: nn.Module) -> Linear:
    """Return the one matrix that writes what a sublayer makes to the stream."""
    (found,) = (each for each in sublayer.modules() if isinstance(each, Linear) and list(each.out_axes) == ["d_model"])
    return found


def measure(model: Decoder, batches: Iterable[Tensor], with_covariance: bool = False) -> Need:
    """Run a model over batches, integers (B, T + 1), and return what its parts do there.

    Weights, their gradients and the mode of the model are left as they were.
    """
    need = Need()

    def reading(entries: Entries) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            entries.add(inputs[0])

        return hook

    def writing(entries: Entries) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            entries.add(output)

        return hook

    def correlating(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].detach().flatten(0, -2).double()
        need.covariance = need.covariance + rows.T @ rows

    before = [parameter.requires_grad for parameter in model.parameters()]
    model.requires_grad_(False)
    device = model.embedding.weight.device
    with ExitStack() as hooks:
        model.embedding.weight.requires_grad_(True)  # so that activations have gradients, and no matrix has
        for name, sublayer in sublayers(model).items():
            first, last = readers(sublayer)[0][1], writer(sublayer)
            added = [
                first.register_forward_pre_hook(reading(need.read[name])),
                last.register_forward_pre_hook(reading(need.inner[name])),
                last.register_forward_hook(writing(need.written[name])),
            ]
            if with_covariance:
                added.append(first.register_forward_pre_hook(correlating))
            for hook in added:
                hooks.callback(hook.remove)
        for batch in batches:
            tokens = batch.to(device)
            model.loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
            model.embedding.weight.grad = None
    for parameter, is_asked in zip(model.parameters(), before):
        parameter.requires_grad_(is_asked)
    return need


def column_scores(entries: Entries, matrix: Linear, score: Score) -> Tensor:
    """Return float64 (n,): the need of each entry that a matrix reads."""
    norms = matrix.weight.detach().double().norm(dim=0)
    if score == "taylor":
        return torch.as_tensor(entries.taylor) / entries.n_batches
    return norms if score == "magnitude" else torch.as_tensor(entries.size) / entries.n_tokens * norms


@dataclass(frozen=True)
class LayerNeed:
    """The need of one layer of its parts, float64, in the order that they have."""

    stream: Tensor
    """(d_model,): of coordinates, read and written."""
    groups: Tensor
    """(n_kv_heads,)"""
    units: Tensor
    """(n_hidden,)"""

    def lost(self, sizes: LayerSizes) -> float:
        """Return the sum over all that is cut behind the leading parts."""
        cut = (self.stream[sizes.d_model :], self.groups[sizes.n_kv_heads :], self.units[sizes.n_hidden :])
        return float(sum(part.sum() for part in cut))


def layer_needs(model: Decoder, need: Need, score: Score) -> list[LayerNeed]:
    """Return the need of every layer. Coordinates of the stream are always judged by `taylor`."""
    found = []
    for i, config in enumerate(model.config.layers):
        names = [f"layers.{i}.attention", f"layers.{i}.ffn"]
        stream = torch.zeros(config.d_model, dtype=torch.float64)
        for each in (entries[name] for name in names for entries in (need.read, need.written)):
            slopes = torch.as_tensor(each.taylor).cpu() / each.n_batches
            stream[: len(slopes)] += slopes  # slim ends reach less than the layer owns
        attention, ffn = (model.get_submodule(name) for name in names)
        heads = column_scores(need.inner[names[0]], writer(attention), score)
        groups = heads.view(config.attention.n_kv_heads, -1).sum(dim=1)
        units = column_scores(need.inner[names[1]], writer(ffn), score)
        found.append(LayerNeed(stream, groups, units))
    return found


def order_of_need(needs: list[LayerNeed], stream: Tensor | None = None) -> Order:
    """Return the order in which each layer's most needed groups and units come first. stream: as in `Order`."""
    return Order(
        stream,
        [each.groups.argsort(descending=True, stable=True).cpu() for each in needs],
        [each.units.argsort(descending=True, stable=True).cpu() for each in needs],
    )


def energies_kept(need: Need, widths: dict[str, int]) -> dict[str, float]:
    """Return by norm the share of the squares of what a sublayer reads in its first so many coordinates."""
    found = {}
    for name, width in widths.items():
        energy = torch.as_tensor(need.read[name].energy)
        found[f"{name}.norm"] = float(energy[:width].sum() / energy.sum())
    return found
