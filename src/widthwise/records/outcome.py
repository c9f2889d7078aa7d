"""`outcome.json`: the record of an experiment, with the result of each point or its state, and all differences."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic

from widthwise.files import PathInside
from widthwise.records.cost import CostSummary
from widthwise.records.estimate import EqualLoss, Estimate, OverTokens, Validations, Verdict
from widthwise.records.record import FiniteOrNone, Number, Record, ReportRecord


class ValidationScore(Record):
    """A score on a further text or task of the recipes, over all seeds."""

    value: Estimate
    difference: Estimate | None = None
    """Value minus the baseline's; None for the baseline."""


class Variant(Record):
    """A point with a result: one recipe over all seeds."""

    name: str
    state: Literal["finished"] = "finished"
    group: str = ""
    values: Mapping[str, Any] = pydantic.Field(default_factory=dict)
    """Recipe key -> value, if the point is on axes."""
    runs: Sequence[PathInside] = pydantic.Field(min_length=1)
    """Run directories, one per seed, relative to the folder of the file."""
    val_loss: Estimate
    train_loss: Estimate | None = None
    val_bits_per_byte: Estimate | None = None
    tokens_per_second: Estimate | None = None
    shares_machine: bool = False
    """True if other processes used the machine during a run, so that `tokens_per_second` is not comparable."""
    doubts: Sequence[str] = ()
    """Reasons to doubt the last loss of a run, each with its seed."""
    difference: Estimate | None = None
    """Held-out loss minus the baseline's, paired by seed; None for the baseline."""
    differences: Mapping[str, Estimate] = pydantic.Field(default_factory=dict)
    """Name of a further loss -> that loss minus the baseline's; paired like `difference` if the loss is held-out,
    otherwise by seed only."""
    differs_in: Mapping[str, Sequence[Any]] = pydantic.Field(default_factory=dict)
    """Recipe key of optimizer, schedule, train or data -> its value and the baseline's, if they differ. Seeds are
    omitted."""
    at_equal_loss: Mapping[str, EqualLoss] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> tokens and FLOPs to equal loss; empty with too few validations."""
    gap: Mapping[str, OverTokens] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> that loss minus the baseline's, over training."""
    tokens_ratio: Mapping[str, OverTokens] = pydantic.Field(default_factory=dict)
    """Name of a held-out loss -> tokens divided by the baseline's tokens, at the loss of each validation of the
    baseline that every seed of the variant reaches."""
    verdict: Verdict | None = None
    """Verdict on `difference`; None without a baseline. For a point of a sweep, the interval is widened for the number
    of points."""
    cost: CostSummary
    ratio: Mapping[str, FiniteOrNone]
    """Quantity -> value divided by the baseline's."""
    validated: Mapping[str, ValidationScore] = pydantic.Field(default_factory=dict)
    """TEXT.loss, TASK.acc and so on -> score, for the further texts and tasks of the recipes."""
    measured: Mapping[str, Estimate] = pydantic.Field(default_factory=dict)
    """Name -> estimate, for quantities of runs without a field of this class."""

    @property
    def has_loss(self) -> bool:
        return self.val_loss.mean is not None


class UnfinishedPoint(Record):
    """A point without a result."""

    name: str
    state: Literal["failed", "running", "waiting"]
    group: str = ""
    values: Mapping[str, Any] = pydantic.Field(default_factory=dict)
    reason: str | None = None


class SearchedRange(Record):
    """The range of a search for the values of one recipe key."""

    low: Number
    high: Number
    log: bool = False
    step: int | None = None
    """Distance between the values, if they are whole numbers."""


class Judgement(Record):
    """The verdict on the best point of a sweep, or on the mean over a group of a grid."""

    name: str
    """The best point, or the group whose points are averaged."""
    beside: str
    """The point or group with which it is compared: the baseline, or without one the next best point."""
    n_points: int
    """Number of points compared or averaged."""
    difference: Estimate
    confidence: float = pydantic.Field(gt=0, lt=1)
    """Confidence level of the interval. One judgement of the best point has Bonferroni's correction for n_points."""
    verdict: Verdict


class Study(Record):
    """The study with the points of a sweep, and its progress."""

    storage: str
    sampler: str
    n_points: int
    n_finished: int
    n_failed: int
    n_repeated: int = 0
    """Repetitions of points by a search; each point counts once."""

    @property
    def n_open(self) -> int:
        """Number of points that have neither finished nor failed."""
        return self.n_points - self.n_finished - self.n_failed - self.n_repeated


