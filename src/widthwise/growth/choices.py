"""The choices that a growth or a cut leaves open, as a recipe or a verb says them.

Sizes that are not named stay.
"""

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.sizes import MOST_LAYERS, Count

Reset = Literal["none", "new", "all"]
"""State that the optimizer forgets; see `growth.plan.grown_states`."""


class NewSizes(Config):
    """Sizes and form of a larger model; None leaves each as it is."""

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
    """Shape of the layers: the smallest whose narrowest layer is as wide as the run's."""
    turn_layer: float | None = None
    """Depth of the narrowest (or widest) layer of that shape, as a share of n_layers."""
    turn_width: float | None = None
    """Width of that layer, as a share of the new d_model."""
    virtual_width: float | None = Field(default=None, gt=1, le=1024)
    """Width of the stream over d_model, such as 1.5; layers stay as wide as they are."""
    ffn: Literal["hourglass"] | None = None
    """Feed-forward whose first block the present one becomes."""


_AddedLayer = pydantic.BeforeValidator(lambda name: None if name == "new" else name)
OldLayer = Annotated[pydantic.NonNegativeInt | None, _AddedLayer]


class GrowthChoices(Config):
    """The choices that a growth leaves open, apart from the sizes."""

    layers: tuple[OldLayer, ...] | None = None
    """For each layer of the larger model the old one it comes from, counted from 0, or new (null) for one that is
    added, such as 0,1,new,2; default: added layers lie evenly among the others."""
    reset: Reset = "none"
    """State to forget of the optimizer: nothing, where new entries of a tensor get no momentum and the mean of the
    squares of the old ones; of new entries also the squares; or everything."""
    rewarmup_steps: pydantic.NonNegativeInt | None = None
    """Steps over which learning rates rise again from 0; default: the steps that the optimizer's averages look back
    (`settling_steps`), but no more than are left."""
    freeze_steps: pydantic.NonNegativeInt = 0
    """Steps in which the old entries stay as they are, and only the new ones learn."""


class GrowOptions(GrowthChoices):
    """The choices for the growth of a run; the recipe gives the sizes."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the new entries that are drawn."""
    allow_change: bool = False
    """Take constants from the recipe, although the function changes."""


BUDGETS = ("params", "flops", "kv_bytes")
"""Costs of which a smaller model keeps a share."""
Score = Literal["taylor", "activation", "magnitude"]
"""taylor: how much the loss changes to first order if an entry becomes 0, the size of gradient times value (Molchanov
et al. 2019, arXiv:1906.10771); activation: mean size of an entry times the norm of the column that reads it (Minitron,
arXiv:2407.14679); magnitude: the norm of that column alone."""


class ShrinkOptions(Config):
    """The request for a smaller model: one budget, and how its layers meet it."""

    params: float | None = Field(default=None, gt=0, le=1)
    """Parameters of the smaller model, as a share of the model's."""
    flops: float | None = Field(default=None, gt=0, le=1)
    """Forward FLOPs per token, as a share."""
    kv_bytes: float | None = Field(default=None, gt=0, le=1)
    """Bytes of the KV cache per token, as a share."""
    shape: Literal["found", "x", "uniform"] = "found"
    """Cut each layer where least is lost, down to nothing of it; or in proportion, with all layers and experts: less
    towards a narrow layer at 0.75 of the depth, or all layers alike."""
    parts: Literal["all", "stream"] = "all"
    """Cut heads, hidden units, experts and layers too, or only what layers read and write of the stream."""
    score: Score = "taylor"
    """Order heads, hidden units and experts by the change of the loss to first order, by activation, or by weights; how
    much of each is cut always follows from the change of the loss."""
    stream: Literal["turned", "sorted"] = "turned"
    """Turn the stream so that its leading coordinates hold most, where that leaves the function as it is; or sort its
    coordinates."""
    multiple: Count = 8
    """Widths and hidden units are multiples of this."""
    calibration_batches: Count = 8
    """Batches of training text on which the need of the parts is measured."""
    no_bos: bool = False
    """Leave out the beginning-of-text token that the tokenizer of an imported model puts before a text."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ShrinkOptions":
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]}: got {' and '.join(given)}; give one of params, flops, kv_bytes")
        return self

    @property
    def budget(self) -> str | None:
        """The one of params, flops and kv_bytes that is given; None where sizes are given instead."""
        return next((name for name in BUDGETS if getattr(self, name) is not None), None)


SAME_SIZES = NewSizes()
