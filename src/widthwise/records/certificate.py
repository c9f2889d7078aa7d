"""`certificate.json`: what was measured of a grown model before anybody trusts it."""

from collections.abc import Mapping
from typing import ClassVar

import pydantic

from widthwise.records.record import Record, StoredRecord


class LivenessCounts(Record):
    """Of the new entries of one tensor: how many have had a gradient by the end of two steps of AdamW."""

    n_new: int
    n_alive: int
    n_dead: int
    n_unjudged: int
    """Rows of tokens and positions that did not occur."""


class ModelSize(Record):
    """What a model costs."""

    params: int
    flops_per_token: float
    """Forward, without further heads."""


class Certificate(StoredRecord):
    """What was measured. Differences are the largest of all entries."""

    file_name: ClassVar[str] = "certificate.json"

    dtype: str
    """In which the models were compared: float64, or float32 where two float64 models would not fit into memory."""
    n_sequences: int
    n_tokens: int
    """Of each sequence."""
    largest_logit: float
    logit_difference: float
    logit_bound: float
    stored_logit_difference: float
    """With the grown weights as they are stored, which rounds what was multiplied or averaged."""
    stored_logit_bound: float
    gradient_difference: float
    """Of old parameters, over the largest entry of all gradients."""
    gradient_bound: float
    liveness: Mapping[str, LivenessCounts]
    """Of every tensor with new entries."""
    is_padding: bool
    """Whether new entries were meant to stay 0."""
    seq_len: int | None = None
    """At which FLOPs are counted."""
    before: ModelSize
    after: ModelSize

    @pydantic.computed_field
    @property
    def is_preserved(self) -> bool:
        """Whether the grown model computes what the old one did, and learns in its old parameters as it did."""
        return (
            self.logit_difference <= self.logit_bound
            and self.stored_logit_difference <= self.stored_logit_bound
            and self.gradient_difference <= self.gradient_bound
        )

    @property
    def dead(self) -> dict[str, int]:
        """Tensor -> new entries without any gradient, where there are some."""
        return {name: each.n_dead for name, each in self.liveness.items() if each.n_dead}

    def total(self, count: str) -> int:
        """Sum of one count of `LivenessCounts` over all tensors."""
        return sum(getattr(each, count) for each in self.liveness.values())

    def lines(self) -> list[str]:
        """For a person."""
        tokens = f"{self.n_sequences} x {self.n_tokens} random tokens, {self.dtype}"
        if self.dtype != "float64":
            tokens += " because float64 would not fit into memory"
        found = [
            f"function {'preserved' if self.is_preserved else 'CHANGED'} ({tokens})",
            f"  largest difference of logits {self.logit_difference:.1e}, largest logit {self.largest_logit:.3g} "
            f"(bound {self.logit_bound:.0e})",
            f"  largest difference of old gradients {self.gradient_difference:.1e} of the largest gradient "
            f"(bound {self.gradient_bound:.0e})",
        ]
        if self.stored_logit_difference > self.logit_bound:
            found.append(
                f"  as stored in fp32: largest difference of logits {self.stored_logit_difference:.1e} "
                f"(bound {self.stored_logit_bound:.0e})"
            )
        before, after = self.before, self.after
        return [
            *found,
            *self._new_entries(),
            f"parameters {before.params:,} -> {after.params:,} ({after.params / before.params:.3f}), forward FLOPs per "
            f"token {before.flops_per_token:,.0f} -> {after.flops_per_token:,.0f} "
            f"({after.flops_per_token / before.flops_per_token:.3f})",
        ]

    def _new_entries(self) -> list[str]:
        n_new, n_unjudged = self.total("n_new"), self.total("n_unjudged")
        if not n_new:
            return ["no new entries"]
        if self.is_padding:
            return [f"{n_new:,} new entries, all 0: padding, of which {self.total('n_alive'):,} would learn"]
        unjudged = f", {n_unjudged:,} of tokens and positions not seen" if n_unjudged else ""
        lines = [f"{n_new:,} new entries: {self.total('n_alive'):,} learn, {self.total('n_dead'):,} do not{unjudged}"]
        return lines + [
            f"  {name}: {n:,} of {self.liveness[name].n_new:,} had no gradient" for name, n in self.dead.items()
        ]
