"""`family.json`: several sizes grown from one run, or from one for each seed, and what each would have been alone."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import pydantic

from widthwise.records.comparison import Variant
from widthwise.records.estimate import CONFIDENCE, Estimate, Validations, Verdict
from widthwise.records.record import Known, Number, Record, StoredRecord

Alone = Literal["tokens", "flops"]
"""What a model trained alone has as much of as the one that was grown."""


class FamilyMember(Record):
    """A model that was grown and trained on."""

    name: str
    """That of its recipe."""
    seed: int | None = None
    """That of the run it was grown from; None in files of older versions."""
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
    """What a run of the same model would take from scratch over as many tokens."""
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
    """The grown models and, where there are controls, behind them these, with which they are compared: all that is
    known of both. Files of older versions have none."""


class Family(StoredRecord):
    """What a family cost and reached."""

    file_name: ClassVar[str] = "family.json"

    confidence: float = pydantic.Field(default=CONFIDENCE, gt=0, lt=1)
    source: str
    sources: Sequence[str] = ()
    """All runs it was grown from, one for each seed."""
    alone: Alone | None = None
    """What the controls have as much of; None without controls."""
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
    """How each size compares with the model trained alone, in words, one per line; nothing without controls."""
    validations: Validations | None = None
    """None without controls, and in files of older versions."""
    columns: Sequence[str] | None = None
    """Names of the quantities that the main table shows, in order; None: the usual ones."""

    @property
    def title(self) -> str:
        return f"family of {self.source}"

    @property
    def seeds(self) -> Sequence[int]:
        """Those of the runs it was grown from."""
        return list(dict.fromkeys(member.seed for member in self.members if member.seed is not None))

    @property
    def variants(self) -> Sequence[Variant]:
        """The models of all sizes, grown and alone; none in files of older versions."""
        return [variant for size in self.sizes for variant in size.variants]

    @property
    def baseline_words(self) -> str | None:
        return None if self.alone is None else "the same model trained alone"

    def baseline_of(self, variant: Variant) -> Variant | None:
        """The controls of its size; None without controls."""
        if self.alone is None:
            return None
        return next(size.variants[-1] for size in self.sizes if variant.name in [each.name for each in size.variants])
