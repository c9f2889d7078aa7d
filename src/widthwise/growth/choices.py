"""The choices that a growth leaves open, as a recipe or `widthwise grow` says them."""

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.sizes import MOST_LAYERS, Count

NewLayers = Literal["drawn", "copied"]
"""What the parts of added layers are that do not have to be 0: drawn, or copies of those of the layer before."""
Reset = Literal["none", "new", "all"]
"""What the optimizer forgets; see `growth.optimizer_state`."""
RewarmupOf = Literal["all", "new"]
"""Whose rates rise again from 0: those of all entries, or of the new ones alone."""


class NewSizes(Config):
    """Sizes of a larger model; None leaves a size as it is."""

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


def _old_layer(name: Any) -> Any:
    return None if name == "new" else name


class GrowthChoices(Config):
    """The choices that a growth leaves open beside the sizes."""

    new_layers: NewLayers = "drawn"
    """Draw what of added layers does not have to be 0 as in an untrained model, or copy that of the layer before."""
    layers: tuple[Annotated[pydantic.NonNegativeInt | None, pydantic.BeforeValidator(_old_layer)], ...] | None = None
    """For each layer of the larger model the old one it comes from, counted from 0, or new (null) for one that is
    added, such as 0,1,new,2; default: added layers lie evenly among the others."""
    reset: Reset = "none"
    """What the optimizer forgets: nothing, where new entries of a tensor get no momentum and the mean of the squares of
    the old ones; of new entries also the squares; or everything."""
    rewarmup_steps: pydantic.NonNegativeInt | None = None
    """Steps over which learning rates rise again from 0; default: the steps that the optimizer's averages look back
    (`settling_steps`), but no more than are left."""
    rewarmup_of: RewarmupOf = "all"
    """Whose learning rates rise: those of all entries, or of the new ones alone."""
    freeze_steps: pydantic.NonNegativeInt = 0
    """Steps in which the old entries stay as they are, and only the new ones learn."""


class GrowOptions(GrowthChoices):
    """The choices for the growth of a run; the recipe gives the sizes."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the new entries that are drawn."""
    allow_change: bool = False
    """Take constants from the recipe, although the function changes."""


class Multiples(Config):
    """The multiples that `widthwise pad` rounds sizes up to; 1 leaves a size unchanged."""

    d_ff_multiple: Count = 1
    """Round hidden units of every feed-forward, expert and block up to a multiple of this."""
    head_dim_multiple: Count = 1
    """Round head sizes of queries and keys, and of values, up to a multiple of this."""
    heads_multiple: Count = 1
    """Round heads up to a multiple of this, in whole groups, since a new head on an old key-value head would learn;
    key-value heads to a multiple or divisor of it, so that as many devices share them evenly."""
    d_model_multiple: Count = 1
    """Round all widths of the stream up to a multiple of this."""
