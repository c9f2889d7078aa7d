"""Learning rates and weight decay of parameters. They follow from the class of the module, never from the number of
axes.

The paper's groups: hidden matrices at lr / width_multiplier, embedding, head and gains at lr, gains without decay. With
a width_multiplier proportional to width this is muP for Adam (Yang et al. 2022, arXiv:2203.03466); with a constant one
it is the variable-width paper's recipe.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.model.axes import Control, Experts, Linear, Norm, Scale, Table, UnscaledLinear, Vector
from widthwise.model.decoder import Decoder


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with the same settings of the optimizer."""

    name: str
    """Kind of the parameters. Groups with the same name differ in other fields."""
    lr_factor: float
    """Factor of the recipe's learning rate."""
    decays: bool
    """True if weight decay applies."""
    are_hidden_matrices: bool
    """True if each parameter is one matrix between hidden states, so that its singular values are meaningful."""
    multiplied_by: float
    """Factor by which `bake` or growth multiplied the entries when it rewrote the same function; otherwise 1."""
    part_lr_factor: float
    """Factor from the recipe's `lr_factors`, in addition to `lr_factor`."""
    names: tuple[str, ...]
    """Names of the parameters, as in `named_parameters`."""
    parameters: tuple[nn.Parameter, ...]


def grouped_parameters(
    model: Decoder,
    lr_follows_layer_width: bool = False,
    decays_embedding: bool = True,
    decays_gains: bool = False,
    decays_scales: bool = True,
    scaled: Mapping[str, float] | None = None,
    lr_factors: Mapping[str, float] | None = None,
) -> list[ParameterGroup]:
    """Return every parameter in exactly one group, groups in the order of their first parameter.

    lr_follows_layer_width: multiply the rate of a layer's matrices by d_model / (the layer's width), as in muP; the
    paper does not. decays_embedding, decays_gains, decays_scales: apply weight decay to the embedding (including a tied
    head) and learned positions, to the gains of the norms, and to scales of learned coefficients. scaled: parameter ->
    `multiplied_by`; by default 1. lr_factors: part of the model -> `part_lr_factor` of its parameters; by default 1.
    Raises ValueError if a key matches no parameter, or if several keys of `lr_factors` match the same parameter.
    """
    decay_by_class = {Table: decays_embedding, Norm: decays_gains, Scale: decays_scales, Vector: False}
    names_by_settings: dict[tuple[str, float, bool, bool, float, float], list[str]] = {}
    parameters = dict(model.named_parameters())  # a tied head appears once, as the embedding
    part_lr_factors = _part_lr_factors(lr_factors or {}, parameters)
    scaled = scaled or {}
    for name in scaled.keys() - parameters.keys():
        raise ValueError(f"scaled: got {name!r}; must be parameters of the model, with names such as {min(parameters)}")
    for name in parameters:
        owner = model.get_submodule(name.rpartition(".")[0])
        group = "gains" if isinstance(owner, (Norm, Vector)) else "tables"
        lr_factor = 1.0
        is_matrix = isinstance(owner, Linear) and owner is not model.head
        if is_matrix and not isinstance(owner, UnscaledLinear):
            group = "matrices"
            lr_factor = 1 / model.config.init.width_multiplier
            if lr_follows_layer_width:
                layer_width = model.config.width_of(name)
                group = f"matrices of width {layer_width}"
                lr_factor = lr_factor * model.config.d_model / layer_width
        # The first class that fits, because a Scale is also a Vector.
        decays = next((decays for module, decays in decay_by_class.items() if isinstance(owner, module)), True)
        is_hidden_matrix = is_matrix and not isinstance(owner, (Control, Experts, UnscaledLinear))
        factors = (scaled.get(name, 1.0), part_lr_factors.get(name, 1.0))
        settings = (group, lr_factor, decays, is_hidden_matrix, *factors)
        names_by_settings.setdefault(settings, []).append(name)
    return [
        ParameterGroup(*settings, tuple(names), tuple(parameters[name] for name in names))
        for settings, names in names_by_settings.items()
    ]


def _part_lr_factors(factors: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return a dict from parameter to the factor of its part. Other parameters are skipped. factors: part -> factor."""
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


def coordinate_check(
    build: Callable[[int], Decoder], widths: Sequence[int], tokens: Tensor, lr: float, n_steps: int = 4
) -> dict[int, dict[str, float]]:
    """Return a dict from width to the `coordinate_sizes` of `build(width)` after a few steps of AdamW on one batch.

    If learning rates transfer between widths, the sizes do not grow with the width; otherwise they grow as a power of
    it. tokens: integers (B, T); lr: the rate before the factors of the groups. Source: Yang et al. 2022,
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
    """Return the root mean square of the updates of attention and feed-forward in every layer, and of the logits.

    muP keeps these coordinates of order one. tokens: integers (B, T). Keys: "layers.0.attention",
    "layers.0.ffn", ..., "logits".
    """
    sizes: dict[str, float] = {}

    def record(name: str, _module: object, _inputs: object, output: Any) -> None:
        update = output[0] if isinstance(output, tuple) else output
        sizes[name] = update.float().square().mean().sqrt().item()

    with ExitStack() as hooks:
        for i, layer in enumerate(model.layers):
            for part in ("attention", "ffn"):
                hook = partial(record, f"layers.{i}.{part}")
                hooks.enter_context(layer.get_submodule(part).register_forward_hook(hook))
        hooks.enter_context(model.register_forward_hook(partial(record, "logits")))
        model(tokens)
    return sizes
