"""`outcome.json`: the record of an experiment: its points, each with a result or why it has none, and differences."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic

from widthwise.files import PathInside
from widthwise.records.cost import CostSummary
from widthwise.records.estimate import EqualLoss, Estimate, OverTokens, Validations, Verdict
from widthwise.records.record import Known, Number, Record, StoredRecord


class ValidationScore(Record):
    """A number of a further text or task of the recipes, over all seeds."""

    value: Estimate
    difference: Estimate | None = None
    """It minus the baseline's; None for the baseline."""


class Variant(Record):
    """A point with a result: one recipe over all its seeds."""

    name: str
    state: Literal["finished"] = "finished"
    group: str = ""
    values: Mapping[str, Any] = pydantic.Field(default_factory=dict)
    """Recipe key -> value, where the point is one of axes."""
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
    differs_in: Mapping[str, Sequence[Any]] = pydantic.Field(default_factory=dict)
    """Recipe key of optimizer, schedule, train or data -> its value and the baseline's, where these differ. Keys in
    `values`, and seeds, are omitted."""
    at_equal_loss: Mapping[str, EqualLoss] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> tokens and FLOPs to equal loss; empty if validations are too few."""
    gap: Mapping[str, OverTokens] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> that loss minus the baseline's in the course of training."""
    tokens_ratio: Mapping[str, OverTokens] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> tokens over those of the baseline for the loss that the baseline had at each of its
    validations, as far as the variant has it with every seed."""
    verdict: Verdict | None = None
    """Verdict on `difference`; None if there is nothing to compare with. Of a point of a sweep, by an interval that is
    widened for the number of points."""
    cost: CostSummary
    ratio: Mapping[str, Known]
    """Quantity -> value divided by the baseline's."""
    validated: Mapping[str, ValidationScore] = pydantic.Field(default_factory=dict)
    """TEXT.loss, TASK.acc and so on -> number, of the further texts and tasks that the recipes name."""
    measured: Mapping[str, Estimate] = pydantic.Field(default_factory=dict)
    """Name -> estimate, for quantities of runs without a field."""

    def measured_over_seeds(self, name: str) -> Estimate | None:
        """Return its mean of a quantity of runs; None if it lacks it."""
        found = self.measured.get(name, getattr(self, name, None))
        return found if isinstance(found, Estimate) else None

    @property
    def has_loss(self) -> bool:
        return self.val_loss.mean is not None


class OpenPoint(Record):
    """A point that has no result, yet or at all."""

    name: str
    state: Literal["failed", "running", "waiting"]
    group: str = ""
    values: Mapping[str, Any] = pydantic.Field(default_factory=dict)
    reason: str | None = None


class SearchedRange(Record):
    """The range from which a search drew the values of one recipe key."""

    low: Number
    high: Number
    log: bool = False
    step: int | None = None
    """Distance between the values, if they are whole numbers."""


class Judged(Record):
    """A difference that is that of no single point, or has an interval of its own."""

    name: str
    """The best point, or the group whose points are averaged."""
    beside: str
    """The baseline; without one the next best point."""
    n_points: int
    """Number of points looked at, or averaged over."""
    difference: Estimate
    confidence: float = pydantic.Field(gt=0, lt=1)
    """Above that of the record for the best of many points: widened for their number (Bonferroni)."""
    verdict: Verdict


class Study(Record):
    """The study that the points come from, and its progress."""

    storage: str
    sampler: str
    n_points: int
    n_finished: int
    n_failed: int
    n_repeated: int = 0
    """Points that a search chose again, which count once."""

    @property
    def n_open(self) -> int:
        """Number of points that have neither finished nor failed."""
        return self.n_points - self.n_finished - self.n_failed - self.n_repeated


SIZE = "size"
"""Key of the values of a point of a family: the name of the recipe, which a control shares with the grown model."""
Alone = Literal["tokens", "flops"]
"""Quantity in which a model trained alone equals the grown one."""


class FamilyControl(Record):
    """A model of a family, trained alone from scratch."""

    name: str
    """Name of its recipe."""
    seed: int
    """Seed of the run it was grown from, or would have been."""
    run: str
    tokens: int | None = None
    """Tokens and FLOPs of all steps, the shared ones included."""
    flops: Known = None
    val_loss: Known = None


class FamilyMember(FamilyControl):
    """A model that was grown and trained on."""

    params: Number
    start: int
    """The step at which it branched off."""
    flops_own: float
    """Training FLOPs since it branched off."""
    flops_alone: float
    """Training FLOPs of the same model from scratch over the same tokens."""
    val_bits_per_byte: Known = None


class Family(Record):
    """Sizes grown from one run, or one for each seed, and what they cost."""

    sources: Sequence[str] = pydantic.Field(min_length=1)
    """The runs they were grown from, one for each seed."""
    alone: Alone | None = None
    """Quantity in which the controls equal the grown models; None without controls."""
    shared_flops: float
    """Training FLOPs before the branches, over all seeds, each counted once."""
    family_flops: float
    """Training FLOPs of all grown models together."""
    flops_alone: float
    """Training FLOPs of the same models from scratch over the same tokens."""
    members: Sequence[FamilyMember]
    controls: Sequence[FamilyControl] = ()


