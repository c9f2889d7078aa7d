"""The table of quantities that tables, figures, CSV, trends and fits show of a model, a run or a variant.

A new quantity is one entry of QUANTITIES; everything else reads it there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from widthwise.records.comparison import Variant
from widthwise.records.cost import PARTS, CostSummary, sum_of
from widthwise.records.estimate import Estimate
from widthwise.records.record import Number, finite
from widthwise.records.run import RunResult


@dataclass(frozen=True)
class Quantity(ABC):
    """A number that every model or every run has."""

    name: str
    """Its name in recipes, on the command line, among ratios and, unless `column` is given, in CSV."""
    title: str
    """Its title in tables and figures, with its unit."""
    read: Callable[[Any], Number | None] = field(repr=False)
    """Takes the number from a record; None if the record lacks it."""
    n_decimals: int | None = None
    """Decimals shown; None: three significant digits with a decimal prefix."""
    note: str = ""
    """Its definition, for the footnotes of the main table; formatted with `confidence` and `baseline`."""
    short: str = ""
    """Its title on a terminal. In the main table of a comparison quantities without one are left out there, for lack of
    room.
    """
    column: str = ""
    """Its column in CSV, if that is not `name`."""
    is_main: bool = False
    """Whether the main table of a comparison shows it."""
    is_loss: bool = False
    """Whether it measures the quality of a model, so that laws can be fitted to it."""
    has_ratio: bool = False
    """Whether comparisons give its ratio to the baseline's."""
    is_cost: bool = False
    """Whether tables of costs show it, if it was measured in training; counted quantities need no mark."""
    is_speed: bool = False
    """Whether other processes on the machine change it."""
    is_signed: bool = False
    """Whether it is a difference, shown with its sign."""

    @property
    def csv_column(self) -> str:
        return self.column or self.name

    @property
    def brief_title(self) -> str:
        """The title for tables on a terminal."""
        return self.short or self.title

    @property
    def bare_title(self) -> str:
        """The title without a unit, for ratios."""
        return self.title.replace(" per token", "")

    def over_seeds(self, results: Sequence[RunResult]) -> list[float]:
        """One value per seed; NaN for a run that lacks it."""
        return [finite(self.of_run(result)) for result in results]

    @abstractmethod
    def of_run(self, result: RunResult) -> Number | None:
        """Its value for a run; None if the run lacks it."""

    @abstractmethod
    def of_variant(self, variant: Variant) -> Estimate | None:
        """Its mean for a variant; None if the variant lacks it; without an interval if it is the same for all seeds."""

    def value(self, subject: Variant | RunResult) -> float | None:
        """The value for a run, or the mean over the seeds of a variant."""
        if isinstance(subject, RunResult):
            return self.of_run(subject)
        estimate = self.of_variant(subject)
        return None if estimate is None else estimate.mean

    def ratio(self, variant: Variant, baseline: Variant) -> float | None:
        """Ratio to the baseline's value: as the comparison recorded it, otherwise that of the means.

        None if one is missing, and for speeds if other processes used the machine meanwhile.
        """
        if self.is_speed and (variant.shares_machine or baseline.shares_machine):
            return None
        if self.name in variant.ratio:
            return variant.ratio[self.name]
        own, other = finite(self.value(variant)), finite(self.value(baseline))
        return own / other if other and own == own and other == other else None


class OfModel(Quantity):
    """A quantity counted from the config of the last model: `read` takes a CostSummary."""

    def of_cost(self, cost: CostSummary) -> Number:
        """Its value for a model whose costs were just counted, so that none is missing."""
        value = self.read(cost)
        assert value is not None
        return value

    def of_run(self, result: RunResult) -> Number | None:
        return self.read(result.cost)

    def of_variant(self, variant: Variant) -> Estimate | None:
        value = self.read(variant.cost)
        return None if value is None else Estimate(mean=value)


class OfRun(Quantity):
    """A quantity measured in training: `read` takes a RunResult."""

    def of_run(self, result: RunResult) -> Number | None:
        return self.read(result)

    def of_variant(self, variant: Variant) -> Estimate | None:
        return variant.measured.get(self.name) or getattr(variant, self.name, None)


class OfPair(Quantity):
    """A quantity that compares a variant with the baseline: `read` takes a Variant."""

    def of_run(self, result: RunResult) -> Number | None:
        return None

    def of_variant(self, variant: Variant) -> Estimate | None:
        return self.read(variant)  # pyright: ignore


def _params(part: str) -> Callable[[CostSummary], Number | None]:
    return lambda cost: cost.params.get(part)


def _flops(part: str) -> Callable[[CostSummary], Number | None]:
    return lambda cost: cost.flops_by_part.get(part)


def _training_flops(run: RunResult) -> Number | None:
    """Files of older versions have it in PFLOP/s-days alone."""
    if run.training_flops is None and run.pflops_days is not None:
        return run.pflops_days * 8.64e19
    return run.training_flops


