"""`--track` of every verb that trains: where else the records of runs go."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from widthwise.cli.terminal import progress_console

if TYPE_CHECKING:
    from widthwise.training.observer import Observer


class TrackerName(StrEnum):
    """What records can be sent to; the keys of `training.tracked.TRACKERS`."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"


TrackOption = Annotated[
    list[TrackerName] | None,
    typer.Option("--track", help="Also send the records of runs there; repeat for several.", show_default=False),
]


@contextmanager
def training_progress(track: Sequence[TrackerName] | None) -> Iterator["Observer"]:
    """An observer of training that shows progress on standard error, and sends the records to trackers.

    Raises UserError where the extra of a tracker is not installed.
    """
    from widthwise.cli.progress import shown_progress
    from widthwise.training.tracked import tracked

    with shown_progress(progress_console()) as shown, tracked(shown, [str(name) for name in track or ()]) as observer:
        yield observer
