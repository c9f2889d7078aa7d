"""Norms that divide by their width with an unchanged eps: the whole stream is multiplied by one factor c.

Norms then see c^2 times the sum of squares over a divisor c^2 times as large, so that eps keeps its relative size.
Formats with one eps for all norms can hold a grown model in no other way: scaling gains alone does not scale eps.
"""

import math
from collections.abc import Iterator

from torch import nn

from widthwise.config_io import UserError
from widthwise.model.axes import LayerNorm, Linear
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.interface import FEED_FORWARDS
from widthwise.model.kinds import kind_of
from widthwise.model.norm import NormConfig
from widthwise.model.norm_module import ActsAfter

Factor = tuple[str, float]
"""(parameter name, what it is multiplied by)"""


def norms_of(config: ModelConfig) -> Iterator[tuple[str, NormConfig, int]]:
    """(path, norm, divisor in a model that never grew) of every norm with a config of its own."""
    for where, layer in config.named_layers():
        for name, norm_dim in layer.usual_norm_dims.items():
            yield f"{where}.{name}", getattr(layer, name), norm_dim
    yield "final_norm", config.final_norm, config.final_norm_width
    if config.mtp is not None:
        yield "mtp.slot_norm", config.mtp.slot_norm, config.residual.slot_shape(config.d_model)[1]
        yield "mtp.final_norm", config.mtp.final_norm, config.d_model


def stream_factor(config: ModelConfig) -> float:
    """c; 1 if every norm already divides by its width. Raises UserError if no single c suits all norms."""
    has_usual_divisors = all(norm.norm_dim == width for _, norm, width in norms_of(config))
    if has_usual_divisors and config.residual.has_usual_divisors(config.d_model):
        return 1.0
    _check_one_factor(config)
    return math.sqrt(config.d_model / config.final_norm.norm_dim)


def _check_one_factor(config: ModelConfig) -> None:
    if not config.residual.is_sum:
        raise UserError(f"residual.kind: got {config.residual.kind}; one eps needs norms of a plain residual")
    if config.mtp is not None:
        raise UserError("mtp: has norms of its own; one eps needs a model without further heads")
    for where, norm, width in norms_of(config):
        if norm.stat_width is not None:
            raise UserError(f"{where}.stat_width: got {norm.stat_width}; one eps needs norms that measure all {width}")
    widths = {config.d_model, config.final_norm_width}
    widths |= {width for layer in config.layers for width in (layer.d_model, layer.d_in, layer.d_out)}
    if len(widths) > 1:
        raise UserError(f"d_model: got widths {sorted(widths)}; one eps needs layers that are all equally wide")
    divisors = {norm.norm_dim for _, norm, _ in norms_of(config)}
    if len(divisors) > 1:
        raise UserError(
            f"norm_dim: got {sorted(divisors)}; one eps needs norms that all divide by the same number, because the "
            "stream has one factor"
        )
    for where, layer in config.named_layers():
        if not layer.ffn.bakes_with_one_eps:
            allowed = ", ".join(kind_of(config) for config in FEED_FORWARDS.configs if config.bakes_with_one_eps)
            raise UserError(f"{where}.ffn.kind: got {layer.ffn.kind}; one eps needs one of {allowed}")


def scaled(name: str, matrix: Linear, factor: float) -> Iterator[Factor]:
    """A matrix and its bias, if it has one. name: of the matrix."""
    yield f"{name}.weight", factor
    if matrix.bias is not None:
        yield f"{name}.bias.weight", factor


def stream_factors(model: Decoder, c: float) -> Iterator[Factor]:
    """Everything that writes the stream times c, and everything that reads it over c."""
    yield "embedding.weight", c
    if model.positions is not None:
        yield "positions.weight", c
    for i in range(model.n_tokens_before):
        yield f"ngrams.tables.{i}.weight", c
    for i, layer in enumerate(model.layers):
        for part in ("attention", "ffn"):
            yield from _sublayer_factors(f"layers.{i}.{part}", layer.get_submodule(part), c)
    of_head = c if model.config.tie_embeddings else 1.0
    yield "exit.norm.weight", 1 / (c * of_head)
    if model.config.final_norm.kind == "layer":
        yield "exit.norm.bias.weight", 1 / of_head


def _sublayer_factors(name: str, sublayer: nn.Module, c: float) -> Iterator[Factor]:
    """The factors of one sublayer, with the norm before it or after it.

    A norm after the sublayer sees c times the update over c^2 times the divisor, so that eps keeps its effect. Its
    output is then c times as large with the gain it has; only its bias must be multiplied.
    """
    norm = sublayer.norm
    is_behind = isinstance(norm, ActsAfter)
    if not is_behind:
        yield f"{name}.norm.weight", 1 / c
    elif isinstance(norm, LayerNorm):
        yield f"{name}.norm.bias.weight", c
    for leaf, matrix in sublayer.named_modules():
        if not isinstance(matrix, Linear):
            continue
        if "d_model" in matrix.out_axes:
            yield from scaled(f"{name}.{leaf}", matrix, c)
        elif is_behind and "d_model" in matrix.in_axes:
            yield f"{name}.{leaf}.weight", 1 / c
