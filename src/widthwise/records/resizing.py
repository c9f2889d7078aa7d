"""Records of resized models: `certificate.json` of a growth, and `shrunk.json` of a cut."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pydantic

from widthwise.records.record import Record, StoredRecord

SHRUNK = "shrunk"
"""Stem of two files: the record, and a recipe with the shape after the cut."""


class LivenessCounts(Record):
    """Counts of the new entries of one tensor after two steps of AdamW. Alive entries received a gradient."""

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
    """The comparison of an old and a grown model on random tokens. Differences are maxima over all entries."""

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
    """`logit_difference` after the grown weights were rounded to fp32, as they are stored."""
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


class Curve(Record):
    """A `shape` section of a recipe: for each layer, its sizes relative to the uniform model.

    widths: width of a layer divided by the uniform model's. attention, hidden: likewise, and then divided by `widths`;
    None if they scale with the width of the layer.
    """

    kind: Literal["curve"] = "curve"
    widths: Sequence[float]
    attention: Sequence[float] | None = None
    hidden: Sequence[float] | None = None

    def section(self, match: str) -> dict[str, Any]:
        """Return `model.shape` of a recipe. match: quantity equal to the uniform model's."""
        sizes = {"widths": self.widths, "attention": self.attention, "hidden": self.hidden}
        points = {size: [round(value, 4) for value in values] for size, values in sizes.items() if values}
        return {"kind": "curve", "match": match, "rounding": "balanced", **points}


class LayerCut(Record):
    """The cut of one layer. Sizes are [before, after]; after is 0 for a removed layer."""

    d_model: Sequence[int]
    n_kv_heads: Sequence[int]
    n_hidden: Sequence[int]
    """Hidden units; in a mixture, hidden units of each expert."""
    n_experts: Sequence[int] = (1, 1)
    """Routed experts of a mixture; 1 for other feed-forwards."""
    lost: float
    """Sum of first-order changes of the loss over everything that was cut, in nats."""
    energy_kept: Sequence[float]
    """[attention, feed-forward]: share of the input's squared norm in the remaining coordinates."""


class Shrinking(StoredRecord):
    """The cut of one run."""

    file_name: ClassVar[str] = f"{SHRUNK}.json"

    source: str
    """Name of the original run."""
    step: int
    """Step of its checkpoint."""
    request: Mapping[str, object]
    """Options, as in `ShrinkOptions`."""
    turned: bool
    """True if the stream was rotated; otherwise its coordinates were at most reordered."""
    not_turned: str | None
    """Reason why the stream was not rotated; None if it was."""
    loss_before: float
    """Held-out loss before the cut, in nats per token."""
    loss_after: float
    """Held-out loss after the cut, before any training."""
    agreement: float
    """Share of held-out tokens for which both models predict the same next token as most likely."""
    n_tokens: int
    """Number of held-out tokens."""
    before: ModelSize
    after: ModelSize
    kv_bytes: Sequence[pydantic.PositiveFloat]
    """KV bytes per token, before and after."""
    d_model: Sequence[int] = ()
    """Width of embedding and head, before and after."""
    layers: Sequence[LayerCut]
    shape: Curve | None = None
    """Sizes after the cut relative to a uniform original model; None if it is not uniform, or if no curve fits."""
