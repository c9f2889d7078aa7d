"""Weights & Biases: offline in the folder of the run, unless WANDB_MODE says otherwise; `wandb sync` sends it."""

import os
from uuid import uuid4

from widthwise.data.extras import require
from widthwise.training.tracking.interface import PROJECT, TrackedRun, Tracker, Values


class WandbTracker(Tracker):
    """One row of the history for each record. Rows of a run that went back come again."""

    module, extra = "wandb", "wandb"

    def __init__(self, run: TrackedRun):
        wandb = require("wandb", self.extra)
        self.id = run.id or uuid4().hex[:12]
        self._run = wandb.init(
            id=self.id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            group=run.group,
            dir=str(run.folder),
            config=dict(run.recipe),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",  # several runs may be at work in one process
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Values) -> None:
        self._run.log({**values, "step": step})

    def close(self, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)
