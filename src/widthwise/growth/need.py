"""Scores of how much a model needs each of its parts, measured on text; `growth.shrink` cuts by them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.growth.shrink import REMOVED, LayerSizes, Order, layers_kept, readers, sublayers
from widthwise.kernels.dispatch import autocast
from widthwise.model.axes import Linear, Norm
from widthwise.model.config import ModelConfig
from widthwise.model.context import LayerCache
from widthwise.model.decoder import Decoder, parameter_shapes
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.recompute import Recompute


@dataclass
class EntryScores:
    """First-order changes of the loss if single entries of an activation became 0, in nats; float64 (n,).

    Source: Molchanov et al. 2019, arXiv:1906.10771.
    """

    slope: Tensor | float = 0.0
    """Gradient times value, summed over the passes of the current batch so far."""
    total: Tensor | float = 0.0
    """Sum over batches of the absolute values of `slope`."""
    n_batches: int = 0

    @property
    def mean(self) -> Tensor:
        """Mean of the changes over the batches, on the CPU."""
        return torch.as_tensor(self.total).cpu() / self.n_batches

    def add(self, x: Tensor) -> None:
        """Add x (..., n), during the backward pass."""
        parts = _parts(x)

        def add_gradient(gradient: Tensor) -> None:
            for rows, slope in zip(parts, _parts(gradient)):
                self.slope += (rows.double() * slope).sum(dim=0)

        x.register_hook(add_gradient)

    def add_experts(self, moe: MoE, x: Tensor, logits: Tensor, update: Tensor) -> None:
        """Add the hidden units of all experts, times the weight of the expert for the token; 0 if not chosen.

        x: (..., d_model), input of the router; logits: (..., n_experts), its output; update: (..., d_out).
        """
        x = x.detach().flatten(0, -2)
        weights, chosen = moe.choose(logits.detach().flatten(0, -2).double())
        shape = (moe.config.n_experts, -1)
        matrices = [matrix.weight.detach().unflatten(0, shape) for matrix in (moe.w_gate, moe.w_up, moe.w_down)]
        parts = []
        for expert, (gate, up, down) in enumerate(zip(*matrices)):
            token, choice = (chosen == expert).nonzero(as_tuple=True)
            hidden = silu(x[token] @ gate.T) * (x[token] @ up.T) * weights[token, choice, None]
            parts.append((token, hidden.double(), down))

        def add_gradient(gradient: Tensor) -> None:
            rows = gradient.flatten(0, -2)
            self.slope += torch.cat([(hidden * (rows[token] @ down)).sum(dim=0) for token, hidden, down in parts])

        update.register_hook(add_gradient)


def _parts(x: Tensor) -> Sequence[Tensor]:
    """Split (..., n) into groups of rows, small enough for float64 copies."""
    return x.detach().flatten(0, -2).split(64)


@dataclass
class Measurement:
    """The scores of the activations of every sublayer, by its name in the model, and the energy of its norms."""

    read: defaultdict[str, EntryScores] = field(default_factory=lambda: defaultdict(EntryScores))
    """Coordinates of the stream that it reads."""
    inner: defaultdict[str, EntryScores] = field(default_factory=lambda: defaultdict(EntryScores))
    """Attended values of all heads, (n_heads * v_head_dim,), or hidden units, (n_experts * n_hidden,)."""
    written: defaultdict[str, EntryScores] = field(default_factory=lambda: defaultdict(EntryScores))
    """Coordinates of the stream that it writes."""
    energy: defaultdict[str, Tensor | float] = field(default_factory=lambda: defaultdict(float))
    """By the name of the norm: sum over tokens of the squares of its input, divided by their mean, float64 (n,)."""

    def add_energy(self, norm: str, x: Tensor) -> None:
        """Add the input of a norm, (..., n)."""
        for rows in _parts(x):
            wide = rows.double()
            normed = wide / wide.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-30)
            self.energy[norm] += normed.square().sum(dim=0)


def writer(sublayer: nn.Module) -> Linear:
    """Return the matrix with which a sublayer writes the stream; in a mixture, the matrix of the routed experts."""
    return next(matrix for matrix in sublayer.modules() if isinstance(matrix, Linear) and matrix.writes_stream)


def observe_experts(moe: MoE, inner: EntryScores, written: EntryScores) -> list[RemovableHandle]:
    """Score the entries of a mixture until the returned hooks are removed. A kernel reads its matrices, not modules."""
    routed: list[Tensor] = []  # input and output of the router in the current pass

    def see_router(_: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        routed[:] = [inputs[0], logits]

    def see_update(update: Tensor) -> None:
        if torch.is_grad_enabled():  # the second of the two passes
            written.add(update)
            inner.add_experts(moe, routed[0], routed[1], update)

    routing = moe.w_router.register_forward_hook(see_router)
    if isinstance(moe.norm, Norm) and moe.norm.output_norm is not None:
        return [routing, moe.norm.output_norm.register_forward_pre_hook(lambda _, inputs: see_update(inputs[0]))]
    return [routing, moe.register_forward_hook(lambda _, inputs, outputs: see_update(outputs[0]))]


@dataclass(frozen=True)
class _TwoPasses(Recompute):
    """Recomputation of every layer: a pass without gradients, and in the backward pass one with them.

    Hooks distinguish the two by `torch.is_grad_enabled()`.
    """

    def run(self, index: int, layer: Callable[..., Any], *inputs: Any, cache: LayerCache | None = None) -> Any:
        stream, context = inputs
        leaves, structure = tree_flatten(stream)
        untracked: list[Any] = []  # outputs that are not tensors

        def call(*leaves: Tensor) -> tuple[Tensor, ...]:
            output, choices = layer(tree_unflatten(leaves, structure), context, cache)
            outputs, output_structure = tree_flatten(output)
            untracked[:] = output_structure, choices
            return tuple(outputs)

        outputs = checkpoint(call, *leaves, use_reentrant=True, preserve_rng_state=False)
        return tree_unflatten(outputs, untracked[0]), untracked[1]


@contextmanager
def _hooked(model: Decoder) -> Iterator[Callable[[RemovableHandle], object]]:
    """Freeze the weights. Yields a function that takes the handle of a hook, which is removed at the end.

    At the end, `requires_grad` of the weights and the recomputation are as before.
    """
    requires_grad_before = [parameter.requires_grad for parameter in model.parameters()]
    recompute = model.recompute
    with ExitStack() as hooks:
        try:
            model.requires_grad_(False)
            yield hooks.enter_context
        finally:
            model.recompute = recompute
            for parameter, requires_grad in zip(model.parameters(), requires_grad_before):
                parameter.requires_grad_(requires_grad)


def _objective(model: Decoder, batch: Tensor, boundaries: Boundaries) -> Tensor:
    """Return the loss of a batch, integers (B, T + 1)."""
    rows = batch.to(model.embedding.weight.device)
    tokens = rows[:, :-1]
    documents = boundaries.documents(tokens)
    with autocast(rows.device, "bf16" if model.embedding.weight.dtype == torch.bfloat16 else "fp32"):
        loss = model.loss(tokens, rows[:, 1:], documents=documents, positions=boundaries.positions(tokens))
    return loss.objective


def measure(
    model: Decoder, batches: Iterable[Tensor], boundaries: Boundaries = NO_BOUNDARIES, n_rows: int | None = None
) -> Measurement:
    """Run a model over batches, integers (B, T + 1), and score its activations. The model is not changed.

    boundaries: of the documents in a row; n_rows: largest number of rows in a pass, by default all.
    """
    need = Measurement()

    def observe(take: Callable[[Tensor], None], _: nn.Module, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
        """Pass the output of a module to `take`, or its input if the hook runs before the module."""
        if torch.is_grad_enabled():  # the second of the two passes
            take(outputs[0] if outputs else inputs[0])

    with _hooked(model) as add:
        model.recompute = _TwoPasses(every=1)
        # Gradients of activations need an input with a gradient.
        add(model.embedding.register_forward_hook(lambda _module, _inputs, x: x.detach().requires_grad_()))
        for name, part in {**sublayers(model), "exit": model.exit}.items():
            for norm_name, norm in part.norm.named_modules(prefix=f"{name}.norm"):
                if isinstance(norm, Norm):
                    add(norm.register_forward_pre_hook(partial(observe, partial(need.add_energy, norm_name))))
        for name, sublayer in sublayers(model).items():
            add(readers(sublayer)[0].register_forward_pre_hook(partial(observe, need.read[name].add)))
            if isinstance(sublayer, MoE):
                for hook in observe_experts(sublayer, need.inner[name], need.written[name]):
                    add(hook)
                continue
            add(writer(sublayer).register_forward_pre_hook(partial(observe, need.inner[name].add)))
            add(writer(sublayer).register_forward_hook(partial(observe, need.written[name].add)))
        for batch in batches:
            for rows in batch.split(n_rows or len(batch)):
                (_objective(model, rows, boundaries) * (len(rows) / len(batch))).backward()
            for entries in (*need.read.values(), *need.inner.values(), *need.written.values()):
                entries.total += abs(entries.slope)  # after all passes, so that the split of a batch does not matter
                entries.slope = 0.0
                entries.n_batches += 1
    return need


@torch.no_grad()
def covariance(model: Decoder, batches: Iterable[Tensor], boundaries: Boundaries = NO_BOUNDARIES) -> Tensor:
    """Return float64 (d_model, d_model): products x x^T of the inputs of sublayers, summed over sublayers and tokens.

    model: all its sublayers read the whole stream; batches: integers (B, T + 1).
    """
    products = torch.zeros((model.config.d_model,) * 2, dtype=torch.float64, device=model.embedding.weight.device)

    def correlate(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].flatten(0, -2).double()
        products.addmm_(rows.T, rows)

    with _hooked(model) as add:
        for sublayer in sublayers(model).values():
            add(readers(sublayer)[0].register_forward_pre_hook(correlate))
        for batch in batches:
            _objective(model, batch, boundaries)
    return products


@dataclass(frozen=True)
class LayerNeed:
    """The scores of the parts of one layer, float64, in the order of the parts."""

    stream: Tensor
    """(d_model,): coordinates, read and written."""
    groups: Tensor
    """(n_kv_heads,)"""
    units: Tensor
    """(n_experts, n_hidden)"""

    def lost(self, sizes: LayerSizes) -> float:
        """Return the summed scores of all parts beyond these sizes.

        A removed layer loses its groups and units; its coordinates do not count.
        """
        stream, groups, units = self._sums
        lost_coordinates = stream[-1] - stream[sizes.d_model] if sizes != REMOVED else 0.0
        lost_parts = groups[-1] - groups[sizes.n_kv_heads] + units[-1, -1] - units[sizes.n_experts, sizes.n_hidden]
        return float(lost_coordinates + lost_parts)

    @cached_property
    def _sums(self) -> list[np.ndarray]:
        """Cumulative sums over parts: (d_model + 1,), (n_kv_heads + 1,), (n_experts + 1, n_hidden + 1)."""
        all_sums = []
        for part in (self.stream, self.groups, self.units):
            sums = pad(part.double(), (1, 0) * part.dim())
            for dim in range(part.dim()):
                sums = sums.cumsum(dim)
            all_sums.append(sums.numpy())
        return all_sums

    def order(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return indices of groups, experts, and units of the sorted experts, the most needed first."""
        groups = self.groups.argsort(descending=True, stable=True)
        experts = self.units.sum(dim=1).argsort(descending=True, stable=True)
        return groups, experts, self.units[experts].argsort(descending=True, stable=True)

    def in_order(self) -> "LayerNeed":
        """Return the scores sorted, the most needed first."""
        groups, experts, units = self.order()
        return LayerNeed(self.stream, self.groups[groups], self.units[experts].gather(1, units))


