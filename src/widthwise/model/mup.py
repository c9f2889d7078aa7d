"""Which weights learn at which rate and which decay, from the modules that hold them, never from the number of axes.

The paper's groups: hidden matrices at lr / width_multiplier, embedding, head and gains at lr, gains without decay. With
width_multiplier proportional to width this is muP for Adam (Yang et al. 2022, arXiv:2203.03466); held constant it is
the variable-width paper's recipe.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.model.axes import Control, Experts, Linear, Norm, Scale, Table, UnscaledLinear, Vector
from widthwise.model.decoder import Decoder


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are optimised alike."""

    name: str
    """Name of the class of parameters; two groups of one name differ in what follows."""
    names: tuple[str, ...]
    """The names of the parameters, as in `named_parameters`."""
    parameters: tuple[nn.Parameter, ...]
    lr_factor: float
    """Times the recipe's learning rate."""
    decays: bool
    """True if weight decay applies."""
    are_hidden_matrices: bool
    """True if each is one matrix from one hidden state to another, so that its singular values mean something."""
    multiplied_by: float = 1.0
    """Factor by which their entries were multiplied when the model was given another form that computes the same."""
    own_lr_factor: float = 1.0
    """Factor of the recipe on their learning rate, in addition to `lr_factor`."""


def grouped_parameters(
    model: Decoder,
    lr_follows_layer_width: bool = False,
    decays_embedding: bool = True,
    decays_gains: bool = False,
    decays_scales: bool = True,
    scaled: Mapping[str, float] | None = None,
    lr_factors: Mapping[str, float] | None = None,
) -> list[ParameterGroup]:
    """Every parameter in exactly one group, groups in the order of their first parameter.

    lr_follows_layer_width: multiply the rate of a layer's matrices by d_model / (the layer's width), which muP would
    do; the paper does not. decays_embedding, decays_gains, decays_scales: whether weight decay applies to the embedding
    (a tied head is the embedding) and to learned positions, to the gains of the norms, and to what scales learned
    coefficients. scaled: parameter -> `multiplied_by`, where it is not 1. lr_factors: part of the model ->
    `own_lr_factor` of its parameters. Raises ValueError where a key of these names none, or two a parameter's rate.
    """
    tables, matrices = Table, (Control, Experts, UnscaledLinear)
    decaying = {tables: decays_embedding, Norm: decays_gains, Scale: decays_scales, Vector: False}
    members: dict[tuple[str, float, bool, bool, float, float], list[str]] = {}
    parameters = dict(model.named_parameters())  # a tied head appears once, as the embedding
    own_lr_factors = _by_parameter(lr_factors or {}, parameters)
    factors = scaled or {}
    for name in factors.keys() - parameters.keys():
        raise ValueError(f"scaled: got {name!r}; must be parameters of the model, with names such as {min(parameters)}")
    for name in parameters:
        owner = model.get_submodule(name.rpartition(".")[0])
        group, lr_factor = _group_of(model, name, owner, lr_follows_layer_width)
        decays = next((each for kind, each in decaying.items() if isinstance(owner, kind)), True)
        own = factors.get(name, 1.0), own_lr_factors.get(name, 1.0)
        is_hidden_matrix = isinstance(owner, Linear) and not isinstance(owner, matrices) and owner is not model.head
        key = (group, lr_factor, decays, is_hidden_matrix, *own)
        members.setdefault(key, []).append(name)
    return [
        ParameterGroup(key[0], tuple(names), tuple(parameters[name] for name in names), *key[1:])
        for key, names in members.items()
    ]


def _by_parameter(factors: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Parameter -> the factor of the part that it is in, for those in one. factors: part -> factor."""
    factors_by_name: dict[str, float] = {}
    for part, factor in factors.items():
        inside = [name for name in names if f".{part}." in f".{name}."]
        if not inside:
            raise ValueError(f"lr_factors: got {part!r}; must be part of the model, such as w_q, embedding or layers.0")
        for name in inside:
            if name in factors_by_name:
                raise ValueError(f"lr_factors: got {part!r}; {name} is in another of these parts too")
            factors_by_name[name] = factor
    return factors_by_name


def _group_of(model: Decoder, name: str, owner: nn.Module, lr_follows_layer_width: bool) -> tuple[str, float]:
    """Name and lr_factor of the group that a parameter belongs to. owner: the module that holds it."""
    if isinstance(owner, (Norm, Vector)):
        return "gains", 1.0
    if not isinstance(owner, Linear) or isinstance(owner, UnscaledLinear) or owner is model.head:
        return "tables", 1.0
    lr_factor = 1 / model.config.init.width_multiplier
    if lr_follows_layer_width:
        layer_width = model.config.width_of(name)
        return f"matrices of width {layer_width}", lr_factor * model.config.d_model / layer_width
    return "matrices", lr_factor


def coordinate_check(
    build: Callable[[int], Decoder], widths: Sequence[int], tokens: Tensor, lr: float, n_steps: int = 4
) -> dict[int, dict[str, float]]:
    """Width -> the coordinate sizes of `build(width)` after a few steps of AdamW on one batch.

    Where the parametrisation transfers between widths, sizes do not grow with the width; where it does not, they grow
    as a power of it. tokens: integers (B, T); lr: the rate before the factors of the groups. Source: Yang et al. 2022,
    arXiv:2203.03466, appendix D.1.
    """
    sizes = {}
    for width in widths:
        model = build(width)
        groups = [{"params": group.parameters, "lr": lr * group.lr_factor} for group in grouped_parameters(model)]
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        for _ in range(n_steps):
            optimizer.zero_grad()
            model.loss(tokens[:, :-1], tokens[:, 1:])[0].backward()
            optimizer.step()
        sizes[width] = coordinate_sizes(model, tokens)
    return sizes


@torch.no_grad()
def coordinate_sizes(model: Decoder, tokens: Tensor) -> dict[str, float]:
    """Root mean square of every layer's two updates before they join the stream, and of the logits.

    These are the coordinates that muP keeps of order one. tokens: integers (B, T). Keys: "layers.0.attention",
    "layers.0.ffn", ..., "logits".
    """
    sizes: dict[str, float] = {}

    def record(name: str, _module: object, _inputs: object, output: Any) -> None:
        found = output[0] if isinstance(output, tuple) else output
        sizes[name] = found.float().square().mean().sqrt().item()

    hooks = [
        getattr(layer, part).register_forward_hook(partial(record, f"layers.{i}.{part}"))
        for i, layer in enumerate(model.layers)
        for part in ("attention", "ffn")
    ]
    hooks.append(model.register_forward_hook(partial(record, "logits")))
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return sizes
