"""`comparison.json`: recipes compared with a baseline; `family.json`: grown models with those trained alone."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self

import pydantic

from widthwise.files import PathInside
from widthwise.records.cost import CostSummary
from widthwise.records.estimate import CONFIDENCE, EqualLoss, Estimate, OverTokens, Validations, Verdict
from widthwise.records.record import Known, Number, Record, StoredRecord


class ValidationScore(Record):
    """A number of a further text or task of the recipes, over all seeds."""

    value: Estimate
    difference: Estimate | None = None
    """It minus the baseline's; None for the baseline."""


class Variant(Record):
    """One recipe over all its seeds."""

    name: str
    runs: Sequence[PathInside] = pydantic.Field(min_length=1)
    """Run directories, one per seed, relative to the folder of the file."""
    val_loss: Estimate
    train_loss: Estimate | None = None
    val_bits_per_byte: Estimate | None = None
    tokens_per_second: Estimate | None = None
    shares_machine: bool = False
    """True if other processes used the machine while a run trained, so that tokens_per_second is not comparable."""
    doubts: Sequence[str] = ()
    """Reasons to doubt the last loss of a run, each with its seed."""
    difference: Estimate | None = None
    """Held-out loss minus the baseline's, paired by seed; None for the baseline."""
    differences: Mapping[str, Estimate] = pydantic.Field(default_factory=dict)
    """Name of a further loss -> that loss minus the baseline's, paired as `difference` is if it is one of held-out
    text, otherwise by seed alone."""
    at_equal_loss: Mapping[str, EqualLoss] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> tokens and FLOPs to equal loss; empty if validations are too few."""
    gap: Mapping[str, OverTokens] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> that loss minus the baseline's in the course of training."""
    tokens_ratio: Mapping[str, OverTokens] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> tokens over those of the baseline for the loss that the baseline had at each of its
    validations, as far as the variant has it with every seed."""
    verdict: Verdict | None = None
    """Verdict on `difference`; None if there is nothing to compare with."""
    cost: CostSummary
    ratio: Mapping[str, Known]
    """Quantity -> value divided by the baseline's."""
    validated: Mapping[str, ValidationScore] = pydantic.Field(default_factory=dict)
    """TEXT.loss, TASK.acc and so on -> number, of the further texts and tasks that the recipes name."""
    measured: Mapping[str, Estimate] = pydantic.Field(default_factory=dict)
    """Name -> estimate, for quantities of runs that have no field of their own."""

    def measured_over_seeds(self, name: str) -> Estimate | None:
        """Return its mean of a quantity of runs; None if it lacks it."""
        found = self.measured.get(name, getattr(self, name, None))
        return found if isinstance(found, Estimate) else None


class Compared(Protocol):
    """Variants over the same seeds, with one baseline, one for each or none: what the main table is made of."""

    @property
    def title(self) -> str: ...

    @property
    def confidence(self) -> float: ...

    @property
    def seeds(self) -> Sequence[int]: ...

    @property
    def variants(self) -> Sequence[Variant]: ...

    @property
    def columns(self) -> Sequence[str] | None: ...

    @property
    def validations(self) -> Validations | None: ...

    @property
    def baseline_words(self) -> str | None:
        """The baseline in words; None if there is none, or none with a loss."""
        ...

    def baseline_of(self, variant: Variant) -> Variant | None:
        """Return the baseline of a variant: itself, if others are compared with it; None if there is none."""
        ...


class TrendPoint(Record):
    """One variant of a trend."""

    variant: str
    value: Number = pydantic.Field(gt=0)
    """The variant's value of the quantity."""
    line: Known
    """The fitted line at this value."""
    residual: Known
    """Mean loss minus the line."""


class Trend(Record):
    """The losses as a line over the logarithm of a quantity."""

    of: str = "val_loss"
    """Name of the loss, one of those on held-out text."""
    over: str
    """Name of the quantity that the line runs over."""
    slope: Estimate
    """Change of the loss in nats per doubling; Student's t times a bootstrap standard error over seeds and windows."""
    intercept: Estimate
    """The line where the quantity is 1; Student's t over seeds."""
    r_squared: Known
    """R² of the line through the mean losses; None if they are all equal."""
    verdict: Verdict
    """Like that of a difference: "better" if a larger quantity gives a lower loss. The tie margin applies to the total
    change from the smallest to the largest value."""
    points: Sequence[TrendPoint] = pydantic.Field(min_length=1)


