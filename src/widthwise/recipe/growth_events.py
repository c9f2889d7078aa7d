"""Growth in the course of a run: what a recipe says of it, and the models and rates that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import pydantic

from widthwise.config_io import Config, UserError, mistakes_at, mistakes_of
from widthwise.growth.choices import GrowthChoices
from widthwise.model.config import ModelConfig
from widthwise.shape.template import ModelChange, ModelSection, changed_section

if TYPE_CHECKING:
    from widthwise.growth.plan import GrowthPlan


class Rewarmup(Config):
    """Learning rates after a growth, as factors on the schedule's. Steps are counted from 1."""

    after_step: pydantic.NonNegativeInt
    """The step at which the model grew."""
    steps: pydantic.NonNegativeInt
    """Steps over which rates rise linearly from 0 to the schedule's."""
    freeze_steps: pydantic.NonNegativeInt = 0
    """Steps in which the old entries stay as they are."""
    grown_from: ModelConfig | None = None
    """The model before `widthwise grow`, where it freezes the old entries."""
    layers: tuple[pydantic.NonNegativeInt | None, ...] | None = None
    """For each layer the one of that model that it comes from, or null."""

    @classmethod
    def after(cls, step: int, choices: GrowthChoices, settling_steps: int, n_left: int, is_verb: bool = False) -> Self:
        """Return the rates after a growth at a step with n_left steps to come.

        By default they rise over the steps that the optimizer looks back. is_verb: the choices are options of
        `widthwise grow`. Raises UserError for more steps than are left.
        """
        steps = min(settling_steps, n_left) if choices.rewarmup_steps is None else choices.rewarmup_steps
        for name, n_steps in (("rewarmup_steps", steps), ("freeze_steps", choices.freeze_steps)):
            if n_steps > n_left:
                option = f"--{name.replace('_', '-')}" if is_verb else name
                raise UserError(f"{option}: got {n_steps}; the run has only {n_left} more steps")
        return cls(after_step=step, steps=steps, freeze_steps=choices.freeze_steps)

    def factor(self, step: int) -> float:
        """Return the factor of every rate at a step."""
        n_done = step - self.after_step
        return n_done / self.steps if 0 < n_done < self.steps else 1.0

    @property
    def frozen_until(self) -> int:
        """The last step in which old entries stay as they are; `after_step` if there is none."""
        return self.after_step + self.freeze_steps

    def check_next(self, start: int, next_growth: str) -> None:
        """Raises UserError if the model grows again while its old entries are frozen."""
        if self.after_step < start < self.frozen_until:
            raise UserError(
                f"{next_growth}: comes after step {start}; the old entries of the growth after step {self.after_step} "
                f"are frozen until step {self.frozen_until}"
            )


class _Moment(Config):
    """The moment of a growth and its changes: a separate class, so that recipes are written with this first."""

    at_step: pydantic.PositiveInt
    """Steps done before the growth."""
    model: ModelChange
    """Changes to the model section, laid over it as those of a child recipe are, and over those of the events before;
    or every layer."""


class GrowthEvent(GrowthChoices, _Moment):
    """The model becomes a larger one between two steps, and continues with its weights and the optimizer's state."""

    preserve: bool = True
    """Keep the constants that keep the function. false: attention scale, divisors of norms and frequencies of
    rotation become those of the larger model's recipe, so that the loss jumps: to show what growth costs without."""


@dataclass(frozen=True)
class Growth:
    """A growth event with its plan."""

    index: int
    """Its place among the events of the recipe, from 0."""
    event: GrowthEvent
    plan: "GrowthPlan"
    rewarmup: Rewarmup

    def seed(self, run_seed: int) -> int:
        """The seed from which the new entries of this growth are drawn."""
        words = np.random.SeedSequence([run_seed, self.index]).generate_state(1, np.uint64)
        return int(words[0] >> np.uint64(1))

    def resolved(self, at_step: int) -> GrowthEvent:
        """The event with nothing left to be derived: the grown model with every layer and constant."""
        return self.event.model_copy(
            update={
                "at_step": at_step,
                "model": self.plan.new,
                "layers": self.plan.correspondence.layers,
                "rewarmup_steps": self.rewarmup.steps,
            }
        )


@dataclass(frozen=True)
class Phase:
    """The steps of a run that one model makes."""

    start: int
    """Steps that the run has made before it."""
    end: int
    """Steps that the run has made after it."""
    section: ModelSection
    """The model as the recipe asks for it."""
    model: ModelConfig
    """The model with every layer written out."""
    growth: Growth | None
    """The growth out of the model before; None for the first."""

    @property
    def n_steps(self) -> int:
        return self.end - self.start


def grown_phases(first: Phase, events: Sequence[GrowthEvent], seq_len: int, settling_steps: int) -> tuple[Phase, ...]:
    """The phases of a run whose model grows. first: the phase as it would be without growth.

    settling_steps: of the optimizer. Raises UserError `growth.0: ...` for an event that is out of order or whose growth
    would change the function.
    """
    from widthwise.growth.correspondence import align
    from widthwise.growth.plan import plan_growth, with_constants_of

    phases, n_steps = [first], first.end
    for index, event in enumerate(events):
        before, start, where = phases.pop(), event.at_step, f"growth.{index}"
        if start >= n_steps:
            raise UserError(f"{where}: comes after step {start}; must come before the last, {n_steps}")
        if start <= before.start:
            raise UserError(f"{where}: comes after step {start}; the event before it came after step {before.start}")
        if before.growth is not None:
            before.growth.rewarmup.check_next(start, where)
        section = changed_section(before.section, event.model, f"{where}.model")
        with mistakes_at(where):
            wanted = section.resolve(seq_len)
        with mistakes_of(where):
            rewarmup = Rewarmup.after(start, event, settling_steps, n_steps - start)
            plan = plan_growth(before.model, wanted, align(before.model, wanted, event.layers))
            growth = Growth(index, event, plan if event.preserve else with_constants_of(wanted, plan), rewarmup)
        phases += [replace(before, end=start), Phase(start, n_steps, section, growth.plan.new, growth)]
    return tuple(phases)