QUANTITIES: Sequence[Quantity] = (
    OfRun("steps", "steps", lambda run: run.steps, 0),
    OfRun("tokens", "tokens", lambda run: run.tokens),
    OfRun("train_loss", "training loss", lambda run: run.train_loss, 4, is_loss=True),
    OfRun(
        "val_loss",
        "held-out loss",
        lambda run: run.val_loss,
        4,
        "Mean over seeds of the cross-entropy per token on held-out text, in nats; below it the {confidence} interval "
        "of that mean over seeds (Student's t). Lower is better.",
        "loss",
        is_main=True,
        is_loss=True,
    ),
    OfPair(
        "difference",
        "difference",
        lambda variant: variant.difference,
        4,
        "Held-out loss minus that of {baseline}, paired by seed and by held-out text, and its {confidence} interval "
        "(Student's t times a bootstrap standard error over seeds and held-out windows together). Negative is better.",
        "diff",
        is_main=True,
        is_signed=True,
    ),
    OfRun("val_perplexity", "perplexity", lambda run: run.val_perplexity, 2),
    OfRun(
        "val_bits_per_byte",
        "bits per byte",
        lambda run: run.val_bits_per_byte,
        4,
        "Held-out loss divided by ln 2 and by the bytes per token: comparable between tokenizers.",
        "bits/B",
        is_main=True,
        is_loss=True,
        has_ratio=True,
    ),
    OfModel(
        "params",
        "parameters",
        _params("total"),
        None,
        "All parameters, embedding and head included.",
        "params",
        is_main=True,
        has_ratio=True,
    ),
    *(OfModel(f"params_{part}", f"parameters, {part}", _params(part)) for part in PARTS),
    OfModel(
        "layer_params",
        "parameters, layers without norms",
        lambda cost: sum_of(cost.params, ("attention", "ffn", "residual")),
        short="layer params",
        has_ratio=True,
    ),
    OfModel("active_params", "parameters, active", _params("active"), column="params_active", has_ratio=True),
    OfModel(
        "flops",
        "FLOPs per token, forward",
        lambda cost: cost.flops_per_token.forward,
        None,
        "Forward pass at the recipe's sequence length with full attention (every token attends to all positions), as "
        "papers count it. Causal counting, which needs half of that part, is in the cost table.",
        "FLOPs",
        "flops_per_token_forward",
        is_main=True,
        has_ratio=True,
    ),
    *(
        OfModel(f"flops_{part}", f"FLOPs per token, forward, {part}", _flops(part))
        for part in PARTS
        if part != "mtp"  # forward FLOPs leave it out
    ),
    OfModel(
        "flops_causal",
        "FLOPs per token, forward, causal",
        lambda cost: cost.flops_per_token.forward_causal,
        column="flops_per_token_forward_causal",
        has_ratio=True,
    ),
    OfModel(
        "flops_training",
        "FLOPs per token, training",
        lambda cost: cost.flops_per_token.training,
        column="flops_per_token_training",
    ),
    OfModel(
        "flops_training_mtp",
        "FLOPs per token, training, mtp",
        lambda cost: cost.flops_per_token.training_mtp,
        column="flops_per_token_training_mtp",
    ),
    OfModel("d_model", "d_model", lambda cost: cost.d_model, 0),
    OfModel(
        "average_width",
        "average width",
        lambda cost: cost.average_width,
        1,
        "Mean over layers of the width of the layer.",
        "width",
        is_main=True,
        has_ratio=True,
    ),
    OfModel("stream_width", "width of the stream", lambda cost: cost.stream_width, 0),
    OfModel("virtual_width", "virtual width, times d_model", lambda cost: cost.virtual_width, 2),
    OfModel(
        "kv_bytes",
        "KV bytes per token (bf16)",
        lambda cost: cost.kv_bytes_per_token,
        None,
        "Key and value cache of one token over all layers, in bf16.",
        "KV B",
        "kv_bytes_per_token",
        is_main=True,
        has_ratio=True,
    ),
    OfModel(
        "activation_bytes",
        "activation bytes per token (bf16)",
        lambda cost: cost.activation_bytes_per_token,
        short="act. B",
        column="activation_bytes_per_token",
        has_ratio=True,
    ),
    OfRun(
        "tokens_per_second",
        "tokens per second",
        lambda run: run.tokens_per_second,
        None,
        "Training throughput on the machine named under Environment, mean over seeds. An asterisk: other processes "
        "used the machine meanwhile, so that it is not comparable.",
        "tok/s",
        is_main=True,
        has_ratio=True,
        is_speed=True,
    ),
    OfRun("wall_seconds", "seconds", lambda run: run.wall_seconds, 1),
    OfRun("training_flops", "training FLOPs", _training_flops, has_ratio=True, is_cost=True),
    OfRun(
        "pflops_days",
        "PFLOP/s-days",
        lambda run: run.pflops_days,
        note="Training compute of all steps, in 8.64e19 FLOPs: a PFLOP per second for a day. Mean over seeds.",
        is_main=True,
        is_cost=True,
    ),
    OfRun(
        "peak_memory_bytes",
        "peak memory in bytes",
        lambda run: run.peak_memory_bytes,
        note="Most memory held in training: by tensors on a GPU, otherwise by the whole process. Mean over seeds.",
        is_main=True,
        is_cost=True,
    ),
)

QUANTITY = {quantity.name: quantity for quantity in QUANTITIES}
OF_MODELS = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, OfModel)}
OF_RUNS = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, OfRun)}
TITLES = {quantity.name: quantity.title for quantity in QUANTITIES}
