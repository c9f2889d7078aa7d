"""Growth during a run: the events in a recipe, and the resulting models and learning rates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import pydantic

from widthwise.config_io import Config, mistakes_at, mistakes_of
from widthwise.growth.choices import GrowthChoices
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.shape.template import ModelChange, ModelSection, changed_section

if TYPE_CHECKING:
    from widthwise.growth.plan import GrowthPlan


class Rewarmup(Config):
    """Learning rates after a growth, as factors of the schedule's. Steps are counted from 1."""

    after_step: pydantic.NonNegativeInt
    """The step at which the model grew."""
    steps: pydantic.NonNegativeInt
    """Steps in which rates rise linearly from 0 to the schedule's."""
    freeze_steps: pydantic.NonNegativeInt = 0
    """Steps in which old entries are frozen."""
    grown_from: ModelConfig | None = None
    """The model before `widthwise grow`, if its old entries are frozen."""
    layers: tuple[pydantic.NonNegativeInt | None, ...] | None = None
    """Layer of that model from which each layer comes, or null for a new layer."""

    @classmethod
    def after(cls, step: int, choices: GrowthChoices, settling_steps: int, n_left: int, is_cli: bool = False) -> Self:
        """Return the rates after a growth with n_left remaining steps.

        By default they rise over settling_steps, the memory of the optimizer. is_cli: the choices are options of
        `widthwise grow`. Raises UserError for more steps than remain.
        """
        steps = min(settling_steps, n_left) if choices.rewarmup_steps is None else choices.rewarmup_steps
        for name, n_steps in (("rewarmup_steps", steps), ("freeze_steps", choices.freeze_steps)):
            if n_steps > n_left:
                option = f"--{name.replace('_', '-')}" if is_cli else name
                raise UserError(f"{option}: got {n_steps}; the run has only {n_left} more steps")
        return cls(after_step=step, steps=steps, freeze_steps=choices.freeze_steps)

    def factor(self, step: int) -> float:
        """Return the factor of every rate at a step."""
        n_done = step - self.after_step
        return n_done / self.steps if 0 < n_done < self.steps else 1.0

    @property
    def frozen_until(self) -> int:
        """Last step in which old entries are frozen; `after_step` if there is none."""
        return self.after_step + self.freeze_steps

    def check_next(self, start: int, next_growth: str) -> None:
        """Raise UserError if the model grows again while its old entries are frozen."""
        if self.after_step < start < self.frozen_until:
            raise UserError(
                f"{next_growth}: comes after step {start}; the old entries of the growth after step {self.after_step} "
                f"are frozen until step {self.frozen_until}"
            )


class GrowthEvent(GrowthChoices):
    """Growth into a larger model between two steps, which keeps weights and the optimizer's state."""

    at_step: pydantic.PositiveInt
    """Steps done before the growth."""
    model: ModelChange
    """Changes to the model section after earlier events, as in a recipe that extends it, or explicit layers."""
    preserve: bool = True
    """Keep constants so that the function stays the same. false: take attention scale, divisors of norms and rotary
    frequencies from the larger model's recipe, so that the loss jumps, to show the cost of inexact growth."""


@dataclass(frozen=True)
class Growth:
    """A growth event with its plan."""

    index: int
    """Index of the event in the recipe, from 0."""
    event: GrowthEvent
    plan: "GrowthPlan"
    rewarmup: Rewarmup

    def seed(self, run_seed: int) -> int:
        """Return the seed for new entries of this growth."""
        (seed,) = np.random.SeedSequence([run_seed, self.index]).generate_state(1, np.uint64)
        return int(seed >> np.uint64(1))

    def resolved(self) -> GrowthEvent:
        """Return the event with all derived values written out: the grown model with explicit layers and constants."""
        return self.event.model_copy(
            update={
                "model": self.plan.new,
                "layers": self.plan.correspondence.layers,
                "rewarmup_steps": self.rewarmup.steps,
            }
        )


@dataclass(frozen=True)
class Phase:
    """The steps of a run with one model."""

    start: int
    """Number of steps before the phase."""
    end: int
    """Number of steps up to its end."""
    section: ModelSection
    """The model section of the recipe."""
    model: ModelConfig
    """The model with explicit layers."""
    growth: Growth | None
    """The growth from the previous model; None for the first phase."""


def grown_phases(first: Phase, events: Sequence[GrowthEvent], seq_len: int, settling_steps: int) -> tuple[Phase, ...]:
    """Return the phases of a run whose model grows. first: the phase without growth.

    settling_steps: of the optimizer. Raises UserError `growth.0: ...` for an event that is out of order or would change
    the function.
    """
    from widthwise.growth.correspondence import align
    from widthwise.growth.plan import plan_growth, with_recipe_constants

    phases = [first]
    n_steps = first.end
    for index, event in enumerate(events):
        before = phases.pop()
        start = event.at_step
        where = f"growth.{index}"
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
            growth = Growth(index, event, plan if event.preserve else with_recipe_constants(plan, wanted), rewarmup)
        phases += [replace(before, end=start), Phase(start, n_steps, section, growth.plan.new, growth)]
    return tuple(phases)
