"""The `sweep:` section of a recipe."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, nearest_hint
from widthwise.data.extras import require
from widthwise.experiments.adjusting import MatchSection, named_in, parts_of, quantity_of
from widthwise.experiments.matching import Matched
from widthwise.experiments.runs import ALLOWED_IN_NAMES
from widthwise.experiments.sweep.axes import Axis
from widthwise.recipe.train_section import Seeds
from widthwise.shape.adjusting import Adjust

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

NO_GROUP = ""
SEED_KEY = "train.seed"
ASPECT = "aspect"
"""An axis that is no recipe key: d_model / n_layers of points whose width is solved."""


class SweepGroup(Config):
    """Points that share further changes to the recipe."""

    change: dict[str, Any] = Field(default_factory=dict)
    """Changes to the recipe."""
    over: dict[str, Axis] | None = None
    """Recipe key -> its axis; default: those of the whole sweep."""


class SearchConfig(Config):
    """Points chosen by a sampler, instead of a grid."""

    sampler: Literal["tpe", "random"] = "tpe"
    n_trials: pydantic.PositiveInt
    """Points to train, not counting the baseline."""

    def sampler_at(self, seed: int) -> "BaseSampler":
        """Optuna's sampler. constant_liar: points in progress elsewhere count as bad, so workers avoid them."""
        optuna: Any = require("optuna", "sweep")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if self.sampler == "random":
                return optuna.samplers.RandomSampler(seed=seed)
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


class SweepConfig(Config):
    """The `sweep:` section of a recipe."""

    baseline: dict[str, Any] | None = None
    """Changes to the recipe that give the point with which others are compared; {}: the unchanged recipe."""
    baseline_name: str = "baseline"
    over: dict[str, Axis] = Field(default_factory=dict)
    """Recipe key -> its axis. Where `match` adjusts d_model, `aspect` is one too: d_model / n_layers, for which a depth
    is found."""
    groups: dict[str, SweepGroup] = Field(default_factory=dict)
    search: SearchConfig | None = None
    """Chooses points by a sampler; default: a grid of all combinations."""
    seeds: Seeds = (1, 2, 3)
    match: MatchSection | None = None
    """The quantity that every point must match with the baseline, within one percent, and what of the points, or of
    which group, is adjusted to that end; default: params if there is a baseline."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "SweepConfig":
        for key, name in [("baseline_name", self.baseline_name), *(("groups", name) for name in self.groups)]:
            if not name or not set(name) <= ALLOWED_IN_NAMES:
                raise ValueError(f"{key}: got the name {name!r}; letters, digits, '.', '_', '+' and '-' are allowed")
        if not self.groups and not self.over:
            raise ValueError("over: got no key; name what to vary, such as optimizer.lr: [0.002, 0.004], or groups")
        for group, axes in self.axes.items():
            if SEED_KEY in axes:
                raise ValueError(
                    f"{where(group)}.{SEED_KEY}: every point runs with all of sweep.seeds; vary another key"
                )
            self._check_sizes(where(group), axes, parts_of(self.match, group))
        for name in named_in(self.match):
            if name not in self.groups:
                raise ValueError(f"match.adjust: got {name!r}; {nearest_hint(name, self.groups)}")
        if self.baseline is None and self.matched != "none":
            raise ValueError(f"match: got {self.matched!r}; nothing can be matched without a baseline (baseline: {{}})")
        return self

    def _check_sizes(self, where: str, axes: Mapping[str, Axis], adjusted: Sequence[Adjust]) -> None:
        """Raises ValueError for an axis of a size that is solved."""
        if ASPECT in axes and "d_model" not in adjusted:
            raise ValueError(f"{where}.{ASPECT}: needs match: {{adjust: d_model}}, which solves the width for it")
        for key, is_solved in (("model.d_model", "d_model" in adjusted), ("model.n_layers", ASPECT in axes)):
            if key in axes and is_solved:
                raise ValueError(f"{where}.{key}: follows from the budget here; vary another key")

    @property
    def axes(self) -> dict[str, dict[str, Axis]]:
        """Group -> its axes; the key is NO_GROUP if there are no groups."""
        if not self.groups:
            return {NO_GROUP: self.over}
        return {name: self.over if group.over is None else group.over for name, group in self.groups.items()}

    @property
    def matched(self) -> Matched:
        if self.match is None:
            return "none" if self.baseline is None else "params"
        return quantity_of(self.match)


def where(group: str) -> str:
    """The place of a group's axes in the section."""
    return f"groups.{group}.over" if group else "over"
