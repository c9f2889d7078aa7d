"""MLflow: the store of MLFLOW_TRACKING_URI, or a local database `mlflow.db`, which `mlflow ui` shows."""

import os
import time

from widthwise.data.extras import require
from widthwise.training.tracking.interface import PROJECT, TrackedRun, Tracker, Values, flat

LOCAL_STORE = "sqlite:///mlflow.db"
MOST_METRICS, MOST_PARAMS = 1000, 100
"""What a store takes in one call."""


class MLflowTracker(Tracker):
    """Numbers as metrics, words as tags. Values of a run that went back come again, with a later time."""

    module, extra = "mlflow", "mlflow"

    def __init__(self, run: TrackedRun):
        mlflow = require("mlflow", self.extra)
        self._entities = require("mlflow.entities", self.extra)
        self._client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", LOCAL_STORE))
        if run.id is not None:
            self.id = run.id
            self._client.update_run(self.id, status="RUNNING")
            return
        tags = {"folder": str(run.folder), "group": run.group}
        self.id = self._client.create_run(self._experiment(), run_name=run.name, tags=tags).info.run_id
        params = [
            self._entities.Param(path, str(value))
            for section, found in run.recipe.items()
            for path, value in flat(section, found)
        ]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self.id, params=params[start : start + MOST_PARAMS])

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        return self._client.create_experiment(name) if found is None else found.experiment_id

    def log(self, step: int, values: Values) -> None:
        now = int(1000 * time.time())
        metrics = [
            self._entities.Metric(name, float(value), now, step)
            for name, value in values.items()
            if not isinstance(value, str)
        ]
        tags = [self._entities.RunTag(name, value) for name, value in values.items() if isinstance(value, str)]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self.id, metrics=metrics[start : start + MOST_METRICS])
        if tags:
            self._client.log_batch(self.id, tags=tags)

    def close(self, is_finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if is_finished else "KILLED")
