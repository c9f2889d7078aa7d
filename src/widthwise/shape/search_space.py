"""Requests for a design and for a search for shapes, and the sizes and costs that a search compares."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, parse, to_data
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionTemplate
from widthwise.model.config import ModelConfig
from widthwise.sizes import Count, NBlocks, NLayers, Width

CostName = Literal["flops", "kv_bytes", "params", "activation_bytes", "n_residual_additions"]
"""Totals to minimise; see `totals`."""
Range = tuple[pydantic.PositiveFloat, pydantic.PositiveFloat]


@dataclass(frozen=True)
class Grid:
    """Sizes that a search may propose."""

    d_model: int
    """Widths are multiples of this, with whole groups of heads."""
    d_hidden: int
    """Hidden widths are multiples of this."""
    head_dims: tuple[int, ...] | None
    """Allowed head sizes, default first; None: any even size."""
    tolerance: float
    """Default of `SearchSpace.tolerance`. A coarse grid rarely meets a budget closely."""


GRIDS = {"paper": Grid(1, 1, None, 0.001), "hardware": Grid(128, 64, (64, 128), 0.01)}
"""The grid of the hourglass paper, and one whose matrices and heads fill the tiles of GPU kernels."""

ANY = (0.0, math.inf)
ASPECT = (100.0, 250.0)
"""Default of d_model / n_layers if n_layers is open: the range of lowest losses in Figure 4 of the hourglass paper."""


class ShapeRequest(Config):
    """The request of `widthwise design`; None: the shape's default."""

    kind: str = "x"
    """x, diamond, growing, narrowing, or uniform."""
    turn_layer: float | None = None
    """Depth of the narrowest (or widest) layer, as a share of n_layers."""
    turn_width: float | None = None
    """Width of that layer, as a share of d_model."""
    quantum: int | None = None
    """Widths are multiples of this."""
    match: str = "params"
    """Quantity to match: params, layer_params (attention and feed-forward), active_params, flops, flops_causal or
    kv_bytes."""
    rounding: str = "balanced"
    """nearest (the paper's) or balanced (closer to the budget)."""
    budget: str | None = None
    """Size the model first, to the nearest: 30M parameters, 2G FLOPs, ...; default: the base's."""


