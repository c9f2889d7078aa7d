"""Steps that the device may still be computing."""

from typing import NamedTuple

import torch

from widthwise.training.step import StepOutcome


class ReadStep(NamedTuple):
    """A step whose loss and gradient norm have been read."""

    step: int
    outcome: StepOutcome
    loss: float
    grad_norm: float


class PendingSteps:
    """Outcomes of steps that nobody has read yet, because reading waits for the device."""

    def __init__(self) -> None:
        self._outcomes: list[StepOutcome] = []

    def add(self, outcome: StepOutcome) -> None:
        self._outcomes.append(outcome)

    def read(self, last_step: int) -> list[ReadStep]:
        """Waits for the device, and returns all of them in order. last_step: the number of the newest."""
        outcomes, self._outcomes = self._outcomes, []
        if not outcomes:
            return []
        pairs = torch.stack([torch.stack((each.loss, each.grad_norm.double())) for each in outcomes]).tolist()
        first = last_step - len(outcomes) + 1
        return [ReadStep(first + i, outcome, *pair) for i, (outcome, pair) in enumerate(zip(outcomes, pairs))]
