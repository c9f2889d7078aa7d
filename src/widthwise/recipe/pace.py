"""How fast a model learns in the steps after a growth: all of it, or its new and its old entries apart."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pydantic

from widthwise.config_io import Config, UserError
from widthwise.growth.choices import RewarmupOf
from widthwise.model.config import ModelConfig

if TYPE_CHECKING:
    from widthwise.growth.plan import GrowthPlan


@dataclass(frozen=True)
class Pace:
    """What the rates of the schedule are multiplied by after a growth. Steps are counted from 1."""

    after_step: int
    """The step at which the model grew."""
    rewarmup_steps: int
    rewarmup_of: RewarmupOf = "all"
    freeze_steps: int = 0

    def of_all(self, step: int) -> float:
        """The factor of every entry, old or new."""
        return self._ramp(step) if self.rewarmup_of == "all" else 1.0

    def of_new(self, step: int) -> float:
        """The further factor of new entries."""
        return self._ramp(step) if self.rewarmup_of == "new" else 1.0

    def of_old(self, step: int) -> float:
        """The further factor of old entries."""
        return 0.0 if 0 < step - self.after_step <= self.freeze_steps else 1.0

    def _ramp(self, step: int) -> float:
        return ramp(step - self.after_step, self.rewarmup_steps)

    @property
    def end_apart(self) -> int:
        """The last step in which new and old entries may learn at different rates; `after_step` if there is none."""
        return self.after_step + max(self.freeze_steps, self.rewarmup_steps if self.rewarmup_of == "new" else 0)

    def check(self, n_left: int, what: str) -> Self:
        """Itself. what: before the name of an option, in an error. Raises UserError for more steps than are left."""
        for name in ("rewarmup_steps", "freeze_steps"):
            if getattr(self, name) > n_left:
                raise UserError(f"{spelt(name, what)}: got {getattr(self, name)}; the run has only {n_left} more steps")
        return self

    def check_next(self, start: int, next_growth: str) -> None:
        """Raises UserError if the model grows again while its new and old entries learn at different rates."""
        if self.after_step < start < self.end_apart:
            raise UserError(
                f"{next_growth}: comes after step {start}; new and old entries of the growth after step "
                f"{self.after_step} learn at rates of their own until step {self.end_apart}"
            )


def spelt(name: str, what: str) -> str:
    """An option as a recipe has it, or on the command line, where `what` is `--`."""
    return f"--{name.replace('_', '-')}" if what == "--" else f"{what}{name}"


class Rewarmup(Config):
    """The rates after `widthwise grow`."""

    after_step: pydantic.NonNegativeInt
    """The step at which the model grew."""
    steps: pydantic.NonNegativeInt
    """Steps over which rates rise linearly from 0 to those of the schedule."""
    of: RewarmupOf = "all"
    """Whose rates: those of all entries, or of the new ones alone."""
    freeze_steps: pydantic.NonNegativeInt = 0
    """Steps in which the old entries stay as they are."""
    grown_from: ModelConfig | None = None
    """The model before, where old and new entries are told apart."""
    layers: tuple[pydantic.NonNegativeInt | None, ...] | None = None
    """For each layer the one of that model that it comes from, or null."""

    @property
    def pace(self) -> Pace:
        return Pace(self.after_step, self.steps, self.of, self.freeze_steps)

    def plan(self, grown: ModelConfig) -> "GrowthPlan | None":
        """How the model grew, as far as it says which entries are new."""
        if self.grown_from is None:
            return None
        from widthwise.growth.correspondence import align
        from widthwise.growth.plan import plan_growth

        return plan_growth(self.grown_from, grown, align(self.grown_from, grown, self.layers))


def usual_rewarmup(asked: int | None, settling_steps: int, n_left: int) -> int:
    """Steps: those asked for, or those that the optimizer looks back, but no more than are left."""
    return min(settling_steps, n_left) if asked is None else asked


def factor_of_all(paces: Iterable[Pace], step: int) -> float:
    """What the rates of all entries are multiplied by at a step, counted from 1."""
    return min((pace.of_all(step) for pace in paces), default=1.0)


def ramp(n_done: int, n_steps: int) -> float:
    """From 0 to 1 over n_steps; 1 before and behind them."""
    return n_done / n_steps if 0 < n_done < n_steps else 1.0
