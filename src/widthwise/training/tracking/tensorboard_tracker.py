"""TensorBoard: event files in the folder of the run, `tensorboard --logdir runs` shows them."""

import json

from widthwise.data.extras import require
from widthwise.training.tracking.interface import TrackedRun, Tracker, Values


class TensorBoardTracker(Tracker):
    """Numbers as scalars of double precision, words as text."""

    module, extra = "tensorboard", "tensorboard"

    def __init__(self, run: TrackedRun):
        self._folder = str(run.folder / "tensorboard")
        self._open(None)
        self.id = "tensorboard"
        if run.id is None:
            self._writer.add_text("recipe", f"```\n{json.dumps(run.recipe, indent=2)}\n```", 0)

    def _open(self, purge_step: int | None) -> None:
        writing = require("torch.utils.tensorboard", self.extra)
        self._writer = writing.SummaryWriter(self._folder, purge_step=purge_step, flush_secs=10)

    def log(self, step: int, values: Values) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)

    def rewind(self, step: int) -> None:
        """Readers leave out what comes after the step in the files before."""
        self._writer.close()
        self._open(step + 1)

    def close(self, is_finished: bool) -> None:
        self._writer.close()
