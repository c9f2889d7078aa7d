"""Growth in the course of a run: what a recipe says of it, and the models and rates that follow from it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import pydantic

from widthwise.config_io import Config, UserError, mistakes_at
from widthwise.growth.choices import GrowthChoices, RewarmupOf
from widthwise.model.config import ModelConfig
from widthwise.shape.template import ModelChange, ModelSection, changed_section

if TYPE_CHECKING:
    from widthwise.growth.plan import GrowthPlan


@dataclass(frozen=True)
class Pace:
    """Factors on the rates of the schedule after a growth. Steps are counted from 1."""

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
        """The growth of a model, as far as it tells which entries are new."""
        if self.grown_from is None:
            return None
        from widthwise.growth.correspondence import align
        from widthwise.growth.plan import plan_growth

        return plan_growth(self.grown_from, grown, align(self.grown_from, grown, self.layers))


def usual_rewarmup(asked: int | None, settling_steps: int, n_left: int) -> int:
    """Steps: those asked for, or those that the optimizer looks back, but no more than are left."""
    return min(settling_steps, n_left) if asked is None else asked


def factor_of_all(paces: Iterable[Pace], step: int) -> float:
    """Return the factor on the rates of all entries at a step, counted from 1."""
    return min((pace.of_all(step) for pace in paces), default=1.0)


def ramp(n_done: int, n_steps: int) -> float:
    """From 0 to 1 over n_steps; 1 before and behind them."""
    return n_done / n_steps if 0 < n_done < n_steps else 1.0


class _Moment(Config):
    """When a model grows, and into what: a class of its own, so that recipes are written with this first."""

    at_step: pydantic.PositiveInt | None = None
    """Steps done before the growth; give this or `at_tokens`."""
    at_tokens: pydantic.PositiveInt | None = None
    """The same in tokens; growth waits for the end of the step that sees the last of them."""
    model: ModelChange
    """Changes to the model section, laid over it as those of a child recipe are, and over those of the events before;
    or every layer."""


class GrowthEvent(GrowthChoices, _Moment):
    """The model becomes a larger one between two steps, and goes on with its weights and the optimizer's state."""

    preserve: bool = True
    """Whether constants stay those that keep the function. false: attention scale, divisors of norms and frequencies of
    rotation become those of the larger model's recipe, so that the loss jumps: to show what growth costs without."""

    @pydantic.model_validator(mode="after")
    def _check_one_moment(self) -> "GrowthEvent":
        if (self.at_step is None) == (self.at_tokens is None):
            raise ValueError("at_step: give either this or at_tokens")
        return self

    def step(self, tokens_per_step: int) -> int:
        """Steps done before the growth."""
        return self.at_step if self.at_step is not None else -(-(self.at_tokens or 0) // tokens_per_step)


@dataclass(frozen=True)
class Growth:
    """A growth event with its plan."""

    index: int
    """Its place among the events of the recipe, from 0."""
    event: GrowthEvent
    plan: "GrowthPlan"
    pace: Pace

    def seed(self, run_seed: int) -> int:
        """The seed from which the new entries of this growth are drawn."""
        words = np.random.SeedSequence([run_seed, self.index]).generate_state(1, np.uint64)
        return int(words[0] >> np.uint64(1))

    def resolved(self, at_step: int) -> GrowthEvent:
        """The event with nothing left to be derived: the grown model with every layer and constant."""
        return self.event.model_copy(
            update={
                "at_step": at_step,
                "at_tokens": None,
                "model": self.plan.new,
                "layers": self.plan.correspondence.layers,
                "rewarmup_steps": self.pace.rewarmup_steps,
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
    """How the model grew out of the one before; None for the first."""

    @property
    def n_steps(self) -> int:
        return self.end - self.start


def grown_phases(
    first: Phase, events: Sequence[GrowthEvent], tokens_per_step: int, seq_len: int, settling_steps: int
) -> tuple[Phase, ...]:
    """The phases of a run whose model grows. first: the phase as it would be without growth.

    settling_steps: of the optimizer. Raises UserError `growth.0: ...` for an event that is out of order or whose growth
    would change the function.
    """
    phases, n_steps = [first], first.end
    for index, event in enumerate(events):
        before = phases.pop()
        start = event.step(tokens_per_step)
        _check_moment(index, start, before.start, n_steps)
        if before.growth is not None:
            before.growth.pace.check_next(start, f"growth.{index}")
        section = changed_section(before.section, event.model, f"growth.{index}.model")
        with mistakes_at(f"growth.{index}"):
            wanted = section.resolve(seq_len)
        try:
            rewarmup = usual_rewarmup(event.rewarmup_steps, settling_steps, n_steps - start)
            pace = Pace(start, rewarmup, event.rewarmup_of, event.freeze_steps).check(n_steps - start, "")
            growth = _planned(index, event, before.model, wanted, pace)
        except UserError as error:
            raise UserError(f"growth.{index}: {error}") from None
        phases += [replace(before, end=start), Phase(start, n_steps, section, growth.plan.new, growth)]
    return tuple(phases)


def _check_moment(index: int, start: int, earliest: int, n_steps: int) -> None:
    if start >= n_steps:
        raise UserError(f"growth.{index}: comes after step {start}; must come before the last, {n_steps}")
    if start <= earliest:
        raise UserError(f"growth.{index}: comes after step {start}; the event before it came after step {earliest}")


def _planned(index: int, event: GrowthEvent, old: ModelConfig, wanted: ModelConfig, pace: Pace) -> Growth:
    from widthwise.growth.correspondence import align
    from widthwise.growth.plan import plan_growth, with_constants_of

    plan = plan_growth(old, wanted, align(old, wanted, event.layers), event.new_layers)
    return Growth(index, event, plan if event.preserve else with_constants_of(wanted, plan), pace)