def layer_needs(model: Decoder, need: Measurement) -> list[LayerNeed]:
    """Return the scores of every layer."""
    needs = []
    for i, config in enumerate(model.config.layers):
        attention = f"layers.{i}.attention"
        ffn = f"layers.{i}.ffn"
        stream = torch.zeros(config.d_model, dtype=torch.float64)
        for entries in (need.read[attention], need.written[attention], need.read[ffn], need.written[ffn]):
            slopes = entries.mean
            stream[: len(slopes)] += slopes  # the first and last layer may read or write less than they own
        groups = need.inner[attention].mean.view(config.attention.n_kv_heads, -1).sum(dim=1)
        n_experts = writer(model.get_submodule(ffn)).out_axes.get("n_experts", 1)
        needs.append(LayerNeed(stream, groups, need.inner[ffn].mean.view(n_experts, -1)))
    return needs


def order_of_need(needs: Sequence[LayerNeed]) -> Order:
    """Return the order in which the most needed groups, experts and units of each layer come first."""
    groups, experts, units = zip(*(layer.order() for layer in needs))
    return Order(None, groups, experts, units)


def energies_kept(need: Measurement, smaller: ModelConfig, sizes: Sequence[LayerSizes]) -> dict[str, float]:
    """Return by norm the share of the squares of its input in the coordinates that it keeps.

    smaller: the model of these sizes. Norms have their names in the model that is cut; norms of removed layers are
    missing.
    """
    shares = {}
    correspondence = layers_kept(sizes)
    for name, shape in parameter_shapes(smaller).items():
        norm = correspondence.old_name(name.removesuffix(".weight"))
        if norm in need.energy:
            energy = torch.as_tensor(need.energy[norm])
            total = energy.sum()
            shares[norm] = float(energy[: shape[0]].sum() / total) if total > 0 else 1.0
    return shares