class TunedVariant(Record):
    """The values that a comparison read from a sweep for one variant."""

    name: str
    chosen: Mapping[str, Number]
    """Recipe key -> the value with the lowest loss, with which it was compared."""
    val_loss: Known = None
    """That loss, a mean over the seeds of the sweep."""
    is_at_limit: bool
    """True if one of them is at an end of its grid, so that a better one may be beyond."""

    @property
    def in_words(self) -> str:
        return ", ".join(f"{key} {value:.7g}" for key, value in self.chosen.items())


class Tuning(Record):
    """The choice of each variant's values before a comparison."""

    sweep: str | None = None
    """Folder of the sweep; None in a record of a version that tuned in the comparison."""
    identity: str | None = None
    """Checksum of the points of the sweep."""
    steps: float
    """Share of the steps of a reported run."""
    seeds: Sequence[int]
    variants: Sequence[TunedVariant] = pydantic.Field(min_length=1)


class Outcome(StoredRecord):
    """The results of an experiment: of a comparison when all runs have finished, of a sweep as points finish."""

    file_name: ClassVar[str] = "outcome.json"

    title: str
    command: str
    created: str
    confidence: float = pydantic.Field(gt=0, lt=1)
    seeds: Sequence[int]
    matched: str | None = None
    """Quantity in which compared points match."""
    baseline: str | None = None
    """The point with which all others are compared."""
    baseline_group: str | None = None
    """The group with whose point of the same values, the same size, the others are compared."""
    environment: Mapping[str, Any]
    validations: Validations | None = None
    """Validations of the finished points; None without any."""
    axes: Mapping[str, Mapping[str, list[Any] | SearchedRange]] = pydantic.Field(default_factory=dict)
    """Group -> recipe key -> its values in order, or the range of a search; empty for points given by name."""
    points: Sequence[Annotated[Variant | OpenPoint, pydantic.Field(discriminator="state")]]
    study: Study | None = None
    """Where the points of a sweep come from."""
    judged: Sequence[Judged] = ()
    """The best point of a sweep as the best of many, and the mean of each group of a grid."""
    tuning: Tuning | None = None
    """Choice of the values of each variant before the comparison."""
    family: Family | None = None
    columns: Sequence[str] | None = None
    """Names of the quantities that the main table shows, in order; None: the usual ones."""

    @pydantic.model_validator(mode="after")
    def _names_agree(self) -> Self:
        names = [point.name for point in self.points]
        if len(set(names)) < len(names):
            raise ValueError("points: two have the same name")
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline: got {self.baseline!r}, which is none of the points {', '.join(names)}")
        return self

    @property
    def kind(self) -> Literal["comparison", "sweep", "ladder", "family"]:
        if self.family is not None:
            return "family"
        if not self.axes:
            return "comparison"
        return "sweep" if self.baseline_group is None else "ladder"

    @property
    def is_open(self) -> bool:
        """True if points of a sweep have neither finished nor failed."""
        return self.study is not None and self.study.n_open > 0

    @property
    def variants(self) -> Sequence[Variant]:
        """Finished points; those of axes by loss, the lowest first and those without a loss last."""
        found = [point for point in self.points if isinstance(point, Variant)]
        return sorted(found, key=lambda each: (each.val_loss.mean is None, each.val_loss.mean)) if self.axes else found

    @property
    def open_points(self) -> list[OpenPoint]:
        return [point for point in self.points if isinstance(point, OpenPoint)]

    @property
    def baseline_variant(self) -> Variant | None:
        """The baseline of all, if it has finished with a loss."""
        return next((each for each in self.variants if each.name == self.baseline and each.has_loss), None)

    @property
    def baseline_words(self) -> str | None:
        """Text on the baseline; None if there is none, or none with a loss."""
        if self.family is not None:
            return self.baseline_group and "the same model trained alone"
        if self.baseline_group is not None:
            return f"{self.baseline_group} of the same size"
        return self.baseline_variant and self.baseline

    def baseline_of(self, variant: Variant) -> Variant | None:
        """Return the finished baseline of a point, if it has a loss: itself, if others are compared with it."""
        if self.baseline_group is None:
            return self.baseline_variant
        place = self.baseline_group, variant.values
        return next((each for each in self.variants if (each.group, each.values) == place and each.has_loss), None)

    @property
    def compared(self) -> list[tuple[Variant, Variant]]:
        """Finished points that have a baseline, each with it; no baselines."""
        pairs = ((each, self.baseline_of(each)) for each in self.variants)
        return [(each, other) for each, other in pairs if other is not None and other.name != each.name]

    @property
    def groups(self) -> list[str]:
        """Groups in the order of the points; "" is for points without one. The baseline alone makes no group."""
        return list(dict.fromkeys(point.group for point in self.points if point.name != self.baseline))

    def of_group(self, group: str) -> list[Variant | OpenPoint]:
        """Return the points of a group. The baseline belongs to one only if it has values."""
        own = [point for point in self.points if point.group == group]
        return [point for point in own if point.values or point.name != self.baseline]
