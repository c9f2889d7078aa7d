"""Allowed changes to the recipe of a begun run: by hand in config.yaml, and by `resume` with other settings."""

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

from widthwise.config_io import differences, shortened
from widthwise.records.record import Record

OF_PROCESSES = ("train.shards", "train.hang_seconds")
"""Paths of a recipe that say how processes work together: with others it is the same run."""
MAY_CHANGE = ("data.", *OF_PROCESSES)
"""Paths of a recipe that may be changed in config.yaml: data may move too, as they have checksums of their own."""
MAY_MOVE = re.compile(r"validation\.(texts\.[^.]+\.source|tasks\.[^.]+\.file)")
"""Further such paths, of texts and tasks: files with checksums of their own."""
MUST_STAY = ("data.mask_documents", "data.reset_positions")
"""Those of data that may not, being on or off: they say how data are read, wherever they are."""
MAY_CONTINUE_WITH = (
    "train.steps",
    "train.log_every",
    "train.norms_every",
    "train.validate_every",
    "train.sample",
    "train.checkpoint_every",
    "train.checkpoint_in_background",
    "train.keep_last",
    "train.keep_every",
    "train.keep_best",
    "train.max_loss_rise",
    *OF_PROCESSES,
)
"""Paths that `resume` takes other values for: how long, what is recorded and kept. Steps made stay what they are."""


class Continuation(Record):
    """A moment at which a run was resumed with other settings."""

    after_step: int
    before: Mapping[str, Any]
    """Path in the recipe -> its value until then."""
    after: Mapping[str, Any]
    """The same paths -> their values from then on."""

    @property
    def words(self) -> str:
        """`train.steps from 9 to 18, train.log_every from 4 to 1`."""
        pairs = (f"{path} from {shortened(old)} to {shortened(self.after[path])}" for path, old in self.before.items())
        return ", ".join(pairs)


def continued(recipe: Any, continuations: Iterable[Continuation]) -> Any:
    """A recipe, as plain data, with what a run was continued with."""
    changed = copy.deepcopy(recipe)
    for each in continuations:
        for path, value in each.after.items():
            section, key = path.split(".")
            changed[section][key] = value
    return changed


def changes_in_words(before: Any, after: Any, of_the_same_run: bool = False) -> list[str]:
    """Return the differences between two recipes. of_the_same_run: only what would make the second one another run."""
    found = differences(before, after)
    return [
        f"{path} from {shortened(old)} to {shortened(new)}"
        for path, old, new in found
        if not of_the_same_run or _is_another_run(path, old, new)
    ]


def _is_another_run(path: str, old: Any, new: Any) -> bool:
    """Return whether a recipe that was changed there after the run was begun describes another one."""
    is_left_out = not old and not new  # as where the section was written anew
    may_change = path.startswith(MAY_CHANGE) or MAY_MOVE.fullmatch(path) is not None
    return not may_change or (path in MUST_STAY and not is_left_out)
