"""`evaluations/step_STEP-REQUEST.json`: what one checkpoint of a run knew, as far as pages show it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from widthwise.records.record import Known, Record


class Score(Record):
    """A metric of a text or a task, with its standard error where there is one."""

    value: Known
    stderr: Known = None


Scores = Mapping[str, Score]
"""Name of a metric -> its score."""


class Answers(Record):
    """The metrics of a text or a task."""

    metrics: Scores
    fingerprint: str
    """A hash of the text, or of the questions of the task: answers with equal ones are to the same questions."""
    items: Mapping[str, Sequence[Known]] = {}
    """Name of a metric of a task -> its value for each question."""


class Evaluation(Record):
    """The texts that a checkpoint was given to read, and the tasks that it was asked."""

    step: int = pydantic.Field(ge=0)
    tokens: int | None = None
    """Tokens trained on by then; None in files of older versions."""
    request: Mapping[str, Any]
    max_length: int
    stride: int
    precision: str
    texts: Mapping[str, Answers] = {}
    tasks: Mapping[str, Answers] = {}
    lm_eval: Mapping[str, Scores] = {}
