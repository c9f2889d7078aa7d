"""`certificate.json`: measured changes of the function of a model by growth."""

from collections.abc import Mapping
from typing import ClassVar

import pydantic

from widthwise.records.record import Record, StoredRecord


class LivenessCounts(Record):
    """Numbers of new entries of one tensor, by the gradients they received in two steps of AdamW."""

    n_new: int
    n_alive: int
    n_dead: int
    n_unjudged: int
    """Entries in rows of tokens or positions that did not occur."""


class ModelSize(Record):
    """Parameters and FLOPs of a model."""

    params: pydantic.PositiveInt
    flops_per_token: pydantic.PositiveFloat
    """Forward FLOPs, without multi-token prediction."""


class Certificate(StoredRecord):
    """Old and grown model compared on random tokens. Each difference is the largest over all entries."""

    file_name: ClassVar[str] = "certificate.json"

    dtype: str
    """Type in which the models were compared: float64, or float32 if two float64 models would not fit into memory."""
    n_sequences: int
    n_tokens: int
    """Length of each sequence."""
    largest_logit: float
    logit_difference: float
    logit_bound: float
    stored_logit_difference: float
    """`logit_difference` with the grown weights as stored, where multiplied or averaged entries are rounded."""
    stored_logit_bound: float
    gradient_difference: float
    """Difference of the gradients of old parameters, divided by the largest entry of all gradients."""
    gradient_bound: float
    liveness: Mapping[str, LivenessCounts]
    """Tensor -> counts, for every tensor with new entries."""
    seq_len: int | None = None
    """Sequence length for which FLOPs are counted."""
    before: ModelSize
    after: ModelSize

    @pydantic.computed_field
    @property
    def is_preserved(self) -> bool:
        """True if logits and gradients of old parameters differ by at most their bounds."""
        return (
            self.logit_difference <= self.logit_bound
            and self.stored_logit_difference <= self.stored_logit_bound
            and self.gradient_difference <= self.gradient_bound
        )

    @property
    def dead(self) -> dict[str, int]:
        """Tensor -> number of new entries without a gradient. Tensors without such entries are skipped."""
        return {name: counts.n_dead for name, counts in self.liveness.items() if counts.n_dead}

    def total(self, count: str) -> int:
        """Return the sum of one count of `LivenessCounts` over all tensors."""
        return sum(getattr(counts, count) for counts in self.liveness.values())

    def lines(self) -> list[str]:
        """Return the certificate as lines of text."""
        tokens = f"{self.n_sequences} x {self.n_tokens} random tokens, {self.dtype}"
        if self.dtype != "float64":
            tokens += " because float64 would not fit into memory"
        lines = [
            f"function {'preserved' if self.is_preserved else 'CHANGED'} ({tokens})",
            f"  largest difference of logits {self.logit_difference:.1e}, largest logit {self.largest_logit:.3g} "
            f"(bound {self.logit_bound:.0e})",
            f"  largest difference of old gradients {self.gradient_difference:.1e} of the largest gradient "
            f"(bound {self.gradient_bound:.0e})",
            f"  as stored in fp32: largest difference of logits {self.stored_logit_difference:.1e} "
            f"(bound {self.stored_logit_bound:.0e})",
        ]
        n_new, n_alive, n_unjudged = (self.total(count) for count in ("n_new", "n_alive", "n_unjudged"))
        if not n_new:
            lines.append("no new entries")
        else:
            unjudged = f", {n_unjudged:,} of tokens and positions not seen" if n_unjudged else ""
            lines.append(f"{n_new:,} new entries: {n_alive:,} learn, {self.total('n_dead'):,} do not{unjudged}")
            for name, n_dead in self.dead.items():
                lines.append(f"  {name}: {n_dead:,} of {self.liveness[name].n_new:,} had no gradient")
        params = self.after.params
        flops = self.after.flops_per_token
        return [
            *lines,
            f"parameters {self.before.params:,} -> {params:,} ({params / self.before.params:.3f}), forward FLOPs per "
            f"token {self.before.flops_per_token:,.0f} -> {flops:,.0f} ({flops / self.before.flops_per_token:.3f})",
        ]
