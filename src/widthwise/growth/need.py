"""The need that a model has of its parts, measured on text: what the cut of `growth.shrink` goes by."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from widthwise.computing import Precision
from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.growth.choices import Score
from widthwise.growth.shrink import LayerSizes, Order, readers, sublayers
from widthwise.kernels.dispatch import autocast
from widthwise.model.axes import Linear, Norm
from widthwise.model.context import LayerCache
from widthwise.model.decoder import Decoder
from widthwise.model.recompute import Recompute


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
        parts = _parts(x)
        for rows in parts:
            self._add_rows(rows.double())
        self.n_batches += 1
        if x.requires_grad:
            x.register_hook(lambda gradient: self._add_gradient(parts, gradient))

    def add_normed(self, x: Tensor) -> None:
        """x: (..., n), of which every row counts over its root mean square."""
        for rows in _parts(x):
            wide = rows.double()
            self._add_rows(wide / wide.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-30))

    def _add_rows(self, rows: Tensor) -> None:
        self.energy += rows.square().sum(dim=0)
        self.size += rows.abs().sum(dim=0)
        self.n_tokens += len(rows)

    def _add_gradient(self, parts: Sequence[Tensor], gradient: Tensor) -> None:
        slopes = ((rows.double() * slope).sum(dim=0) for rows, slope in zip(parts, _parts(gradient)))
        self.taylor += sum(slopes, torch.zeros(())).abs()


def _parts(x: Tensor) -> Sequence[Tensor]:
    """(..., n) -> rows of n, few enough to be worked on in float64 without much memory."""
    return x.detach().flatten(0, -2).split(64)


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


def writer(sublayer: nn.Module) -> Linear:
    """Return the one matrix that writes what a sublayer makes to the stream."""
    (found,) = (each for each in sublayer.modules() if isinstance(each, Linear) and list(each.out_axes) == ["d_model"])
    return found


class _RunAgain(torch.autograd.Function):
    """A call that keeps its inputs alone: it runs without gradients, and in the backward pass again with them."""

    @staticmethod
    def forward(ctx: Any, call: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.inputs = call, inputs
        return call(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [each.detach().requires_grad_(each.requires_grad) for each in ctx.inputs]
        with torch.enable_grad():
            torch.autograd.backward(ctx.call(*inputs), gradients)
        return None, *(each.grad for each in inputs)


@dataclass(frozen=True)
class _TwoPasses(Recompute):
    """Every layer runs as `_RunAgain`, so that hooks can tell by the gradients which of the two passes they are in."""

    precision: Precision

    def run(self, index: int, layer: Callable[..., Any], *inputs: Any, cache: LayerCache | None = None) -> Any:
        stream, context = inputs
        leaves, structure = tree_flatten(stream)
        found: list[Any] = []

        def call(*leaves: Tensor) -> tuple[Tensor, ...]:
            with autocast(leaves[0].device, self.precision):
                made, choices = layer(tree_unflatten(leaves, structure), context, cache)
            outputs, made_structure = tree_flatten(made)
            found[:] = made_structure, choices
            return tuple(outputs)

        outputs = _RunAgain.apply(call, *leaves)
        return tree_unflatten(outputs, found[0]), found[1]


@contextmanager
def _hooked(model: Decoder) -> Iterator[Callable[[RemovableHandle], object]]:
    """The model with hooks, which are removed at the end, and no gradients of its weights. Yields what takes a hook."""
    asked, recompute = [parameter.requires_grad for parameter in model.parameters()], model.recompute
    with ExitStack() as hooks:
        try:
            model.requires_grad_(False)
            yield hooks.enter_context
        finally:
            model.recompute = recompute
            for parameter, was in zip(model.parameters(), asked):
                parameter.requires_grad_(was)


def _precision(model: Decoder) -> Precision:
    """Return the type of matrix products that fits the weights."""
    return "bf16" if model.embedding.weight.dtype == torch.bfloat16 else "fp32"


def _objective(model: Decoder, batch: Tensor, boundaries: Boundaries) -> Tensor:
    """Return the loss of a batch, integers (B, T + 1)."""
    rows = batch.to(model.embedding.weight.device)
    tokens = rows[:, :-1]
    documents, positions = boundaries.documents(tokens), boundaries.positions(tokens)
    with autocast(rows.device, _precision(model)):
        return model.loss(tokens, rows[:, 1:], documents=documents, positions=positions).objective


def measure(model: Decoder, batches: Iterable[Tensor], boundaries: Boundaries = NO_BOUNDARIES) -> Need:
    """Run a model over batches, integers (B, T + 1), and return what its parts do there.

    boundaries: what the model is told of the documents in a row. The model is left as it was.
    """
    need = Need()

    def observing(take: Callable[[Tensor], None], output: bool = False) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
            if torch.is_grad_enabled():  # the second of the two passes, which alone has gradients
                take(outputs[0] if output else inputs[0])

        return hook

    with _hooked(model) as add:
        model.recompute = _TwoPasses(every=1, precision=_precision(model))
        add(model.embedding.register_forward_hook(lambda *given: given[-1].detach().requires_grad_()))
        for name, sublayer in sublayers(model).items():
            first, last = readers(sublayer)[0], writer(sublayer)
            add(first.register_forward_pre_hook(observing(need.read[name].add)))
            add(last.register_forward_pre_hook(observing(need.inner[name].add)))
            add(last.register_forward_hook(observing(need.written[name].add, output=True)))
            if isinstance(sublayer.norm, Norm):
                taken = need.normed[f"{name}.norm"].add_normed
                add(sublayer.norm.register_forward_pre_hook(observing(taken)))
        for batch in batches:
            _objective(model, batch, boundaries).backward()
    return need


@torch.no_grad()
def covariance(model: Decoder, batches: Iterable[Tensor], boundaries: Boundaries = NO_BOUNDARIES) -> Tensor:
    """Return float64 (d_model, d_model): the products of all coordinates that are read of the stream of a model whose
    sublayers read all of it, summed over sublayers and tokens of batches, integers (B, T + 1)."""
    found = torch.zeros((model.config.d_model,) * 2, dtype=torch.float64, device=model.embedding.weight.device)

    def correlate(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].flatten(0, -2).double()
        found.addmm_(rows.T, rows)

    with _hooked(model) as add:
        for sublayer in sublayers(model).values():
            add(readers(sublayer)[0].register_forward_pre_hook(correlate))
        for batch in batches:
            _objective(model, batch, boundaries)
    return found


def column_scores(entries: Entries, matrix: Linear, score: Score) -> Tensor:
    """Return float64 (n,): the need of each entry that a matrix reads."""
    if score == "taylor":
        return torch.as_tensor(entries.taylor) / entries.n_batches
    norms = torch.linalg.vector_norm(matrix.weight.detach(), dim=0, dtype=torch.float64)
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