class SearchSpace(Config):
    """The quantity to match, and the space to search.

    The defaults of n_blocks, ratio and aspect are the results of the hourglass paper at 113M (arXiv:2602.06471), with
    one seed per shape. They are only a start: three of its four main models are deeper than that aspect allows.
    """

    match: Literal["layer_params", "params", "flops", "flops_causal", "kv_bytes"] = "layer_params"
    """The total that equals the budget; the paper counts layer_params."""
    budget: float | None = Field(default=None, gt=0, le=1e15)
    """Amount of it, such as 113M or 2.5G; default: the base's."""
    tolerance: float | None = Field(default=None, gt=0, lt=1)
    """Largest miss of the budget, as a fraction; default: 0.001, on the hardware grid 0.01."""
    grid: Literal["paper", "hardware"] = "paper"
    """paper: d_model a multiple of 2 * n_heads, d_hidden any. hardware: multiples of 128 and 64, heads of 64 or 128."""
    n_heads: Count | None = None
    """Heads of every shape; default: the base's rule."""
    head_dim: Width | None = None
    """Head size of every shape, instead of their number."""
    n_blocks: tuple[NBlocks, ...] = Field(default=(2, 4), min_length=1)
    """Blocks per feed-forward, such as 1,2,4; 1 is a SwiGLU. The paper's tables 2 and 3: 2 and 4, but 1 at 1074M."""
    n_layers: tuple[NLayers, ...] | None = Field(default=None, min_length=1)
    """Such as 6,12 or 8..16; default: every depth within the aspect."""
    ratio: tuple[pydantic.PositiveFloat, ...] = Field(default=(0.4, 0.5, 0.6, 0.75), min_length=1)
    """Target d_hidden / d_model; the budget then sets the hidden width. The paper's table 2: about 0.4 to 0.75."""
    aspect: Range | None = None
    """Smallest and largest d_model / n_layers; default: 100..250 if n_layers is omitted, otherwise any."""
    ratio_range: Range | None = None
    """Smallest and largest d_hidden / d_model after rounding, such as 0.3..0.8."""
    max_flops: pydantic.PositiveFloat | None = None
    """Most forward FLOPs per token at the recipe's seq_len, with full attention, such as 5e8."""
    max_kv_bytes: pydantic.PositiveFloat | None = None
    """Most bytes of the KV cache per token."""
    max_residual_additions: pydantic.PositiveInt | None = None
    """Most sublayers in sequence: n_layers * (1 + n_blocks)."""
    rank_by: CostName | None = None
    """Cost by which candidates are ordered; default: the first of these that is not matched."""
    per: tuple[Literal["n_blocks", "n_layers", "ratio"], ...] = ()
    """Keep only the best of each n_blocks, n_layers or ratio, or of each combination, such as n_blocks,ratio. The best
    is the first in order, and with ratio the one nearest to each target."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "SearchSpace":
        for name in ("aspect", "ratio_range"):
            limits = getattr(self, name)
            if limits is not None and limits[0] > limits[1]:
                raise ValueError(f"{name}: got {limits[0]:g} to {limits[1]:g}; the smaller one comes first")
        return self

    def heads(self, base: AttentionTemplate) -> AttentionTemplate:
        """Return the attention of the candidates. Raise UserError for impossible heads, such as an odd head size."""
        allowed = GRIDS[self.grid].head_dims
        n_heads = self.n_heads
        head_dim = self.head_dim
        if n_heads is None and head_dim is None:
            if allowed is not None and base.n_heads is not None:
                head_dim = allowed[0]
            else:
                n_heads = base.n_heads
                head_dim = base.head_dim
        heads = parse(AttentionTemplate, to_data(base) | {"n_heads": n_heads, "head_dim": head_dim}, "search")
        if allowed is not None and (heads.n_heads is not None or heads.constant_head_dim not in allowed):
            got = f"n_heads: got {n_heads}" if head_dim is None else f"head_dim: got {head_dim}"
            choices = " or ".join(map(str, allowed))
            raise UserError(f"search: {got}; the {self.grid} grid has heads of {choices} channels")
        return heads

    @property
    def aspect_limits(self) -> tuple[float, float]:
        """Smallest and largest d_model / n_layers."""
        return self.aspect or (ANY if self.n_layers else ASPECT)

    @property
    def costs(self) -> tuple[CostName, ...]:
        """Costs to compare candidates: all but the matched one, which differs only by rounding."""
        return tuple(name for name in get_args(CostName) if name != self.match)


def totals(config: ModelConfig, seq_len: int) -> dict[str, float]:
    """Return the costs of a model that a search compares. FLOPs and bytes are per token, in bf16.

    layer_params: parameters without embedding, heads and norm gains: the size of a model in the hourglass paper. flops:
    forward, with attention to all seq_len tokens; flops_causal: to half of them, the mean of a causal model.
    activation_bytes: kept for the backward pass, without recomputation. n_residual_additions: sequential updates of the
    stream. MTP heads count only in params and activation_bytes, as in `cost_summary`.
    """
    parts = config.costs()
    total = config.cost()
    inference = config.inference_cost()
    return {
        "params": total.params,
        "layer_params": sum(parts[part].params for part in ("attention", "ffn", "residual")),
        "attention_params": parts["attention"].params,
        "flops": inference.forward_flops(seq_len),
        "flops_causal": inference.forward_flops(seq_len, causal=True),
        "kv_bytes": inference.kv_bytes(seq_len),
        "activation_bytes": total.activation_bytes(),
        "n_residual_additions": config.n_residual_additions,
    }


class Sizes(NamedTuple):
    """The sizes of a uniform model with hourglass feed-forwards, or of many such models as arrays."""

    n_blocks: Any
    n_layers: Any
    d_model: Any
    d_hidden: Any
    d_attention: Any
    """n_heads * head_dim"""

    def at(self, index: Any) -> "Sizes":
        """Return the sizes at an index or several indices."""
        return Sizes(*(size[index] for size in self))


class UniformTotals:
    """The totals of all models that differ only in their `Sizes`, interpolated from the totals of 48 small models.

    Every total is a polynomial: affine in n_blocks, n_layers, d_hidden and d_attention, and quadratic in d_model. It
    follows from the models with one and two blocks, layers, hidden channels and units of heads, and with one, two and
    three quanta of d_model. In Newton's form all steps are whole numbers, so counts are exact.
    """

    def __init__(self, build: Callable[[Sizes], ModelConfig], quantum: int, unit: int, seq_len: int):
        """build: sizes -> model. quantum: an allowed d_model, of which multiples are allowed too. unit: the same for
        d_attention.
        """
        self.build = build
        self.quantum = quantum
        self.unit = unit
        self.seq_len = seq_len
        n_nodes = (2, 2, 3, 2, 2)
        counted = []
        for node in np.ndindex(n_nodes):
            n_blocks, n_layers, n_quanta, d_hidden, n_units = (index + 1 for index in node)
            sizes = Sizes(n_blocks, n_layers, n_quanta * quantum, d_hidden, n_units * unit)
            counted.append(totals(build(sizes), seq_len))
        self._names = list(counted[0])
        values = np.array([list(at_node.values()) for at_node in counted]).reshape(*n_nodes, -1)
        steps = (DIFFERENCES[:n, :n] for n in n_nodes)
        self._coefficients = np.einsum("ai,bj,ck,dl,em,ijklmf->fabcde", *steps, values)

    def __call__(self, name: str, sizes: Sizes) -> np.ndarray:
        """Return one total of n models, (n,). Sizes may be real numbers."""
        n_quanta = np.divide(sizes.d_model, self.quantum)
        n_units = np.divide(sizes.d_attention, self.unit)
        at = (sizes.n_blocks, sizes.n_layers, n_quanta, sizes.d_hidden, n_units)
        steps = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) - 1 for size in at))
        # Newton's basis 1, t, t(t-1)/2; axes with two nodes use the first two.
        k, n, d, h, a = (np.stack([np.ones_like(step), step, step * (step - 1) / 2]) for step in steps)
        coefficients = self._coefficients[self._names.index(name)]
        return np.einsum("abcde,a...,b...,c...,d...,e...->...", coefficients, k[:2], n[:2], d, h[:2], a[:2])

    def d_model(self, name: str, target: float, sizes: Callable[[float], Sizes]) -> np.ndarray:
        """Return the real widths at which a total reaches the target, (n,).

        sizes: from d_model to n sizes, of which d_hidden and d_attention are affine in d_model. The widths are roots of
        a quadratic function, which is linear if the total counts no matrices, as the KV cache.
        """
        unit = 64.0 * self.quantum  # about the size of a solution, to avoid cancellation
        at_0, at_1, at_2 = (self(name, sizes(d_model)) for d_model in (0.0, unit, 2 * unit))
        square = (at_2 - 2 * at_1 + at_0) / 2
        slope = at_1 - at_0 - square
        rest = np.maximum(target - at_0, 0)
        return unit * 2 * rest / (slope + np.sqrt(slope**2 + 4 * square * rest))

    def d_hidden(self, name: str, target: float, sizes: Sizes) -> np.ndarray:
        """Return the real hidden widths at which a total reaches the target, (n,); infinite if it does not depend on
        them.

        `sizes.d_hidden` is ignored.
        """
        at_0, at_1 = (self(name, sizes._replace(d_hidden=d_hidden)) for d_hidden in (0.0, 1.0))
        slope = at_1 - at_0
        return np.divide(target - at_0, slope, out=np.full_like(slope, np.inf), where=slope > 0)


DIFFERENCES = np.array([[1.0, 0, 0], [-1, 1, 0], [1, -2, 1]])
"""Maps values at equal steps to the first value, the first difference and the second difference."""
