"""Which checkpoints of a run are kept, and what becomes of the others."""

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from widthwise.config_io import UserError
from widthwise.recipe.train_section import TrainConfig
from widthwise.training.checkpoint_folder import Damage, checkpoint_paths, find_damage, seal_of, step_of


@dataclass(frozen=True)
class KeepRules:
    """Which good checkpoints of a run are kept."""

    last: int
    """The newest, so many."""
    every: int | None = None
    """Those of its multiples, for good."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """Held-out losses by step, of those that may be the best; with some, the best that is still there is kept."""

    @classmethod
    def of(cls, config: TrainConfig, held_out_losses: Mapping[int, float]) -> Self:
        """The rules of a recipe. held_out_losses: by step, of all validations on record.

        What a signal left between two checkpoints is never the best: a run that was not stopped does not have it.
        """
        every = config.checkpoint_every
        candidates = {
            step: loss
            for step, loss in held_out_losses.items()
            if config.keep_best and every is not None and (step % every == 0 or step == config.steps)
        }
        return cls(config.keep_last, config.keep_every, candidates)

    def kept(self, steps: Sequence[int]) -> set[int]:
        """The steps of those kept. steps: of all good ones, newest first."""
        kept = set(steps[: self.last])
        kept |= {step for step in steps if self.every is not None and step % self.every == 0}
        best = self.best(steps)
        return kept if best is None else kept | {best}

    def best(self, steps: Iterable[int]) -> int | None:
        """The step with the lowest loss, the first of equal ones; None where none of them may be the best."""
        known = [(self.losses[step], step) for step in steps if math.isfinite(self.losses.get(step, math.nan))]
        return min(known)[1] if known else None

    def best_in(self, folder: Path) -> int | None:
        """The same of the checkpoints in a folder."""
        return self.best(map(step_of, checkpoint_paths(folder)))


def prune(folder: Path, rules: KeepRules, damages: Iterable[Damage] = (), recipe: str | None = None) -> None:
    """Deletes the good checkpoints that no rule keeps. Call when the newest is complete.

    damages: what `latest_valid` found; those are deleted too, unless they have been written anew since. recipe: that of
    the seals of this run; checkpoints sealed with another stay.
    """
    own = [path for path in checkpoint_paths(folder) if _may_go(path, recipe)]
    damaged = {damage.path for damage in damages if damage.path in own and find_damage(damage.path)}
    good = [path for path in own if path not in damaged]
    kept = rules.kept([step_of(path) for path in good])
    for path in (*(path for path in good if step_of(path) not in kept), *damaged):
        shutil.rmtree(path, ignore_errors=True)


def _may_go(path: Path, recipe: str | None) -> bool:
    """Whether a checkpoint is this run's, or too damaged or too old to say whose it is."""
    try:
        seal = seal_of(path)
    except UserError:
        return True
    return recipe is None or seal is None or seal.recipe == recipe