class TunedVariant(Record):
    """The values of one variant that a comparison read from a sweep."""

    name: str
    chosen: Mapping[str, Number]
    """Recipe key -> the value with the lowest loss, used in the comparison."""
    val_loss: FiniteOrNone = None
    """The lowest loss, a mean over the seeds of the sweep."""
    is_at_limit: bool
    """True if a value is at an end of its grid, so that a better value may be outside."""


class Tuning(Record):
    """The choice of the values of each variant before a comparison."""

    sweep: str
    """Folder of the sweep."""
    identity: str
    """Checksum of the points of the sweep."""
    steps: float
    """Steps of a run of the sweep, as a share of the steps of a compared run."""
    seeds: Sequence[int]
    variants: Sequence[TunedVariant] = pydantic.Field(min_length=1)


class Outcome(ReportRecord):
    """The results of an experiment. A comparison is written after its last run, a sweep after each point."""

    file_name: ClassVar[str] = "outcome.json"

    confidence: float = pydantic.Field(gt=0, lt=1)
    seeds: Sequence[int]
    matched: str | None = None
    """Quantity that is equal for compared points."""
    baseline: str | None = None
    """The point with which all other points are compared."""
    baseline_group: str | None = None
    """The group that is the baseline: points of other groups are compared with its point of the same values."""
    environment: Mapping[str, Any]
    validations: Validations | None = None
    """Validations of the finished points; None without finished points."""
    axes: Mapping[str, Mapping[str, list[Any] | SearchedRange]] = pydantic.Field(default_factory=dict)
    """Group -> recipe key -> its values in order, or the range of a search; empty for named points."""
    points: Sequence[Annotated[Variant | UnfinishedPoint, pydantic.Field(discriminator="state")]]
    study: Study | None = None
    """The study of a sweep; None for other experiments."""
    judged: Sequence[Judgement] = ()
    """The best point of a sweep, corrected for the number of points, and the mean of each group of a grid."""
    tuning: Tuning | None = None
    """The choice of the values of each variant; None without tuning."""
    columns: Sequence[str] | None = None
    """Names of the quantities in the main table, in order; None: the default quantities."""

    @pydantic.model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [point.name for point in self.points]
        if len(set(names)) < len(names):
            raise ValueError("points: two have the same name")
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline: got {self.baseline!r}; points are {', '.join(names)}")
        return self

    @property
    def kind(self) -> Literal["comparison", "sweep", "ladder"]:
        if not self.axes:
            return "comparison"
        return "sweep" if self.baseline_group is None else "ladder"

    @property
    def is_open(self) -> bool:
        """True if a sweep has points that have neither finished nor failed."""
        return self.study is not None and self.study.n_open > 0

    @property
    def variants(self) -> Sequence[Variant]:
        """Finished points. Points on axes are sorted by loss, the lowest first and points without a loss last."""
        finished = [point for point in self.points if isinstance(point, Variant)]
        if self.axes:
            finished.sort(key=lambda point: (point.val_loss.mean is None, point.val_loss.mean))
        return finished

    @property
    def unfinished_points(self) -> list[UnfinishedPoint]:
        return [point for point in self.points if isinstance(point, UnfinishedPoint)]

    @property
    def baseline_variant(self) -> Variant | None:
        """The baseline of all points; None if it is missing or has no loss."""
        return next((point for point in self.variants if point.name == self.baseline and point.has_loss), None)

    @property
    def baseline_words(self) -> str | None:
        """The baseline as text; None if it is missing or has no loss."""
        if self.baseline_group is not None:
            return f"{self.baseline_group} of the same size"
        return None if self.baseline_variant is None else self.baseline

    def baseline_of(self, variant: Variant) -> Variant | None:
        """Return the baseline of a point; None if it has no loss. The baseline of a baseline is the point itself."""
        if self.baseline_group is None:
            return self.baseline_variant
        points = [point for point in self.of_group(self.baseline_group) if point.values == variant.values]
        return next((point for point in points if isinstance(point, Variant) and point.has_loss), None)

    @property
    def compared(self) -> list[tuple[Variant, Variant]]:
        """Pairs of a finished point and its baseline. Baselines themselves are skipped."""
        pairs = ((point, self.baseline_of(point)) for point in self.variants)
        return [(point, base) for point, base in pairs if base is not None and base.name != point.name]

    @property
    def groups(self) -> list[str]:
        """Groups in the order of the points; "" for points without one. A group of the baseline alone is omitted."""
        return list(dict.fromkeys(point.group for point in self.points if point.name != self.baseline))

    def of_group(self, group: str) -> list[Variant | UnfinishedPoint]:
        """Return the points of a group. A baseline without values belongs to no group."""
        points = [point for point in self.points if point.group == group]
        return [point for point in points if point.values or point.name != self.baseline]
