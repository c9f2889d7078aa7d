"""The need that a model has of its parts, measured on text: what the cut of `growth.shrink` goes by."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.growth.choices import Score
from widthwise.growth.shrink import LayerSizes, Order, readers, sublayers
from widthwise.model.axes import Linear, Norm
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
    normed: defaultdict[str, Entries] = field(default_factory=lambda: defaultdict(Entries))
    """By the name of its norm: what that measures, of each token over its root mean square."""
    covariance: Tensor | float = 0.0
    """float64 (d_model, d_model): of all that is read, summed over sublayers and tokens; 0 where not asked for."""


def writer(sublayer: nn.Module) -> Linear:
    """Return the one matrix that writes what a sublayer makes to the stream."""
    (found,) = (each for each in sublayer.modules() if isinstance(each, Linear) and list(each.out_axes) == ["d_model"])
    return found


def measure(
    model: Decoder, batches: Iterable[Tensor], with_covariance: bool = False, boundaries: Boundaries = NO_BOUNDARIES
) -> Need:
    """Run a model over batches, integers (B, T + 1), and return what its parts do there.

    boundaries: what the model is told of the documents in a row. The model is left as it was.
    """
    need = Need()

    def observing(take: Callable[[Tensor], None], output: bool = False) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
            take(outputs[0] if output else inputs[0])

        return hook

    def correlate(x: Tensor) -> None:
        rows = x.detach().flatten(0, -2).double()
        need.covariance = need.covariance + rows.T @ rows

    def normed(entries: Entries) -> Callable[[Tensor], None]:
        def take(x: Tensor) -> None:
            wide = x.detach().double()
            entries.add(wide / wide.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-30))

        return take

    asked = [parameter.requires_grad for parameter in model.parameters()]
    embedding = model.embedding.weight
    with ExitStack() as undone:
        undone.callback(lambda: [each.requires_grad_(was) for each, was in zip(model.parameters(), asked)])
        model.requires_grad_(False)
        embedding.requires_grad_(True)  # so that activations have gradients, and no matrix has
        for name, sublayer in sublayers(model).items():
            first, last = readers(sublayer)[0], writer(sublayer)
            added = [
                first.register_forward_pre_hook(observing(need.read[name].add)),
                last.register_forward_pre_hook(observing(need.inner[name].add)),
                last.register_forward_hook(observing(need.written[name].add, output=True)),
            ]
            if isinstance(sublayer.norm, Norm):
                taken = normed(need.normed[f"{name}.norm"])
                added.append(sublayer.norm.register_forward_pre_hook(observing(taken)))
            if with_covariance:
                added.append(first.register_forward_pre_hook(observing(correlate)))
            for hook in added:
                undone.callback(hook.remove)
        for batch in batches:
            rows = batch.to(embedding.device)
            tokens = rows[:, :-1]
            documents, positions = boundaries.documents(tokens), boundaries.positions(tokens)
            found = model.loss(tokens, rows[:, 1:], documents=documents, positions=positions)
            torch.autograd.grad(found.objective, embedding)
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


def order_of_need(needs: Sequence[LayerNeed]) -> Order:
    """Return the order in which each layer's most needed groups and units come first."""
    return Order(
        groups=[each.groups.argsort(descending=True, stable=True).cpu() for each in needs],
        units=[each.units.argsort(descending=True, stable=True).cpu() for each in needs],
    )


def energies_kept(need: Need, sizes: Sequence[LayerSizes]) -> dict[str, float]:
    """Return by norm the share of the squares of what it measures in the coordinates that its layer keeps."""
    found = {}
    for name, entries in need.normed.items():
        energy = torch.as_tensor(entries.energy)
        found[name] = float(energy[: sizes[int(name.split(".")[1])].d_model].sum() / energy.sum())
    return found
