"""The options of a growth or a cut, in a recipe or on the command line. Omitted sizes stay as they are."""

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.sizes import MOST_LAYERS, Count


class NewSizes(Config):
    """Sizes and components of a larger model; None: unchanged."""

    d_model: pydantic.PositiveInt | None = None
    """Width of embedding and head; every other width of the stream grows in proportion."""
    n_heads: pydantic.PositiveInt | None = None
    """Heads of every layer; without other key-value heads, their groups keep their size."""
    n_kv_heads: pydantic.PositiveInt | None = None
    """Key-value heads of every layer."""
    head_dim: pydantic.PositiveInt | None = None
    """Size of every head: of queries and keys, and of values unless `v_head_dim` is set."""
    d_ff: pydantic.PositiveInt | None = None
    """Hidden units of every feed-forward, expert or block."""
    add_layers: int = Field(default=0, ge=0, le=MOST_LAYERS)
    """Layers to add, spread evenly between the first and the last, each configured as its predecessor."""
    to_shape: Literal["x", "diamond", "growing", "narrowing"] | None = None
    """Shape of the layers: the smallest one whose narrowest layer is as wide as the run's."""
    turn_layer: float | None = None
    """Depth of the narrowest (or widest) layer of that shape, as a share of n_layers."""
    turn_width: float | None = None
    """Width of that layer, as a share of the new d_model."""
    virtual_width: float | None = Field(default=None, gt=1, le=1024)
    """Width of the stream over d_model, such as 1.5; layers stay as wide as they are."""
    ffn: Literal["hourglass"] | None = None
    """New kind of feed-forward; the present one becomes its first block."""


SAME_SIZES = NewSizes()

_NewAsNone = pydantic.BeforeValidator(lambda name: None if name == "new" else name)
OldLayer = Annotated[pydantic.NonNegativeInt | None, _NewAsNone]


class GrowthChoices(Config):
    """The options of a growth, apart from the sizes."""

    layers: tuple[OldLayer, ...] | None = None
    """For each layer of the larger model its old layer, counted from 0, or new (null) for an added one, such as
    0,1,new,2; default: added layers are spread evenly among the others."""
    rewarmup_steps: pydantic.NonNegativeInt | None = None
    """Steps over which learning rates rise again from 0; default: the memory of the optimizer's averages
    (`settling_steps`), at most the remaining steps."""
    freeze_steps: pydantic.NonNegativeInt = 0
    """Steps in which old entries are frozen and only new ones learn."""


class GrowOptions(GrowthChoices):
    """The options for the growth of a run; the recipe gives the sizes."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the new entries that are drawn at random."""
    allow_change: bool = False
    """Take constants from the recipe, even if the function changes."""


BUDGETS = ("params", "flops", "kv_bytes")
"""Costs by which a smaller model can be requested."""


class ShrinkOptions(Config):
    """The request for a smaller model: a budget, and the way to meet it."""

    params: float | None = Field(default=None, gt=0, le=1)
    """Parameters of the smaller model, as a share of the model's."""
    flops: float | None = Field(default=None, gt=0, le=1)
    """Forward FLOPs per token, as a share."""
    kv_bytes: float | None = Field(default=None, gt=0, le=1)
    """Bytes of the KV cache per token, as a share."""
    shape: Literal["found", "x", "uniform"] = "found"
    """`found`: cut each layer where least is lost, or remove it; `x`, `uniform`: keep all layers and experts, and cut
    in proportion to an x that is narrowest at 0.75 of the depth, or all layers in the same proportion."""
    multiple: Count = 8
    """Widths and hidden units are multiples of this."""
    calibration_batches: Count = 8
    """Batches of training text on which the parts are scored."""
    no_bos: bool = False
    """Omit the beginning-of-text token that the tokenizer of an imported model puts before a text."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ShrinkOptions":
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]}: got {' and '.join(given)}; give one of params, flops, kv_bytes")
        return self

    @property
    def budget(self) -> str | None:
        """The given one of params, flops and kv_bytes; None if sizes are given instead."""
        return next((name for name in BUDGETS if getattr(self, name) is not None), None)