class Comparison(StoredRecord):
    """The results of a comparison in which all runs have finished."""

    file_name: ClassVar[str] = "comparison.json"

    title: str
    command: str
    created: str
    metric: str
    confidence: float = pydantic.Field(gt=0, lt=1)
    seeds: Sequence[int]
    baseline: str
    matched: str | None = None
    sentence: str
    """The answer in words, a line for each variant and one for the trend."""
    environment: Mapping[str, Any]
    validations: Validations | None = None
    """None in files of older versions."""
    variants: Sequence[Variant] = pydantic.Field(min_length=1)
    trend: Trend | None = None
    columns: Sequence[str] | None = None
    """Names of the quantities that the main table shows, in order; None: the usual ones."""

    @pydantic.model_validator(mode="after")
    def _baseline_is_a_variant(self) -> Self:
        names = [variant.name for variant in self.variants]
        if self.baseline not in names:
            raise ValueError(f"baseline: got {self.baseline!r}, which is none of the variants {', '.join(names)}")
        if len(set(names)) < len(names):
            raise ValueError("variants: two have the same name")
        return self

    @pydantic.model_validator(mode="after")
    def _trend_is_of_the_variants(self) -> Self:
        if self.trend is None:
            return self
        losses = {variant.name: variant.measured_over_seeds(self.trend.of) for variant in self.variants}
        for point in self.trend.points:
            if point.variant not in losses:
                raise ValueError(f"trend.points: got {point.variant!r}, which is none of {', '.join(losses)}")
            found = losses[point.variant]
            if found is None or len(found.per_seed) != len(self.seeds):
                raise ValueError(f"variants: {point.variant} has not one loss per seed, which the trend needs")
        return self

    @property
    def baseline_variant(self) -> Variant:
        return next(variant for variant in self.variants if variant.name == self.baseline)

    @property
    def baseline_words(self) -> str:
        return self.baseline

    def baseline_of(self, variant: Variant) -> Variant:
        """Return the baseline, the same for every variant."""
        return self.baseline_variant


Alone = Literal["tokens", "flops"]
"""Quantity in which a model trained alone equals the grown one."""


class FamilyMember(Record):
    """A model that was grown and trained on."""

    name: str
    """Name of its recipe."""
    seed: int | None = None
    """Seed of the run it was grown from; None in files of older versions."""
    run: str
    params: Number
    start: int
    """The step at which it branched off."""
    tokens: int | None = None
    """Tokens and FLOPs of all steps, the shared ones included."""
    flops_own: float
    """Training FLOPs since it branched off."""
    flops: Known = None
    flops_alone: float
    """Training FLOPs of the same model from scratch over the same tokens."""
    val_loss: Known = None
    val_bits_per_byte: Known = None


class FamilyControl(Record):
    """The same model, trained alone from scratch."""

    name: str
    seed: int
    run: str
    tokens: int | None = None
    flops: Known = None
    val_loss: Known = None


class FamilySize(Record):
    """One recipe over the seeds."""

    name: str
    grown: Estimate
    """Held-out loss of the grown models."""
    alone: Estimate | None = None
    difference: Estimate | None = None
    """Grown minus alone, paired by seed and held-out window; None without controls."""
    verdict: Verdict | None = None
    variants: Sequence[Variant] = ()
    """The grown models and, after them, their controls, if any. Files of older versions have none."""


class Family(StoredRecord):
    """Cost and losses of a family."""

    file_name: ClassVar[str] = "family.json"

    confidence: float = pydantic.Field(default=CONFIDENCE, gt=0, lt=1)
    source: str
    sources: Sequence[str] = ()
    """All runs it was grown from, one for each seed."""
    alone: Alone | None = None
    """Quantity in which the controls equal the grown models; None without controls."""
    command: str | None = None
    shared_flops: float
    """Training FLOPs before the branches, over all seeds, each counted once."""
    family_flops: float
    """Training FLOPs of all grown models together."""
    flops_alone: float
    members: Sequence[FamilyMember]
    controls: Sequence[FamilyControl] = ()
    sizes: Sequence[FamilySize] = ()
    sentence: str = ""
    """Comparison of each size with the model trained alone, in words, one per line; empty without controls."""
    validations: Validations | None = None
    """None without controls, and in files of older versions."""
    columns: Sequence[str] | None = None
    """Names of the quantities that the main table shows, in order; None: the usual ones."""

    @property
    def title(self) -> str:
        return f"family of {self.source}"

    @property
    def seeds(self) -> Sequence[int]:
        """Seeds of the runs it was grown from."""
        return list(dict.fromkeys(member.seed for member in self.members if member.seed is not None))

    @property
    def variants(self) -> Sequence[Variant]:
        """Models of all sizes, grown and alone; none in files of older versions."""
        return [variant for size in self.sizes for variant in size.variants]

    @property
    def baseline_words(self) -> str | None:
        return None if self.alone is None else "the same model trained alone"

    def baseline_of(self, variant: Variant) -> Variant | None:
        """Return the controls of its size; None without controls."""
        if self.alone is None:
            return None
        return next(size.variants[-1] for size in self.sizes if variant.name in [each.name for each in size.variants])
