"""The need that a model has of its parts, measured on text: what the cut of `growth.shrink` goes by."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.growth.choices import Score
from widthwise.growth.shrink import LEFT_OUT, LayerSizes, Order, layers_kept, readers, sublayers
from widthwise.kernels.dispatch import autocast
from widthwise.model.axes import Linear, Norm
from widthwise.model.config import ModelConfig
from widthwise.model.context import LayerCache
from widthwise.model.decoder import Decoder, parameter_shapes
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.recompute import Recompute


@dataclass
class Entries:
    """Sums over tokens of what the entries of one activation hold; float64 (n,)."""

    energy: Tensor | float = 0.0
    """Sum of squares."""
    size: Tensor | float = 0.0
    """Sum of absolute values."""
    slope: Tensor | float = 0.0
    """First-order change of the loss of the current batch, in nats, summed over its passes so far."""
    taylor: Tensor | float = 0.0
    """Sum over batches of the absolute values of `slope`."""
    n_tokens: int = 0
    n_batches: int = 0

    def add(self, x: Tensor) -> None:
        """x: (..., n); its gradient is added when it is known."""
        parts = _parts(x)
        for rows in parts:
            self._add_rows(rows.double())
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
        for rows, slope in zip(parts, _parts(gradient)):
            self.slope += (rows.double() * slope).sum(dim=0)

    def end_batch(self) -> None:
        """Take the absolute value of the batch, once all its passes are summed: no split of the batch changes it."""
        self.taylor += abs(self.slope)
        self.slope = 0.0
        self.n_batches += 1

    def add_experts(self, moe: MoE, x: Tensor, logits: Tensor, update: Tensor) -> None:
        """Add the hidden units of all experts, each times the weight of its expert at a token, and 0 where not chosen.

        x: (..., d_model), what the router reads, logits: (..., n_experts), what it says, update: (..., d_out).
        """
        x, logits, parts = x.detach().flatten(0, -2), logits.detach().flatten(0, -2), []
        weights, chosen = moe.choose(logits.double())
        matrices = (
            each.weight.detach().unflatten(0, (moe.config.n_experts, -1)) for each in (moe.w_gate, moe.w_up, moe.w_down)
        )
        for expert, (gate, up, down) in enumerate(zip(*matrices)):
            token, choice = (chosen == expert).nonzero(as_tuple=True)
            hidden = silu(x[token] @ gate.T) * (x[token] @ up.T) * weights[token, choice, None]
            parts.append((token, hidden.double(), down))
        self.size += torch.cat([hidden.abs().sum(dim=0) for _, hidden, _ in parts])
        self.n_tokens += len(x)

        def add_gradient(gradient: Tensor) -> None:
            of_update = gradient.flatten(0, -2)
            sums = [(hidden * (of_update[token] @ down)).sum(dim=0) for token, hidden, down in parts]
            self.slope += torch.cat(sums)

        update.register_hook(add_gradient)


def _parts(x: Tensor) -> Sequence[Tensor]:
    """(..., n) -> rows of n, few enough to be worked on in float64 without much memory."""
    return x.detach().flatten(0, -2).split(64)


@dataclass
class Need:
    """The activations of a model by the name of the sublayer: what it reads of the stream, what it makes of it, and
    what it writes."""

    read: defaultdict[str, Entries] = field(default_factory=lambda: defaultdict(Entries))
    inner: defaultdict[str, Entries] = field(default_factory=lambda: defaultdict(Entries))
    """Attended values of all heads, (n_heads * v_head_dim,), or hidden units, (n_experts * n_hidden,)."""
    written: defaultdict[str, Entries] = field(default_factory=lambda: defaultdict(Entries))
    normed: defaultdict[str, Entries] = field(default_factory=lambda: defaultdict(Entries))
    """By the name of its norm: what that measures, of each token over its root mean square."""


def writer(sublayer: nn.Module) -> Linear:
    """Return the matrix with which a sublayer writes the stream: of a mixture, the matrix of the routed experts."""
    return next(matrix for matrix in sublayer.modules() if isinstance(matrix, Linear) and matrix.writes_stream)


def experts_observed(moe: MoE, inner: Entries, written: Entries) -> list[RemovableHandle]:
    """Collect the entries of a mixture, whose matrices a kernel reads, until the returned hooks are removed."""
    routed: list[tuple[Tensor, Tensor]] = []

    def route(_: nn.Module, inputs: tuple[Tensor, ...], logits: Any) -> None:
        routed[:] = [(inputs[0], logits)]

    def leave(update: Tensor) -> None:
        if torch.is_grad_enabled():  # the second of the two passes
            written.add(update)
            inner.add_experts(moe, *routed[0], update)

    norm, hooks = moe.norm, [moe.w_router.register_forward_hook(route)]
    if isinstance(norm, Norm) and norm.is_after:
        return [*hooks, norm.register_forward_pre_hook(lambda _, inputs: leave(inputs[0]))]
    return [*hooks, moe.register_forward_hook(lambda _, inputs, made: leave(made[0]))]


@dataclass(frozen=True)
class _TwoPasses(Recompute):
    """Every layer runs without gradients, keeping its inputs alone, and in the backward pass again with them; hooks can
    tell by the gradients which of the two passes they are in."""

    def run(self, index: int, layer: Callable[..., Any], *inputs: Any, cache: LayerCache | None = None) -> Any:
        stream, context = inputs
        leaves, structure = tree_flatten(stream)
        found: list[Any] = []

        def call(*leaves: Tensor) -> tuple[Tensor, ...]:
            made, choices = layer(tree_unflatten(leaves, structure), context, cache)
            outputs, made_structure = tree_flatten(made)
            found[:] = made_structure, choices
            return tuple(outputs)

        outputs = checkpoint(call, *leaves, use_reentrant=True, preserve_rng_state=False)
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


def _objective(model: Decoder, batch: Tensor, boundaries: Boundaries) -> Tensor:
    """Return the loss of a batch, integers (B, T + 1)."""
    rows = batch.to(model.embedding.weight.device)
    tokens = rows[:, :-1]
    documents, positions = boundaries.documents(tokens), boundaries.positions(tokens)
    with autocast(rows.device, "bf16" if model.embedding.weight.dtype == torch.bfloat16 else "fp32"):
        return model.loss(tokens, rows[:, 1:], documents=documents, positions=positions).objective


def measure(
    model: Decoder, batches: Iterable[Tensor], boundaries: Boundaries = NO_BOUNDARIES, n_rows: int | None = None
) -> Need:
    """Run a model over batches, integers (B, T + 1), and return what its parts do there.

    boundaries: of the documents in a row; n_rows: most rows in a pass, by default all. The
    model is left as it was.
    """
    need = Need()

    def observing(take: Callable[[Tensor], None], output: bool = False) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
            if torch.is_grad_enabled():  # the second of the two passes, which alone has gradients
                take(outputs[0] if output else inputs[0])

        return hook

    with _hooked(model) as add:
        model.recompute = _TwoPasses(every=1)
        add(model.embedding.register_forward_hook(lambda *given: given[-1].detach().requires_grad_()))
        for name, part in {**sublayers(model), "exit": model.exit}.items():
            if isinstance(part.norm, Norm):
                add(part.norm.register_forward_pre_hook(observing(need.normed[f"{name}.norm"].add_normed)))
        for name, sublayer in sublayers(model).items():
            first, last = readers(sublayer)[0], writer(sublayer)
            add(first.register_forward_pre_hook(observing(need.read[name].add)))
            if isinstance(sublayer, MoE):
                for hook in experts_observed(sublayer, need.inner[name], need.written[name]):
                    add(hook)
                continue
            add(last.register_forward_pre_hook(observing(need.inner[name].add)))
            add(last.register_forward_hook(observing(need.written[name].add, output=True)))
        for batch in batches:
            for rows in batch.split(n_rows or len(batch)):
                (_objective(model, rows, boundaries) * (len(rows) / len(batch))).backward()
            for entries in (*need.read.values(), *need.inner.values(), *need.written.values()):
                entries.end_batch()
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
    """Return float64 (n_experts, n): the need of each entry that a matrix reads, for each expert."""
    by_expert = matrix.weight.detach().unflatten(0, (matrix.out_axes.get("n_experts", 1), -1))
    shape = len(by_expert), by_expert.shape[-1]
    if score == "taylor":
        return torch.as_tensor(entries.taylor).view(shape) / entries.n_batches
    norms = torch.linalg.vector_norm(by_expert, dim=1, dtype=torch.float64)
    return norms if score == "magnitude" else torch.as_tensor(entries.size).view(shape) / entries.n_tokens * norms


@dataclass(frozen=True)
class LayerNeed:
    """The need of one layer of its parts, float64, in the order that they have."""

    stream: Tensor
    """(d_model,): of coordinates, read and written."""
    groups: Tensor
    """(n_kv_heads,)"""
    units: Tensor
    """(n_experts, n_hidden)"""

    def lost(self, sizes: LayerSizes) -> float:
        """Return the sum over everything that is cut after the leading parts.

        A layer that is left out loses what it makes, its groups and units; that it reads nothing loses no more.
        """
        stream, groups, units = self._sums
        read = stream[-1] - stream[sizes.d_model] if sizes != LEFT_OUT else 0.0
        cut_groups = groups[-1] - groups[sizes.n_kv_heads] + units[-1, -1] - units[sizes.n_experts, sizes.n_hidden]
        return float(read + cut_groups)

    @cached_property
    def _sums(self) -> list[np.ndarray]:
        """Sums over so many leading parts: (d_model + 1,), (n_kv_heads + 1,), (n_experts + 1, n_hidden + 1)."""
        found = []
        for part in (self.stream, self.groups, self.units):
            sums = pad(part.double(), (1, 0) * part.dim())
            for dim in range(part.dim()):
                sums = sums.cumsum(dim)
            found.append(sums.numpy())
        return found

    def order(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the order in which the most needed come first: of groups, experts, and units of experts so placed."""
        experts = self.units.sum(dim=1).argsort(descending=True, stable=True)
        groups, units = (each.argsort(descending=True, stable=True) for each in (self.groups, self.units[experts]))
        return groups, experts, units

    def in_order(self, score: "LayerNeed | None" = None) -> "LayerNeed":
        """Return the need of the layer in its order of need, or in the order of another score of its parts."""
        groups, experts, units = (score or self).order()
        return LayerNeed(self.stream, self.groups[groups], self.units[experts].gather(1, units))


def layer_needs(model: Decoder, need: Need, score: Score) -> list[LayerNeed]:
    """Return the need of every layer. Coordinates of the stream are always judged by `taylor`."""
    needs = []
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
        needs.append(LayerNeed(stream, groups.cpu(), units.cpu()))
    return needs


def order_of_need(needs: Sequence[LayerNeed]) -> Order:
    """Return the order in which each layer's most needed groups, experts and units come first."""
    groups, experts, units = zip(*(each.order() for each in needs))
    return Order(None, groups, experts, units)


def energies_kept(need: Need, smaller: ModelConfig, sizes: Sequence[LayerSizes]) -> dict[str, float]:
    """Return by norm the share of the squares of what it measures in the coordinates that it keeps.

    smaller: the model of these sizes. Norms have their names in the model that is cut; norms of removed layers are
    missing.
    """
    found, kept = {}, layers_kept(sizes)
    for name, shape in parameter_shapes(smaller).items():
        norm = kept.old_name(name.removesuffix(".weight"))
        if norm in need.normed:
            energy = torch.as_tensor(need.normed[norm].energy)
            total = energy.sum()
            found[norm] = float(energy[: shape[0]].sum() / total) if total > 0 else 1.0
    return found
