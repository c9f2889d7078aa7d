"""Trackio: a local database in its own folder (TRACKIO_DIR), which `trackio show` draws."""

import contextvars
import os
from uuid import uuid4

from widthwise.data.extras import require
from widthwise.training.tracking.interface import PROJECT, TrackedRun, Tracker, Values


class TrackioTracker(Tracker):
    """One row for each record. Rows of a run that went back come again."""

    module, extra = "trackio", "trackio"

    def __init__(self, run: TrackedRun):
        trackio = require("trackio", self.extra)
        self.id = run.id or f"{run.group}-{run.name}-{uuid4().hex[:6]}"
        # Trackio keeps one run for each context and ends it when another begins; several may be at work here.
        self._context = contextvars.Context()
        self._run = self._context.run(
            trackio.init,
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=self.id,
            group=run.group,
            config=dict(run.recipe),
            resume="allow",
            embed=False,
        )

    def log(self, step: int, values: Values) -> None:
        self._context.run(self._run.log, dict(values), step=step)

    def close(self, is_finished: bool) -> None:
        self._context.run(self._run.finish)
