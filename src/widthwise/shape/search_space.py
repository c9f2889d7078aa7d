"""What a search for shapes is asked for."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, parse, to_data
from widthwise.model.attention import AttentionTemplate
from widthwise.sizes import Count, NBlocks, NLayers, Width

CostName = Literal["flops", "kv_bytes", "params", "activation_bytes", "n_residual_additions"]
"""Totals of which less is better whatever the loss; see `shape.totals`."""
Range = tuple[pydantic.PositiveFloat, pydantic.PositiveFloat]


@dataclass(frozen=True)
class Grid:
    """Which sizes a search may propose."""

    d_model: int
    """Widths are multiples of this, and hold whole groups of heads."""
    d_hidden: int
    """Hidden widths are multiples of this."""
    head_dims: tuple[int, ...] | None
    """Head sizes allowed, the first the default; None: any even one."""
    tolerance: float
    """The default of `SearchSpace.tolerance`. A coarse grid seldom meets a budget closely."""


GRIDS = {"paper": Grid(1, 1, None, 0.001), "hardware": Grid(128, 64, (64, 128), 0.01)}
"""The hourglass paper's, and one whose matrices and heads fill the tiles of GPU kernels."""

ANY = (0.0, math.inf)
ASPECT = (100.0, 250.0)
"""Where n_layers is left open: the d_model / n_layers at which the hourglass paper's Figure 4 has its lowest losses."""


class SearchSpace(Config):
    """What to match, and where to look.

    The defaults of n_blocks, ratio and aspect repeat what the hourglass paper reports at 113M (arXiv:2602.06471), one
    seed a shape. They are a start and no law: three of its four headline models are deeper than that aspect allows.
    """

    match: Literal["layer_params", "params", "flops", "flops_causal", "kv_bytes"] = "layer_params"
    """The total that equals the budget, see `shape.totals`."""
    budget: float | None = Field(default=None, gt=0, le=1e15)
    """null: what the base model has."""
    tolerance: float | None = Field(default=None, gt=0, lt=1)
    """Largest miss of the budget, as a fraction. null: 0.001 on the paper's grid, 0.01 on the hardware grid."""
    grid: Literal["paper", "hardware"] = "paper"
    """paper: d_model a multiple of 2 * n_heads, d_hidden any. hardware: multiples of 128 and 64, heads of 64 or 128."""
    n_heads: Count | None = None
    """As many heads in every candidate. Where neither this nor head_dim is given, heads follow the base's rule."""
    head_dim: Width | None = None
    """Heads of this size in every candidate."""
    attention_ratio: tuple[pydantic.PositiveFloat, ...] | None = Field(default=None, min_length=1)
    """n_heads * head_dim over d_model aimed at, in whole heads. null: as the base's rule says, usually 1."""
    n_blocks: tuple[NBlocks, ...] = Field(default=(2, 4), min_length=1)
    """Blocks of a feed-forward; 1 is a SwiGLU. Tables 2 and 3: 2 and 4, but 1 for the model of 1074M."""
    n_layers: tuple[NLayers, ...] | None = Field(default=None, min_length=1)
    """null: every depth at which d_model / n_layers is within `aspect`."""
    ratio: tuple[pydantic.PositiveFloat, ...] = Field(default=(0.4, 0.5, 0.6, 0.75), min_length=1)
    """d_hidden / d_model aimed at; the budget then sets the hidden width. Table 2: about 0.4 to 0.75."""
    aspect: Range | None = None
    """Least and largest d_model / n_layers. null: 100 to 250 where n_layers is left open, else any."""
    ratio_range: Range | None = None
    """Least and largest d_hidden / d_model, after rounding."""
    max_flops: pydantic.PositiveFloat | None = None
    """Forward FLOPs per token at the recipe's seq_len, attention in full."""
    max_kv_bytes: pydantic.PositiveFloat | None = None
    """Bytes the KV cache keeps per token."""
    max_residual_additions: pydantic.PositiveInt | None = None
    """n_layers * (1 + n_blocks): how many sublayers a token passes one after another."""
    rank_by: CostName | None = None
    """null: the first of flops, kv_bytes, ... that is not matched."""
    per: tuple[Literal["n_blocks", "n_layers", "ratio"], ...] = ()
    """Keeps only the best of each of these, or of each combination: the first as they are ranked, with `ratio` the one
    nearest to each ratio aimed at."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "SearchSpace":
        for name in ("aspect", "ratio_range"):
            limits = getattr(self, name)
            if limits is not None and limits[0] > limits[1]:
                raise ValueError(f"{name}: got {limits[0]:g} to {limits[1]:g}; the smaller one comes first")
        return self

    def heads(self, base: AttentionTemplate) -> AttentionTemplate:
        """The attention of the candidates. Raises UserError for heads that cannot be had, as those of an odd size."""
        allowed = GRIDS[self.grid].head_dims
        n_heads, head_dim = self.n_heads, self.head_dim
        if n_heads is None and head_dim is None:
            n_heads, head_dim = base.n_heads, base.head_dim
            if allowed is not None and n_heads is not None:
                n_heads, head_dim = None, allowed[0]
        own = {"n_heads": n_heads, "head_dim": head_dim}
        width = {} if self.attention_ratio is None else {"ratio": None, "d_attention": None}
        heads = parse(AttentionTemplate, to_data(base) | own | width, "search")
        if allowed is not None and (heads.n_heads is not None or heads.constant_head_dim not in allowed):
            asked = f"n_heads: got {n_heads}" if head_dim is None else f"head_dim: got {head_dim}"
            choices = " or ".join(map(str, allowed))
            raise UserError(f"search: {asked}; the {self.grid} grid has heads of {choices} channels")
        return heads

    @property
    def tolerance_or_default(self) -> float:
        """Largest miss of the budget, as a fraction."""
        return GRIDS[self.grid].tolerance if self.tolerance is None else self.tolerance

    @property
    def aspect_limits(self) -> tuple[float, float]:
        """Least and largest d_model / n_layers."""
        return self.aspect or (ANY if self.n_layers else ASPECT)

    @property
    def ratio_limits(self) -> tuple[float, float]:
        """Least and largest d_hidden / d_model."""
        return self.ratio_range or ANY

    @property
    def costs(self) -> tuple[CostName, ...]:
        """The costs in which candidates are compared: all but the matched one, which differs by rounding alone."""
        return tuple(name for name in get_args(CostName) if name != self.match)
